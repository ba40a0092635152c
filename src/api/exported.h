// What the shared library exports: the functions and classes that these headers declare. The sources that define them
// are listed in src/CMakeLists.txt and compiled with this header in front; everything else has hidden visibility. So
// the same objects make the shared library, which exports these names, and the static one, whose users hide them.
//
// tests/abi/exports_test.py fails if a public header, or a source that defines what one declares, is missing in its
// list.
#ifndef HBMPROF_SRC_API_EXPORTED_H_
#define HBMPROF_SRC_API_EXPORTED_H_

// What those headers include keeps its visibility.
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
#include "hbmprof/cuda_coverage.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/options.h"
#include "hbmprof/pjrt.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/simulated_device.h"
#include "hbmprof/snapshot.h"
#include "hbmprof/tag.h"
#include "hbmprof/version.h"
#pragma GCC visibility pop

#endif  // HBMPROF_SRC_API_EXPORTED_H_
