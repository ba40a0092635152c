#include "src/capture/traceback.h"

#include <atomic>

#include "src/base/hash.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

__thread const Traceback* current_traceback __attribute__((tls_model("initial-exec"))) = nullptr;

std::optional<TracebackFrame> TakeTracebackFrame(std::string_view* text) {
  const size_t end = text->find('\n');
  std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);

  // From the end of the line, because a file name may contain colons and parentheses.
  const size_t function = line.rfind(" (");
  if (function == std::string_view::npos || line.back() != ')') return std::nullopt;
  TracebackFrame frame = {};
  frame.function = line.substr(function + 2, line.size() - function - 3);
  line = line.substr(0, function);
  const size_t colon = line.rfind(':');
  constexpr size_t kMaxDigits = 9;
  if (colon == std::string_view::npos || colon == 0 || frame.function.empty()) return std::nullopt;
  const std::string_view digits = line.substr(colon + 1);
  if (digits.empty() || digits.size() > kMaxDigits) return std::nullopt;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    frame.line = frame.line * 10 + (digit - '0');
  }
  frame.file = line.substr(0, colon);
  return frame;
}

ScopedTraceback::ScopedTraceback(std::string_view text) : outer_(current_traceback) {
  if (text.empty()) return;
  traceback_ = {text.data(), text.size(), HashBytes(text.data(), text.size(), kHashSeed2) | 1};
  // A signal handler that records must not see an incomplete object.
  std::atomic_signal_fence(std::memory_order_release);
  current_traceback = &traceback_;
  thread_state.has_traceback = true;
}

ScopedTraceback::~ScopedTraceback() {
  current_traceback = outer_;
  thread_state.has_traceback = outer_ != nullptr;
}

}  // namespace hbmprof::internal
