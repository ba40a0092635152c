// Captures while libraries are loaded and unloaded.
#include <alloca.h>
#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/capture/capture.h"
#include "src/capture/modules.h"
#include "src/capture/objects.h"
#include "tests/capture/oracles.h"
#include "tests/support/made_code.h"

namespace capture_test {
namespace {

using hbmprof::Caller;
using hbmprof::Snapshot;
using hbmprof::Unwinder;
using hbmprof::internal::CapturedStack;
using hbmprof::internal::LoadedModules;
using hbmprof::internal::StackCapture;
using hbmprof::internal::WatchObjects;

const StackCapture& Auto() {
  static const StackCapture capture(Unwinder::kAuto);
  return capture;
}

// A library that is loaded during the life of this object.
class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      ADD_FAILURE() << dlerror();
      return;
    }
    *reinterpret_cast<void**>(&call_) = dlsym(handle_, "call_through_frame");
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(call_); }
  // Adds no frame, even without optimization.
  [[gnu::always_inline]] void Call(void (*function)()) const {
    if (call_ != nullptr) call_(function);
  }

 private:
  void* handle_;
  int (*call_)(void (*)()) = nullptr;
};

// The first test has this place because the other tests make the rules of the libraries known.

// Two threads meet a new object at the same time. Neither goes on before a call of the watcher has returned.
const Library* new_library;
std::atomic<int> watchers;
void WaitForAnotherWatcher(const link_map* object, bool is_permanent) {
  dl_find_object expected;
  if (is_permanent || _dl_find_object(reinterpret_cast<void*>(new_library->address()), &expected) != 0 ||
      expected.dlfo_link_map != object) {
    return;
  }
  watchers.fetch_add(1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (watchers < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}
[[gnu::noinline]] void CaptureByRules() { Capture(Auto(), Caller::OfThisFunction()); }
TEST(ObjectsTest, EachThreadThatMeetsANewObjectCallsTheWatcher) {
  Auto();
  const Library other(FRAME_LIBRARY_LARGE);
  new_library = &other;
  watchers = 0;
  WatchObjects(&WaitForAnotherWatcher);
  std::thread one([] { new_library->Call(CaptureByRules); });
  std::thread two([] { new_library->Call(CaptureByRules); });
  one.join();
  two.join();
  EXPECT_EQ(watchers.load(), 2);
  WatchObjects([](const link_map*, bool) {});
}

[[gnu::noinline]] void ProbeAgainstGlibc() {
  const Caller caller = Caller::OfThisFunction();
  const Stack expected = GlibcStack(caller);
  // Often enough for the stack to be cached.
  for (int i = 0; i < 20; ++i) {
    const Stack rules = Capture(Auto(), caller);
    ASSERT_TRUE(rules == expected) << "rules:\n" << Describe(rules) << "glibc:\n" << Describe(expected);
  }
}

void LoadInTurn(const std::string& one, const std::string& other) {
  uintptr_t address = 0;
  int at_same_address = 0;
  for (int round = 0; round < 6 && !testing::Test::HasFatalFailure(); ++round) {
    const Library library(round % 2 == 0 ? one : other);
    at_same_address += library.address() == address;
    address = library.address();
    library.Call(ProbeAgainstGlibc);
  }
  EXPECT_GT(at_same_address, 0) << "no library was loaded at the address of another, so nothing was tested";
}

TEST(UnloadingTest, LibraryAtReusedAddressHasItsOwnFrames) { LoadInTurn(FRAME_LIBRARY_SMALL, FRAME_LIBRARY_LARGE); }

TEST(UnloadingTest, LibraryWithoutBuildIdAtReusedAddressHasItsOwnFrames) {
  LoadInTurn(FRAME_LIBRARY_SMALL_NO_ID, FRAME_LIBRARY_LARGE_NO_ID);
}

bool was_cached;
// Captures often enough for the stack to be cached, and sets was_cached to whether it is.
[[gnu::noinline]] void CaptureAndFind() {
  const Caller caller = Caller::OfThisFunction();
  constexpr int kDepth = 64;
  uintptr_t buffer[kDepth];
  for (int i = 0; i < 20; ++i) Auto().Capture(caller, buffer, kDepth);
  was_cached = Auto().FindPath(caller, kDepth) != nullptr;
}

// Each unloading makes it uncertain whether a library without a build id is still the same.
TEST(UnloadingTest, StacksThroughLibraryWithoutBuildIdAreCachedAfterManyUnloadings) {
  const Library library(FRAME_LIBRARY_SMALL_NO_ID);
  for (int i = 0; i < 17'000; ++i) {
    { const Library other(FRAME_LIBRARY_LARGE); }
    library.Call(CaptureAndFind);
  }
  EXPECT_TRUE(was_cached);
}

// Makes a copy of a library in which the segment of its build id is not mapped, and no header mentions the build id.
void CopyWithoutBuildId(const std::string& from, const std::string& to) {
  std::ifstream file(from, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  ElfW(Ehdr) header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::vector<ElfW(Phdr)> segments(header.e_phnum);
  const size_t segments_bytes = segments.size() * sizeof(segments[0]);
  std::memcpy(segments.data(), &bytes[header.e_phoff], segments_bytes);
  uintptr_t note = 0;
  for (auto& segment : segments) {
    if (segment.p_type != PT_NOTE) continue;
    note = std::max<uintptr_t>(note, segment.p_vaddr);
    segment.p_type = PT_NULL;
  }
  ASSERT_GE(note, uintptr_t{0x10000});
  for (auto& segment : segments) {
    if (segment.p_type == PT_LOAD && note - segment.p_vaddr < segment.p_memsz) segment.p_flags = 0;
  }
  std::memcpy(&bytes[header.e_phoff], segments.data(), segments_bytes);
  std::ofstream(to, std::ios::binary) << bytes;
}
TEST(UnloadingTest, BuildIdThatCannotBeReadAnyMoreIsNotRead) {
  const std::string copy = testing::TempDir() + "capture_no_note_" + std::to_string(getpid()) + ".so";
  CopyWithoutBuildId(FRAME_LIBRARY_SMALL_FAR_ID, copy);
  LoadInTurn(FRAME_LIBRARY_SMALL_FAR_ID, copy);
  std::filesystem::remove(copy);
}

// Functions that differ only in their addresses. They call a library at a given depth of the stack.
template <int kNumber>
[[gnu::noinline]] void CallFromBelow(const Library& library, size_t bytes, void (*function)()) {
  static volatile int sink;
  auto* block = static_cast<volatile char*>(alloca(bytes));
  block[0] = kNumber;
  library.Call(function);
  sink = sink + block[0];
}
uintptr_t probed_sp;
[[gnu::noinline]] void RecordSp() { probed_sp = Caller::OfThisFunction().sp; }

// The hardest case for the path cache: pc, sp and fp (that of CallFromBelow) are equal, and the larger frame of the
// other library contains the old words of the smaller frame, which were not overwritten.
void LoadAroundOldWords(const std::string& small, const std::string& large) {
  constexpr size_t kBelowOtherCalls = 128 << 10;  // so that dlopen and dlclose do not overwrite the words
  void (*const call[])(const Library&, size_t, void (*)()) = {CallFromBelow<0>, CallFromBelow<1>};
  const std::string paths[] = {small, large};
  size_t bytes[] = {kBelowOtherCalls, kBelowOtherCalls};
  void (*probe)() = RecordSp;
  uintptr_t sp[2];
  uintptr_t address[2];
  for (int round = 0; round < 12; ++round) {
    const int which = round % 2;
    {
      const Library library(paths[which]);
      address[which] = library.address();
      call[which](library, bytes[which], probe);
    }
    if (round > 1) continue;
    sp[which] = probed_sp;
    if (round == 0) continue;
    ASSERT_EQ(address[0], address[1]);
    ASSERT_GT(sp[0], sp[1]);
    bytes[0] += sp[0] - sp[1];
    probe = ProbeAgainstGlibc;
  }
}

TEST(UnloadingTest, LibraryAroundOldStackWordsHasItsOwnFrames) {
  LoadAroundOldWords(FRAME_LIBRARY_SMALL, FRAME_LIBRARY_LARGE);
}

TEST(UnloadingTest, RebuiltLibraryOfSameNameHasItsOwnFrames) {
  const std::string path = testing::TempDir() + "capture_plugin_" + std::to_string(getpid()) + ".so";
  for (int round = 0; round < 6; ++round) {
    // A new file each time, because the old one may be mapped.
    std::filesystem::remove(path);
    std::filesystem::copy_file(round % 2 == 0 ? FRAME_LIBRARY_SMALL_NO_ID : FRAME_LIBRARY_LARGE_NO_ID, path);
    Library(path).Call(ProbeAgainstGlibc);
  }
  std::filesystem::remove(path);
}

TEST(UnloadingTest, LibraryWithoutBuildIdInForkedChildHasItsOwnFrames) {
  const Library library(FRAME_LIBRARY_SMALL_NO_ID);
  library.Call(ProbeAgainstGlibc);
  const pid_t child = fork();
  if (child == 0) {
    library.Call(ProbeAgainstGlibc);
    LoadInTurn(FRAME_LIBRARY_LARGE_NO_ID, FRAME_LIBRARY_LARGE);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Overwrites some bytes of a library's unwind tables. `seed` selects them.
void Damage(const Library& library, uint64_t seed) {
  dl_find_object object;
  ASSERT_EQ(_dl_find_object(reinterpret_cast<void*>(library.address()), &object), 0);
  auto* tables = static_cast<unsigned char*>(object.dlfo_eh_frame);
  constexpr size_t kBytes = 160;  // the header, and entries
  const auto page = reinterpret_cast<uintptr_t>(tables) & ~uintptr_t{4095};
  ASSERT_EQ(mprotect(reinterpret_cast<void*>(page), 2 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC), 0);
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < 1 + seed % 8; ++i) {
    const uint64_t value = random();
    tables[random() % kBytes] = seed % 3 == 0 ? 0xff : static_cast<unsigned char>(value);
  }
}
Stack through_damaged;
[[gnu::noinline]] void CaptureThroughDamaged() { through_damaged = Capture(Auto(), Caller::OfThisFunction()); }

// Each seed has its own process, because the rules of a library are kept.
TEST(DamagedTablesTest, TruncateTheStack) {
  int truncated = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const Library library(FRAME_LIBRARY_SMALL);
      Damage(library, seed);
      library.Call(CaptureThroughDamaged);
      _exit(testing::Test::HasFailure() || through_damaged.depth < 1 ? 1 : through_damaged.truncated ? 2 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "seed " << seed << ": signal " << WTERMSIG(status);
    ASSERT_NE(WEXITSTATUS(status), 1) << "seed " << seed;
    truncated += WEXITSTATUS(status) == 2;
  }
  EXPECT_GT(truncated, 5);  // on aarch64 most of the frames are still found, by guesses
}

TEST(UnloadingTest, DoesNotDisturbOtherThreads) {
  std::atomic<bool> stop{false};
  std::thread loader([&stop] {
    while (!stop) {
      Library(FRAME_LIBRARY_SMALL).Call(ProbeAgainstGlibc);
      Library(FRAME_LIBRARY_LARGE_NO_ID).Call(ProbeAgainstGlibc);
    }
  });
  const Library kept(FRAME_LIBRARY_SMALL_NO_ID);
  for (int i = 0; i < 500; ++i) kept.Call(ProbeAgainstGlibc);
  stop = true;
  loader.join();
}

uintptr_t return_address;
[[gnu::noinline]] void StoreReturnAddress() {
  return_address = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
}

// Code without unwind information, in a frame whose frame record is an old one: its return address lies in a library
// that another thread unloads during the walk.
void GuessIntoLibraryThatIsUnloaded(const std::string& path) {
  void* const code = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(code, MAP_FAILED);
  Library(path).Call(StoreReturnAddress);
  std::atomic<bool> stop{false};
  std::thread loader([&] {
    while (!stop) Library{path};
  });
  struct {
    uintptr_t stack[2];
    uintptr_t record[2];
  } frame = {{0, 0}, {0, return_address}};
  const Caller caller = {reinterpret_cast<uintptr_t>(code) + 16, reinterpret_cast<uintptr_t>(frame.stack),
                         reinterpret_cast<uintptr_t>(frame.record)};
  uintptr_t pcs[64];
  int unfit = 0;
  for (int i = 0; i < 200'000; ++i) {
    const CapturedStack stack = Auto().Capture(caller, pcs, 64);
    // The library is a frame only while it is mapped and not yet in the list of the dynamic linker.
    unfit += stack.depth > 2 || !stack.truncated;
  }
  EXPECT_EQ(unfit, 0);
  stop = true;
  loader.join();
  munmap(code, 4096);
}
TEST(UnloadingTest, OldReturnAddressInLibraryThatIsUnloaded) { GuessIntoLibraryThatIsUnloaded(FRAME_LIBRARY_SMALL); }
TEST(UnloadingTest, OldReturnAddressInLibraryWithoutBuildIdThatIsUnloaded) {
  GuessIntoLibraryThatIsUnloaded(FRAME_LIBRARY_SMALL_NO_ID);
}

Stack after_guess;
[[gnu::noinline]] void CaptureAfterGuess() { after_guess = Capture(Auto(), Caller::OfThisFunction()); }
[[gnu::noinline]] void CallMadeCode() {
  const hbmprof_test::MadeCode code(hbmprof_test::MadeCode::kWithFramePointer);
  code.Call(reinterpret_cast<const void*>(&CaptureAfterGuess));
}
// The stack: made code, the frame that is guessed, and the library.
TEST(UnloadingTest, StackWithAGuessEndsAtALibraryThatCanBeUnloaded) {
  const Library library(FRAME_LIBRARY_SMALL);
  library.Call(CallMadeCode);
  ASSERT_EQ(after_guess.depth, 3) << Describe(after_guess);
  EXPECT_TRUE(after_guess.truncated);
  EXPECT_LT(after_guess.pcs[2] - library.address(), 4096u);
}

// Called by another thread and then by the constructor of a library, which runs with the dynamic linker's lock held.
void (*in_constructor)();
std::thread other_thread;  // joined outside of the constructor, because a thread may need the linker's lock to end
void WaitForAnotherThread() {
  unsetenv("CAPTURE_TEST_HOOK");
  std::promise<void> done;
  std::future<void> finished = done.get_future();
  other_thread = std::thread([&done] {
    in_constructor();
    done.set_value();
  });
  ASSERT_EQ(finished.wait_for(std::chrono::seconds(60)), std::future_status::ready) << "deadlock";
  in_constructor();
}
void RunInConstructorWhileAnotherThreadDoes(void (*function)()) {
  in_constructor = function;
  char hook[32];
  snprintf(hook, sizeof(hook), "%lx", reinterpret_cast<unsigned long>(&WaitForAnotherThread));
  setenv("CAPTURE_TEST_HOOK", hook, 1);
  const Library with_constructor(FRAME_LIBRARY_SMALL);
  other_thread.join();
}

std::atomic<int> runs;
[[gnu::noinline]] void CaptureOnly() {
  const Caller caller = Caller::OfThisFunction();
  uintptr_t pcs[64];
  EXPECT_GT(Auto().Capture(caller, pcs, 64).depth, 2);
  runs.fetch_add(1);
}
// The captures of the other thread are in code without known rules.
const Library* unseen;
TEST(UnloadingTest, CapturesDoNotWaitForDlopen) {
  const Library other(FRAME_LIBRARY_LARGE);
  unseen = &other;
  runs = 0;
  RunInConstructorWhileAnotherThreadDoes([] { unseen->Call(CaptureOnly); });
  EXPECT_EQ(runs.load(), 2);
}

TEST(ModulesTest, AreListedWhileAnotherThreadIsInDlopen) {
  runs = 0;
  RunInConstructorWhileAnotherThreadDoes([] {
    EXPECT_FALSE(LoadedModules().empty());
    runs.fetch_add(1);
  });
  EXPECT_EQ(runs.load(), 2);
}

// dl_iterate_phdr holds the lock of the linker's list while it calls a function of the program. That function lists the
// modules, while another thread waits for the lock to do the same.
TEST(ModulesTest, AreListedInsideDlIteratePhdr) {
  std::atomic<bool> is_listing{false};
  std::promise<void> done;
  std::future<void> finished = done.get_future();
  std::thread inside([&] {
    dl_iterate_phdr(
        [](dl_phdr_info*, size_t, void* flag) {
          while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
          std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the other thread waits for this one
          EXPECT_FALSE(LoadedModules().empty());
          return 1;
        },
        &is_listing);
    done.set_value();
  });
  std::thread other([&] {
    is_listing = true;
    EXPECT_FALSE(LoadedModules().empty());
  });
  if (finished.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    std::fprintf(stderr, "deadlock\n");
    std::abort();  // the threads cannot be joined
  }
  inside.join();
  other.join();
}

const Snapshot::Module* Covering(const std::vector<Snapshot::Module>& modules, uintptr_t address) {
  for (const Snapshot::Module& module : modules) {
    if (module.start <= address && address < module.limit) return &module;
  }
  return nullptr;
}

TEST(ModulesTest, FirstIsMainProgramWithFullPath) {
  const std::vector<Snapshot::Module> modules = LoadedModules();
  ASSERT_FALSE(modules.empty());
  const auto here = reinterpret_cast<uintptr_t>(&ProbeAgainstGlibc);
  EXPECT_EQ(Covering(modules, here), &modules[0]);
  EXPECT_EQ(modules[0].path, std::filesystem::read_symlink("/proc/self/exe"));
}

TEST(ModulesTest, HaveBuildIdsAndDoNotOverlap) {
  const std::vector<Snapshot::Module> modules = LoadedModules();
  const Snapshot::Module* libc =
      Covering(modules, reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "gnu_get_libc_version")));
  ASSERT_NE(libc, nullptr);
  EXPECT_NE(libc->path.find("/libc.so"), std::string::npos) << libc->path;
  EXPECT_EQ(libc->build_id.size(), 40u) << libc->build_id;
  EXPECT_EQ(libc->build_id.find_first_not_of("0123456789abcdef"), std::string::npos);
  for (size_t i = 1; i < modules.size(); ++i) {
    EXPECT_LT(modules[i].start, modules[i].limit);
    EXPECT_TRUE(modules[i].path == "[vdso]" || modules[i].path[0] == '/') << modules[i].path;
    if (i == 1) continue;  // the main program comes first wherever it is
    EXPECT_LE(modules[i - 1].limit, modules[i].start);
  }
}

TEST(ModulesTest, ContainVdso) {
  int count = 0;
  for (const Snapshot::Module& module : LoadedModules()) count += module.path == "[vdso]";
  EXPECT_EQ(count, 1);
}

TEST(ModulesTest, KeepUnloadedLibraryUntilItsAddressIsReused) {
  uintptr_t address;
  {
    const Library library(FRAME_LIBRARY_SMALL);
    address = library.address();
    ASSERT_NE(Covering(LoadedModules(), address), nullptr);
  }
  for (int i = 0; i < 2; ++i) {
    const std::vector<Snapshot::Module> modules = LoadedModules();
    const Snapshot::Module* unloaded = Covering(modules, address);
    ASSERT_NE(unloaded, nullptr);
    EXPECT_EQ(unloaded->path, FRAME_LIBRARY_SMALL);
  }
  const Library library(FRAME_LIBRARY_LARGE);
  ASSERT_EQ(library.address(), address) << "the other library has another address, so nothing was tested";
  int covering = 0;
  for (const Snapshot::Module& module : LoadedModules()) {
    if (module.start > address || address >= module.limit) continue;
    ++covering;
    EXPECT_EQ(module.path, FRAME_LIBRARY_LARGE);
  }
  EXPECT_EQ(covering, 1);
}

TEST(ModulesTest, BuildIdIsEmptyIfLibraryHasNone) {
  const Library library(FRAME_LIBRARY_SMALL_NO_ID);
  const std::vector<Snapshot::Module> modules = LoadedModules();
  const Snapshot::Module* module = Covering(modules, library.address());
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->build_id, "");
}

}  // namespace
}  // namespace capture_test
