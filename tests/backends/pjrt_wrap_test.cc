// A wrapped plugin in a program: every call returns the plugin's result, and the profiler's numbers equal the plugin's.
// The plugin is tests/support/fake_pjrt, whose own counts are the oracle.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/pjrt.h"
#include "src/api/control/live.h"
#include "src/backends/pjrt/plugin.h"
#include "src/base/message.h"
#include "tests/python/python_programs.h"
#include "tests/support/fake_pjrt/calls.h"
#include "tests/support/fake_pjrt/fake_pjrt.h"
#include "tests/support/profile_checker.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof {
namespace {

namespace abi = internal::pjrt;
using hbmprof_test::PjrtCalls;
using ::testing::AllOf;
using ::testing::HasSubstr;

void CaptureMessages() {
  ::testing::internal::CaptureStderr();
  internal::UseStandardError();
}

std::string CapturedMessages() {
  std::string text = ::testing::internal::GetCapturedStderr();
  internal::UseStandardError();
  return text;
}

// So that no test writes a profile. The variable is read when a table is wrapped.
const int no_oom_output = setenv("HBMPROF_OOM_OUTPUT", "off", 1);

const abi::Api* Wrapped(const abi::Api* api) {
  return reinterpret_cast<const abi::Api*>(pjrt::Wrap(reinterpret_cast<const PJRT_Api*>(api)));
}

Profiler& Recorder() { return Profiler::Default(); }

DeviceStats StatsOf(int device, MemorySpace space = MemorySpace::kDevice) {
  return Recorder().Stats(Recorder().Device("FAKE_" + std::to_string(device)), space);
}

hbmprof_test::ProfileView Profile() {
  const auto bytes = device_memory_profile();
  const auto profile = hbmprof_test::ParseProfile(*bytes);
  EXPECT_EQ(hbmprof_test::CheckProfile(*profile), "");
  return hbmprof_test::ProfileView(*profile);
}

constexpr char kProgram[] = "name jit_layer\noutput 11 32 64\ncode 5000\ntemp 700\npeak 9000\n";
constexpr int64_t kOutputBytes = 32 * 64 * 4;
constexpr char kDonating[] = "name jit_step\noutput 6 1024\ndonate 0\n";

// Tests on one version of the table.
template <typename Base>
class PjrtFixture : public Base {
 protected:
  explicit PjrtFixture(int minor) : raw_(fake_pjrt_table(minor)), calls_(Wrapped(raw_)) {}

  void SetUp() override {
    fake_pjrt_reset(int64_t{1} << 40);
    foreign_ = Recorder().GetTrackerStats().foreign_frees;
    client_ = calls_.CreateClient();
    ASSERT_NE(client_, nullptr);
    for (int i : {0, 1}) Recorder().ResetPeak(Recorder().Device("FAKE_" + std::to_string(i)));
  }
  // Every test frees what it has allocated: at its end all numbers are zero, and no object of the plugin is left or was
  // destroyed twice.
  void TearDown() override {
    if (client_ != nullptr) {
      EXPECT_EQ(calls_.DestroyClient(client_), 0);
    }
    for (int i : {0, 1}) {
      EXPECT_EQ(StatsOf(i).bytes_in_use, 0);
      EXPECT_EQ(StatsOf(i, MemorySpace::kPinnedHost).bytes_in_use, 0);
      EXPECT_EQ(fake_pjrt_device_bytes(i), 0);
    }
    EXPECT_EQ(Recorder().GetTrackerStats().live_records, 0);
    EXPECT_EQ(Recorder().GetTrackerStats().foreign_frees - foreign_, expected_foreign_);
    EXPECT_EQ(fake_pjrt_live_errors(), 0);
    EXPECT_EQ(fake_pjrt_live_descriptors(), 0);
    EXPECT_EQ(fake_pjrt_live_buffers(), 0);
  }

  // Expects that the profiler's bytes in buffers equal the plugin's on each device.
  void ExpectAgreement() {
    for (int i : {0, 1}) {
      EXPECT_EQ(StatsOf(i).bytes_in_use, fake_pjrt_device_bytes(i)) << "device " << i;
      EXPECT_EQ(StatsOf(i).peak_bytes_in_use, fake_pjrt_peak_bytes(i)) << "device " << i;
      EXPECT_EQ(StatsOf(i, MemorySpace::kPinnedHost).bytes_in_use, fake_pjrt_host_bytes(i)) << "host of device " << i;
    }
  }
  abi::Device* Device(size_t index) { return calls_.Device(client_, index); }

  const abi::Api* const raw_;
  const PjrtCalls calls_;
  abi::Client* client_ = nullptr;
  int64_t foreign_ = 0;
  int64_t expected_foreign_ = 0;
};

class PjrtWrap : public PjrtFixture<::testing::TestWithParam<int>> {
 protected:
  PjrtWrap() : PjrtFixture(GetParam()) {}
};

TEST_P(PjrtWrap, TableKeepsEverythingUnwrapped) {
  const abi::Api* const wrapped = calls_.api();
  ASSERT_NE(wrapped, raw_);
  EXPECT_EQ(std::memcmp(wrapped, raw_, sizeof(abi::Api)), 0);
  const size_t slots = (raw_->struct_size - sizeof(abi::Api)) / sizeof(void*);
  const PjrtCalls raw(raw_);
  int replaced = 0;
  for (size_t slot = 0; slot < slots; ++slot) {
    replaced += calls_.Function(static_cast<int>(slot)) != raw.Function(static_cast<int>(slot));
  }
  EXPECT_GE(replaced, 15);
  EXPECT_LE(replaced, 29);
  for (const int slot : {abi::kErrorDestroy, abi::kErrorMessage, abi::kErrorGetCode, abi::kBufferToHostBuffer}) {
    EXPECT_EQ(calls_.Function(slot), raw.Function(slot));
  }
}

TEST_P(PjrtWrap, EveryVersionIsCounted) {
  abi::Buffer* const input = calls_.FromHost(client_, {100});
  abi::Buffer* const on_second = calls_.FromHost(client_, {1000}, Device(1));
  EXPECT_EQ(StatsOf(0).bytes_in_use, 512) << "as the device pads it";
  EXPECT_EQ(StatsOf(1).bytes_in_use, 4096);
  ExpectAgreement();
  abi::LoadedExecutable* const executable = calls_.Compile(client_, "name f\noutput 11 32 64\n");
  abi::Buffer* const output = calls_.Execute1(executable, {input});
  ASSERT_NE(output, nullptr);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 512 + kOutputBytes);
  ExpectAgreement();
  for (abi::Buffer* buffer : {input, on_second, output}) EXPECT_EQ(calls_.Destroy(buffer), 0);
  EXPECT_EQ(calls_.DestroyExecutable(executable), 0);
  ExpectAgreement();
}

TEST_P(PjrtWrap, EachCallIsMadeOnce) {
  abi::LoadedExecutable* const executable = calls_.Compile(client_, kProgram);
  abi::Buffer* const input = calls_.FromHost(client_, {100});
  abi::Buffer* const output = calls_.Execute1(executable, {input});
  calls_.Destroy(input);
  calls_.Destroy(output);
  calls_.DestroyExecutable(executable);
  EXPECT_EQ(fake_pjrt_calls(abi::kClientCompile), 1);
  EXPECT_EQ(fake_pjrt_calls(abi::kBufferFromHostBuffer), 1);
  EXPECT_EQ(fake_pjrt_calls(abi::kLoadedExecutableExecute), 1);
  EXPECT_EQ(fake_pjrt_calls(abi::kBufferDestroy), 2);
  EXPECT_EQ(fake_pjrt_calls(abi::kLoadedExecutableDestroy), 1);
}

TEST_P(PjrtWrap, FailedCallReturnsPluginsError) {
  const int64_t size = 4;
  abi::BufferFromHostBufferArgs args{};
  args.struct_size = sizeof(args);
  args.client = client_;
  args.dims = &size;
  args.num_dims = 1;
  args.type = hbmprof_test::kU8;
  fake_pjrt_fail_next(abi::kBufferFromHostBuffer, 13);
  abi::Error* const error = calls_.Raw(abi::kBufferFromHostBuffer, &args);
  ASSERT_NE(error, nullptr);
  abi::ErrorMessageArgs message{sizeof(message), nullptr, error, nullptr, 0};
  reinterpret_cast<void (*)(abi::ErrorMessageArgs*)>(calls_.Function(abi::kErrorMessage))(&message);
  EXPECT_EQ(std::string(message.message, message.message_size), "ordered by the test, slot 22");
  abi::ErrorDestroyArgs destroy{sizeof(destroy), nullptr, error};
  reinterpret_cast<void (*)(abi::ErrorDestroyArgs*)>(calls_.Function(abi::kErrorDestroy))(&destroy);
  ExpectAgreement();
}

INSTANTIATE_TEST_SUITE_P(Version, PjrtWrap, ::testing::Values(57, 81, kFakePjrtNewest, kFakePjrtFuture),
                         [](const auto& info) { return "Minor" + std::to_string(info.param); });

// The effect of each call on the records, on the newest version.
class PjrtOwnership : public PjrtFixture<::testing::Test> {
 protected:
  PjrtOwnership() : PjrtFixture(kFakePjrtNewest) {}

  // Makes an alias for `*size` bytes in the memory of `source`.
  abi::CreateAliasArgs CreateAlias(abi::Buffer* source, const int64_t* size) {
    abi::CreateAliasArgs alias{};
    alias.client = client_;
    alias.memory = calls_.MemoryOf(source);
    alias.dims = size;
    alias.num_dims = 1;
    alias.type = hbmprof_test::kU8;
    EXPECT_EQ(calls_.Call(abi::kCreateAlias, &alias), 0);
    return alias;
  }
  void Fulfill(const abi::CreateAliasArgs& alias, abi::Buffer* source) {
    abi::FulfillAliasArgs fulfill{};
    fulfill.client = client_;
    fulfill.buffer = source;
    fulfill.callback = alias.callback;
    EXPECT_EQ(calls_.Call(abi::kFulfillAlias, &fulfill), 0);
  }
};

TEST_F(PjrtOwnership, BuffersHaveLabels) {
  abi::Buffer* const buffer = calls_.FromHost(client_, {16, 8}, Device(1));
  const hbmprof_test::ProfileView profile = Profile();
  int found = 0;
  for (const auto& sample : profile.samples) {
    if (sample.values.at("inuse_space") == 0) continue;
    ++found;
    EXPECT_EQ(sample.labels.at("device"), "FAKE_1");
    EXPECT_EQ(sample.labels.at("kind"), "device");
    EXPECT_EQ(sample.labels.at("memory"), "device");
    EXPECT_EQ(sample.labels.at("shape"), "f32[16,8]");
    EXPECT_EQ(sample.labels.at("bytes"), "512");
    // The stack begins at the caller of the table's function.
    EXPECT_THAT(sample.functions.at(0), HasSubstr("PjrtCalls::Raw"));
    EXPECT_TRUE(sample.Has("hbmprof_test::PjrtCalls::FromHost"));
  }
  EXPECT_EQ(found, 1);
  calls_.Destroy(buffer);
}

TEST_F(PjrtOwnership, HostMemorySpaceIsPinnedHost) {
  abi::Buffer* const device_buffer = calls_.FromHost(client_, {64});
  abi::Memory* const device_memory = calls_.MemoryOf(device_buffer);
  // In the fake plugin the host memory space follows the device memory space.
  abi::BufferCopyToMemoryArgs copy{};
  copy.buffer = device_buffer;
  copy.memory = fake_pjrt_host_memory(device_memory);
  ASSERT_EQ(calls_.Call(abi::kBufferCopyToMemory, &copy), 0);
  abi::Buffer* const from_host = calls_.FromHost(client_, {64}, Device(1), copy.memory);
  EXPECT_EQ(StatsOf(0, MemorySpace::kPinnedHost).bytes_in_use, 512) << "the memory space counts, not the device";
  EXPECT_EQ(StatsOf(1, MemorySpace::kPinnedHost).bytes_in_use, 0);
  ExpectAgreement();
  for (abi::Buffer* buffer : {device_buffer, copy.copy, from_host}) calls_.Destroy(buffer);
}

TEST_F(PjrtOwnership, CopiesCountOnTheirDevice) {
  abi::Buffer* const source = calls_.Uninitialized(client_, 1000);
  abi::BufferCopyToDeviceArgs copy{};
  copy.buffer = source;
  copy.device = Device(1);
  ASSERT_EQ(calls_.Call(abi::kBufferCopyToDevice, &copy), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  EXPECT_EQ(StatsOf(1).bytes_in_use, 1024);
  calls_.Destroy(source);
  ExpectAgreement();
  calls_.Destroy(copy.copy);
}

TEST_F(PjrtOwnership, ExecutionOnTwoDevicesHasOutputOnEach) {
  abi::LoadedExecutable* const executable = calls_.Compile(client_, "name pair\noutput 6 256\noutput 6 512\n", "2");
  PjrtCalls::Run run;
  run.arguments = {{}, {}};
  run.num_outputs = 2;
  std::vector<std::vector<abi::Buffer*>> outputs;
  for (int i = 0; i < 2; ++i) {
    // The second execution uses the described outputs of the first.
    run.location = "model.py:17";
    ASSERT_EQ(calls_.Execute(executable, run, &outputs), 0);
    EXPECT_EQ(StatsOf(0).bytes_in_use, 768);
    ExpectAgreement();
    const Snapshot snapshot = Recorder().TakeSnapshot();
    std::vector<uint32_t> stacks;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.inuse_objects == 0 || sample.kind == MemoryKind::kExecutable) continue;
      stacks.push_back(sample.stack);
      const std::map<std::string, std::string> tags(sample.tags.begin(), sample.tags.end());
      EXPECT_EQ(tags.at("executable"), "pair");
      EXPECT_EQ(tags.at("call_location"), "model.py:17");
      EXPECT_EQ(tags.at("shape"), "u8[" + std::to_string(sample.inuse_bytes / sample.inuse_objects) + "]");
    }
    EXPECT_THAT(stacks, ::testing::SizeIs(4));
    EXPECT_THAT(stacks, ::testing::Each(stacks.at(0)));
    for (const auto& list : outputs) {
      for (abi::Buffer* buffer : list) calls_.Destroy(buffer);
    }
  }
  calls_.DestroyExecutable(executable);
}

// JAX_SEND_TRACEBACK_TO_RUNTIME=FULL passes many lines.
TEST_F(PjrtOwnership, CallLocationIsItsFirstLine) {
  abi::LoadedExecutable* const executable = calls_.Compile(client_, "name step\noutput 6 256\n");
  PjrtCalls::Run run;
  run.location = "/srv/model.py:18 (warm_up)\nserve.py:9 (<module>)\n";
  std::vector<std::vector<abi::Buffer*>> outputs;
  ASSERT_EQ(calls_.Execute(executable, run, &outputs), 0);
  int found = 0;
  for (const auto& sample : Profile().samples) {
    if (sample.labels.at("kind") != "device" || sample.values.at("inuse_objects") == 0) continue;
    ++found;
    EXPECT_EQ(sample.labels.at("call_location"), "/srv/model.py:18 (warm_up)");
  }
  EXPECT_EQ(found, 1);
  calls_.Destroy(outputs[0][0]);
  calls_.DestroyExecutable(executable);
}

TEST_F(PjrtOwnership, ExecutionCountsOnChosenDevice) {
  abi::LoadedExecutable* const executable = calls_.Compile(client_, "name anywhere\noutput 6 256\n");
  PjrtCalls::Run run;
  std::vector<std::vector<abi::Buffer*>> first, second;
  ASSERT_EQ(calls_.Execute(executable, run, &first), 0);
  run.device = Device(1);
  ASSERT_EQ(calls_.Execute(executable, run, &second), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 256);
  EXPECT_EQ(StatsOf(1).bytes_in_use, 256);
  ExpectAgreement();
  calls_.Destroy(first[0][0]);
  calls_.Destroy(second[0][0]);
  calls_.DestroyExecutable(executable);
}

TEST_F(PjrtOwnership, DonatedArgumentEndsWithExecution) {
  abi::LoadedExecutable* const executable = calls_.Compile(client_, kDonating);
  abi::Buffer* state = calls_.Uninitialized(client_, 1024);
  for (int i = 0; i < 5; ++i) {
    abi::Buffer* const next = calls_.Execute1(executable, {state});
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
    calls_.Destroy(state);  // the program must still destroy the handle
    EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
    state = next;
  }
  EXPECT_EQ(StatsOf(0).peak_bytes_in_use, 1024);
  ExpectAgreement();
  calls_.Destroy(state);
  calls_.DestroyExecutable(executable);
}

TEST_F(PjrtOwnership, UndonatableArgumentStays) {
  abi::LoadedExecutable* const executable = calls_.Compile(client_, kDonating);
  abi::Buffer* const state = calls_.Uninitialized(client_, 1024);
  PjrtCalls::Run run;
  run.arguments = {{state}};
  run.keep = {0};
  std::vector<std::vector<abi::Buffer*>> outputs;
  ASSERT_EQ(calls_.Execute(executable, run, &outputs), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 2048);
  ExpectAgreement();
  calls_.Destroy(state);
  calls_.Destroy(outputs[0][0]);
  calls_.DestroyExecutable(executable);
}

TEST_F(PjrtOwnership, FailedExecutionFreesDonatedArgument) {
  abi::LoadedExecutable* const executable = calls_.Compile(client_, "name huge\noutput 6 4096\ndonate 0\n");
  abi::Buffer* const state = calls_.Uninitialized(client_, 1024);
  fake_pjrt_reset(2048);
  EXPECT_EQ(calls_.Execute1(executable, {state}), nullptr);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
  EXPECT_EQ(fake_pjrt_device_bytes(0), 0);
  calls_.Destroy(state);
  calls_.DestroyExecutable(executable);
}

TEST_F(PjrtOwnership, DonationMovesMemoryToNewHandle) {
  abi::Buffer* const source = calls_.Uninitialized(client_, 1024);
  abi::DonateWithControlDependencyArgs args{};
  args.buffer = source;
  ASSERT_EQ(calls_.Call(abi::kDonateWithControlDependency, &args), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  EXPECT_EQ(StatsOf(0).peak_bytes_in_use, 1024);
  calls_.Destroy(source);
  ExpectAgreement();
  calls_.Destroy(args.result);
  ExpectAgreement();
}

TEST_F(PjrtOwnership, DeletedBufferEndsAtDeletion) {
  abi::Buffer* const buffer = calls_.Uninitialized(client_, 1024);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDelete, buffer), 0);
  ExpectAgreement();
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
  EXPECT_EQ(calls_.Destroy(buffer), 0);
}

TEST_F(PjrtOwnership, ExternalReferenceKeepsDeletedBuffer) {
  abi::Buffer* const buffer = calls_.Uninitialized(client_, 1024);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferIncreaseReferences, buffer), 0);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDelete, buffer), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  ExpectAgreement();
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDecreaseReferences, buffer), 0);
  ExpectAgreement();
  EXPECT_NE(calls_.OnBuffer(abi::kBufferDecreaseReferences, buffer), 0) << "the plugin's own answer";
  EXPECT_EQ(calls_.Destroy(buffer), 0);
}

TEST_F(PjrtOwnership, RefusedDeletionEndsTheRecordAndIsCounted) {
  abi::Buffer* const buffer = calls_.Uninitialized(client_, 1024);
  const int64_t refused = hbmprof::Profiler::Default().GetTrackerStats().refused_frees;
  fake_pjrt_fail_next(abi::kBufferDelete, 13);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDelete, buffer), 13);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
  EXPECT_EQ(hbmprof::Profiler::Default().GetTrackerStats().refused_frees, refused + 1);
  EXPECT_EQ(calls_.Destroy(buffer), 0);
  ExpectAgreement();
}

TEST_F(PjrtOwnership, BitcastSharesMemory) {
  abi::Buffer* const source = calls_.Uninitialized(client_, 1024);
  abi::Buffer* const cast = calls_.Bitcast(source, {16, 16});
  ASSERT_NE(cast, nullptr);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  ExpectAgreement();
  calls_.Destroy(source);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  ExpectAgreement();
  calls_.Destroy(cast);
  ExpectAgreement();
}

TEST_F(PjrtOwnership, ViewsAndErrorBuffersAreAliases) {
  abi::Buffer* const view = calls_.View(client_, 4096, Device(1));
  ASSERT_NE(view, nullptr);
  abi::Buffer* const error = calls_.ErrorBuffer(client_, 4096, calls_.MemoryOf(view), 13);
  ASSERT_NE(error, nullptr);
  ExpectAgreement();
  int aliases = 0;
  for (const Snapshot::Sample& sample : Recorder().TakeSnapshot().samples) {
    if (sample.inuse_objects != 0) aliases += sample.kind == MemoryKind::kAlias;
  }
  EXPECT_EQ(aliases, 2);
  calls_.Destroy(view);
  calls_.Destroy(error);
}

TEST_F(PjrtOwnership, ViewOfOldProgramIsReadWithinItsSize) {
  const int64_t size = 4096;
  abi::CreateViewArgs view{};
  std::memset(&view.memory, 0xff, sizeof(view.memory));  // beyond the struct of this program
  view.struct_size = offsetof(abi::CreateViewArgs, memory);
  view.client = client_;
  view.dims = &size;
  view.num_dims = 1;
  view.type = hbmprof_test::kU8;
  view.device = Device(0);
  ASSERT_EQ(calls_.Raw(abi::kCreateView, &view), nullptr);
  calls_.Destroy(view.buffer);
}

TEST_F(PjrtOwnership, FulfilledAliasHoldsMemory) {
  const int64_t size = 1024;
  abi::Buffer* const source = calls_.Uninitialized(client_, size);
  const abi::CreateAliasArgs alias = CreateAlias(source, &size);
  ExpectAgreement();
  Fulfill(alias, source);
  calls_.Destroy(source);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  ExpectAgreement();
  calls_.Destroy(alias.buffer);
  ExpectAgreement();
}

TEST_F(PjrtOwnership, TransferCountsFromCreation) {
  const int64_t sizes[] = {1024, 4096};
  abi::ShapeSpec shapes[2] = {};
  for (int i : {0, 1}) {
    shapes[i].struct_size = sizeof(abi::ShapeSpec);
    shapes[i].dims = &sizes[i];
    shapes[i].num_dims = 1;
    shapes[i].type = hbmprof_test::kU8;
  }
  abi::CreateBuffersForTransferArgs create{};
  create.client = client_;
  create.shapes = shapes;
  create.num_shapes = 2;
  ASSERT_EQ(calls_.Call(abi::kCreateBuffersForTransfer, &create), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 5120);
  ExpectAgreement();
  abi::TransferManagerRetrieveArgs retrieve{};
  retrieve.manager = create.manager;
  retrieve.index = 1;
  ASSERT_EQ(calls_.Call(abi::kTransferManagerRetrieve, &retrieve), 0);
  ExpectAgreement();
  abi::TransferManagerRetrieveArgs again = retrieve;
  EXPECT_NE(calls_.Call(abi::kTransferManagerRetrieve, &again), 0);
  abi::TransferManagerDestroyArgs destroy{};
  destroy.manager = create.manager;
  ASSERT_EQ(calls_.Call(abi::kTransferManagerDestroy, &destroy), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 4096);
  ExpectAgreement();
  calls_.Destroy(retrieve.buffer);
  ExpectAgreement();
}

TEST_F(PjrtOwnership, ExecutableCodeCountsOnEachDevice) {
  const std::string text = kProgram;
  abi::LoadedExecutable* const compiled = calls_.Compile(client_, text, "2");
  abi::DeserializeAndLoadArgs deserialize{};
  deserialize.client = client_;
  deserialize.serialized = text.data();
  deserialize.serialized_size = text.size();
  ASSERT_EQ(calls_.Call(abi::kDeserializeAndLoad, &deserialize), 0);
  abi::GetExecutableArgs descriptor{};
  descriptor.loaded_executable = compiled;
  ASSERT_EQ(calls_.Call(abi::kLoadedExecutableGetExecutable, &descriptor), 0);
  abi::ClientLoadArgs load{};
  load.client = client_;
  load.executable = descriptor.executable;
  ASSERT_EQ(calls_.Call(abi::kClientLoad, &load), 0);
  abi::ExecutableDestroyArgs destroy{};
  destroy.executable = descriptor.executable;
  EXPECT_EQ(calls_.Call(abi::kExecutableDestroy, &destroy), 0);

  EXPECT_EQ(StatsOf(0).bytes_in_use, 15000);
  EXPECT_EQ(StatsOf(1).bytes_in_use, 5000);
  const hbmprof_test::ProfileView profile = Profile();
  EXPECT_EQ(profile.SumWhere("inuse_space", "kind", "executable"), 20000);
  EXPECT_EQ(profile.SumWhere("inuse_space", "executable", "jit_layer"), 20000);
  EXPECT_EQ(profile.SumWhere("inuse_space", "temp_bytes", "700"), 20000);
  EXPECT_EQ(profile.SumWhere("inuse_space", "peak_bytes", "9000"), 20000);

  abi::LoadedExecutableArgs deleted{};
  deleted.executable = compiled;
  EXPECT_EQ(calls_.Call(abi::kLoadedExecutableDelete, &deleted), 0);
  EXPECT_EQ(StatsOf(1).bytes_in_use, 0);
  for (auto* executable : {compiled, deserialize.loaded_executable, load.loaded_executable}) {
    EXPECT_EQ(calls_.DestroyExecutable(executable), 0);
  }
}

TEST_F(PjrtOwnership, DmaMappedMemoryIsPinnedHost) {
  static char block[8192];
  abi::DmaMapArgs map{};
  map.client = client_;
  map.data = block;
  map.size = sizeof(block);
  ASSERT_EQ(calls_.Call(abi::kDmaMap, &map), 0);
  EXPECT_EQ(StatsOf(0, MemorySpace::kPinnedHost).bytes_in_use, 8192);
  abi::DmaUnmapArgs unmap{};
  unmap.client = client_;
  unmap.data = block;
  ASSERT_EQ(calls_.Call(abi::kDmaUnmap, &unmap), 0);
}

TEST_F(PjrtOwnership, PluginStatisticsAreTheProbe) {
  fake_pjrt_reset(1 << 20);
  abi::Buffer* const buffer = calls_.Uninitialized(client_, 4096);
  const DeviceStats stats = StatsOf(0);
  EXPECT_EQ(stats.bytes_limit, 1 << 20);
  EXPECT_EQ(stats.driver_bytes_in_use, 4096 + kFakePjrtOwnBytes);
  EXPECT_EQ(stats.driver_peak_bytes_in_use, 4096 + kFakePjrtOwnBytes);
  EXPECT_EQ(stats.largest_free_block_bytes, (1 << 20) - 4096);
  EXPECT_TRUE(stats.unaccounted.has_value());
  EXPECT_EQ(stats.unaccounted, kFakePjrtOwnBytes);
  const std::string line = "device FAKE_0 space=device";
  EXPECT_EQ(Profile().Comment(line, "unaccounted"), std::to_string(kFakePjrtOwnBytes));
  EXPECT_EQ(Profile().Comment(line, "driver_peak"), std::to_string(4096 + kFakePjrtOwnBytes));
  abi::Buffer* const rest = calls_.Uninitialized(client_, (1 << 20) - 4096);
  EXPECT_EQ(StatsOf(0).largest_free_block_bytes, std::nullopt) << "XLA reports 0 if it does not know";
  calls_.Destroy(rest);
  calls_.Destroy(buffer);
  calls_.DestroyClient(client_);
  client_ = nullptr;
  EXPECT_EQ(StatsOf(0).driver_bytes_in_use, std::nullopt) << "the probe was removed with the client";
}

TEST_F(PjrtOwnership, NullIsDestroyedSilently) {
  EXPECT_EQ(calls_.Destroy(nullptr), 0);
  EXPECT_EQ(calls_.DestroyExecutable(nullptr), 0);
}

TEST_F(PjrtOwnership, UnknownDestructionIsForwardedAndCounted) {
  abi::Buffer* const buffer = calls_.Uninitialized(client_, 1024);
  EXPECT_EQ(calls_.Destroy(buffer), 0);
  CaptureMessages();
  EXPECT_EQ(calls_.Destroy(buffer), abi::kErrorInvalidArgument);
  EXPECT_THAT(CapturedMessages(), HasSubstr("a PJRT buffer was destroyed, but its creation was not recorded"));
  // Created without the wrapper, destroyed through it.
  abi::Buffer* const foreign = PjrtCalls(raw_).Uninitialized(client_, 1024);
  EXPECT_EQ(calls_.Destroy(foreign), 0);
  expected_foreign_ = 2;
}

TEST_F(PjrtOwnership, OutputsOfEarlierExecutableCount) {
  abi::LoadedExecutable* const executable = PjrtCalls(raw_).Compile(client_, kProgram);
  abi::Buffer* const output = calls_.Execute1(executable, {});
  EXPECT_EQ(StatsOf(0).bytes_in_use, kOutputBytes);
  ExpectAgreement();
  calls_.Destroy(output);
  calls_.DestroyExecutable(executable);
}

TEST_F(PjrtOwnership, RecordsNothingWhileOff) {
  Recorder().SetEnabled(false);
  abi::Buffer* const buffer = calls_.Uninitialized(client_, 1024);
  abi::LoadedExecutable* const executable = calls_.Compile(client_, kProgram);
  abi::Buffer* const output = calls_.Execute1(executable, {buffer});
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
  for (abi::Buffer* each : {buffer, output}) EXPECT_EQ(calls_.Destroy(each), 0);
  EXPECT_EQ(calls_.DestroyExecutable(executable), 0);
  Recorder().SetEnabled(true);
}

// Memory that was recorded before recording was turned off, and that gets another holder while it is off.
TEST_F(PjrtOwnership, MemoryIsHeldByHandlesMadeWhileOff) {
  abi::Buffer* const shared = calls_.Uninitialized(client_, 1024);
  abi::DonateWithControlDependencyArgs donation{};
  donation.buffer = calls_.Uninitialized(client_, 2048);
  const int64_t size = 4096;
  abi::ShapeSpec shape = {};
  shape.struct_size = sizeof(abi::ShapeSpec);
  shape.dims = &size;
  shape.num_dims = 1;
  shape.type = hbmprof_test::kU8;
  abi::CreateBuffersForTransferArgs transfer{};
  transfer.client = client_;
  transfer.shapes = &shape;
  transfer.num_shapes = 1;
  ASSERT_EQ(calls_.Call(abi::kCreateBuffersForTransfer, &transfer), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024 + 2048 + 4096);

  Recorder().SetEnabled(false);
  abi::Buffer* const cast = calls_.Bitcast(shared, {16, 16});
  ASSERT_EQ(calls_.Call(abi::kDonateWithControlDependency, &donation), 0);
  abi::TransferManagerRetrieveArgs retrieve{};
  retrieve.manager = transfer.manager;
  ASSERT_EQ(calls_.Call(abi::kTransferManagerRetrieve, &retrieve), 0);
  Recorder().SetEnabled(true);

  calls_.Destroy(shared);
  calls_.Destroy(donation.buffer);
  abi::TransferManagerDestroyArgs destroy{};
  destroy.manager = transfer.manager;
  ASSERT_EQ(calls_.Call(abi::kTransferManagerDestroy, &destroy), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024 + 2048 + 4096);
  for (abi::Buffer* const each : {cast, donation.result, retrieve.buffer}) EXPECT_EQ(calls_.Destroy(each), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
}

TEST_F(PjrtOwnership, ExternalReferencesAreCountedWhileOff) {
  abi::Buffer* const buffer = calls_.Uninitialized(client_, 1024);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferIncreaseReferences, buffer), 0);
  Recorder().SetEnabled(false);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(calls_.OnBuffer(abi::kBufferIncreaseReferences, buffer), 0);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDecreaseReferences, buffer), 0);
  Recorder().SetEnabled(true);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDelete, buffer), 0);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDecreaseReferences, buffer), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  EXPECT_EQ(calls_.OnBuffer(abi::kBufferDecreaseReferences, buffer), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
  EXPECT_EQ(calls_.Destroy(buffer), 0);
}

TEST_F(PjrtOwnership, AliasMadeWhileOffIsFulfilledWithKnownMemory) {
  abi::Buffer* const source = calls_.Uninitialized(client_, 1024);
  Recorder().SetEnabled(false);
  const int64_t size = 1024;
  const abi::CreateAliasArgs alias = CreateAlias(source, &size);
  Recorder().SetEnabled(true);
  Fulfill(alias, source);
  calls_.Destroy(source);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 1024);
  EXPECT_EQ(calls_.Destroy(alias.buffer), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
}

// The second executable has the handle of the first and fewer outputs.
TEST_F(PjrtOwnership, ReusedHandleOfExecutableDestroyedWhileOff) {
  const std::string outputs = "output 6 1024\noutput 6 1024\noutput 6 1024\n";
  abi::LoadedExecutable* const first = calls_.Compile(client_, "name first\n" + outputs);
  hbmprof::internal::SetTracking(false);
  EXPECT_EQ(calls_.DestroyExecutable(first), 0);
  abi::LoadedExecutable* const second = calls_.Compile(client_, "name second\noutput 6 1024\n");
  ASSERT_EQ(second, first) << "the handle was not reused";
  hbmprof::internal::SetTracking(true);
  // Outputs beyond the first would be read from here.
  abi::Buffer* const other = calls_.Uninitialized(client_, 2048);
  abi::Buffer* list[] = {nullptr, other, other};
  abi::Buffer** lists[] = {list};
  abi::Buffer* const* arguments[] = {nullptr};
  abi::ExecuteOptions options = {};
  options.struct_size = sizeof(options);
  abi::ExecuteArgs args = {};
  args.executable = second;
  args.options = &options;
  args.argument_lists = arguments;
  args.num_devices = 1;
  args.output_lists = lists;
  const int64_t already = StatsOf(0).num_allocs;
  ASSERT_EQ(calls_.Call(abi::kLoadedExecutableExecute, &args), 0);
  EXPECT_EQ(StatsOf(0).num_allocs, already + 1);
  for (abi::Buffer* each : {list[0], other}) EXPECT_EQ(calls_.Destroy(each), 0);
  EXPECT_EQ(calls_.DestroyExecutable(second), 0);
}

// The plugin can reuse the handle before the destruction returns:
//
//   thread A: Destroy(h)                  thread B: creates a buffer
//   the plugin destroys h
//     held here until B is done           the plugin returns h again, which is recorded
//   the plugin's call returns
//
// B's buffer must stay. A wrapper that removes h only after the plugin's call has returned would remove B's buffer.
TEST_F(PjrtOwnership, HandleReusedDuringDestructionKeepsNewBuffer) {
  static const PjrtCalls* calls;
  static abi::Client* client;
  static abi::Buffer* second;
  calls = &calls_;
  client = client_;
  abi::Buffer* const first = calls_.Uninitialized(client_, 1024);
  fake_pjrt_on_destroyed([] {
    fake_pjrt_on_destroyed(nullptr);
    std::thread([] { second = calls->Uninitialized(client, 4096); }).join();
  });
  EXPECT_EQ(calls_.Destroy(first), 0);
  ASSERT_EQ(second, first) << "the race was not forced";
  EXPECT_EQ(StatsOf(0).bytes_in_use, 4096);
  EXPECT_EQ(StatsOf(0).peak_bytes_in_use, 4096) << "never both";
  ExpectAgreement();
  EXPECT_EQ(calls_.Destroy(second), 0);
}

// 8 threads execute, donate, share and destroy. Handles are reused immediately, also by other threads.
TEST_F(PjrtOwnership, ReusedHandlesInThreadsEndAtZero) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  abi::LoadedExecutable* const donating = calls_.Compile(client_, kDonating);
  abi::LoadedExecutable* const plain = calls_.Compile(client_, "name g\noutput 11 64\n");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + static_cast<uint64_t>(t));
      std::vector<abi::Buffer*> mine;
      for (int step = 0; step < 1000; ++step) {
        const auto pick = [&] { return mine.empty() ? nullptr : mine[random() % mine.size()]; };
        abi::Buffer* const one = pick();
        switch (random() % 7) {
          case 0:
            mine.push_back(
                calls_.Uninitialized(client_, static_cast<int64_t>(1 + random() % 4096), Device(random() % 2)));
            break;
          case 1:
            mine.push_back(calls_.Execute1(plain, {}));
            break;
          case 2:
            // Another thread can get the handle as soon as it is destroyed.
            if (one == nullptr) break;
            mine.push_back(calls_.Execute1(donating, {one}));
            if (mine.back() == nullptr) mine.pop_back();  // it was donated before
            break;
          case 3:
            if (one != nullptr) mine.push_back(calls_.Bitcast(one, {8}));
            break;
          case 4:
            if (one != nullptr) calls_.OnBuffer(abi::kBufferDelete, one);
            break;
          default:
            if (mine.size() < 4) break;
            std::swap(mine[random() % mine.size()], mine.back());
            EXPECT_EQ(calls_.Destroy(mine.back()), 0);
            mine.pop_back();
        }
      }
      for (abi::Buffer* buffer : mine) EXPECT_EQ(calls_.Destroy(buffer), 0);
    });
  }
  std::thread reader([&] {
    for (int i = 0; i < 20; ++i) {
      EXPECT_GE(StatsOf(0).bytes_in_use, 0);
      EXPECT_TRUE(device_memory_profile().ok());
    }
  });
  for (std::thread& thread : threads) thread.join();
  reader.join();
  calls_.DestroyExecutable(donating);
  calls_.DestroyExecutable(plain);
  EXPECT_EQ(Recorder().GetTrackerStats().replaced_records, 0);
  EXPECT_EQ(Recorder().GetTrackerStats().dropped_records, 0);
}

TEST(PjrtWrapping, SameTableIsWrappedOnce) {
  const abi::Api* const wrapped = Wrapped(fake_pjrt_table(81));
  EXPECT_EQ(Wrapped(fake_pjrt_table(81)), wrapped);
  EXPECT_EQ(Wrapped(wrapped), wrapped);
  EXPECT_NE(wrapped, Wrapped(fake_pjrt_table(kFakePjrtNewest)));
}

TEST(PjrtWrapping, FutureTableKeepsUnknownSlots) {
  const PjrtCalls calls(Wrapped(fake_pjrt_table(kFakePjrtFuture)));
  int nothing = 0;
  const int64_t before = fake_pjrt_calls(kFakePjrtFutureSlot);
  EXPECT_EQ(calls.Raw(kFakePjrtFutureSlot, &nothing), nullptr);
  EXPECT_EQ(fake_pjrt_calls(kFakePjrtFutureSlot), before + 1);
}

// A table that is refused is returned unchanged, and one line prints the reason.
void ExpectRefused(const abi::Api* api, const std::string& why) {
  CaptureMessages();
  EXPECT_EQ(Wrapped(api), api);
  EXPECT_THAT(CapturedMessages(), AllOf(HasSubstr("hbmprof: a PJRT plugin is not recorded: "), HasSubstr(why)));
}

TEST(PjrtWrapping, UnsupportedVersionsAreReturnedUnchanged) {
  ExpectRefused(fake_pjrt_table(56), "version 0.56");
  abi::Api table = *fake_pjrt_table(81);
  table.version.major = 1;
  ExpectRefused(&table, "version 1.81");
}

TEST(PjrtWrapping, NullAndShortTablesAreReturned) {
  ExpectRefused(nullptr, "null");
  abi::Api table = *fake_pjrt_table(81);
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(abi::Api) - 1, size_t{1} << 40}) {
    table.struct_size = size;
    ExpectRefused(&table, std::to_string(size) + " bytes");
  }
}

TEST(PjrtWrapping, TableWithoutQuerySlotsWorks) {
  // A table that ends after BufferFromHostBuffer and has a null slot: no sizes, no destruction, no names.
  static struct {
    abi::Api api;
    void* slots[23];
  } table;
  std::memcpy(&table, fake_pjrt_table(81), sizeof(table));
  table.api.struct_size = sizeof(table);
  table.slots[abi::kClientCompile] = nullptr;
  const PjrtCalls calls(Wrapped(&table.api));
  ASSERT_NE(calls.api(), &table.api);
  EXPECT_EQ(calls.Function(abi::kClientCompile), nullptr);
  abi::Client* const client = calls.CreateClient();
  abi::Buffer* const buffer = calls.FromHost(client, {10});
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(PjrtCalls(fake_pjrt_table(81)).Destroy(buffer), 0);
  CaptureMessages();
  EXPECT_EQ(calls.DestroyClient(client), 0);
  EXPECT_THAT(CapturedMessages(), HasSubstr("1 x 0 B, kind device, on unknown")) << "a leak, of unknown size";
  const DeviceId unknown = Recorder().Device("unknown");
  EXPECT_EQ(Recorder().Stats(unknown).num_live, 1) << "and not on a GPU";
  EXPECT_EQ(Recorder().Stats(kDefaultDevice).num_live, 0);
  Recorder().DropDevice(unknown);
}

TEST(PjrtWrapping, NinthPluginIsRefused) {
  // In its own process, because wrapped tables are never removed.
  EXPECT_EXIT(
      {
        internal::UseStandardError();
        static abi::Api tables[9];
        int refused = 0;
        for (abi::Api& table : tables) {
          table = *fake_pjrt_table(81);
          table.struct_size = sizeof(abi::Api);
          refused += Wrapped(&table) == &table;
        }
        _exit(refused);
      },
      [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) >= 1; },
      "8 other plugins of this process are recorded");
}

TEST(PjrtWrapping, PluginsAreRecordedSeparately) {
  const PjrtCalls first(Wrapped(fake_pjrt_table(81)));
  const PjrtCalls second(Wrapped(fake_pjrt_table(kFakePjrtNewest)));
  abi::Client* const client = first.CreateClient();
  abi::Client* const other = second.CreateClient();
  abi::Buffer* const a = first.FromHost(client, {64});
  abi::Buffer* const b = second.FromHost(other, {128});
  EXPECT_EQ(StatsOf(0).bytes_in_use, 256 + 512);
  EXPECT_EQ(first.Destroy(a), 0);
  EXPECT_EQ(second.Destroy(b), 0);
  EXPECT_EQ(StatsOf(0).bytes_in_use, 0);
  EXPECT_EQ(first.DestroyClient(client), 0);
  EXPECT_EQ(second.DestroyClient(other), 0);
}

[[gnu::noinline]] abi::Buffer* ForgottenCache(const PjrtCalls& calls, abi::Client* client) {
  abi::Buffer* const buffer = calls.FromHost(client, {1024});
  asm volatile("");  // no tail call
  return buffer;
}

TEST(PjrtWrapping, LeaksOfDestroyedClientAreListed) {
  fake_pjrt_reset(int64_t{1} << 40);
  const PjrtCalls calls(Wrapped(fake_pjrt_table(kFakePjrtNewest)));
  abi::Client* const client = calls.CreateClient();
  for (int i = 0; i < 3; ++i) ForgottenCache(calls, client);
  calls.Compile(client, kProgram);
  CaptureMessages();
  EXPECT_EQ(calls.DestroyClient(client), 0);
  EXPECT_THAT(CapturedMessages(),
              AllOf(HasSubstr("a PJRT client was destroyed before 4 of its buffers and executables (17288 B); they"),
                    HasSubstr("3 x 4096 B, kind device, on FAKE_0, made in "),
                    HasSubstr("1 x 5000 B, kind executable, on FAKE_0, made in ")));
  EXPECT_EQ(Profile().SumUnder("inuse_space", "hbmprof::(anonymous namespace)::ForgottenCache"), 3 * 4096);
  Recorder().DropDevice(Recorder().Device("FAKE_0"));
}

// A function with a long name, which calls the plugin itself. It takes much stack to demangle such names.
using Table = std::map<std::string, std::vector<std::pair<std::function<void(std::string)>, std::vector<std::string>>>>;
template <typename T>
[[gnu::noinline]] void ForgetBuffer(const PjrtCalls& calls, abi::Client* client, const T&) {
  const int64_t dims[] = {1024};
  abi::BufferFromHostBufferArgs args{};
  args.struct_size = sizeof(args);
  args.client = client;
  args.type = hbmprof_test::kF32;
  args.dims = dims;
  args.num_dims = 1;
  using Function = abi::Error*(abi::BufferFromHostBufferArgs*);
  EXPECT_EQ(reinterpret_cast<Function*>(calls.Function(abi::kBufferFromHostBuffer))(&args), nullptr);
  calls.DestroyEvent(args.done_with_host_buffer);
}

TEST(PjrtWrapping, LeaksAreListedOnASmallStack) {
  if (hbmprof_test::kSanitized) GTEST_SKIP() << "the frames of sanitized code are larger than the stack";
  fake_pjrt_reset(int64_t{1} << 40);
  struct Client {
    PjrtCalls calls{Wrapped(fake_pjrt_table(kFakePjrtNewest))};
    abi::Client* client = calls.CreateClient();
  } own;
  ForgetBuffer(own.calls, own.client, std::map<int, std::pair<Table, std::vector<std::pair<Table, Table>>>>());
  CaptureMessages();
  pthread_attr_t attributes;
  pthread_t thread;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::max<size_t>(32 << 10, PTHREAD_STACK_MIN)), 0);
  const auto destroy = [](void* argument) -> void* {
    const auto& [calls, client] = *static_cast<Client*>(argument);
    EXPECT_EQ(calls.DestroyClient(client), 0);
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, destroy, &own), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_THAT(CapturedMessages(),
              AllOf(HasSubstr("1 x 4096 B, kind device, on FAKE_0, made in "), HasSubstr("::ForgetBuffer")));
  Recorder().DropDevice(Recorder().Device("FAKE_0"));
}

TEST(PjrtRequestedBytesTest, ReadsTheMessagesOfXla) {
  using internal::PjrtRequestedBytes;
  EXPECT_EQ(PjrtRequestedBytes("Out of memory while trying to allocate 33762398024 bytes."), 33762398024u);
  EXPECT_EQ(PjrtRequestedBytes("Out of memory while trying to allocate 16.00GiB."), size_t{16} << 30);
  EXPECT_EQ(PjrtRequestedBytes("Out of memory allocating 4096 bytes."), 4096u);
  EXPECT_EQ(PjrtRequestedBytes("Attempting to allocate 8.50M. That was not possible. There are 6.43M free."),
            size_t{17} << 19);
  EXPECT_EQ(PjrtRequestedBytes("Attempting to reserve 512B at the bottom of memory."), 512u);
  for (const char* message :
       {"", "allocate ", "allocate 5", "allocate 5 buffers", "allocate many bytes", "allocate 1.5.5G",
        "allocate 99999999999999999999 bytes", "allocate 17179869184G", "Used 49.34G of 32.00G hbm."}) {
    EXPECT_EQ(PjrtRequestedBytes(message), std::nullopt) << message;
  }
}

[[noreturn]] void ExhaustMemory() {
  fake_pjrt_reset(8192);
  const PjrtCalls calls(Wrapped(fake_pjrt_table(kFakePjrtNewest)));
  abi::Client* const client = calls.CreateClient();
  abi::Buffer* const held = ForgottenCache(calls, client);
  int code = 0;
  CaptureMessages();
  EXPECT_EQ(calls.Uninitialized(client, 8192, nullptr, &code), nullptr);
  EXPECT_EQ(code, abi::kErrorResourceExhausted);
  EXPECT_THAT(CapturedMessages(),
              AllOf(HasSubstr("out of memory on FAKE_0: PJRT_Client_CreateUninitializedBuffer of 8.00 KiB failed"),
                    HasSubstr("4.00 KiB 100.0 %        1 live  hbmprof_test::PjrtCalls::")));

  CaptureMessages();
  EXPECT_EQ(calls.Uninitialized(client, 8192, nullptr, &code), nullptr);
  EXPECT_EQ(code, abi::kErrorResourceExhausted);
  EXPECT_EQ(CapturedMessages(), "") << "within a minute";

  // The device of the call, not the device with the most bytes in use.
  CaptureMessages();
  EXPECT_EQ(calls.Uninitialized(client, 16384, calls.Device(client, 1), &code), nullptr);
  EXPECT_THAT(CapturedMessages(), HasSubstr("out of memory on FAKE_1: PJRT_Client_CreateUninitializedBuffer of 16.00"));
  EXPECT_EQ(fake_pjrt_live_errors(), 0);
  calls.Destroy(held);
  calls.DestroyClient(client);
  std::fflush(stdout);
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST(PjrtWrapping, ExhaustedMemoryIsReportedOnceForEachDevice) {
  // In a process of its own: another test may have exhausted the device less than a minute ago.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ExhaustMemory(), ::testing::ExitedWithCode(0), "");
}

// What an execution reports through its event, and not by its result.
[[noreturn]] void ExhaustMemoryLater() {
  fake_pjrt_reset(1 << 20);
  const PjrtCalls calls(Wrapped(fake_pjrt_table(kFakePjrtNewest)));
  abi::Client* const client = calls.CreateClient();
  abi::LoadedExecutable* const executable = calls.Compile(client, kProgram);
  const auto execute = [&](std::vector<abi::Buffer*> arguments, abi::Device* device, abi::Event** done) {
    PjrtCalls::Run run;
    run.arguments = {std::move(arguments)};
    run.device = device;
    run.done = done;
    std::vector<std::vector<abi::Buffer*>> outputs;
    CaptureMessages();
    EXPECT_EQ(calls.Execute(executable, run, &outputs), 0);
    return outputs[0][0];
  };
  abi::Event* done = nullptr;
  abi::EventArgs ask{};

  // The call that has failed is reported, and its output is not live.
  fake_pjrt_fail_next_event(abi::kErrorResourceExhausted, /*is_known=*/true);
  abi::Buffer* const failed = execute({}, nullptr, &done);
  EXPECT_THAT(CapturedMessages(), AllOf(HasSubstr("out of memory on FAKE_0: PJRT_LoadedExecutable_Execute failed"),
                                        HasSubstr("\n  requested by ")));
  const DeviceId device = Recorder().Device("FAKE_0");
  EXPECT_EQ(Recorder().Stats(device).bytes_in_use, 5000) << "the code";

  // Who waits for it learns nothing new. Nor does an execution that needs its output.
  abi::Buffer* const held = calls.FromHost(client, {16384}, calls.Device(client, 1));
  CaptureMessages();
  ask.event = done;
  EXPECT_EQ(calls.Call(abi::kEventAwait, &ask), abi::kErrorResourceExhausted);
  EXPECT_EQ(CapturedMessages(), "");
  calls.DestroyEvent(done);
  fake_pjrt_fail_next_event(abi::kErrorResourceExhausted, /*is_known=*/true);
  abi::Buffer* const dependent = execute({failed}, calls.Device(client, 1), &done);
  EXPECT_EQ(CapturedMessages(), "");
  calls.DestroyEvent(done);

  // A failure that only the event reports.
  fake_pjrt_fail_next_event(abi::kErrorResourceExhausted, /*is_known=*/false);
  abi::Buffer* const later = execute({}, nullptr, &done);
  EXPECT_EQ(CapturedMessages(), "");
  CaptureMessages();
  ask.event = done;
  EXPECT_EQ(calls.Call(abi::kEventError, &ask), abi::kErrorResourceExhausted);
  EXPECT_THAT(CapturedMessages(), AllOf(HasSubstr("out of memory on FAKE_1: PJRT_Event_Error failed"),
                                        HasSubstr("\n  noticed at "), Not(HasSubstr("requested by"))));
  calls.DestroyEvent(done);

  CaptureMessages();
  for (abi::Buffer* buffer : {failed, held, dependent, later}) calls.Destroy(buffer);
  EXPECT_EQ(CapturedMessages(), "") << "all handles are known";
  EXPECT_EQ(fake_pjrt_live_errors(), 0);
  std::fflush(stdout);
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST(PjrtWrapping, FailureOfAnEventIsReportedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ExhaustMemoryLater(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace hbmprof
