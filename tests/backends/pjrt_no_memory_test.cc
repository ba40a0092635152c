// A wrapped plugin while the host has no memory: each allocation that the tracker makes fails in turn. Every call of
// the program must still reach the plugin once and return the plugin's result.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/pjrt.h"
#include "hbmprof/profiler.h"
#include "tests/support/failing_new.h"
#include "tests/support/fake_pjrt/calls.h"
#include "tests/support/fake_pjrt/fake_pjrt.h"

namespace hbmprof {
namespace {

namespace abi = internal::pjrt;
using hbmprof_test::CountedNew;
using hbmprof_test::PjrtCalls;

const int no_oom_output = setenv("HBMPROF_OOM_OUTPUT", "off", 1);

// The slots that the scenario calls: all wrapped slots except those that the fake plugin does not implement.
constexpr int kSlots[] = {abi::kEventError,
                          abi::kEventAwait,
                          abi::kClientCreate,
                          abi::kClientDestroy,
                          abi::kClientCompile,
                          abi::kLoadedExecutableDelete,
                          abi::kLoadedExecutableDestroy,
                          abi::kLoadedExecutableExecute,
                          abi::kBufferFromHostBuffer,
                          abi::kCreateUninitialized,
                          abi::kBufferCopyToDevice,
                          abi::kBufferCopyToMemory,
                          abi::kCreateView,
                          abi::kCreateError,
                          abi::kCreateAlias,
                          abi::kFulfillAlias,
                          abi::kBufferBitcast,
                          abi::kDonateWithControlDependency,
                          abi::kBufferDelete,
                          abi::kBufferDestroy,
                          abi::kBufferIncreaseReferences,
                          abi::kBufferDecreaseReferences,
                          abi::kCreateBuffersForTransfer,
                          abi::kTransferManagerRetrieve,
                          abi::kTransferManagerDestroy,
                          abi::kDmaMap,
                          abi::kDmaUnmap};
constexpr size_t kSlotCount = sizeof(kSlots) / sizeof(kSlots[0]);

const abi::Api* called_table = nullptr;

// Calls the slot of `called_table` and counts the host allocations during the call.
template <size_t kIndex>
abi::Error* Counted(void* args) {
  const PjrtCalls calls(called_table);
  const CountedNew counted;
  return calls.Raw(kSlots[kIndex], args);
}

template <size_t... kIndices>
std::vector<abi::Error* (*)(void*)> CountedSlots(std::index_sequence<kIndices...>) {
  return {&Counted<kIndices>...};
}

// Returns a copy of the table in which the slots of kSlots call Counted.
std::vector<char> CountedTable(const abi::Api* api) {
  called_table = api;
  std::vector<char> table(api->struct_size);
  std::memcpy(table.data(), api, table.size());
  const auto slots = CountedSlots(std::make_index_sequence<kSlotCount>());
  for (size_t i = 0; i < kSlotCount; ++i) std::memcpy(&table[abi::OffsetOf(kSlots[i])], &slots[i], sizeof(slots[i]));
  return table;
}

constexpr char kProgram[] = "name jit_step\noutput 11 32 64\noutput 11 16\ndonate 0\ncode 5000\ntemp 700\npeak 9000\n";

// Every call at least once, and everything is freed.
void Scenario(const PjrtCalls& calls) {
  abi::Client* const client = calls.CreateClient();
  ASSERT_NE(client, nullptr);
  abi::Device* const device = calls.Device(client, 0);
  abi::Device* const other_device = calls.Device(client, 1);

  abi::Buffer* const source = calls.FromHost(client, {32, 64}, device);
  abi::Buffer* const plain = calls.Uninitialized(client, 1000, device);
  ASSERT_NE(source, nullptr);
  ASSERT_NE(plain, nullptr);
  abi::BufferCopyToDeviceArgs to_device{};
  to_device.buffer = plain;
  to_device.device = other_device;
  ASSERT_EQ(calls.Call(abi::kBufferCopyToDevice, &to_device), 0);
  abi::BufferCopyToMemoryArgs to_memory{};
  to_memory.buffer = plain;
  to_memory.memory = fake_pjrt_host_memory(calls.MemoryOf(plain));
  ASSERT_EQ(calls.Call(abi::kBufferCopyToMemory, &to_memory), 0);

  // Views and errors.
  const int64_t dim = 8;
  abi::Buffer* const view = calls.View(client, dim, device, source);
  ASSERT_NE(view, nullptr);
  abi::Buffer* const error = calls.ErrorBuffer(client, dim, calls.MemoryOf(plain), 3);
  ASSERT_NE(error, nullptr);
  abi::CreateAliasArgs alias{};
  alias.client = client;
  alias.memory = calls.MemoryOf(plain);
  alias.dims = &dim;
  alias.num_dims = 1;
  alias.type = hbmprof_test::kU8;
  ASSERT_EQ(calls.Call(abi::kCreateAlias, &alias), 0);
  abi::FulfillAliasArgs fulfill{};
  fulfill.client = client;
  fulfill.callback = alias.callback;
  fulfill.buffer = plain;
  ASSERT_EQ(calls.Call(abi::kFulfillAlias, &fulfill), 0);
  abi::Buffer* const cast = calls.Bitcast(source, {64, 32});
  ASSERT_NE(cast, nullptr);
  ASSERT_EQ(calls.Destroy(cast), 0);
  abi::DonateWithControlDependencyArgs donate{};
  donate.buffer = to_device.copy;
  ASSERT_EQ(calls.Call(abi::kDonateWithControlDependency, &donate), 0);

  // An execution that takes its argument's memory over, twice.
  abi::LoadedExecutable* const executable = calls.Compile(client, kProgram);
  ASSERT_NE(executable, nullptr);
  std::vector<abi::Buffer*> outputs;
  for (int i = 0; i < 2; ++i) {
    PjrtCalls::Run run;
    run.arguments = {{i == 0 ? source : outputs[0]}};
    run.num_outputs = 2;
    std::vector<std::vector<abi::Buffer*>> made;
    ASSERT_EQ(calls.Execute(executable, run, &made), 0);
    for (abi::Buffer* output : made[0]) outputs.push_back(output);
  }

  // A transfer whose second buffer is never retrieved.
  const int64_t dims[] = {100};
  abi::ShapeSpec shapes[2] = {};
  for (abi::ShapeSpec& shape : shapes) {
    shape.struct_size = sizeof(shape);
    shape.dims = dims;
    shape.num_dims = 1;
    shape.type = hbmprof_test::kF32;
  }
  abi::CreateBuffersForTransferArgs transfer{};
  transfer.client = client;
  transfer.shapes = shapes;
  transfer.num_shapes = 2;
  transfer.memory = calls.MemoryOf(plain);
  ASSERT_EQ(calls.Call(abi::kCreateBuffersForTransfer, &transfer), 0);
  abi::TransferManagerRetrieveArgs retrieve{};
  retrieve.manager = transfer.manager;
  ASSERT_EQ(calls.Call(abi::kTransferManagerRetrieve, &retrieve), 0);
  abi::TransferManagerDestroyArgs destroy{};
  destroy.manager = transfer.manager;
  ASSERT_EQ(calls.Call(abi::kTransferManagerDestroy, &destroy), 0);

  static char host[4096];
  abi::DmaMapArgs map{};
  map.client = client;
  map.data = host;
  map.size = sizeof(host);
  ASSERT_EQ(calls.Call(abi::kDmaMap, &map), 0);
  abi::DmaUnmapArgs unmap{};
  unmap.client = client;
  unmap.data = host;
  ASSERT_EQ(calls.Call(abi::kDmaUnmap, &unmap), 0);

  ASSERT_EQ(calls.OnBuffer(abi::kBufferIncreaseReferences, plain), 0);
  ASSERT_EQ(calls.OnBuffer(abi::kBufferDelete, plain), 0);
  ASSERT_EQ(calls.OnBuffer(abi::kBufferDecreaseReferences, plain), 0);
  for (abi::Buffer* buffer :
       {source, plain, to_device.copy, to_memory.copy, view, error, alias.buffer, donate.result, retrieve.buffer}) {
    ASSERT_EQ(calls.Destroy(buffer), 0);
  }
  for (abi::Buffer* output : outputs) ASSERT_EQ(calls.Destroy(output), 0);
  abi::LoadedExecutableArgs loaded{};
  loaded.executable = executable;
  ASSERT_EQ(calls.Call(abi::kLoadedExecutableDelete, &loaded), 0);
  ASSERT_EQ(calls.DestroyExecutable(executable), 0);
  ASSERT_EQ(calls.DestroyClient(client), 0);
}

std::map<int, int64_t> CallsOfEachSlot() {
  std::map<int, int64_t> calls;
  for (const int slot : kSlots) calls[slot] = fake_pjrt_calls(slot);
  return calls;
}

int64_t InUse() {
  int64_t total = 0;
  for (const Snapshot::Device& device : Profiler::Default().TakeSnapshot().devices) {
    for (const DeviceStats& space : device.spaces) total += space.bytes_in_use;
  }
  return total;
}

TEST(PjrtNoMemoryTest, CallsReachPluginOnceWithoutHostMemory) {
  const abi::Api* const raw = fake_pjrt_table(kFakePjrtNewest);
  fake_pjrt_reset(int64_t{1} << 30);
  Scenario(PjrtCalls(raw));
  const std::map<int, int64_t> expected = CallsOfEachSlot();
  const auto* const wrapped = reinterpret_cast<const abi::Api*>(pjrt::Wrap(reinterpret_cast<const PJRT_Api*>(raw)));
  ASSERT_NE(wrapped, raw);
  std::vector<char> table = CountedTable(wrapped);
  const PjrtCalls calls(reinterpret_cast<const abi::Api*>(table.data()));

  bool failed = true;
  int64_t never_recorded = 0;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_LT(nth, 10000);
    fake_pjrt_reset(int64_t{1} << 30);
    const int64_t dropped = Profiler::Default().GetTrackerStats().dropped_records;
    CountedNew::Fail(nth);
    Scenario(calls);
    if (HasFatalFailure()) return;
    failed = CountedNew::HasFailed();
    CountedNew::Fail(0);
    for (const auto& [slot, count] : expected) ASSERT_EQ(fake_pjrt_calls(slot), count) << "slot " << slot;
    ASSERT_EQ(fake_pjrt_live_errors(), 0);
    const int64_t lost = Profiler::Default().GetTrackerStats().dropped_records - dropped;
    ASSERT_LE(lost, failed ? 4 : 0);
    never_recorded += lost;
    ASSERT_EQ(InUse(), 0) << "whatever was recorded has ended";
    ASSERT_EQ(Profiler::Default().GetTrackerStats().live_records, 0);
  }
  EXPECT_GT(never_recorded, 10) << "the tracker does allocate";
}

TEST(PjrtNoMemoryTest, UnwrappedPluginIsReturnedUnchanged) {
  const abi::Api* const raw = fake_pjrt_table(57);
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_LT(nth, 10000);
    CountedNew::Fail(nth);
    const PJRT_Api* given = nullptr;
    {
      const CountedNew counted;
      given = pjrt::Wrap(reinterpret_cast<const PJRT_Api*>(raw));
    }
    failed = CountedNew::HasFailed();
    CountedNew::Fail(0);
    ASSERT_NE(given, nullptr);
    EXPECT_TRUE(failed || given != reinterpret_cast<const PJRT_Api*>(raw));
  }
}

}  // namespace
}  // namespace hbmprof
