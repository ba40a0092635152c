// Prints one table: what the injected library records, compared with the driver, NVML, PyTorch and the runtime, and
// what it costs. Each line says what is expected and why. The programs and the library are in the folder of this
// program. Exits with 1 if a line FAILED. A line that is not possible here says why.
//
// Environment:
//   GPU_TABLE_TORCH="PROGRAM ARGUMENTS"   a program with PyTorch's allocator, with the cases "random" and "time" of
//                                         tests/inject/torch_program.cc; by default, Python's torch is used
//   GPU_TABLE_LIBRARY_PATH=FOLDERS        LD_LIBRARY_PATH for Python, which has its own libraries of NVIDIA
//   GPU_TABLE_CALLS=COUNT                 the pairs of calls whose time is measured (default 2000)
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::ReadProfile;
using ::hbmprof_test::RunCommand;

int failures = 0;
std::string scratch;  // a folder

std::string NewFile() {
  static int count = 0;
  return scratch + "/" + std::to_string(++count) + ".pb.gz";
}

void Print(const char* state, const std::string& what, const std::string& expected, const std::string& found,
           const std::string& why) {
  std::printf("| %s | %s | %s | %s | %s |\n", state, what.c_str(), expected.c_str(), found.c_str(), why.c_str());
  std::fflush(stdout);
}

void Skip(const std::string& what, std::string reason) {
  reason = reason.substr(0, reason.find('\n'));
  Print("skipped", what, "", "", reason);
}

void Expect(bool is_right, const std::string& what, const std::string& expected, const std::string& found,
            const std::string& why) {
  if (!is_right) ++failures;
  Print(is_right ? "ok" : "FAILED", what, expected, found, why);
}

void ExpectEqual(const std::string& what, int64_t expected, int64_t found, const std::string& why) {
  Expect(found == expected, what, std::to_string(expected), std::to_string(found), why);
}

void ExpectWithin(const std::string& what, int64_t expected, int64_t step, int64_t found, const std::string& why) {
  Expect(found > expected - step && found < expected + step, what,
         std::to_string(expected) + " +- less than " + std::to_string(step), std::to_string(found), why);
}

std::string Beside(const std::string& name) {
  static const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return here / name;
}

struct Result {
  CommandResult run;
  ProfileView view{hbmprof_test::Profile()};

  // A number of the comment on the first GPU.
  int64_t Figure(const char* key) const { return std::atoll(view.Comment("device GPU:0", key).c_str()); }
};

// Runs the command with the library. `before`: the command of a tool that starts it.
Result RunInjected(const std::vector<std::string>& command, const std::vector<std::string>& before = {}) {
  const std::string output = NewFile();
  std::vector<std::string> all = before;
  all.insert(all.end(), {"env", "LD_PRELOAD=" + Beside("libhbmprof_gpu.so"), "HBMPROF_GPU_OUTPUT=" + output});
  all.insert(all.end(), command.begin(), command.end());
  Result result;
  result.run = RunCommand(all);
  if (auto profile = ReadProfile(output); profile.ok()) result.view = ProfileView(*profile);
  return result;
}

// Returns whether the program has run. Else adds a line.
bool HasRun(const std::string& what, const CommandResult& run) {
  if (run.exit_code == 0) return true;
  if (run.exit_code == 77 || run.exit_code == 127) {
    Skip(what, run.out + run.err);
  } else {
    Expect(false, what, "exit code 0", std::to_string(run.exit_code) + " " + run.err.substr(0, 200),
           "the program ends");
  }
  return false;
}

void Family(const std::string& family) {
  const Result result = RunInjected({Beside("gpu_family_program"), family});
  if (!HasRun(family, result.run)) return;
  std::istringstream out(result.run.out);
  std::string kind;
  int64_t bytes = 0, taken = 0, granularity = 0, nvml = 0, mapped = 0;
  out >> kind >> bytes >> taken >> granularity >> nvml >> mapped;
  const auto is_requested = [&](const ProfileView::Sample& sample) {
    return sample.Has("user_allocates") && sample.labels.at("kind") == kind;
  };
  const int64_t recorded = result.view.Sum("inuse_space", is_requested);
  ExpectEqual(family + ": recorded bytes", bytes, recorded, "the program has requested them with one call");
  ExpectEqual(family + ": recorded allocations", 1, result.view.Sum("inuse_objects", is_requested), "each call once");
  const std::string baseline = result.view.Comment("device GPU:0", "baseline");
  if (baseline.empty()) {
    Expect(false, family + ": unaccounted bytes", "a figure", "none", "the device has recorded memory");
  } else {
    ExpectWithin(family + ": unaccounted bytes", std::atoll(baseline.c_str()), granularity,
                 result.Figure("unaccounted"),
                 "as before the first allocation: nothing is allocated that is not recorded");
  }
  if (family == "pinned") {
    ExpectWithin(family + ": the process's address space", bytes, bytes / 2, mapped,
                 "the driver maps the memory into the process, once");
  }
  if (kind == "managed" || kind == "pinned_host") return;  // not, or not only, in the memory of the device
  const std::string why = "it allocates in steps of " + std::to_string(granularity);
  ExpectWithin(family + ": recorded + pools' idle, of the driver", taken, granularity,
               recorded + result.Figure("driver_cache"), "the driver's free memory fell by this; " + why);
  if (nvml < 0) {
    Skip(family + ": of NVML", "no NVML");
  } else {
    ExpectWithin(family + ": recorded + pools' idle, of NVML", nvml, granularity,
                 recorded + result.Figure("driver_cache"), "NVML's figure grew by this; " + why);
  }
}

std::vector<std::string> Python(const std::string& program, const std::string& argument = "") {
  const char* folders = std::getenv("GPU_TABLE_LIBRARY_PATH");
  if (folders == nullptr) folders = std::getenv("LD_LIBRARY_PATH");
  return {"env",   std::string("LD_LIBRARY_PATH=") + (folders == nullptr ? "" : folders), "python3", "-c", program,
          argument};
}

// Python's program prints the same lines as GPU_TABLE_TORCH.
constexpr char kTorchProgram[] = R"(import os, sys, time
try:
  import torch
  torch.zeros(1).cuda()
except Exception as error:
  print(str(error) or "no torch")
  sys.exit(77)
if sys.argv[1] == "time":
  start = time.perf_counter_ns()
  for _ in range(100000): torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
  print("ns %.1f pairs 100000" % ((time.perf_counter_ns() - start) / 100000), flush=True)
  os._exit(0)
kept = [torch.empty(1 << n, dtype=torch.uint8, device="cuda") for n in range(10, 24)]
stats = torch.cuda.memory_stats()
print("device 0: blocks %d allocated %d reserved %d driver %d" % (
    stats["active.all.current"], torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), 0), flush=True)
os._exit(0)
)";

std::vector<std::string> TorchCommand(const std::string& name) {
  const char* const program = std::getenv("GPU_TABLE_TORCH");
  if (program == nullptr) return Python(kTorchProgram, name);
  std::istringstream words(program);
  std::vector<std::string> command;
  for (std::string word; words >> word;) command.push_back(word);
  command.push_back(name);
  return command;
}

bool IsTorchBlock(const ProfileView::Sample& sample) {
  const auto allocator = sample.labels.find("allocator");
  return allocator != sample.labels.end() && allocator->second == "pytorch" && sample.labels.at("kind") == "device" &&
         sample.labels.at("device") == "GPU:0";
}

void PyTorch() {
  const Result result = RunInjected(TorchCommand("random"));
  if (!HasRun("PyTorch", result.run)) return;
  long long blocks = -1, allocated = -1, reserved = -1;
  const size_t line = result.run.out.find("device 0:");
  if (line != std::string::npos) {
    std::sscanf(result.run.out.c_str() + line, "device 0: blocks %lld allocated %lld reserved %lld", &blocks,
                &allocated, &reserved);
  }
  const int64_t pool = result.Figure("pool");
  ExpectEqual("PyTorch: reserved bytes", reserved, pool, "memory_reserved() counts the segments");
  ExpectEqual("PyTorch: allocated bytes", allocated, pool - result.Figure("idle"),
              "memory_allocated() counts the blocks");
  ExpectEqual("PyTorch: blocks", blocks, result.view.Sum("inuse_objects", IsTorchBlock), "each block is recorded once");
}

constexpr char kJaxProgram[] = R"(import os, sys
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
try:
  import jax
  device = [d for d in jax.devices() if d.platform == "gpu"][0]
except Exception as error:
  print(str(error) or "no GPU in jax")
  sys.exit(77)
import jax.numpy as jnp
kept = [jnp.ones((1 << n,), jnp.uint8).block_until_ready() for n in range(10, 24)]
print(device.memory_stats()["pool_bytes"], flush=True)
os._exit(0)
)";

void Jax() {
  const Result result = RunInjected(Python(kJaxProgram));
  if (!HasRun("JAX", result.run)) return;
  const int64_t in_use = result.view.Sum("inuse_space", [](const auto& sample) {
    return sample.HasModule("xla_cuda_plugin") && sample.labels.at("kind") == "device";
  });
  ExpectWithin("JAX: bytes of its pool", std::atoll(result.run.out.c_str()), 64 << 20, in_use,
               "memory_stats() counts the pool; the plugin also has workspaces outside of it");
}

void Cost() {
  const char* const count = std::getenv("GPU_TABLE_CALLS");
  const std::vector<std::string> command = {Beside("gpu_family_program"), "time", count == nullptr ? "2000" : count};
  const CommandResult plain = RunCommand(command);
  if (!HasRun("cost of a call", plain)) return;
  const Result injected = RunInjected(command);
  double before[2] = {}, with[2] = {};
  std::istringstream(plain.out) >> before[0] >> before[1];
  std::istringstream(injected.run.out) >> with[0] >> with[1];
  const char* const names[] = {"cuMemAlloc and cuMemFree", "cuMemAllocAsync and cuMemFreeAsync"};
  for (int i = 0; i < 2; ++i) {
    char found[100];
    std::snprintf(found, sizeof(found), "%.0f ns, without %.0f ns: x%.2f", with[i], before[i], with[i] / before[i]);
    Expect(before[i] > 0 && with[i] > 0, std::string("cost: ") + names[i], "two times", found,
           "the mean of " + command[2] + " pairs");
  }
  constexpr int kWarmUp = 10;  // of family_program.cc
  ExpectEqual("cost: recorded allocations", 2 * (kWarmUp + std::atoll(command[2].c_str())),
              injected.view.Sum("alloc_objects"), "each measured call is recorded");
  ExpectEqual("cost: bytes in use", 0, injected.view.Sum("inuse_space"), "each measured call is freed");
}

void TorchCost() {
  const CommandResult plain = RunCommand(TorchCommand("time"));
  if (!HasRun("cost of a block of PyTorch", plain)) return;
  const Result injected = RunInjected(TorchCommand("time"));
  double before = 0, with = 0;
  int pairs = 0;
  const size_t line = injected.run.out.find("ns ");
  const bool is_timed =
      line != std::string::npos &&
      std::sscanf(injected.run.out.c_str() + line, "ns %lf pairs %d", &with, &pairs) == 2 &&
      std::sscanf(plain.out.c_str() + std::min(plain.out.size(), plain.out.find("ns ")), "ns %lf", &before) == 1;
  char found[100];
  std::snprintf(found, sizeof(found), "%.0f ns, without %.0f ns: x%.2f", with, before, with / before);
  Expect(is_timed, "cost: a block of PyTorch", "two times", found, "the mean of " + std::to_string(pairs) + " pairs");
  const int64_t recorded = injected.view.Sum("alloc_objects", IsTorchBlock);
  Expect(recorded >= pairs, "cost: recorded blocks of PyTorch", "at least " + std::to_string(pairs),
         std::to_string(recorded), "each measured block is recorded");
}

// The runtime checks the driver by a function of the driver. Its answer must not depend on the library.
void IntegrityCheck() {
  for (const char* name : {"gpu_program_static", "gpu_program_shared"}) {
    const std::string what = std::string("integrity check of the runtime: ") + name;
    if (access(Beside(name).c_str(), X_OK) != 0) {
      Skip(what, "not built: no CUDA toolkit");
      continue;
    }
    const CommandResult plain = RunCommand({Beside(name), "linear"});
    const Result injected = RunInjected({Beside(name), "linear"});
    Expect(injected.run.exit_code == plain.exit_code && (plain.exit_code == 0 || injected.run.out == plain.out), what,
           std::to_string(plain.exit_code) + " " + plain.out.substr(0, plain.out.find('\n')),
           std::to_string(injected.run.exit_code) + " " + injected.run.out.substr(0, injected.run.out.find('\n')),
           "the runtime gives the same answer as without the library");
  }
}

void Tool(const std::string& what, const std::vector<std::string>& tool) {
  if (RunCommand({"sh", "-c", "command -v " + tool[0]}).exit_code != 0) return Skip(what, "not installed here");
  const Result result = RunInjected({Beside("gpu_family_program"), "linear"}, tool);
  if (!HasRun(what, result.run)) return;
  ExpectEqual(what, (8 << 20) + 4096, result.view.SumUnder("inuse_space", "user_allocates"),
              "the tool runs, and the allocation is recorded");
}

}  // namespace

int main() {
  char folder[] = "/tmp/gpu_table.XXXXXX";
  if (mkdtemp(folder) == nullptr) {
    std::perror(folder);
    return 2;
  }
  scratch = folder;
  std::printf("| state | what | expected | found | why |\n|---|---|---|---|---|\n");
  for (const char* family :
       {"linear", "pitch", "managed", "pinned", "registered", "async", "pool", "vmm", "array", "graph"}) {
    Family(family);
  }
  PyTorch();
  Jax();
  Cost();
  TorchCost();
  IntegrityCheck();
  Tool("beside compute-sanitizer", {"compute-sanitizer", "--target-processes", "all"});
  Tool("beside nsys", {"nsys", "profile", "--trace=cuda", "--force-overwrite=true", "--output=" + NewFile()});
  std::filesystem::remove_all(scratch);
  std::printf("%d lines failed\n", failures);
  return failures == 0 ? 0 : 1;
}
