// A program that uses PyTorch's caching allocator as PyTorch does, from the real libc10_cuda.so, whose path is argv[1].
// argv[2] is the name of the case; torch_test has one test for each case. Also built as a library that Python loads
// (TORCH_LIBRARY): `torch_case` is its entry point. The program does not use hbmprof or PyTorch's headers: it finds
// functions by their names in the library's symbol table.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/inject/driver_calls.h"
#include "tests/inject/framework_pool.h"
#include "tests/support/fake_cudart/fake_cuda.h"

namespace {

// The library and its functions.
class Torch final : public Pool {
 public:
  explicit Torch(const char* path) {
    const bool is_deep = std::getenv("DEEP_BIND") != nullptr;
    library_ = dlopen(path, RTLD_NOW | (is_deep ? RTLD_DEEPBIND : 0));
    REQUIRE(library_ != nullptr);
    link_map* map = nullptr;
    REQUIRE(dlinfo(library_, RTLD_DI_LINKMAP, &map) == 0);
    ReadSymbols(path, map->l_addr);
    const char* const settings = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
    const bool is_stream_ordered = settings != nullptr && std::strstr(settings, "cudaMallocAsync") != nullptr;
    const std::string native = is_stream_ordered
                                   ? "_ZN3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocator"
                                   : "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator";
    REQUIRE(Call<void(bool (*)(int8_t))>("_ZN3c104cuda9_internal20setHasPrimaryContextE") != nullptr);
    Call<void(bool (*)(int8_t))>("_ZN3c104cuda9_internal20setHasPrimaryContextE")([](int8_t) { return true; });
    int devices = fake_cuda_device_count();
    if (auto* const peers = Call<void(int64_t)>("_ZN3c104cuda6detail21init_p2p_access_cacheE")) peers(devices);
    allocator_ = *static_cast<void**>(dlsym(library_, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
    REQUIRE(allocator_ != nullptr);
    Call<void(void*, int)>(native + "4initE")(allocator_, devices);
    alloc_ = Call<void*(void*, size_t)>(native + "9raw_allocE");
    alloc_on_stream_ = Call<void*(void*, size_t, uint64_t)>(native + "21raw_alloc_with_streamE");
    free_ = Call<void(void*, void*)>(native + "10raw_deleteE");
    stats_ = Call<void(void*, void*, int)>(native + "14getDeviceStatsE");
    limit_ = Call<void(void*, double, int)>(native + "17setMemoryFractionE");
    empty_ = Call<void(void*, uint64_t, uint64_t)>(native + "10emptyCacheE");
    REQUIRE(alloc_ != nullptr && free_ != nullptr && stats_ != nullptr && empty_ != nullptr);
    set_device_ = reinterpret_cast<int (*)(int)>(dlsym(library_, "cudaSetDevice"));
    REQUIRE(set_device_ != nullptr);
  }

  void* Allocate(size_t bytes) const override { return alloc_(allocator_, bytes); }
  // As a tensor is allocated whose program has made `stream` the current one.
  void* AllocateOn(uint64_t stream, size_t bytes) const {
    struct CudaStream {
      int16_t device;
      int64_t id;
    };
    const auto made = Call<CudaStream(uint64_t, int8_t)>("_ZN3c104cuda21getStreamFromExternalE")(stream, 0);
    Call<void(CudaStream)>("_ZN3c104cuda20setCurrentCUDAStreamE")(made);
    return alloc_on_stream_(allocator_, bytes, stream);
  }
  void Free(void* block) const override { free_(allocator_, block); }
  void EmptyCache() const { empty_(allocator_, 0, 0); }
  // Limits PyTorch's allocator to this part of the memory of device 0.
  void SetLimit(double fraction) const {
    REQUIRE(limit_ != nullptr);
    limit_(allocator_, fraction, 0);
  }
  void SetDevice(int device) const override { REQUIRE(set_device_(device) == 0); }

  // Prints the totals of the allocator and of the driver for each device.
  void PrintTotals() const {
    for (int device = 0; device < fake_cuda_device_count(); ++device) {
      std::printf("device %d: blocks %lld allocated %lld reserved %lld driver %lld\n", device, Statistic(device, 0),
                  Statistic(device, 4), Statistic(device, 5),
                  static_cast<long long>(fake_cuda_bytes_in_use(device) - ContextBytes(device)));
    }
  }
  // DeviceStats begins with arrays of three Stat: blocks, segments, active, inactive, allocated and reserved bytes. A
  // Stat is {current, peak, allocated, freed}, the first of three that of all pools.
  long long Statistic(int device, int array, int number = 0) const {
    int64_t stats[1024] = {};
    stats_(stats, allocator_, device);
    return stats[array * 3 * 4 + number];
  }
  static size_t ContextBytes(int device) {
    return fake_cuda_context_active(device) != 0 ? fake_cuda_context_bytes() : 0;
  }

 private:
  void ReadSymbols(const char* path, uintptr_t base) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const auto at = [&](size_t offset) { return bytes.data() + offset; };
    const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(at(0));
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(at(header.e_shoff));
    for (int i = 0; i < header.e_shnum; ++i) {
      if (sections[i].sh_type != SHT_SYMTAB) continue;
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(at(sections[i].sh_offset));
      for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
        if (ELF64_ST_TYPE(symbols[s].st_info) != STT_FUNC || symbols[s].st_shndx == SHN_UNDEF) continue;
        functions_[at(sections[sections[i].sh_link].sh_offset + symbols[s].st_name)] = base + symbols[s].st_value;
      }
    }
  }
  // Returns the first function whose mangled name begins with `start`. The rest of the name has the argument types,
  // which differ between releases.
  template <typename Function>
  Function* Call(const std::string& start) const {
    const auto found = functions_.lower_bound(start);
    if (found == functions_.end() || found->first.rfind(start, 0) != 0) return nullptr;
    return reinterpret_cast<Function*>(found->second);
  }

  void* library_ = nullptr;
  std::map<std::string, uintptr_t> functions_;
  void* allocator_ = nullptr;
  void* (*alloc_)(void*, size_t) = nullptr;
  void* (*alloc_on_stream_)(void*, size_t, uint64_t) = nullptr;
  void (*free_)(void*, void*) = nullptr;
  void (*stats_)(void*, void*, int) = nullptr;
  void (*limit_)(void*, double, int) = nullptr;
  void (*empty_)(void*, uint64_t, uint64_t) = nullptr;
  int (*set_device_)(int) = nullptr;
};

// Prints the mean time of a pair of allocation and free of a cached block.
void Time(const Torch& torch) {
  constexpr int kPairs = 100000;
  torch.Free(torch.Allocate(kMiB));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kPairs; ++i) torch.Free(torch.Allocate(kMiB));
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  std::printf("ns %.1f pairs %d\n", time.count() / kPairs, kPairs);
}

// Needs the memory that the allocator has cached: the driver refuses first, and the allocator frees it and tries again.
void Retry(const Torch& torch) {
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(copy_input(torch, 32 * kMiB));
  for (void* const block : blocks) torch.Free(block);
  void* const large = grow_kv_cache(torch, 128 * kMiB);
  REQUIRE(large != nullptr);
  torch.Free(large);
  torch.EmptyCache();
}

// Allocates on the default stream and on another one, and empties the cache, with few sizes that are equal. Prints what
// write_torch_snapshot.py makes a snapshot of, and the peaks.
void PrintTrace(const Torch& torch) {
  constexpr uint64_t kSecondStream = 0x7000;
  struct Held {
    void* block;
    size_t bytes;
    uint64_t stream;
  };
  std::mt19937 random(7);
  std::vector<Held> live;
  long long reserved = torch.Statistic(0, 5);
  int time = 0;
  const char* separator = "";
  const auto print = [&](const char* action, const Held& one) {
    std::printf(
        "%s{\"action\": \"%s\", \"addr\": %llu, \"size\": %zu, \"stream\": %llu, \"time_us\": %d, "
        "\"context\": null}",
        separator, action, reinterpret_cast<unsigned long long>(one.block), one.bytes,
        static_cast<unsigned long long>(one.stream), ++time);
    separator = ", ";
  };
  // The allocator takes and returns whole segments. A new one begins with the block that needs it. Where an expandable
  // one is mapped is not known here: the pieces have other addresses then.
  const char* const settings = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  const bool is_expandable = settings != nullptr && std::strstr(settings, "expandable") != nullptr;
  std::vector<Held> segments;
  // Segments that the allocator has returned.
  const auto print_returned = [&] {
    std::vector<Held> kept;
    auto top = static_cast<size_t>(torch.Statistic(0, 5));  // of the pieces
    reserved = 0;
    for (const Held& segment : segments) {
      fake_cuda_block found = {};
      fake_cuda_find(segment.block, &found);
      const bool is_there = found.base == reinterpret_cast<uintptr_t>(segment.block) && found.bytes == segment.bytes;
      const size_t left = is_expandable ? std::min(top, segment.bytes) : is_there ? segment.bytes : 0;
      top -= left;
      reserved += static_cast<long long>(left);
      if (left > 0) kept.push_back({segment.block, left, 0});
      if (left == segment.bytes) continue;
      print("segment_free", {static_cast<char*>(segment.block) + left, segment.bytes - left, 0});
    }
    segments = kept;
  };
  // A new segment, for which others may have been returned.
  const auto print_growth = [&](void* block) {
    if (torch.Statistic(0, 5) == reserved) return;
    print_returned();
    const long long change = torch.Statistic(0, 5) - reserved;
    void* const begin = is_expandable ? reinterpret_cast<void*>((1LL << 40) + reserved) : block;
    segments.push_back({begin, static_cast<size_t>(change), 0});
    print("segment_alloc", segments.back());
    reserved += change;
  };
  const auto free_one = [&](size_t i) {
    torch.Free(live[i].block);
    print("free_requested", live[i]);
    print("free_completed", live[i]);
    live[i] = live.back();
    live.pop_back();
  };
  std::printf("{\"segments\": [], \"sites\": [], \"device_traces\": [[");
  for (int i = 0; i < 4000; ++i) {
    if (i % 700 == 699) {
      torch.EmptyCache();
      print_returned();
    } else if (live.empty() || (live.size() < 60 && random() % 100 < 55)) {
      const uint64_t stream = random() % 5 == 0 ? kSecondStream : 0;
      const size_t most = random() % 2 == 0 ? 900 << 10 : random() % 8 == 0 ? 300 * kMiB : 40 * kMiB;
      const size_t bytes = random() % most + 1;
      live.push_back({torch.AllocateOn(stream, bytes), bytes, stream});
      print_growth(live.back().block);
      print("alloc", live.back());
    } else {
      free_one(random() % live.size());
    }
  }
  const long long peaks[] = {torch.Statistic(0, 4, 1), torch.Statistic(0, 5, 1)};
  while (!live.empty()) free_one(live.size() - 1);
  torch.EmptyCache();
  print_returned();
  std::printf("]], \"stats\": {\"allocated_peak\": %lld, \"reserved_peak\": %lld}}\n", peaks[0], peaks[1]);
}

void RunOut(const Torch& torch) {
  std::vector<void*> blocks;
  try {
    for (int i = 0; i < 100; ++i) blocks.push_back(load_weights(torch, 32 * kMiB));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::printf("out of memory after %zu\n", blocks.size());
  }
}

// The child frees a block that its parent has allocated, as Python does with inherited objects.
void Fork(const Torch& torch) {
  void* const block = load_weights(torch, 3 * kMiB);
  const pid_t child = fork();
  if (child == 0) {
    torch.Free(block);
    using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
    CUdeviceptr own = 0;
    REQUIRE(cuMemAlloc_v2(&own, 512) == kSuccess && cuMemFree_v2(own) == kSuccess);
    std::exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

// Begins to record after some allocations, of which a part is freed later.
void Attach(const Torch& torch) {
  void* const small = load_weights(torch, 3 * kMiB);
  void* const large = load_weights(torch, 64 * kMiB);
  void* const library = dlopen(std::getenv("ATTACH_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  auto* const attach = reinterpret_cast<int (*)(const char*)>(dlsym(library, "hbmprof_attach"));
  REQUIRE(attach != nullptr && attach(nullptr) == 0);
  grow_kv_cache(torch, 2 * kMiB);
  torch.Free(small);
  torch.Free(large);
  torch.EmptyCache();
  Operate(torch, 1, 1000, 1);
}

// Holds memory and leaks from its start on, for another process that attaches. Input: "s" ends the leak, "f" frees what
// it held, "g" allocates, a line feed prints the totals.
void Live(const Torch& torch) {
  void* const small = load_weights(torch, 3 * kMiB);
  void* const large = load_weights(torch, 64 * kMiB);
  grow_kv_cache(torch, 64 << 10);
  std::printf("ready\n");
  std::fflush(stdout);
  bool leaks = true;
  for (;;) {
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    char byte = 0;
    if (poll(&input, 1, leaks ? 20 : -1) == 0) {
      grow_kv_cache(torch, 64 << 10);
      continue;
    }
    if (read(STDIN_FILENO, &byte, 1) != 1) return;
    if (byte == 's') leaks = false;
    if (byte == 'g') grow_kv_cache(torch, 5 * kMiB);
    if (byte == 'f') {
      torch.Free(small);
      torch.Free(large);
      torch.EmptyCache();
    }
    if (byte == '\n') torch.PrintTotals();
    std::fflush(stdout);
  }
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void torch_case(const char* library, const char* case_name) {
  const Torch torch(library);
  const std::string_view name = case_name;
  if (name == "one") REQUIRE(load_weights(torch, 3 * kMiB) != nullptr);
  if (name == "random") Random(torch, 1);
  if (name == "two_devices") Random(torch, 2);
  if (name == "serve") Serve(torch, false);
  if (name == "leak") Serve(torch, true);
  if (name == "trace") return PrintTrace(torch);
  if (name == "run_out") RunOut(torch);
  if (name == "limit") {
    torch.SetLimit(0.25);
    RunOut(torch);
  }
  if (name == "retry") Retry(torch);
  if (name == "retry_and_run_out") {
    Retry(torch);
    RunOut(torch);
  }
  if (name == "fork") Fork(torch);
  if (name == "attach") Attach(torch);
  if (name == "live") Live(torch);
  if (name == "time") Time(torch);
  if (name == "empty") {
    Operate(torch, 1, 1000, 1);
    void* const kept = load_weights(torch, 3 * kMiB);
    torch.EmptyCache();
    REQUIRE(kept != nullptr);
  }
  torch.PrintTotals();
  std::fflush(stdout);
}

#if defined(TORCH_LIBRARY)
// For torch_program.py: opens the library, and then allocates blocks for tensors. These two functions represent
// functions of PyTorch and have their namespace.
namespace {
const Torch* opened = nullptr;
}
extern "C" [[gnu::visibility("default")]] void torch_open(const char* library) { opened = new Torch(library); }
namespace torch {
[[gnu::visibility("default")]] void* empty(size_t bytes) { return opened->Allocate(bytes); }
[[gnu::visibility("default")]] void release(void* block) { opened->Free(block); }
}  // namespace torch
#else
int main(int argc, char** argv) {
  REQUIRE(argc == 3);
  torch_case(argv[1], argv[2]);
}
#endif
