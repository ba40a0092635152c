// Asks the driver library what it answers without a device. argv[1] selects what; each value is a case of driver_test.
// What it prints must not depend on what is preloaded.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/support/check.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

void* const driver = dlopen("libcuda.so.1", RTLD_NOW);

template <typename Function>
Function* Find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(driver, name));
}

int Init() { return Find<CUresult(unsigned)>("cuInit")(0); }

int Allocate() {
  CUdeviceptr ptr = 0;
  return Find<CUresult(CUdeviceptr*, size_t)>("cuMemAlloc_v2")(&ptr, 100);
}

void Print(const char* what, int result) {
  std::printf("%s: %d\n", what, result);
  std::fflush(stdout);
}

// The lines of driver_facts.txt, by name and flags: the symbol from each version on.
using Facts = std::map<std::string, std::map<int, std::map<int, std::string>>>;

Facts ReadFacts(const std::string& path) {
  Facts facts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, symbol;
    int flags = 0;
    int version = 0;
    if (line[0] != '#' && words >> name >> flags >> version >> symbol) facts[name][flags][version] = symbol;
  }
  CHECK_THAT(!facts.empty());
  return facts;
}

std::string SymbolOf(void* function) {
  Dl_info info = {};
  if (function == nullptr) return "null";
  return dladdr(function, &info) != 0 && info.dli_saddr == function ? info.dli_sname : "not exported";
}

// Checks each name, version and flag against the facts and against dlsym, and prints all answers.
void Lookups(const std::string& path) {
  auto* const get = Find<CUresult(const char*, void**, int, Flags64)>("cuGetProcAddress");
  auto* const get_v2 = Find<CUresult(const char*, void**, int, Flags64, int*)>("cuGetProcAddress_v2");
  Facts facts = ReadFacts(path);
  facts["cuNoSuchFunction"];
  int checked = 0;
  const auto check = [&](const std::string& name, const std::map<int, std::string>& symbols, int version,
                         unsigned flags) {
    // The newest one that this driver has, not the newest one of all.
    std::string expected = "null";
    bool lacks = false;
    for (const auto& [since, symbol] : symbols) {
      const bool has = dlsym(driver, symbol.c_str()) != nullptr;
      lacks = lacks || !has;
      if (has && since <= version) expected = symbol;
    }
    char unset = 0;
    for (const bool second : {false, true}) {
      if (second ? get_v2 == nullptr : get == nullptr) continue;
      void* function = &unset;
      int status = -1;
      const CUresult result = second ? get_v2(name.c_str(), &function, version, flags, &status)
                                     : get(name.c_str(), &function, version, flags);
      const std::string symbol = function == &unset ? "unset" : SymbolOf(function);
      std::printf("%s %u %d %d: %d %d %s\n", name.c_str(), flags, version, second ? 2 : 1, result, status,
                  symbol.c_str());
      if (function != &unset && function != nullptr) CHECK_THAT(function == dlsym(driver, symbol.c_str()));
      ++checked;
      bool is_right = symbol == expected;
      if (expected == "null" && !second) is_right = result == kErrorNotFound && symbol == "unset";
      if (second) is_right = is_right && result == kSuccess && (status == 0) == (expected != "null");
      if (second && expected == "null" && !lacks) is_right = is_right && status == (symbols.empty() ? 1 : 2);
      if (is_right) continue;
      std::fprintf(stderr, "%s, version %d, flags %u: %s instead of %s, result %d, status %d\n", name.c_str(), version,
                   flags, symbol.c_str(), expected.c_str(), result, status);
      std::exit(1);
    }
  };
  const auto is_known = [](const std::map<int, std::string>& symbols) {
    return symbols.empty() || std::any_of(symbols.begin(), symbols.end(), [](const auto& symbol) {
             return dlsym(driver, symbol.second.c_str()) != nullptr;
           });
  };
  for (auto& [name, by_flags] : facts) {
    for (unsigned flags = 0; flags < 4; ++flags) {
      const auto& symbols = flags >= 2 && by_flags.count(2) != 0 ? by_flags[2] : by_flags[0];
      if (!is_known(symbols)) continue;
      for (const int version : {0,     2000,  2010,  3000,  3020,  4000,  4010,  5000,  5050,  6000,  6050,  7000,
                                7050,  8000,  9000,  9020,  10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040,
                                11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050}) {
        check(name, symbols, version, flags);
      }
    }
  }
  std::printf("%d answers\n", checked);
}

// Returns an argument of the type T: memory of zeros, 1, or null for a handle.
template <typename T>
T Argument() {
  static char memory[4096];
  std::memset(memory, 0, sizeof(memory));
  if constexpr (std::is_pointer_v<T> && !std::is_void_v<std::remove_pointer_t<T>>) return reinterpret_cast<T>(memory);
  if constexpr (std::is_arithmetic_v<T>) return 1;
  return T();
}

template <typename... Parameters>
int CallWithArguments(CUresult (*function)(Parameters...)) {
  return function(Argument<Parameters>()...);
}

// Calls each function that the driver has, before cuInit and after it has failed. Prints the results as the lines of
// driver_facts.txt, and checks them against these.
void Calls(const std::string& path) {
  std::set<std::string> facts, known;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line); facts.insert(line)) {
    std::istringstream words(line);
    std::string first, name;
    if (words >> first >> name && first == "call") known.insert(name);
  }
  std::map<std::string, std::string> answers;
  // It reads its second argument, for which driver_calls.inc has no type.
  const auto may_call = [](const char* name) { return std::strcmp(name, "cuCtxCreate_v4") != 0; };
  const auto ask = [&] {
#define CALL(name, parameters, arguments, action)                                                                 \
  if (auto* const function = Find<CUresult parameters>(#name); function != nullptr && may_call(#name)) {          \
    answers.try_emplace(#name, "call " #name).first->second += " " + std::to_string(CallWithArguments(function)); \
  }
#define QUERY(name, parameters, arguments) CALL(name, parameters, arguments, )
#include "src/backends/cuda/driver/driver_calls.inc"
  };
  ask();
  Print("cuInit", Init());
  ask();
  bool is_right = true;
  for (const auto& [name, answer] : answers) {
    std::printf("%s\n", answer.c_str());
    // No real driver has been asked for the newest functions.
    if (facts.count(answer) != 0 || known.count(name) == 0) continue;
    std::fprintf(stderr, "not in %s: %s\n", path.c_str(), answer.c_str());
    is_right = false;
  }
  std::printf("%zu calls\n", answers.size());
  if (!is_right) std::exit(1);
}

// Prints "name library" for each name of the file that the driver has.
void Libraries(const std::string& path) {
  std::ifstream file(path);
  for (std::string name; file >> name;) {
    void* const function = name.rfind("cu", 0) == 0 ? dlsym(driver, name.c_str()) : nullptr;
    Dl_info info = {};
    if (function != nullptr && dladdr(function, &info) != 0) std::printf("%s %s\n", name.c_str(), info.dli_fname);
  }
}

void End(const std::string& how) {
  if (how == "_exit") _exit(3);
  if (how == "abort") std::abort();
  if (how == "term") raise(SIGTERM);
  if (how == "exit") std::exit(4);
}

void InChild(bool is_vfork) {
  const pid_t child = is_vfork ? vfork() : fork();
  if (child == 0 && is_vfork) _exit(5);
  if (child == 0) {
    Print("in the child", Init());
    Print("in the child", Allocate());
    std::exit(6);
  }
  int status = 0;
  CHECK_THAT(waitpid(child, &status, 0) == child);
  Print("the child", status);
}

}  // namespace

int main(int, char** argv) {
  const std::string name = argv[1];
  CHECK_THAT(driver != nullptr);
  if (name == "lookups") {
    Lookups(argv[2]);
    return 0;
  }
  if (name == "calls") {
    Calls(argv[2]);
    return 0;
  }
  if (name == "libraries") {
    Libraries(argv[2]);
    return 0;
  }
  if (name == "dlclose") {
    CHECK_THAT(dlsym(driver, "cuMemAlloc_v2") != nullptr);
    void* function = nullptr;
    if (auto* const get = Find<CUresult(const char*, void**, int, Flags64)>("cuGetProcAddress")) {
      Print("a lookup", get("cuMemFree", &function, 11030, 0));
    }
    dlclose(driver);
    Print("still loaded", dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr);
    return 0;
  }
  if (name == "deep_bind") {
    void* const library = dlopen(argv[2], RTLD_LAZY | RTLD_DEEPBIND);
    CHECK_THAT(library != nullptr);
    auto* const call = reinterpret_cast<int (*)(int)>(dlsym(library, "call_driver"));
    Print("a function that it has", call(0));
    Print("a function that it lacks", call(1));
  }
  if (name == "global") {
    CHECK_THAT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == driver);
    Print("found by name alone", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == dlsym(driver, "cuMemAlloc_v2"));
    Print("and the next one is there", dlsym(RTLD_NEXT, "cuMemAlloc_v2") != nullptr);
  }
  if (name == "dlmopen") {
    void* const other = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    CHECK_THAT(other != nullptr);
    void* const init = dlsym(other, "cuInit");
    Print("in another namespace", reinterpret_cast<CUresult (*)(unsigned)>(init)(0));
    // The driver of this namespace would not know the other one's contexts and memory.
    Dl_info info;
    CHECK_THAT(dladdr(dlsym(other, "cuMemAlloc_v2"), &info) != 0);
    Print("the other driver's own function", std::strstr(info.dli_fname, "libcuda.so") != nullptr);
  }
  Print("cuInit", Init());
  Print("cuMemAlloc_v2", Allocate());
  if (name == "fork" || name == "vfork") InChild(name == "vfork");
  if (name == "threads") {
    std::vector<std::thread> threads;
    std::vector<int> results(4);
    for (int& result : results) {
      threads.emplace_back([&result] {
        for (int i = 0; i < 3; ++i) result = Init() + Allocate();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int result : results) Print("in a thread", result);
  }
  End(name);
  return 0;
}
