#include "src/inject/frameworks/frameworks.h"

#include "hbmprof/profiler.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

// Returns whether the innermost frame outside of the CUDA runtime and driver is in `library`.
bool IsStackFrom(std::string_view library, const Snapshot& snapshot, const Snapshot::Stack& stack) {
  for (const uint64_t address : stack.return_addresses) {
    std::string_view file;
    for (const Snapshot::Module& module : snapshot.modules) {
      if (address > module.start && address <= module.limit) file = FileName(module.path);
    }
    if (const CallFrom call = IsCallFrom(library, file); call != CallFrom::kUndecided) return call == CallFrom::kYes;
  }
  return false;
}

}  // namespace

AllocatorId FrameworkLabel::Get() {
  int label = known_.load(std::memory_order_relaxed);
  if (label < 0) {
    const auto find = [&] { label = static_cast<int>(Profiler::Default().Allocator(name_)); };
    if (!TryRun(find)) return AllocatorId{};
    known_.store(label, std::memory_order_relaxed);
  }
  return AllocatorId{static_cast<uint8_t>(label)};
}

std::string_view FileName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

CallFrom IsCallFrom(std::string_view library, std::string_view file) {
  if (file.rfind(library, 0) == 0) return CallFrom::kYes;
  for (const std::string_view runtime : {"libcuda.so", "libcudart.so", "libamdhip64.so"}) {
    if (file.rfind(runtime, 0) == 0) return CallFrom::kUndecided;
  }
  return CallFrom::kNo;
}

bool HasSegmentsFrom(std::string_view library, const Snapshot& snapshot) {
  for (const Snapshot::Sample& sample : snapshot.samples) {
    const bool is_segment = (sample.kind == MemoryKind::kDevice || sample.kind == MemoryKind::kVmm) &&
                            snapshot.allocators[sample.allocator].find("MallocAsync") == std::string::npos;
    if (is_segment && sample.alloc_objects > 0 && IsStackFrom(library, snapshot, snapshot.stacks[sample.stack])) {
      return true;
    }
  }
  return false;
}

void AddXlaWarning(Snapshot* snapshot) {
  if (!HasSegmentsFrom("xla_cuda_plugin", *snapshot)) return;
  bool has_plugin = false;
  for (const Snapshot::Module& module : snapshot->modules) {
    has_plugin = has_plugin || FileName(module.path).rfind("libhbmprof_pjrt.so", 0) == 0;
  }
  snapshot->warnings.emplace_back(
      has_plugin
          ? "the arrays of JAX are not in this profile of XLA's pool; HBMPROF_RECORD=FILE.hbmrec, without hbmprof run, "
            "records them, and HBMPROF_OUTPUT=FILE names their profile"
          : "the arrays of JAX are not shown, only XLA's pool; hbmprof.use_with_jax(\"cuda\") before the import of "
            "jax, and HBMPROF_RECORD=FILE.hbmrec without hbmprof run, shows them");
}

}  // namespace hbmprof::internal
