#include "hbmprof/options.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "src/api/public/default_profiler.h"
#include "src/base/option_text.h"
#include "src/capture/walk.h"
#include "src/core/profiler_impl.h"
#include "src/export/metrics.h"

namespace hbmprof {
namespace {

constexpr int kMaxDumpInterval = 86'400;
constexpr int kMaxDumpsKept = 100'000;
constexpr int64_t kMaxDumpBytesKept = int64_t{1} << 50;
constexpr double kMinInterval = 0.001;
constexpr double kMaxInterval = 1e8;
constexpr int64_t kMinRecordBytes = 1 << 20;
constexpr int64_t kMaxFlightEvents = int64_t{1} << 24;  // a reader keeps all of them in memory

// Signals that no other part of a program is likely to use.
bool IsDumpSignal(int number) {
  return number == SIGUSR1 || number == SIGUSR2 || (number >= SIGRTMIN && number <= SIGRTMAX);
}

bool IsInterval(double seconds) { return seconds >= kMinInterval && seconds <= kMaxInterval; }

class Environment {
 public:
  explicit Environment(std::vector<std::string>* problems) : problems_(problems) {}

  // Returns the value of the variable, or "" if it is not set.
  static std::string_view Value(const char* name) {
    const char* value = internal::OptionText(name);
    return value == nullptr ? std::string_view() : std::string_view(value);
  }

  template <typename Number>
  void ReadNumber(const char* name, Number low, Number high, Number* result) {
    const std::string_view value = Value(name);
    if (value.empty()) return;
    Number number;
    if (absl::SimpleAtoi(absl::string_view(value.data(), value.size()), &number) && number >= low && number <= high) {
      *result = number;
    } else {
      Complain(name, value, absl::StrCat("a number from ", low, " to ", high), absl::StrCat(*result));
    }
  }

  void ReadSwitch(const char* name, bool* result) {
    const std::string_view value = Value(name);
    if (value == "0" || value == "1") {
      *result = value == "1";
    } else if (!value.empty()) {
      Complain(name, value, "0 (off) or 1 (on)", *result ? "1" : "0");
    }
  }

  // `used`: the value that is used if that of the variable is bad, for the message.
  void ReadInterval(const char* name, const char* used, double* result) {
    const std::string_view value = Value(name);
    double seconds = 0;
    if (absl::SimpleAtod(absl::string_view(value.data(), value.size()), &seconds) && IsInterval(seconds)) {
      *result = seconds;
    } else if (!value.empty()) {
      Complain(name, value, absl::StrCat("a number of seconds from ", kMinInterval, " to ", kMaxInterval), used);
    }
  }

  void ReadSignal(const char* name, int* result) {
    const std::string_view value = Value(name);
    int number = 0;
    if (value == "USR1" || value == "USR2") {
      *result = value == "USR1" ? SIGUSR1 : SIGUSR2;
    } else if (absl::SimpleAtoi(absl::string_view(value.data(), value.size()), &number) && IsDumpSignal(number)) {
      *result = number;
    } else if (!value.empty()) {
      Complain(name, value, absl::StrCat("USR1, USR2 or a number from ", SIGRTMIN, " to ", SIGRTMAX), "no signal");
    }
  }

  void ReadPermissions(const char* name, unsigned* result) {
    const std::string_view value = Value(name);
    unsigned bits = 0;
    bool is_octal = value.size() <= 4;
    for (const char digit : value) {
      is_octal = is_octal && digit >= '0' && digit <= '7';
      bits = bits * 8 + static_cast<unsigned>(digit - '0');
    }
    if (value.empty()) return;
    if (is_octal && bits <= 0777) {
      *result = bits;
    } else {
      Complain(name, value, "an octal number up to 0777", "0600");
    }
  }

  void ReadTags(const char* name, std::vector<std::pair<std::string, std::string>>* result) {
    const std::string_view value = Value(name);
    std::vector<std::pair<std::string, std::string>> tags;
    for (std::string_view rest = value; !rest.empty();) {
      const std::string_view tag = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(tag.size() + 1, rest.size()));
      const size_t equals = tag.find('=');
      const size_t value_size = tag.size() - std::min(equals, tag.size());
      if (equals == 0 || equals == std::string_view::npos || equals > kMaxBytes || value_size > kMaxBytes + 1 ||
          tags.size() == kMaxTags) {
        return Complain(name, value,
                        "KEY=VALUE,KEY=VALUE,... of at most 64 tags with at most 128 bytes in a key or value",
                        "no tags");
      }
      tags.emplace_back(tag.substr(0, equals), tag.substr(equals + 1));
    }
    *result = std::move(tags);
  }

  void Complain(const char* name, std::string_view value, std::string_view allowed, std::string_view used) {
    std::string shown(value.substr(0, 200));
    for (char& byte : shown) {
      if (absl::ascii_iscntrl(static_cast<unsigned char>(byte))) byte = '?';
    }
    problems_->push_back(std::string("hbmprof: ")
                             .append(name)
                             .append("='")
                             .append(shown)
                             .append("' is not ")
                             .append(allowed)
                             .append("; using ")
                             .append(used));
  }

 private:
  // The limits of tag.h.
  static constexpr size_t kMaxTags = 64;
  static constexpr size_t kMaxBytes = 128;

  std::vector<std::string>* const problems_;
};

}  // namespace

DefaultOptions OptionsFromEnvironment(std::vector<std::string>* problems) {
  DefaultOptions options;
  Environment environment(problems);

  environment.ReadSwitch("HBMPROF", &options.enabled);
  options.output = std::string(Environment::Value("HBMPROF_OUTPUT"));
  const std::string_view open = Environment::Value("HBMPROF_OUTPUT_OPEN");
  if (open == "early") {
    options.output_early = true;
  } else if (!open.empty() && open != "exit") {
    environment.Complain("HBMPROF_OUTPUT_OPEN", open, "exit or early", "exit");
  }
  environment.ReadSwitch("HBMPROF_OUTPUT_ON_SIGNALS", &options.output_on_signals);
  internal::ReadOutputInterval("HBMPROF_OUTPUT_INTERVAL", problems, &options.output_interval);
  environment.ReadPermissions("HBMPROF_OUTPUT_MODE", &options.output_mode);
  options.record = std::string(Environment::Value("HBMPROF_RECORD"));
  environment.ReadNumber<int64_t>("HBMPROF_RECORD_MAX_BYTES", kMinRecordBytes, INT64_MAX, &options.record_max_bytes);
  environment.ReadNumber<int64_t>("HBMPROF_FLIGHT", 0, kMaxFlightEvents, &options.flight_events);
  environment.ReadInterval("HBMPROF_FLIGHT_SECONDS", "no limit", &options.flight_seconds);
  options.log = std::string(Environment::Value("HBMPROF_LOG"));
  environment.ReadSwitch("HBMPROF_OOM_REPORT", &options.oom_report);
  const std::string_view oom_output = Environment::Value("HBMPROF_OOM_OUTPUT");
  if (oom_output != "off") options.oom_output = std::string(oom_output);
  const std::string_view socket_dir = Environment::Value("HBMPROF_SOCKET_DIR");
  if (socket_dir != "off") options.socket_dir = std::string(socket_dir);
  options.metrics_tags = internal::MetricsTags(Environment::Value("HBMPROF_METRICS_TAGS"));
  options.dump_output = std::string(Environment::Value("HBMPROF_DUMP_OUTPUT"));
  environment.ReadNumber("HBMPROF_DUMP_IN_USE_PERCENT", 0, 100, &options.dump_in_use_percent);
  environment.ReadNumber<int64_t>("HBMPROF_DUMP_PEAK_GROWTH", 0, INT64_MAX, &options.dump_peak_growth);
  environment.ReadNumber("HBMPROF_DUMP_INTERVAL", 1, kMaxDumpInterval, &options.dump_interval);
  environment.ReadNumber("HBMPROF_DUMP_KEEP", 1, kMaxDumpsKept, &options.dump_keep);
  environment.ReadNumber<int64_t>("HBMPROF_DUMP_KEEP_BYTES", 1, kMaxDumpBytesKept, &options.dump_keep_bytes);
  environment.ReadSignal("HBMPROF_DUMP_SIGNAL", &options.dump_signal);
  environment.ReadNumber("HBMPROF_STACK_DEPTH", 1, internal::kMaxStackDepth, &options.max_stack_depth);
  environment.ReadNumber<int64_t>("HBMPROF_MAX_LIVE", 1, internal::kMaxLiveBuffersLimit, &options.max_live_buffers);
  environment.ReadNumber<int64_t>("HBMPROF_MAX_SITES", 1, int64_t{internal::SiteTable::kMaxSites}, &options.max_sites);
  environment.ReadNumber<int64_t>("HBMPROF_MAX_HOST_BYTES", 1, internal::kMaxHostBytesLimit, &options.max_host_bytes);
  environment.ReadTags("HBMPROF_TAGS", &options.tags);
  environment.ReadSwitch("HBMPROF_PYTHON", &options.python);
  const std::string_view unwinder = Environment::Value("HBMPROF_UNWINDER");
  if (unwinder == "fp") {
    options.unwinder = Unwinder::kFramePointer;
  } else if (unwinder == "none") {
    options.unwinder = Unwinder::kNone;
  } else if (!unwinder.empty() && unwinder != "auto") {
    environment.Complain("HBMPROF_UNWINDER", unwinder, "auto, fp or none", "auto");
  }
  return options;
}

void internal::ReadOutputInterval(const char* name, std::vector<std::string>* problems, double* seconds) {
  Environment(problems).ReadInterval(name, "no interval", seconds);
}

absl::Status internal::ValidateOptions(const DefaultOptions& options) {
  const struct {
    const char* field;
    int64_t value;
    int64_t least;
    int64_t most;
  } numbers[] = {{"max_stack_depth", options.max_stack_depth, 1, kMaxStackDepth},
                 {"max_live_buffers", options.max_live_buffers, 1, kMaxLiveBuffersLimit},
                 {"max_sites", options.max_sites, 1, int64_t{SiteTable::kMaxSites}},
                 {"max_host_bytes", options.max_host_bytes, 1, kMaxHostBytesLimit},
                 {"flight_events", options.flight_events, 0, kMaxFlightEvents},
                 {"dump_in_use_percent", options.dump_in_use_percent, 0, 100},
                 {"dump_peak_growth", options.dump_peak_growth, 0, INT64_MAX},
                 {"dump_interval", options.dump_interval, 1, kMaxDumpInterval},
                 {"dump_keep", options.dump_keep, 1, kMaxDumpsKept},
                 {"dump_keep_bytes", options.dump_keep_bytes, 1, kMaxDumpBytesKept}};
  for (const auto& [field, value, least, most] : numbers) {
    if (value >= least && value <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("hbmprof: the option ", field, " is ", value, ", not ", least, " to ", most));
  }
  if (options.record_max_bytes != 0 && options.record_max_bytes < kMinRecordBytes) {
    return absl::InvalidArgumentError(absl::StrCat("hbmprof: the option record_max_bytes is ", options.record_max_bytes,
                                                   ", not 0 or at least ", kMinRecordBytes));
  }
  if (options.dump_signal != 0 && !IsDumpSignal(options.dump_signal)) {
    return absl::InvalidArgumentError(absl::StrCat("hbmprof: the option dump_signal is ", options.dump_signal,
                                                   ", not SIGUSR1, SIGUSR2 or ", SIGRTMIN, " to ", SIGRTMAX));
  }
  for (const auto& [field, seconds] :
       {std::pair("output_interval", options.output_interval), std::pair("flight_seconds", options.flight_seconds)}) {
    if (seconds == 0 || IsInterval(seconds)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("hbmprof: the option ", field, " is ", seconds, ", not ", kMinInterval, " to ", kMaxInterval));
  }
  if (options.output_mode > 0777) {
    return absl::InvalidArgumentError(absl::StrCat("hbmprof: the option output_mode has bits beyond 0777 (octal): 0x",
                                                   absl::Hex(options.output_mode)));
  }
  if (options.unwinder != Unwinder::kAuto && options.unwinder != Unwinder::kFramePointer &&
      options.unwinder != Unwinder::kNone) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hbmprof: the option unwinder is ", static_cast<int>(options.unwinder), ", which is not a value of Unwinder"));
  }
  return absl::OkStatus();
}

}  // namespace hbmprof
