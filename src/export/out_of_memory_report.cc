#include "src/export/out_of_memory_report.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/bytes_text.h"
#include "src/base/cut_text.h"
#include "src/base/hash.h"
#include "src/export/known_code.h"
#include "src/export/module_index.h"

namespace hbmprof::internal {

namespace {

constexpr size_t kStacksShown = 10;
constexpr size_t kStacksNamed = 4096;  // the stacks whose frames get names; those with the same text share a line
constexpr size_t kFramesShown = 4;
constexpr size_t kProcessesShown = 5;
constexpr size_t kStackLineBytes = 120;  // maximum length of the names in one line

// The parts of a device's memory, as far as they are known.
struct Shares {
  std::optional<int64_t> limit;
  std::optional<int64_t> free;
  std::optional<int64_t> largest_free;
  int64_t recorded = 0;
  int64_t idle_pools = 0;   // idle in recorded pools
  int64_t idle_driver = 0;  // idle in the driver's pools and graphs
  std::optional<int64_t> unaccounted;
  bool unaccounted_is_shared = false;  // other processes' memory is part of `unaccounted`
  std::optional<int64_t> others;

  int64_t idle() const { return idle_pools + idle_driver; }
};

Shares SharesOf(const OutOfMemory& failure) {
  const DeviceStats& stats = failure.stats;
  Shares shares;
  shares.limit = stats.bytes_limit;
  shares.free = stats.bytes_free;
  shares.largest_free = stats.largest_free_block_bytes;
  shares.recorded = stats.bytes_in_use;
  shares.idle_pools = stats.idle_bytes;
  shares.idle_driver = stats.driver_cache_bytes.value_or(0);
  shares.unaccounted = stats.unaccounted;
  shares.unaccounted_is_shared = stats.driver_scope == DriverScope::kDevice;
  // The rest of the host's memory is also that of programs without a device, and of the host's caches.
  if (failure.uses_host_memory) return shares;
  if (stats.driver_scope == DriverScope::kProcess && shares.limit && shares.free && stats.driver_bytes_in_use) {
    shares.others = std::max<int64_t>(0, *shares.limit - *shares.free - *stats.driver_bytes_in_use);
  } else if (shares.limit && !shares.free && stats.driver_bytes_in_use) {
    shares.free = std::max<int64_t>(0, *shares.limit - *stats.driver_bytes_in_use);
  }
  return shares;
}

// Returns the verdict if the request exceeds the process's limit on addresses.
std::optional<OutOfMemoryVerdict> JudgeAddressSpace(const OutOfMemory& failure) {
  if (!failure.address_space_limit || !failure.address_space_in_use || !failure.requested) return std::nullopt;
  if (*failure.requested <= *failure.address_space_limit - *failure.address_space_in_use) return std::nullopt;
  return OutOfMemoryVerdict{OutOfMemoryCause::kHostLimit,
                            "the process may have " + BytesText(*failure.address_space_limit) +
                                " of virtual memory and has " + BytesText(*failure.address_space_in_use) +
                                ". Raise the limit with `ulimit -v`."};
}

OutOfMemoryVerdict JudgeHostMemory(const OutOfMemory& failure) {
  // No sum below overflows: a process has fewer bytes in use.
  const int64_t requested = std::min(failure.requested.value_or(0), INT64_MAX / 2);
  if (failure.memory_lock_limit && failure.stats.bytes_in_use + requested > *failure.memory_lock_limit) {
    return {OutOfMemoryCause::kHostLimit, "the process may lock " + BytesText(*failure.memory_lock_limit) +
                                              " of host memory and has " + BytesText(failure.stats.bytes_in_use) +
                                              " pinned. Raise the limit with `ulimit -l`."};
  }
  if (std::optional<OutOfMemoryVerdict> verdict = JudgeAddressSpace(failure)) return *std::move(verdict);
  if (failure.cgroup_limit && failure.cgroup_in_use && *failure.cgroup_in_use + requested > *failure.cgroup_limit) {
    return {OutOfMemoryCause::kHostLimit, "the control group of the process may use " +
                                              BytesText(*failure.cgroup_limit) + " of host memory and uses " +
                                              BytesText(*failure.cgroup_in_use) +
                                              ". Raise the container's memory limit."};
  }
  return {OutOfMemoryCause::kUnknown, "no limit of the host explains the failure."};
}

OutOfMemoryVerdict JudgeEnoughFree(const OutOfMemory& failure, const Shares& shares, int64_t requested) {
  if (shares.largest_free && *shares.largest_free < requested) {
    return {OutOfMemoryCause::kFragmented,
            BytesText(*shares.free) + " are free, but the largest free block has " + BytesText(*shares.largest_free) +
                ": the free memory is fragmented. Allocate long-lived buffers first, or use a pool or expandable "
                "segments."};
  }
  if (std::optional<OutOfMemoryVerdict> verdict = JudgeAddressSpace(failure)) return *std::move(verdict);
  if (shares.largest_free) {
    return {OutOfMemoryCause::kLimit, "a free block of " + BytesText(*shares.largest_free) +
                                          " would be enough: a limit of the allocator or of the process refused the "
                                          "request, not the device."};
  }
  return {OutOfMemoryCause::kFragmented, BytesText(*shares.free) +
                                             " are free: the free memory is fragmented, or a limit of the allocator "
                                             "or of the process refused the request."};
}

OutOfMemoryVerdict JudgeIdlePools(const Shares& shares) {
  std::string calls;
  if (shares.idle_driver > 0) calls = "cudaMemPoolTrimTo (memory of graphs: cudaDeviceGraphMemTrim)";
  if (shares.idle_pools > 0) {
    calls.append(calls.empty() ? "" : ", and ").append("the pool's own function (PyTorch: empty_cache)");
  }
  return {OutOfMemoryCause::kIdlePool,
          "pools of this process hold " + BytesText(shares.idle()) +
              " of idle memory, which would be enough together with the free memory. Release it before the call: " +
              calls + "."};
}

// `is_short`: it is known that the device has less free memory than was requested.
OutOfMemoryVerdict JudgeHolder(const Shares& shares, bool is_short) {
  const int64_t unaccounted = shares.unaccounted.value_or(0);
  const int64_t others = shares.others.value_or(0);
  // Then nobody holds much: the request is large.
  const bool is_mostly_free = is_short && *shares.free >= *shares.limit / 2;
  if (!is_mostly_free && others > shares.recorded && others >= unaccounted) {
    return {OutOfMemoryCause::kOtherProcesses, "other processes hold " + BytesText(others) +
                                                   " of the device and this process " + BytesText(shares.recorded) +
                                                   ". nvidia-smi lists them."};
  }
  if (!is_mostly_free && unaccounted > shares.recorded) {
    const char* whose =
        shares.unaccounted_is_shared
            ? ": they belong to other processes, or to calls of this process that are not recorded."
            : ": they belong to calls of this process that are not recorded. `hbmprof run` records more.";
    return {OutOfMemoryCause::kUnaccounted, BytesText(unaccounted) + " in use are unaccounted" + whose};
  }
  const std::string held = "the recorded buffers of this process hold " + BytesText(shares.recorded) + " of " +
                           BytesText(*shares.limit) + ".";
  // If the size of the request or the free memory is not known, the device may have enough free memory.
  if (!is_short) return {OutOfMemoryCause::kFull, held};
  const bool is_full = shares.recorded >= *shares.limit / 2;
  return {OutOfMemoryCause::kFull,
          is_full ? "the device is full: " + held : "only " + BytesText(*shares.free) + " are free: " + held};
}

// The memory of one call stack in one memory space.
struct Holder {
  uint32_t stack = 0;
  int64_t bytes = 0;
  int64_t objects = 0;       // live buffers; of the idle memory of a pool its segments
  int64_t bytes_before = 0;  // when the last profile was written
};

bool HoldsMore(const Holder& a, const Holder& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.stack < b.stack; }

// Returns all holders, largest first.
std::vector<Holder> HoldersOf(const Snapshot& snapshot, uint32_t device, MemorySpace space) {
  std::unordered_map<uint32_t, Holder> by_stack;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    if (sample.device != device || SpaceOf(sample.kind) != space || sample.inuse_bytes == 0) continue;
    Holder& holder = by_stack[sample.stack];
    holder.stack = sample.stack;
    holder.bytes += sample.inuse_bytes;
    holder.objects += sample.inuse_objects;
  }
  std::vector<Holder> holders;
  holders.reserve(by_stack.size());
  for (const auto& [stack, holder] : by_stack) holders.push_back(holder);
  std::sort(holders.begin(), holders.end(), &HoldsMore);
  return holders;
}

// A frame of a stack as the report shows it.
struct ShownFrame {
  std::string text;
  FrameOwner owner;
};
using ShownFrames = std::unordered_map<uint64_t, ShownFrame>;  // by the element of the stack

ShownFrame Shown(const Snapshot::NamedFrame& frame) {
  const std::string file = frame.file.substr(frame.file.rfind('/') + 1);
  return {frame.function + (file.empty() ? "" : " (" + file + ":" + std::to_string(frame.line) + ")"),
          OwnerOf(frame.function, frame.file, "")};
}

ShownFrame Shown(uint64_t address, const Symbolizer::Name& known, const Snapshot::Module* module) {
  const std::string_view name = known.name.empty() ? known.system_name : known.name;
  ShownFrame frame;
  frame.owner = OwnerOf(name, "", module == nullptr ? std::string_view() : module->path);
  frame.text = !name.empty()       ? OwnName(frame.owner, name)
               : module != nullptr ? NameInModule(*module, address)
                                   : HexNumber(address);
  return frame;
}

// Returns all frames of the stacks.
ShownFrames FramesOf(const Snapshot& snapshot, const std::vector<Holder>& holders, Symbolizer* symbolizer) {
  ShownFrames frames;
  std::vector<uint64_t> addresses;
  for (const Holder& holder : holders) {
    for (const uint64_t word : snapshot.stacks[holder.stack].return_addresses) {
      if (!frames.try_emplace(word).second) continue;
      if (Snapshot::IsNamedFrame(word)) {
        frames[word] = Shown(snapshot.named_frames[static_cast<uint32_t>(word)]);
      } else {
        addresses.push_back(word - 1);  // a return address is after the call instruction
      }
    }
  }
  std::vector<Symbolizer::Name> names(addresses.size());
  if (symbolizer != nullptr) names = symbolizer->Symbolize(snapshot.modules, addresses);
  const ModuleIndex modules(snapshot.modules);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const size_t module = modules.Find(addresses[i]);
    frames[addresses[i] + 1] = Shown(addresses[i], names[i], module == kNoModule ? nullptr : &snapshot.modules[module]);
  }
  return frames;
}

// Returns the innermost frames that count as own code (OwnRank), as in "f < g < h".
// Frames that do not fit are left out.
std::string StackText(const std::vector<uint64_t>& stack, const ShownFrames& frames) {
  int rank = kOwnRanks;
  for (const uint64_t word : stack) rank = std::min(rank, OwnRank(frames.at(word).owner.role));
  std::string text;
  size_t count = 0;
  for (const uint64_t word : stack) {
    const ShownFrame& frame = frames.at(word);
    if (OwnRank(frame.owner.role) != rank) continue;
    if (count++ == kFramesShown || (count > 1 && text.size() + frame.text.size() > kStackLineBytes)) break;
    text.append(count == 1 ? "" : " < ").append(Printable(frame.text.substr(0, kStackLineBytes)));
  }
  return count > 0 ? text : "(no call stack)";
}

// Returns the columns of a line: the bytes, and their share of `whole`.
std::string SizeColumns(int64_t bytes, int64_t whole) {
  char columns[64];
  const double share = whole > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(whole) : 0;
  std::snprintf(columns, sizeof(columns), "%12s %5.1f %%", BytesText(bytes).c_str(), share);
  return columns;
}

// Returns the lines that show which library holds how many bytes of the memory space, largest first; "" if there is
// only one holder. Their sum is the bytes of all holders and those that only the driver reports (`stats`). `frames` has
// the frames of the first kStacksNamed holders.
std::string LibrariesText(const Snapshot& snapshot, const std::vector<Holder>& holders, const ShownFrames& frames,
                          const DeviceStats& stats) {
  std::map<std::string_view, int64_t> bytes;
  for (size_t i = 0; i < holders.size(); ++i) {
    if (i >= kStacksNamed) {
      bytes["other call stacks"] += holders[i].bytes;
      continue;
    }
    MemoryHolder library;
    for (const uint64_t word : snapshot.stacks[holders[i].stack].return_addresses) library.Add(frames.at(word).owner);
    bytes[library.name()] += holders[i].bytes;
  }
  const int64_t unaccounted = stats.unaccounted.value_or(0);
  if (unaccounted > 0) {
    bytes[stats.driver_scope == DriverScope::kDevice ? kUnaccountedOfDeviceName : kUnaccountedName] = unaccounted;
  }
  if (stats.driver_cache_bytes.value_or(0) > 0) bytes[kDriverCacheName] = *stats.driver_cache_bytes;
  if (bytes.size() < 2) return "";
  std::vector<std::pair<int64_t, std::string_view>> rows;
  int64_t whole = 0;
  for (const auto& [name, part] : bytes) {
    rows.emplace_back(-part, name);
    whole += part;
  }
  std::sort(rows.begin(), rows.end());
  std::string text = "  in use by library, largest first:\n";
  for (const auto& [part, name] : rows) {
    text.append(SizeColumns(-part, whole)).append("  ").append(name).append("\n");
  }
  return text;
}

// Returns a line such as "  by kind    2.00 MiB device, 512 B pinned_host"; "" if there is only one kind.
std::string KindsText(const Snapshot& snapshot, uint32_t device) {
  std::array<int64_t, kMemoryKindCount> bytes = {};
  for (const Snapshot::Sample& sample : snapshot.samples) {
    if (sample.device == device) bytes[static_cast<size_t>(sample.kind)] += sample.inuse_bytes;
  }
  std::string text;
  int kinds = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    const auto kind = static_cast<MemoryKind>(i);
    text.append(kinds++ == 0 ? "  by kind    " : ", ")
        .append(BytesText(bytes[i]))
        .append(" ")
        .append(MemoryKindName(kind));
    if (kind == MemoryKind::kPool) text.append(" (idle)");
  }
  return kinds > 1 ? text + "\n" : "";
}

// Returns a line for each of the other processes that have the most memory; "" if none is known.
std::string ProcessesText(const std::vector<DeviceProcess>& processes,
                          const std::function<std::string(int64_t)>& name_of) {
  std::vector<const DeviceProcess*> others;
  // The ids are those of this process's own name space only if this process is in the list.
  bool has_names = false;
  for (const DeviceProcess& process : processes) {
    has_names = has_names || process.is_this;
    if (!process.is_this) others.push_back(&process);
  }
  std::sort(others.begin(), others.end(), [](const DeviceProcess* a, const DeviceProcess* b) {
    return a->bytes.value_or(-1) > b->bytes.value_or(-1);
  });
  std::string text;
  for (size_t i = 0; i < std::min(others.size(), kProcessesShown); ++i) {
    const std::string name = has_names ? name_of(others[i]->process_id) : "";
    text.append("  process    ").append(others[i]->bytes ? BytesText(*others[i]->bytes) : "an unknown amount");
    text.append(" of process ").append(std::to_string(others[i]->process_id));
    if (!name.empty()) text.append(" (").append(Printable(name)).append(")");
    text.append("\n");
  }
  if (others.size() > kProcessesShown) {
    text.append("  process    ... and ").append(std::to_string(others.size() - kProcessesShown)).append(" more\n");
  }
  return text;
}

}  // namespace

OutOfMemoryVerdict JudgeOutOfMemory(const OutOfMemory& failure) {
  if (failure.space != MemorySpace::kDevice) return JudgeHostMemory(failure);
  Shares shares = SharesOf(failure);
  if (failure.is_trimmed) shares.idle_pools = 0;
  if (failure.requested && failure.pool_limit &&
      *failure.requested > *failure.pool_limit - failure.pool_in_use.value_or(0)) {
    return {OutOfMemoryCause::kLimit, "the pool may have " + BytesText(*failure.pool_limit) + " in use and has " +
                                          BytesText(failure.pool_in_use.value_or(0)) +
                                          ": the limit of the pool refused the request, not the device."};
  }
  if (failure.requested && failure.device_group_limit) {
    const int64_t left = *failure.device_group_limit - failure.device_group_in_use.value_or(0);
    if (*failure.requested > left && *failure.requested <= left + shares.idle()) return JudgeIdlePools(shares);
    if (*failure.requested > left) {
      return {OutOfMemoryCause::kLimit, "the control group of the process may use " +
                                            BytesText(*failure.device_group_limit) + " of the device and uses " +
                                            BytesText(failure.device_group_in_use.value_or(0)) +
                                            ". `nvidia-smi memory-limits` shows and sets the limit."};
    }
  }
  if (!shares.limit) {
    return {OutOfMemoryCause::kUnknown, "the device does not report its capacity."};
  }
  if (failure.requested && *failure.requested > *shares.limit) {
    return {OutOfMemoryCause::kTooLarge, "the request of " + BytesText(*failure.requested) +
                                             " is larger than the device, which has " + BytesText(*shares.limit) + "."};
  }
  if (failure.requested && shares.free) {
    if (*shares.free >= *failure.requested) return JudgeEnoughFree(failure, shares, *failure.requested);
    if (*shares.free + shares.idle() >= *failure.requested) return JudgeIdlePools(shares);
  }
  if (failure.uses_host_memory && shares.free && shares.recorded < (*shares.limit - *shares.free) / 2) {
    return {OutOfMemoryCause::kHostMemory, "the device uses the memory of the host, of which " +
                                               BytesText(*shares.free) + " are free; this process has " +
                                               BytesText(shares.recorded) + " of " + BytesText(*shares.limit) +
                                               " on the device."};
  }
  return JudgeHolder(shares, failure.requested && shares.free);
}

std::string OutOfMemoryTitle(const OutOfMemory& failure) {
  std::string text = Printable(failure.device);
  if (failure.space != MemorySpace::kDevice) text.append(", ").append(MemorySpaceName(failure.space)).append(" memory");
  text.append(": ").append(failure.call.empty() ? "an allocation" : Printable(failure.call));
  if (failure.requested) text.append(" of ").append(BytesText(*failure.requested));
  text.append(" failed");
  if (!failure.tags.empty()) text.append(" (").append(Printable(failure.tags)).append(")");
  return text;
}

std::string OutOfMemorySummary(const OutOfMemory& failure) {
  const Shares shares = SharesOf(failure);
  std::string text = "hbmprof: out of memory on " + OutOfMemoryTitle(failure);
  text.append("\n  verdict    ").append(JudgeOutOfMemory(failure).text).append("\n");
  if (shares.limit || shares.free) {
    text.append("  device    ");
    if (shares.limit) text.append(" ").append(BytesText(*shares.limit)).append(" in all,");
    text.append(" ").append(shares.free ? BytesText(*shares.free) : "an unknown amount").append(" free");
    if (shares.largest_free) text.append(", largest free block ").append(BytesText(*shares.largest_free));
    if (failure.uses_host_memory) text.append(", shared with the host");
    text.append("\n");
  }
  text.append("  recorded   ").append(BytesText(shares.recorded)).append(" of this process, peak ");
  text.append(BytesText(failure.stats.peak_bytes_in_use));
  if (shares.idle() > 0) text.append("; ").append(BytesText(shares.idle())).append(" idle in pools");
  if (shares.unaccounted.value_or(0) != 0) {
    text.append("; ").append(BytesText(*shares.unaccounted));
    text.append(shares.unaccounted_is_shared ? " unaccounted, including other processes" : " unaccounted");
  }
  text.append("\n");
  if (shares.others) text.append("  others     ").append(BytesText(*shares.others)).append(" of other processes\n");
  if (failure.unreported_failures > 0) {
    text.append("  before     ").append(std::to_string(failure.unreported_failures));
    text.append(" failures since the last report\n");
  }
  return text;
}

std::string OutOfMemoryKindsAndProcesses(const Snapshot& snapshot, uint32_t device,
                                         const std::function<std::string(int64_t)>& name_of) {
  return KindsText(snapshot, device) + ProcessesText(snapshot.devices[device].processes, name_of);
}

std::string OutOfMemoryStack(const Snapshot& snapshot, uint32_t stack, Symbolizer* symbolizer) {
  return StackText(snapshot.stacks[stack].return_addresses, FramesOf(snapshot, {Holder{stack}}, symbolizer));
}

uint64_t HolderKey(const Snapshot& snapshot, uint32_t stack, uint32_t device, MemorySpace space) {
  const std::vector<uint64_t>& frames = snapshot.stacks[stack].return_addresses;
  const std::string& name = snapshot.devices[device].name;
  const uint64_t hash = HashWords(frames.data(), frames.size()) ^ HashWord(static_cast<uint64_t>(space));
  return HashBytes(name.data(), name.size(), hash);
}

std::string OutOfMemoryHolders(const Snapshot& snapshot, uint32_t device, MemorySpace space, Symbolizer* symbolizer,
                               const std::function<std::optional<int64_t>(uint64_t)>& bytes_before) {
  const std::vector<Holder> all = HoldersOf(snapshot, device, space);
  if (all.empty()) return "";
  std::vector<Holder> holders(all.begin(),
                              all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kStacksNamed)));
  const ShownFrames frames = FramesOf(snapshot, holders, symbolizer);
  const DeviceStats& stats = snapshot.devices[device].spaces[static_cast<int>(space)];
  std::vector<std::string> texts;
  texts.reserve(holders.size());
  for (const Holder& holder : holders) {
    texts.push_back(StackText(snapshot.stacks[holder.stack].return_addresses, frames));
  }
  // Stacks with the same text look the same to the reader, so they are merged.
  std::map<std::string_view, Holder> by_text;
  bool has_growth = false;
  for (size_t i = 0; i < holders.size(); ++i) {
    const uint64_t key = HolderKey(snapshot, holders[i].stack, device, space);
    const std::optional<int64_t> before = bytes_before ? bytes_before(key) : std::nullopt;
    has_growth = has_growth || before.has_value();
    Holder& merged = by_text.try_emplace(texts[i], Holder{static_cast<uint32_t>(i)}).first->second;
    merged.bytes += holders[i].bytes;
    merged.objects += holders[i].objects;
    merged.bytes_before += before.value_or(0);
  }
  holders.clear();
  for (const auto& [name, holder] : by_text) holders.push_back(holder);
  std::sort(holders.begin(), holders.end(), &HoldsMore);
  std::string text = LibrariesText(snapshot, all, frames, stats);
  text.append("  in use by call stack, largest first");
  text.append(has_growth ? ", with the change since the last profile:\n" : ":\n");
  for (size_t i = 0; i < std::min(holders.size(), kStacksShown); ++i) {
    const Holder& holder = holders[i];
    char columns[64];
    std::snprintf(columns, sizeof(columns), " %8" PRId64 " live  ", holder.objects);
    text.append(SizeColumns(holder.bytes, stats.bytes_in_use)).append(columns);
    if (has_growth) {
      const int64_t growth = holder.bytes - holder.bytes_before;
      std::snprintf(columns, sizeof(columns), "%12s  ", ((growth >= 0 ? "+" : "") + BytesText(growth)).c_str());
      text.append(columns);
    }
    text.append(texts[holder.stack]).append("\n");  // `stack` is an index in `texts` since the merge above
  }
  return text;
}

}  // namespace hbmprof::internal
