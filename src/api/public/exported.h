// The functions and classes that the shared library exports: those of the headers below. src/CMakeLists.txt lists the
// sources that define them; they are compiled with `-include` of this header. Everything else has hidden visibility.
// The static library is made of the same objects, and its CMake target hides all names.
//
// tests/abi/exports_test.py fails if a public header is missing here, or a source is missing in src/CMakeLists.txt.
#ifndef HBMPROF_SRC_API_PUBLIC_EXPORTED_H_
#define HBMPROF_SRC_API_PUBLIC_EXPORTED_H_

// Included first, so that their declarations keep their visibility.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hbmprof::internal {
class ProfilerImpl;  // profiler.h only names it
}

#pragma GCC visibility push(default)
#include "hbmprof/allocation.h"
#include "hbmprof/c_api.h"
#include "hbmprof/caller.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/http.h"
#include "hbmprof/options.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/pjrt.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/recording.h"
#include "hbmprof/snapshot.h"
#include "hbmprof/tag.h"
#include "hbmprof/version.h"
#pragma GCC visibility pop

#endif  // HBMPROF_SRC_API_PUBLIC_EXPORTED_H_
