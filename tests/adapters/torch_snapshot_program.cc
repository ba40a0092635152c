// Uses the caching allocator of PyTorch's real libc10_cuda.so with its history on, and prints its own snapshot as JSON.
//
// usage: torch_snapshot_program ENTRIES     the most events that the history of a device keeps
//
// "segments" and "device_traces" have the values of c10::cuda::CUDACachingAllocator::snapshot(), with the names that
// PyTorch's Python module gives them; write_torch_snapshot.py makes the pickle of them. "context" is the number of a
// call stack, "sites" has the name of the innermost function by call stack. "stats" has the statistics of the allocator
// by device, and what this program holds.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/support/fake_cudart/fake_cuda.h"

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

namespace {

namespace pytorch = c10::cuda::CUDACachingAllocator;
using Json = nlohmann::ordered_json;

constexpr size_t kMiB = 1 << 20;
constexpr int kSites = 8;

// Stands for the call stack that PyTorch's Python module takes.
struct Context : c10::GatheredContext {
  explicit Context(int site) : site(site) {}
  int site;
};
int present_site = 0;
std::shared_ptr<c10::GatheredContext> Gather() { return std::make_shared<Context>(present_site); }

std::string SiteName(int site) { return "site" + std::to_string(site); }

class Contexts {
 public:
  // Returns the number of a call stack. As in PyTorch, the same object has the same number.
  Json NumberOf(const std::shared_ptr<c10::GatheredContext>& context) {
    if (context == nullptr) return nullptr;
    const auto [entry, is_new] = numbers_.try_emplace(context.get(), sites_.size());
    if (is_new) sites_.push_back(SiteName(static_cast<const Context&>(*context).site));
    return entry->second;
  }
  const Json& sites() const { return sites_; }

 private:
  std::unordered_map<const void*, size_t> numbers_;
  Json sites_ = Json::array();
};

template <typename Segment>
Json SegmentJson(const Segment& segment, Contexts& contexts) {
  Json json = {{"device", segment.device},
               {"address", segment.address},
               {"total_size", segment.total_size},
               {"allocated_size", segment.allocated_size},
               {"active_size", segment.active_size},
               {"requested_size", segment.requested_size},
               {"stream", reinterpret_cast<int64_t>(segment.stream)},
               {"segment_type", segment.is_large ? "large" : "small"},
               {"segment_pool_id", {segment.owner_private_pool_id.first, segment.owner_private_pool_id.second}},
               {"is_expandable", segment.is_expandable},
               {"context", contexts.NumberOf(segment.context_when_allocated)}};
  Json& blocks = json["blocks"] = Json::array();
  size_t address = segment.address;
  for (const auto& block : segment.blocks) {
    blocks.push_back({{"address", address},
                      {"size", block.size},
                      {"requested_size", block.requested_size},
                      {"state", block.allocated ? "active_allocated"
                                : block.active  ? "active_pending_free"
                                                : "inactive"},
                      {"context", contexts.NumberOf(block.context_when_allocated)}});
    address += block.size;
  }
  return json;
}

template <typename Entry>
Json EntryJson(const Entry& entry, Contexts& contexts) {
  const auto name = [&] {
    switch (entry.action_) {
      case Entry::ALLOC:
        return "alloc";
      case Entry::FREE_REQUESTED:
        return "free_requested";
      case Entry::FREE_COMPLETED:
        return "free_completed";
      case Entry::SEGMENT_ALLOC:
        return "segment_alloc";
      case Entry::SEGMENT_FREE:
        return "segment_free";
      case Entry::SEGMENT_MAP:
        return "segment_map";
      case Entry::SEGMENT_UNMAP:
        return "segment_unmap";
      case Entry::SNAPSHOT:
        return "snapshot";
      case Entry::OOM:
        return "oom";
      default:
        return "annotate";
    }
  };
  Json json = {{"action", name()},
               {entry.action_ == Entry::OOM ? "device_free" : "addr", entry.addr_},
               {"size", entry.size_},
               {"stream", reinterpret_cast<int64_t>(entry.stream_)},
               {"time_us", entry.time_.t_},
               {"compile_context", entry.compile_context_},
               {"context", contexts.NumberOf(entry.context_)}};
#if __has_include(<torch/headeronly/version.h>)
  json["user_metadata"] = entry.user_metadata_;
  json["pool_id"] = {entry.mempool_.first, entry.mempool_.second};
#endif
  return json;
}

struct Held {
  void* memory;
  size_t bytes;
  int site;
};

// Allocates and frees on a device. Returns what is still held.
std::vector<Held> Operate(c10::DeviceIndex device) {
  c10::cuda::set_device(device);
  std::mt19937 random(static_cast<unsigned>(device));
  std::vector<Held> held;
  constexpr size_t kSizes[] = {1, 700, 100'000, kMiB + 1, 3 * kMiB, 12 * kMiB + 77, 24 * kMiB};
  for (int i = 0; i < 3000; ++i) {
    present_site = static_cast<int>(random() % kSites);
#if __has_include(<torch/headeronly/version.h>)
    if (i % 100 == 0) pytorch::setUserMetadata("step " + std::to_string(i / 1000));
#endif
    if (i % 500 == 499) pytorch::emptyCache();
    if (held.empty() || (held.size() < 30 && random() % 100 < 55)) {
      const size_t bytes = kSizes[random() % std::size(kSizes)];
      held.push_back({pytorch::raw_alloc(bytes), bytes, present_site});
    } else {
      std::swap(held[random() % held.size()], held.back());
      pytorch::raw_delete(held.back().memory);
      held.pop_back();
    }
  }
  try {
    pytorch::raw_alloc(size_t{4} << 30);
    std::abort();
  } catch (const c10::OutOfMemoryError&) {
  }
  return held;
}

// Frees memory that another stream still uses. Returns its size.
int64_t LeavePending(c10::DeviceIndex device) {
  c10::cuda::set_device(device);
  constexpr int64_t kBytes = 5 * kMiB;
  c10::DataPtr tensor = pytorch::get()->allocate(kBytes);
  pytorch::recordStream(tensor, c10::cuda::getStreamFromPool());
  return kBytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
  c10::cuda::detail::init_p2p_access_cache(fake_cuda_device_count());
#endif
  pytorch::init(fake_cuda_device_count());
  pytorch::recordHistory(true, &Gather, std::strtoull(argv[1], nullptr, 10), pytorch::RecordContext::ALL, true
#if __has_include(<torch/headeronly/version.h>)
                         ,
                         {}
#endif
  );
  Json stats = Json::array();
  for (int i = 0; i < fake_cuda_device_count(); ++i) {
    const auto device = static_cast<c10::DeviceIndex>(i);
    const std::vector<Held> held = Operate(device);
    std::map<std::string, int64_t> holders;
    for (const Held& one : held) holders[SiteName(one.site)] += static_cast<int64_t>(one.bytes);
    const int64_t pending = LeavePending(device);
    const auto numbers = pytorch::getDeviceStats(device);  // [0]: of all pools
    stats.push_back({{"reserved", numbers.reserved_bytes[0].current},
                     {"peak_reserved", numbers.reserved_bytes[0].peak},
                     {"peak_allocated", numbers.allocated_bytes[0].peak},
                     {"requested", numbers.requested_bytes[0].current},
                     {"live", numbers.allocation[0].current},
                     {"pending", pending},
                     {"holders", holders}});
  }
  const auto snapshot = pytorch::snapshot();
  Contexts contexts;
  Json json = {{"segments", Json::array()}, {"device_traces", Json::array()}};
  for (const auto& segment : snapshot.segments) json["segments"].push_back(SegmentJson(segment, contexts));
  for (const auto& trace : snapshot.device_traces) {
    Json& entries = json["device_traces"].emplace_back(Json::array());
    for (const auto& entry : trace) entries.push_back(EntryJson(entry, contexts));
  }
  json["sites"] = contexts.sites();
  json["stats"] = stats;
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
  std::_Exit(0);  // the allocator does not expect the end of the runtime before its own
}
