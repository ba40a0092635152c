// Uses the installed library as a user's program does: own allocator type, wrapper, tags, statistics, profile.
// Prints what went wrong and exits 1, else writes the profile to argv[1] and exits 0.
#include <hbmprof/hbmprof.h>
#include <hbmprof/pjrt.h>
#include <hbmprof/pprof.h>
#include <hbmprof/simulated_device.h>
#include <hbmprof/version.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

namespace {

// Derives from the library's interface, so its type information must be exported.
class Forwarding : public hbmprof::DeviceAllocator {
 public:
  explicit Forwarding(hbmprof::DeviceAllocator& upstream) : upstream_(upstream) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override { return upstream_.Allocate(bytes); }
  absl::Status Free(void* ptr) override { return upstream_.Free(ptr); }
  std::string device_name() const override { return upstream_.device_name(); }

 private:
  hbmprof::DeviceAllocator& upstream_;
};

bool Check(bool ok, const char* what) {
  if (!ok) std::fprintf(stderr, "consumer: %s\n", what);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (!Check(std::strcmp(hbmprof::Version(), HBMPROF_VERSION_STRING) == 0, "the library has another version")) return 1;
  if (!Check(hbmprof::pjrt::Wrap(nullptr) == nullptr, "Wrap(nullptr) returned a table")) return 1;
  auto device = hbmprof::SimulatedDevice::Create({});
  if (!Check(device.ok(), "no simulated device")) return 1;
  Forwarding forwarding(**device);
  hbmprof::TrackingAllocator allocator(forwarding, "consumer");
  hbmprof::ScopedTag tag("model", "tiny");
  absl::StatusOr<void*> kept = allocator.Allocate(1 << 20);
  absl::StatusOr<void*> freed = allocator.Allocate(4096);
  if (!Check(kept.ok() && freed.ok(), "allocation failed")) return 1;
  if (!Check(allocator.Free(*freed).ok(), "free failed")) return 1;

  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::DeviceStats stats = profiler.Stats(allocator.device());
  if (!Check(stats.bytes_in_use == 1 << 20, "bytes_in_use is wrong")) return 1;
  if (!Check(stats.peak_bytes_in_use == (1 << 20) + 4096, "peak_bytes_in_use is wrong")) return 1;

  const absl::Status saved = hbmprof::save_device_memory_profile(argv[1]);
  if (!Check(saved.ok(), std::string(saved.message()).c_str())) return 1;
  const absl::StatusOr<std::string> bytes = hbmprof::device_memory_profile();
  if (!Check(bytes.ok() && bytes->substr(0, 2) == "\x1f\x8b", "the profile is not gzip")) return 1;
  return 0;
}
