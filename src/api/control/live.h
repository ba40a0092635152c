// The requests that a running process answers: through its control channel (control_server.h) and through the routes of
// its own HTTP server (hbmprof/http.h). All functions act on Profiler::Default(). Thread-safe, except where stated
// otherwise.
#ifndef HBMPROF_SRC_API_CONTROL_LIVE_H_
#define HBMPROF_SRC_API_CONTROL_LIVE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "hbmprof/pprof.h"

namespace hbmprof::internal {

// Returns StatsJson (src/export/stats_json.h) of a new snapshot. `seconds`: since the control channel was started.
// Throws std::bad_alloc.
std::string LiveStats(int64_t seconds);

// Returns PrometheusText (src/export/metrics.h) of a new snapshot. `tags`: keys, as in "phase,model". Throws
// std::bad_alloc.
std::string LiveMetrics(std::string_view tags);

// Begins a new peak of every device.
void ResetPeaks();

// Answers the request "record", whose arguments are those of src/protocol/control.h. Errors: kInvalidArgument if they
// are others; those of StartRecording, StopRecording and SaveFlightRecording (hbmprof/recording.h). Throws
// std::bad_alloc.
absl::Status ControlRecording(std::string_view arguments);

// Sets a tag of the process, from "KEY=VALUE"; an empty VALUE removes it. Errors: kInvalidArgument if there is no "="
// or no KEY; kFailedPrecondition in a process that is off (fork.h). Throws std::bad_alloc.
absl::Status SetProcessTag(std::string_view tag);

// Turns tracking on or off. When it is turned on, all live records are removed, because the frees of their buffers may
// have been missed, and every device begins a new peak. Does nothing if it is on or off already. Only one thread may
// call it: that of the control channel.
void SetTracking(bool on);

// Reads "max_samples" and "max_bytes" into `options`. `value` is a decimal number. Errors: kInvalidArgument if `name`
// is another name, or if `value` is not a number.
absl::Status ReadPprofLimit(std::string_view name, std::string_view value, PprofOptions* options);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_CONTROL_LIVE_H_
