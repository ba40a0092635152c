// Tracebacks: call stacks that a program passes to a wrapped call as text. JAX passes the Python functions that called
// an execution (JAX_SEND_TRACEBACK_TO_RUNTIME=FULL).
//
// The format is one frame per line, innermost first: "file:line (function)".
#ifndef HBMPROF_SRC_CAPTURE_TRACEBACK_H_
#define HBMPROF_SRC_CAPTURE_TRACEBACK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hbmprof::internal {

struct TracebackFrame {
  std::string_view function;
  std::string_view file;
  int32_t line;
};

// Removes the first line from `*text`. Returns its frame; nullopt if the line does not have the format. The result
// refers to the text.
std::optional<TracebackFrame> TakeTracebackFrame(std::string_view* text);

// Whether the first line of the text has the format.
inline bool IsTraceback(std::string_view text) { return TakeTracebackFrame(&text).has_value(); }

struct Traceback {
  const char* text = nullptr;
  size_t bytes = 0;
  uint64_t hash = 0;  // of the text; not 0
};

// The calling thread's traceback; null if it has none. Plain data in the static TLS block. If it is not null,
// thread_state.has_traceback is set.
extern __thread const Traceback* current_traceback __attribute__((tls_model("initial-exec")));

// While the object lives, allocations that this thread records have the frames of a traceback as the outermost frames
// of their stacks, unless the Python functions of the thread itself are known. Scopes nest: the inner scope hides the
// outer one. Scopes must end in the reverse order of their beginning, on the thread that began them. Does not allocate
// memory.
class ScopedTraceback {
 public:
  // `text` must stay valid as long as the object. If it is empty, the scope has no effect.
  explicit ScopedTraceback(std::string_view text);
  ~ScopedTraceback();
  ScopedTraceback(const ScopedTraceback&) = delete;
  ScopedTraceback& operator=(const ScopedTraceback&) = delete;

 private:
  Traceback traceback_;
  const Traceback* const outer_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_TRACEBACK_H_
