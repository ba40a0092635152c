#include "src/inject/frameworks/frameworks.h"

#include "hbmprof/profiler.h"
#include "src/base/try_run.h"
#include "src/inject/frameworks/driver_blocks.h"

namespace hbmprof::internal {
namespace {

// Returns whether the innermost frame outside of a vendor's runtime and driver is in `library`.
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

void ReportedBlocks::EndBlocks() {
  const uint64_t mask = devices_.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < 64; ++i) {
    if ((mask >> i & 1) != 0) EndDriverBlocks({DeviceId(i), label_.Get()});
  }
}

void ReportedBlocks::Refuse(const char* reason) {
  const char* none = nullptr;
  refusal_.compare_exchange_strong(none, reason, std::memory_order_acq_rel);
  EndBlocks();
}

void ReportedBlocks::MayHaveBlocks() {
  has_dropped_.store(true, std::memory_order_relaxed);
  refusal_.store(nullptr, std::memory_order_release);
}

void ReportedBlocks::HandedOut(const Caller& caller, uint64_t address, int64_t bytes) {
  std::optional<DeviceId> device;
  switch (RecordDriverBlock(caller, address, static_cast<uint64_t>(bytes), label_.Get(), &device)) {
    case DriverBlock::kRecorded:
      devices_.fetch_or(uint64_t{1} << (static_cast<unsigned>(*device) & 63), std::memory_order_relaxed);
      // Another thread may have refused the reports meanwhile.
      if (refusal() != nullptr) EndBlocks();
      return;
    case DriverBlock::kLive:
      return Refuse(kLiveTwice);
    case DriverBlock::kDropped:
      return has_dropped_.store(true, std::memory_order_relaxed);
    case DriverBlock::kOutside:
      // Usually memory of the host, for which TensorFlow has allocators of the same class.
      if (device.has_value()) has_dropped_.store(true, std::memory_order_relaxed);
      return;
  }
}

void ReportedBlocks::TakenBack(uint64_t address, std::optional<int64_t> bytes) {
  const std::optional<DeviceId> device = DeviceOfDriverSegment(address);
  if (!device.has_value()) return;
  KeepStateAtPythonEnd();
  const std::optional<int64_t> freed = Profiler::Default().RecordBlockFree({*device, label_.Get()}, BufferId(address));
  if (freed.has_value() && bytes.value_or(*freed) != *freed) {
    return Refuse("it frees a block of another size than it has reported");
  }
  if (freed.has_value() || has_dropped_.load(std::memory_order_relaxed)) return;
  Refuse("it frees device memory where it has reported no block");
}

std::string_view FileName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

CallFrom IsCallFrom(std::string_view library, std::string_view file) {
  if (file.rfind(library, 0) == 0) return CallFrom::kYes;
  for (const std::string_view runtime : {"libcuda.so", "libcudart.so", "libamdhip64.so", "libascend_hal.so",
                                         "libruntime.so", "libascendcl.so", "libacl_rt"}) {
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
