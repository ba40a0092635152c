// SimulatedDevice, on one anonymous mapping of host memory. See hbmprof/simulated_device.h.
#include "hbmprof/simulated_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hbmprof {
namespace {

// A reserved range of host memory. Its destruction frees the memory but not the addresses: a buffer of a later device
// at the address of one that this device had at its end would replace its record, and LeakCheck would not find it. A
// moved-from object owns nothing.
class Mapping {
 public:
  explicit Mapping(size_t bytes) : start_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept : start_(std::exchange(other.start_, MAP_FAILED)), bytes_(other.bytes_) {}
  ~Mapping() {
    if (ok()) mmap(start_, bytes_, PROT_NONE, kFlags | MAP_FIXED, -1, 0);
  }

  bool ok() const { return start_ != MAP_FAILED; }
  uintptr_t start() const { return reinterpret_cast<uintptr_t>(start_); }

 private:
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

  void* start_;
  size_t bytes_;
};

// Returns `value` rounded up to a multiple of `alignment`, a power of two. REQUIRES: value <= SIZE_MAX - alignment + 1.
size_t RoundUp(size_t value, size_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

// The free blocks of an arena. Allocation is best fit; adjacent blocks are always merged.
//
// Not thread-safe. Invariants:
//   1. by_size_ holds exactly the blocks of by_address_.
//   2. No two blocks overlap or are adjacent.
//   3. total_bytes() is the sum of the blocks' sizes.
class FreeList {
 public:
  // Adds the block [address, address + bytes). REQUIRES: bytes > 0, and the block overlaps no block of this list.
  void Add(uintptr_t address, size_t bytes);
  // Removes `bytes` bytes from the start of the smallest block that is large enough (among blocks of the same size, the
  // one with the lowest address). The rest of the block stays in the list. Returns the address; nullopt if no block is
  // large enough. REQUIRES: bytes > 0.
  std::optional<uintptr_t> Take(size_t bytes);
  // Moves every block to `other`.
  void MoveTo(FreeList& other);

  size_t total_bytes() const { return total_bytes_; }
  // Returns 0 if the list is empty.
  size_t largest_block_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void Insert(uintptr_t address, size_t bytes);
  void Erase(std::map<uintptr_t, size_t>::iterator block);

  std::map<uintptr_t, size_t> by_address_;
  std::set<std::pair<size_t, uintptr_t>> by_size_;
  size_t total_bytes_ = 0;
};

void FreeList::Insert(uintptr_t address, size_t bytes) {
  by_address_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
  total_bytes_ += bytes;
}

void FreeList::Erase(std::map<uintptr_t, size_t>::iterator block) {
  total_bytes_ -= block->second;
  by_size_.erase({block->second, block->first});
  by_address_.erase(block);
}

void FreeList::Add(uintptr_t address, size_t bytes) {
  const auto after = by_address_.lower_bound(address);
  if (after != by_address_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      address = before->first;
      bytes += before->second;
      Erase(before);
    }
  }
  if (after != by_address_.end() && address + bytes == after->first) {
    bytes += after->second;
    Erase(after);
  }
  Insert(address, bytes);
}

std::optional<uintptr_t> FreeList::Take(size_t bytes) {
  const auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [block_bytes, address] = *best;
  Erase(by_address_.find(address));
  if (block_bytes > bytes) Insert(address + bytes, block_bytes - bytes);
  return address;
}

void FreeList::MoveTo(FreeList& other) {
  for (const auto& [address, bytes] : by_address_) other.Add(address, bytes);
  by_address_.clear();
  by_size_.clear();
  total_bytes_ = 0;
}

}  // namespace

// Thread-safe. Invariant: every byte of [base_, base_ + capacity_) is in exactly one of these: a buffer of live_, a
// block of free_, a block of one list of pending_.
class SimulatedDevice::Arena {
 public:
  Arena(std::string name, Mapping mapping, size_t capacity, size_t alignment)
      : name_(std::move(name)),
        mapping_(std::move(mapping)),
        base_(RoundUp(mapping_.start(), alignment)),
        capacity_(capacity),
        alignment_(alignment) {
    free_.Add(base_, capacity_);
  }

  absl::StatusOr<void*> Allocate(size_t requested, std::optional<StreamId> stream) {
    if (requested == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    std::optional<uintptr_t> address;
    if (requested <= capacity_) {
      const size_t bytes = RoundUp(requested, alignment_);
      if (stream.has_value()) {
        if (auto pending = pending_.find(*stream); pending != pending_.end()) address = pending->second.Take(bytes);
      }
      if (!address) address = free_.Take(bytes);
      if (!address && !pending_.empty()) {
        CompleteAll();
        address = free_.Take(bytes);
      }
      if (address) {
        live_.emplace(*address, bytes);
        ++num_allocs_;
        peak_bytes_in_use_ = std::max(peak_bytes_in_use_, capacity_ - free_.total_bytes());
        return reinterpret_cast<void*>(*address);
      }
    }
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ": out of memory: requested ", requested, " bytes, ", free_.total_bytes(), " of ",
                     capacity_, " bytes free, largest free block ", free_.largest_block_bytes(), " bytes"));
  }

  absl::Status Free(void* ptr, std::optional<StreamId> stream) {
    if (ptr == nullptr) return absl::OkStatus();
    const uintptr_t address = reinterpret_cast<uintptr_t>(ptr);
    const std::lock_guard lock(mutex_);
    const auto buffer = live_.find(address);
    if (buffer == live_.end()) {
      const bool ours = address >= base_ && address - base_ < capacity_;
      return absl::InvalidArgumentError(absl::StrCat(name_, ": free of 0x", absl::Hex(address),
                                                     ours ? ", which is not the start of a live buffer (freed already?)"
                                                          : ", which is not memory of this device"));
    }
    (stream.has_value() ? pending_[*stream] : free_).Add(address, buffer->second);
    live_.erase(buffer);
    return absl::OkStatus();
  }

  void Synchronize(StreamId stream) {
    const std::lock_guard lock(mutex_);
    if (auto pending = pending_.find(stream); pending != pending_.end()) {
      pending->second.MoveTo(free_);
      pending_.erase(pending);
    }
  }

  void SynchronizeAll() {
    const std::lock_guard lock(mutex_);
    CompleteAll();
  }

  Stats GetStats() const {
    const std::lock_guard lock(mutex_);
    Stats stats;
    stats.bytes_limit = static_cast<int64_t>(capacity_);
    stats.free_bytes = static_cast<int64_t>(free_.total_bytes());
    stats.bytes_in_use = stats.bytes_limit - stats.free_bytes;
    stats.peak_bytes_in_use = static_cast<int64_t>(peak_bytes_in_use_);
    for (const auto& [stream, blocks] : pending_)
      stats.pending_free_bytes += static_cast<int64_t>(blocks.total_bytes());
    stats.num_allocs = num_allocs_;
    stats.num_live = static_cast<int64_t>(live_.size());
    stats.largest_free_block_bytes = static_cast<int64_t>(free_.largest_block_bytes());
    if (stats.free_bytes > 0) {
      stats.fragmentation =
          1 - static_cast<double>(stats.largest_free_block_bytes) / static_cast<double>(stats.free_bytes);
    }
    return stats;
  }

  const std::string& name() const { return name_; }

 private:
  // REQUIRES: mutex_ is held.
  void CompleteAll() {
    for (auto& [stream, blocks] : pending_) blocks.MoveTo(free_);
    pending_.clear();
  }

  const std::string name_;
  const Mapping mapping_;
  const uintptr_t base_;
  const size_t capacity_;  // a multiple of alignment_
  const size_t alignment_;

  mutable std::mutex mutex_;  // guards all below
  FreeList free_;
  std::map<StreamId, FreeList> pending_;
  std::unordered_map<uintptr_t, size_t> live_;  // address -> bytes, rounded up
  int64_t num_allocs_ = 0;
  size_t peak_bytes_in_use_ = 0;
};

absl::StatusOr<std::unique_ptr<SimulatedDevice>> SimulatedDevice::Create(const Options& options) {
  const size_t alignment = options.alignment;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(options.name, ": alignment ", alignment, " is not a power of two"));
  }
  if (options.capacity == 0) return absl::InvalidArgumentError(absl::StrCat(options.name, ": capacity is 0"));
  // The mapping holds the rounded capacity at its first aligned address. All sizes stay below 2^63.
  constexpr size_t kMost = std::numeric_limits<int64_t>::max();
  if (options.capacity > kMost / 2 || alignment > kMost / 4) {
    return absl::ResourceExhaustedError(absl::StrCat(options.name, ": cannot reserve ", options.capacity,
                                                     " bytes of host memory aligned to ", alignment));
  }
  const size_t capacity = RoundUp(options.capacity, alignment);
  Mapping mapping(capacity + alignment);
  if (!mapping.ok()) {
    const int error = errno;
    return absl::ResourceExhaustedError(
        absl::StrCat(options.name, ": cannot reserve ", options.capacity,
                     " bytes of host memory: ", std::generic_category().message(error)));
  }
  return std::unique_ptr<SimulatedDevice>(
      new SimulatedDevice(std::make_unique<Arena>(options.name, std::move(mapping), capacity, alignment)));
}

SimulatedDevice::SimulatedDevice(std::unique_ptr<Arena> arena) : arena_(std::move(arena)) {}
SimulatedDevice::~SimulatedDevice() = default;

absl::StatusOr<void*> SimulatedDevice::Allocate(size_t bytes) { return arena_->Allocate(bytes, std::nullopt); }
absl::Status SimulatedDevice::Free(void* ptr) { return arena_->Free(ptr, std::nullopt); }
absl::StatusOr<void*> SimulatedDevice::AllocateAsync(size_t bytes, StreamId stream) {
  return arena_->Allocate(bytes, stream);
}
absl::Status SimulatedDevice::FreeAsync(void* ptr, StreamId stream) { return arena_->Free(ptr, stream); }
void SimulatedDevice::Synchronize(StreamId stream) { arena_->Synchronize(stream); }
void SimulatedDevice::SynchronizeAll() { arena_->SynchronizeAll(); }

std::string SimulatedDevice::device_name() const { return arena_->name(); }

DeviceProbe SimulatedDevice::Probe() const {
  const Stats stats = GetStats();
  DeviceProbe probe;
  probe.bytes_limit = stats.bytes_limit;
  probe.bytes_free = stats.free_bytes;
  probe.largest_free_block_bytes = stats.largest_free_block_bytes;
  probe.driver_bytes_in_use = stats.bytes_in_use;
  return probe;
}

SimulatedDevice::Stats SimulatedDevice::GetStats() const { return arena_->GetStats(); }

}  // namespace hbmprof
