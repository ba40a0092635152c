#include "hbmprof/options.h"

#include <stdlib.h>
#include <sys/auxv.h>

#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hbmprof {
namespace {

class Environment {
 public:
  explicit Environment(std::vector<std::string>* problems) : problems_(problems) {}

  // Unset and empty are the same: nothing asked for.
  static std::string_view Value(const char* name) {
    const char* value = secure_getenv(name);
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
  std::vector<std::string>* const problems_;
};

}  // namespace

Options OptionsFromEnvironment(std::vector<std::string>* problems) {
  Options options;
  Environment environment(problems);

  const std::string_view enabled = Environment::Value("HBMPROF");
  if (enabled == "0") {
    options.enabled = false;
  } else if (!enabled.empty() && enabled != "1") {
    environment.Complain("HBMPROF", enabled, "0 (off) or 1 (on)", "1");
  }
  options.output = std::string(Environment::Value("HBMPROF_OUTPUT"));
  const std::string_view open = Environment::Value("HBMPROF_OUTPUT_OPEN");
  if (open == "early") {
    options.output_early = true;
  } else if (!open.empty() && open != "exit") {
    environment.Complain("HBMPROF_OUTPUT_OPEN", open, "exit or early", "exit");
  }
  environment.ReadPermissions("HBMPROF_OUTPUT_MODE", &options.output_mode);
  if (getauxval(AT_SECURE) != 0) options.oom_output.clear();
  const std::string_view oom_output = Environment::Value("HBMPROF_OOM_OUTPUT");
  if (!oom_output.empty()) options.oom_output = oom_output == "off" ? "" : std::string(oom_output);
  environment.ReadNumber("HBMPROF_STACK_DEPTH", 1, 512, &options.max_stack_depth);
  environment.ReadNumber<int64_t>("HBMPROF_MAX_LIVE", 1, int64_t{1} << 32, &options.max_live_buffers);
  environment.ReadNumber<int64_t>("HBMPROF_MAX_HOST_BYTES", 1, int64_t{1} << 50, &options.max_host_bytes);
  const std::string_view python = Environment::Value("HBMPROF_PYTHON");
  if (python == "0") {
    options.python = false;
  } else if (!python.empty() && python != "1") {
    environment.Complain("HBMPROF_PYTHON", python, "0 (off) or 1 (on)", "1");
  }
  const std::string_view unwinder = Environment::Value("HBMPROF_UNWINDER");
  if (unwinder == "fp") {
    options.unwinder = Unwinder::kFramePointer;
  } else if (unwinder == "libunwind") {
    options.unwinder = Unwinder::kLibunwind;
  } else if (unwinder == "none") {
    options.unwinder = Unwinder::kNone;
  } else if (!unwinder.empty() && unwinder != "auto") {
    environment.Complain("HBMPROF_UNWINDER", unwinder, "auto, fp, libunwind or none", "auto");
  }
  return options;
}

}  // namespace hbmprof
