// How much time does the wrapper of a PJRT plugin add to a call? Measures the same calls through a plugin's own table
// and through the wrapped one; the difference is the added time. The plugin is the substitute that the tests use. Its
// work per call is small and always the same.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "benchmark/benchmark.h"
#include "hbmprof/pjrt.h"
#include "tests/support/fake_pjrt/calls.h"
#include "tests/support/fake_pjrt/fake_pjrt.h"

namespace {

namespace abi = hbmprof::internal::pjrt;
using hbmprof_test::PjrtCalls;

PjrtCalls Calls(bool wrapped) {
  const abi::Api* const api = fake_pjrt_table(kFakePjrtNewest);
  if (!wrapped) return PjrtCalls(api);
  return PjrtCalls(reinterpret_cast<const abi::Api*>(hbmprof::pjrt::Wrap(reinterpret_cast<const PJRT_Api*>(api))));
}

// A buffer from host memory, destroyed at once.
void BufferAndDestroy(benchmark::State& state) {
  const PjrtCalls calls = Calls(state.range(0) != 0);
  abi::Client* const client = calls.CreateClient();
  for (auto _ : state) calls.Destroy(calls.FromHost(client, {64}));
  calls.DestroyClient(client);
}
BENCHMARK(BufferAndDestroy)->ArgName("wrapped")->Arg(0)->Arg(1);

// An execution with `arguments` arguments and one output, which is destroyed.
void ExecuteAndDestroy(benchmark::State& state) {
  const PjrtCalls calls = Calls(state.range(0) != 0);
  abi::Client* const client = calls.CreateClient();
  abi::LoadedExecutable* const executable = calls.Compile(client, "name bench\noutput 11 64\n");
  std::vector<abi::Buffer*> arguments;
  for (int64_t i = 0; i < state.range(1); ++i) arguments.push_back(calls.FromHost(client, {64}));
  for (auto _ : state) calls.Destroy(calls.Execute1(executable, arguments));
  for (abi::Buffer* argument : arguments) calls.Destroy(argument);
  calls.DestroyExecutable(executable);
  calls.DestroyClient(client);
}
BENCHMARK(ExecuteAndDestroy)->ArgNames({"wrapped", "arguments"})->ArgsProduct({{0, 1}, {0, 10, 100}});

}  // namespace

BENCHMARK_MAIN();
