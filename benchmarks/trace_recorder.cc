// Writes an allocation trace (docs/trace.md) of the program it is linked into, to the file that HBMPROF_TRACE names.
//
// The linker redirects the calls of Profiler's recording functions to this file (--wrap, see CMakeLists.txt). So the
// program's own code is the same as without the trace. The profiler receives every event, too. The trace does not
// contain segments and blocks of pools, and no undo of a free that failed (RestoreRecord).
//
// Thread safety: events of several threads are written in the order in which they arrive here.

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "hbmprof/profiler.h"
#include "src/capture/capture.h"

namespace hbmprof::benchmarks {
namespace {

class TraceWriter {
 public:
  // Never destroyed, because the program may free buffers until the process ends.
  static TraceWriter& Instance() {
    static TraceWriter* const instance = new TraceWriter;
    return *instance;
  }

  void Alloc(const Caller& caller, BufferId id, size_t bytes) {
    uintptr_t buffer[internal::kMaxStackDepth];
    const internal::CapturedStack captured = capture_.Capture(caller, buffer, internal::kMaxStackDepth);
    const uintptr_t* pcs = captured.pcs;
    const int depth = captured.depth;
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_ == nullptr) return;
    const auto [stack, is_new] = stacks_.try_emplace({pcs, pcs + depth}, stacks_.size());
    if (is_new) {
      std::fputc('s', file_);
      for (int i = 0; i < depth; ++i)
        std::fprintf(file_, " %zu", frames_.try_emplace(pcs[i], frames_.size()).first->second);
      std::fputc('\n', file_);
    }
    std::fprintf(file_, "a %zu %zu %zu\n", NumberOf(id), bytes, stack->second);
  }

  void Free(BufferId id) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_ != nullptr) std::fprintf(file_, "f %zu\n", NumberOf(id));
  }

 private:
  TraceWriter() {
    const char* path = std::getenv("HBMPROF_TRACE");
    if (path == nullptr) return;
    file_ = std::fopen(path, "w");
    if (file_ == nullptr) {
      std::perror(path);
      return;
    }
    std::fputs("hbmprof-trace 1\n", file_);
  }
  size_t NumberOf(BufferId id) { return buffers_.try_emplace(id.value(), buffers_.size()).first->second; }

  const internal::StackCapture capture_{Unwinder::kAuto};
  std::mutex mutex_;
  std::FILE* file_ = nullptr;  // the C library flushes it at exit
  std::map<uint64_t, size_t> buffers_;
  std::map<uintptr_t, size_t> frames_;
  std::map<std::vector<uintptr_t>, size_t> stacks_;
};

#define HBMPROF_RECORD_ALLOC "_ZN7hbmprof8Profiler5AllocENS_8BufferIdEmRKNS_10AttributesE"
#define HBMPROF_RECORD_ALLOC_FROM "_ZN7hbmprof8Profiler9AllocFromERKNS_6CallerENS_8BufferIdEmRKNS_10AttributesE"
#define HBMPROF_RECORD_FREE "_ZN7hbmprof8Profiler4FreeENS_8BufferIdE"

}  // namespace

bool RealAllocFrom(Profiler*, const Caller&, BufferId, size_t,
                   const Attributes&) asm("__real_" HBMPROF_RECORD_ALLOC_FROM);
FreedRecord RealFree(Profiler*, BufferId) asm("__real_" HBMPROF_RECORD_FREE);

bool TracedAlloc(Profiler*, BufferId, size_t, const Attributes&) asm("__wrap_" HBMPROF_RECORD_ALLOC);
bool TracedAllocFrom(Profiler*, const Caller&, BufferId, size_t,
                     const Attributes&) asm("__wrap_" HBMPROF_RECORD_ALLOC_FROM);
FreedRecord TracedFree(Profiler*, BufferId) asm("__wrap_" HBMPROF_RECORD_FREE);

bool TracedAllocFrom(Profiler* profiler, const Caller& caller, BufferId id, size_t bytes,
                     const Attributes& attributes) {
  const bool recorded = RealAllocFrom(profiler, caller, id, bytes, attributes);
  if (recorded) TraceWriter::Instance().Alloc(caller, id, bytes);
  return recorded;
}

[[gnu::noinline]] bool TracedAlloc(Profiler* profiler, BufferId id, size_t bytes, const Attributes& attributes) {
  return TracedAllocFrom(profiler, Caller::OfThisFunction(), id, bytes, attributes);
}

FreedRecord TracedFree(Profiler* profiler, BufferId id) {
  const FreedRecord freed = RealFree(profiler, id);
  if (freed) TraceWriter::Instance().Free(id);
  return freed;
}

}  // namespace hbmprof::benchmarks
