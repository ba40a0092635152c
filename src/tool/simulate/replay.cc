#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "src/base/references.h"
#include "src/tool/simulate/cuda_doubles.h"
#include "src/tool/simulate/simulate.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

using Kind = AllocatorCall::Kind;

constexpr char kLibrary[] = "libc10_cuda.so";

// Returns the addresses in the file of functions of a library, by their names in its symbol table; 0: it has no such
// one.
absl::StatusOr<std::vector<uint64_t>> FindFunctions(const std::string& path, const std::vector<std::string>& names) {
  ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  std::vector<uint64_t> addresses(names.size());
  const auto read = [&file](uint64_t offset, auto* value) {
    if (offset > file.size() || file.size() - offset < sizeof(*value)) return false;
    std::memcpy(value, file.data() + offset, sizeof(*value));
    return true;
  };
  Elf64_Ehdr header = {};
  Elf64_Shdr section;
  Elf64_Shdr texts;
  Elf64_Sym symbol;
  read(0, &header);
  for (uint64_t i = 0; i < header.e_shnum && read(header.e_shoff + i * sizeof(section), &section); ++i) {
    if (section.sh_type != SHT_SYMTAB || !read(header.e_shoff + section.sh_link * sizeof(texts), &texts)) continue;
    for (uint64_t at = 0; at < section.sh_size && read(section.sh_offset + at, &symbol); at += sizeof(symbol)) {
      const uint64_t name = texts.sh_offset + symbol.st_name;
      const auto found = absl::c_find(names, name < file.size() ? file.data() + name : "");
      if (found != names.end()) addresses[static_cast<size_t>(found - names.begin())] = symbol.st_value;
    }
  }
  return addresses;
}

// The machine's own driver and NVML are not used: their functions are those of the command (cuda_doubles.cc).
void* OpenForTorch(const char* name, int flags) {
  const absl::string_view file = name == nullptr ? "" : name;
  const bool is_double = absl::StartsWith(file, "libcuda.so") || absl::StartsWith(file, "libnvidia-ml.so");
  return dlopen(is_double ? nullptr : name, flags);
}

// PyTorch's own allocator. It relies on this, which holds for PyTorch 2.1 to 2.15: the exported variable `allocator`;
// the names of four functions of NativeCachingAllocator in the library's symbol table, which say the types of their
// arguments; and the report of each block (cuda_doubles.cc).
class TorchAllocator {
 public:
  // Loads the library. A process may do this once, and must not use CUDA.
  static absl::StatusOr<TorchAllocator> Load(const std::string& path) {
    const std::string native = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator";
    ASSIGN_OR_RETURN(std::vector<uint64_t> offsets,
                     FindFunctions(path, {native + "4initEi", native + "21raw_alloc_with_streamEmP11CUstream_st",
                                          native + "10raw_deleteEPv", native + "10emptyCacheEv",
                                          native + "10emptyCacheESt4pairIyyE"}));
    // Since 2.8 with the pool: here, of all of them.
    if (offsets[3] == 0) offsets[3] = offsets[4];
    offsets.pop_back();
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    link_map* map = nullptr;
    if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return FailedPrecondition(dlerror());
    const auto set = [](auto& function, uint64_t address) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
      return address != 0;
    };
    const auto address_of = [library](const char* name) { return reinterpret_cast<uint64_t>(dlsym(library, name)); };
    internal::ForEachReference(map->l_addr, map->l_ld, [](std::string_view name, void** slot, bool) {
      const auto page_size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
      void* const page = reinterpret_cast<void*>(reinterpret_cast<uint64_t>(slot) / page_size * page_size);
      const bool is_writable = name == "dlopen" && mprotect(page, page_size, PROT_READ | PROT_WRITE) == 0;
      if (is_writable) *slot = reinterpret_cast<void*>(&OpenForTorch);
    });
    TorchAllocator made;
    void** allocator = nullptr;
    set(allocator, address_of("_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
    if (allocator == nullptr || absl::c_linear_search(offsets, 0)) {
      return FailedPrecondition(path, ": lacks names of functions: it is stripped, or of an unknown release");
    }
    made.allocator_ = *allocator;
    // Needed before a free; since 2.13, before expandable segments.
    void (*set_has_context)(bool (*)(int8_t)) = nullptr;
    void (*init_peers)(int64_t) = nullptr;
    void (*init)(void*, int) = nullptr;
    if (set(set_has_context, address_of("_ZN3c104cuda9_internal20setHasPrimaryContextEPFbaE"))) {
      set_has_context([](int8_t) { return true; });
    }
    if (set(init_peers, address_of("_ZN3c104cuda6detail21init_p2p_access_cacheEl"))) init_peers(1);
    set(init, map->l_addr + offsets[0]);
    set(made.allocate_, map->l_addr + offsets[1]);
    set(made.free_, map->l_addr + offsets[2]);
    set(made.empty_cache_, map->l_addr + offsets[3]);
    try {
      init(made.allocator_, 1);
    } catch (const std::exception& error) {
      return FailedPrecondition(error.what());
    }
    return made;
  }

  // Returns null if it throws. `message` is then that of the exception.
  void* Allocate(const AllocatorCall& call, std::string* message) const {
    try {
      return allocate_(allocator_, static_cast<size_t>(call.bytes), call.stream);
    } catch (const std::exception& error) {
      *message = error.what();
    }
    return nullptr;
  }
  void Free(void* block) const { free_(allocator_, block); }
  void EmptyCache() const { empty_cache_(allocator_, 0, 0); }

 private:
  void* allocator_ = nullptr;
  void* (*allocate_)(void*, size_t, int64_t) = nullptr;
  void (*free_)(void*, void*) = nullptr;
  void (*empty_cache_)(void*, uint64_t, uint64_t) = nullptr;
};

class Player {
 public:
  // `uses_addresses`: whether segments get the addresses that they had. With other settings, PyTorch takes others.
  Player(const TorchAllocator& torch, const std::optional<int64_t>& limit, bool uses_addresses)
      : torch_(torch), limit_(limit), uses_addresses_(uses_addresses) {}

  Replay Play(const std::vector<AllocatorCall>& calls) {
    for (const AllocatorCall& call : calls) {
      if (!Repeat(call, &call - calls.data())) break;
    }
    replay_.reserved_peak = device_.peak;
    return replay_;
  }

 private:
  // Returns whether the program goes on.
  bool Repeat(const AllocatorCall& call, int64_t number) {
    if (call.kind == Kind::kOther) other_ = call.bytes;
    if (call.kind == Kind::kEmptyCache) torch_.EmptyCache();
    // The free of the block before it at this address may be missing.
    if (call.kind == Kind::kFree || call.kind == Kind::kAllocate) Free(call.block);
    if (call.kind == Kind::kRequestFree) {
      const auto block = blocks_.find(call.block);
      if (block != blocks_.end() && waiting_.try_emplace(call.block, SizeOf(block->second)).second) {
        waiting_bytes_ += SizeOf(block->second);
      }
    }
    return call.kind != Kind::kAllocate || Allocate(call, number);
  }

  bool Allocate(const AllocatorCall& call, int64_t number) {
    const bool is_recorded = !limit_.has_value();
    const bool is_endless = limit_ == INT64_MAX || (is_recorded && !call.was_full && !call.has_failed);
    if (call.has_failed && is_endless) return true;
    device_.limit = is_endless ? INT64_MAX : is_recorded ? call.reserved : *limit_ - other_;
    device_.has_refused = false;
    device_.next = uses_addresses_ ? call.segment : 0;
    std::string message;
    void* block = torch_.Allocate(call, &message);
    if (block == nullptr && is_recorded && !call.has_failed) {
      device_.limit = INT64_MAX;
      block = torch_.Allocate(call, &message);
    }
    if (block == nullptr && !(is_recorded && call.has_failed)) {
      replay_.failed_call = number;
      CountIdle();
      if (!device_.has_refused) message.copy(replay_.problem, sizeof(replay_.problem) - 1);
      return false;
    }
    replay_.allocated_peak = std::max(replay_.allocated_peak, device_.allocated - waiting_bytes_);
    if (replay_.different_call < 0 && device_.in_use != call.reserved) replay_.different_call = number;
    // How the program would have gone on after a failure is not known.
    if (block != nullptr) call.has_failed ? torch_.Free(block) : void(blocks_[call.block] = block);
    return true;
  }
  void Free(uint64_t address) {
    const auto block = blocks_.find(address);
    if (block == blocks_.end()) return;
    torch_.Free(block->second);
    blocks_.erase(block);
    if (const auto waiting = waiting_.find(address); waiting != waiting_.end()) {
      waiting_bytes_ -= waiting->second;
      waiting_.erase(waiting);
    }
  }
  int64_t SizeOf(void* block) const { return ValueOr(device_.blocks, reinterpret_cast<uint64_t>(block)); }

  void CountIdle() {
    replay_.idle = device_.in_use - device_.allocated;
    auto block = device_.blocks.begin();
    uint64_t end = 0;      // of the last range or block
    bool is_idle = false;  // whether the memory before `end` is
    for (const auto& [begin, range] : device_.ranges) {
      const uint64_t range_end = begin + static_cast<uint64_t>(range.bytes);
      if (begin != end || !range.is_mapped) is_idle = false;
      end = std::max(begin, end);  // a block can be in several ranges that follow each other
      for (; block != device_.blocks.end() && block->first < range_end; ++block) {
        if (block->first > end && !is_idle) ++replay_.pieces;
        is_idle = false;
        end = block->first + static_cast<uint64_t>(block->second);
      }
      if (end < range_end && !std::exchange(is_idle, true)) ++replay_.pieces;
      end = std::max(end, range_end);
    }
  }

  const TorchAllocator& torch_;
  const std::optional<int64_t> limit_;
  const bool uses_addresses_;
  SimulatedDevice& device_ = TheSimulatedDevice();
  Replay replay_;
  absl::flat_hash_map<uint64_t, void*> blocks_;     // by the address in the program
  absl::flat_hash_map<uint64_t, int64_t> waiting_;  // after kRequestFree: bytes
  int64_t waiting_bytes_ = 0;
  int64_t other_ = 0;
};

Replay ReplayHere(const History& history, const std::string& library, const std::string& settings,
                  const std::optional<int64_t>& limit) {
  setenv("PYTORCH_CUDA_ALLOC_CONF", settings.c_str(), 1);
  unsetenv("PYTORCH_ALLOC_CONF");
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  const int64_t total = limit.value_or(history.limit.value_or(INT64_MAX));
  if (total != INT64_MAX) TheSimulatedDevice().total = total;
  // A copy of the unwinder that is linked statically can catch exceptions of other libraries only after its first own.
  try {
    throw 0;
  } catch (int) {
  }
  const absl::StatusOr<TorchAllocator> torch = TorchAllocator::Load(library);
  if (torch.ok()) return Player(*torch, limit, settings == history.settings).Play(history.calls);
  Replay replay;
  MessageOf(torch.status()).copy(replay.problem, sizeof(replay.problem) - 1);
  return replay;
}

}  // namespace

absl::StatusOr<std::string> FindTorchLibrary(const std::string& folder) {
  std::string package = folder;
  if (folder.empty()) {
    constexpr char kFind[] =
        "ulimit -S -d $(ulimit -H -d); "  // of the memory of this command
        "python3 -c 'import importlib.util\n"
        "print(importlib.util.find_spec(\"torch\").submodule_search_locations[0])' 2>/dev/null";
    if (std::FILE* const output = popen(kFind, "r")) {
      for (int c = 0; (c = std::fgetc(output)) != EOF && c != '\n';) package += static_cast<char>(c);
      pclose(output);
    }
    if (package.empty()) return NotFound("the python3 in $PATH has no package torch; name its folder: --torch FOLDER");
  }
  for (const char* const part : {"/lib/", "/"}) {
    struct stat info;
    std::string path = Cat(package, part, kLibrary);
    if (stat(path.c_str(), &info) == 0) return path;
  }
  return NotFound(package, ": has no ", kLibrary, ", so it is no PyTorch for CUDA");
}

absl::StatusOr<Replay> RunReplay(const History& history, const std::string& library, const std::string& settings,
                                 const std::optional<int64_t>& limit) {
  int ends[2];
  if (pipe(ends) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    LiftMemoryLimit();
    // The libraries print warnings.
    if (const int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) dup2(null, STDERR_FILENO);
    const Replay replay = ReplayHere(history, library, settings, limit);
    _exit(write(ends[1], &replay, sizeof(replay)) == sizeof(replay) ? 0 : 1);
  }
  close(ends[1]);
  Replay replay;
  ssize_t count = 0;
  do {
    count = read(ends[0], &replay, sizeof(replay));
  } while (count < 0 && errno == EINTR);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  if (count != sizeof(replay)) return FailedPrecondition("PyTorch's allocator has ended its process");
  const std::string problem = replay.problem;
  if (problem.empty()) return replay;
  // The rest of the message is PyTorch's own call stack.
  return FailedPrecondition("PyTorch's allocator: ", problem.substr(0, problem.find('\n')));
}

}  // namespace hbmprof::tool
