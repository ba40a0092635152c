// What do Python functions in the stack cost? Time per pair of an allocation and a free, below DEPTH nested Python
// functions that stay the same, with Options::python off and on. The difference is the cost of the Python functions.
// The program has 100 thread-specific keys before its first allocation, as one that imports PyTorch.
//
// usage: python_bench LIBPYTHON                  prints the table
//        python_bench LIBPYTHON tracked PAIRS    for instructions.sh: so many pairs under 20 functions;
//                                                with "untracked" none
// LIBPYTHON: the shared library of an interpreter, such as libpython3.11.so.1.0
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hbmprof/profiler.h"

namespace {

using hbmprof::BufferId;
using hbmprof::Profiler;

struct MethodDefinition {
  const char* name;
  void* (*function)(void* self, void* argument);
  int flags;
  const char* documentation;
};
constexpr int kOneArgument = 8;  // METH_O

void* library = nullptr;

template <typename Function>
Function* Find(const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "python_bench: the library has no %s\n", name);
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

Profiler* profiler = nullptr;
int rounds = 50;
int pairs = 5000;  // of a round
double best_nanoseconds = 0;

[[gnu::noinline]] void Pair(uint64_t address) {
  profiler->RecordAlloc(BufferId(address), 4096, {});
  profiler->RecordFree(BufferId(address));
}

// Called by the innermost Python function.
void* Measure(void*, void*) {
  best_nanoseconds = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < pairs; ++i) Pair(0x1000 + static_cast<uint64_t>(i % 64) * 0x1000);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best_nanoseconds = std::min(best_nanoseconds, time.count() / pairs);
  }
  return Find<void*(long)>("PyLong_FromLong")(0);
}
MethodDefinition method = {"measure", Measure, kOneArgument, nullptr};

double MeasureUnder(int depth, bool python) {
  hbmprof::Options options;
  options.python = python;
  options.max_stack_depth = 512;
  Profiler measured(options);
  profiler = &measured;
  const std::string text = "def recurse(depth):\n    measure(0) if depth == 1 else recurse(depth - 1)\nrecurse(" +
                           std::to_string(depth - 1) + ")\n";
  if (Find<int(const char*, void*)>("PyRun_SimpleStringFlags")(text.c_str(), nullptr) != 0) std::exit(1);
  return best_nanoseconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::fprintf(stderr, "usage: python_bench LIBPYTHON [tracked|untracked PAIRS]\n");
    return 1;
  }
  pthread_key_t key;
  for (int i = 0; i < 100; ++i) pthread_key_create(&key, nullptr);
  library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "python_bench: %s\n", dlerror());
    return 1;
  }
  Find<void(int)>("Py_InitializeEx")(0);
  void* main_module = Find<void*(const char*)>("PyImport_AddModule")("__main__");
  void* function = Find<void*(MethodDefinition*, void*, void*)>("PyCFunction_NewEx")(&method, nullptr, nullptr);
  Find<int(void*, const char*, void*)>("PyObject_SetAttrString")(main_module, "measure", function);
  if (argc == 4) {
    rounds = 1;
    pairs = std::strcmp(argv[2], "tracked") == 0 ? std::atoi(argv[3]) : 0;
    MeasureUnder(20, true);
    return 0;
  }
  std::printf("| Python functions | off | on | added |\n|---|---|---|---|\n");
  for (const int depth : {2, 20, 50}) {
    const double off = MeasureUnder(depth, false);
    const double on = MeasureUnder(depth, true);
    std::printf("| %d | %.0f ns | %.0f ns | %.0f ns |\n", depth, off, on, on - off);
  }
  return 0;
}
