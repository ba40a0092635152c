// MakeRecording: writes a recording of a made load of any length, without a profiler.
#ifndef HBMPROF_TESTS_SUPPORT_MAKE_RECORDING_H_
#define HBMPROF_TESTS_SUPPORT_MAKE_RECORDING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace hbmprof_test {

// A server: model weights at the start, then requests. Each request allocates pages of its cache and temporary buffers,
// and frees them some time later. Times are in the middle of ten microseconds from event to event.
struct MadeLoad {
  int64_t events = 20000;  // about
  bool leak = false;       // one page of 40 is never freed; its site's function is llm::KvCache::LeakPage
  bool burst = false;  // after 70 % of the events: 200 large buffers, then an allocation that fails for lack of memory
  bool pool = false;   // pages are blocks of a segment of 4 GiB, which the function llm::Pool::Grow allocates
  uint32_t seed = 1;
};

// Writes the recording to `path`: tables, events in four buffers of threads, a sample of the driver every 1000 events,
// and a flush every 4096 events. Marks: "warm" after 10 % of the events and "end" at the end. Errors as
// RecordingWriter.
absl::Status MakeRecording(const std::string& path, const MadeLoad& load);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_MAKE_RECORDING_H_
