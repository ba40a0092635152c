// PjrtRecords: which handle holds which memory, and until when.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/backends/pjrt/adapter.h"

namespace hbmprof::internal {
namespace {

// Distinct addresses.
char handles[64];
const PjrtHandle kClient = &handles[0];
const PjrtHandle kOtherClient = &handles[1];
const PjrtHandle kA = &handles[2];
const PjrtHandle kB = &handles[3];
const PjrtHandle kC = &handles[4];
const PjrtHandle kCallback = &handles[5];
const PjrtHandle kManager = &handles[6];

PjrtMemory Bytes(size_t bytes) {
  PjrtMemory memory;
  memory.bytes = bytes;
  return memory;
}

class PjrtRecordsTest : public ::testing::Test {
 protected:
  // A separate function, so that its buffers have a stack of their own.
  [[gnu::noinline]] void Create(PjrtHandle buffer, size_t bytes, PjrtHandle client = kClient) {
    records_.Created(Caller::OfThisFunction(), client, buffer, Bytes(bytes));
  }
  [[gnu::noinline]] void Alias(PjrtHandle buffer, PjrtHandle source) {
    records_.CreatedAlias(Caller::OfThisFunction(), kClient, buffer, Bytes(999), source);
  }
  [[gnu::noinline]] void View(PjrtHandle buffer) {
    records_.CreatedAlias(Caller::OfThisFunction(), kClient, buffer, Bytes(999));
  }
  int Destroy(PjrtHandle buffer) {
    bool known = false;
    return records_.Destroyed(buffer, &known);
  }
  int64_t InUse() { return profiler_.Stats(kDefaultDevice).bytes_in_use; }
  int64_t Peak() { return profiler_.Stats(kDefaultDevice).peak_bytes_in_use; }
  int64_t Live() { return profiler_.GetTrackerStats().live_records; }
  int64_t RecordForeignFree() { return profiler_.GetTrackerStats().foreign_frees; }

  Profiler profiler_;
  PjrtRecords records_{profiler_};
};

TEST_F(PjrtRecordsTest, BufferCountsUntilDestroyed) {
  Create(kA, 100);
  Create(kB, 50);
  EXPECT_EQ(InUse(), 150);
  Destroy(kA);
  EXPECT_EQ(InUse(), 50);
  Destroy(kB);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(Peak(), 150);
  EXPECT_EQ(RecordForeignFree(), 0);
}

TEST_F(PjrtRecordsTest, DeletionEndsMemoryOnce) {
  Create(kA, 100);
  records_.Deleted(kA);
  EXPECT_EQ(InUse(), 0);
  records_.Deleted(kA);
  Destroy(kA);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(RecordForeignFree(), 0);
}

TEST_F(PjrtRecordsTest, UnknownHandleIsAForeignFree) {
  bool known = true;
  records_.Destroyed(kA, &known);
  EXPECT_FALSE(known);
  EXPECT_EQ(RecordForeignFree(), 1);
  records_.Destroyed(nullptr, &known);
  EXPECT_TRUE(known);
  records_.Deleted(kA);
  EXPECT_EQ(RecordForeignFree(), 1);
}

TEST_F(PjrtRecordsTest, ReusedHandleIsNewMemory) {
  Create(kA, 100);
  Destroy(kA);
  Create(kA, 30);
  EXPECT_EQ(InUse(), 30);
  // Its end was not seen, for example because recording was off.
  Create(kA, 7);
  EXPECT_EQ(InUse(), 7);
  Destroy(kA);
  EXPECT_EQ(Live(), 0);
}

TEST_F(PjrtRecordsTest, ViewOwnsNoMemory) {
  View(kA);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(Live(), 1) << "it is there, at zero bytes";
  Destroy(kA);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(RecordForeignFree(), 0);
}

TEST_F(PjrtRecordsTest, SharedMemoryCountsOnceUntilLastHolder) {
  Create(kA, 100);
  Alias(kB, kA);
  Alias(kC, kB);
  EXPECT_EQ(InUse(), 100);
  Destroy(kA);
  EXPECT_EQ(InUse(), 100);
  records_.Deleted(kC);
  EXPECT_EQ(InUse(), 100);
  Destroy(kB);
  EXPECT_EQ(InUse(), 0);
  Destroy(kC);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(Peak(), 100);
  EXPECT_EQ(RecordForeignFree(), 0);
}

TEST_F(PjrtRecordsTest, FulfilledAliasSharesMemory) {
  View(kA);
  records_.AwaitsFulfilment(kCallback, kA);
  Create(kB, 100);
  records_.Fulfilled(kCallback, kB);
  EXPECT_EQ(InUse(), 100);
  Destroy(kB);
  EXPECT_EQ(InUse(), 100);
  Destroy(kA);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(Live(), 0);
}

TEST_F(PjrtRecordsTest, AliasFulfilledWithErrorHoldsNothing) {
  View(kA);
  records_.AwaitsFulfilment(kCallback, kA);
  records_.Fulfilled(kCallback, nullptr);
  records_.Fulfilled(kCallback, kA);  // a callback has an effect only once
  Destroy(kA);
  EXPECT_EQ(Live(), 0);
}

TEST_F(PjrtRecordsTest, LaterViewWithHandleOfDestroyedAliasIsNotFulfilled) {
  View(kA);
  records_.AwaitsFulfilment(kCallback, kA);
  Destroy(kA);
  View(kA);
  Create(kB, 100);
  records_.Fulfilled(kCallback, kB);
  Destroy(kB);
  EXPECT_EQ(InUse(), 0);
  Destroy(kA);
  EXPECT_EQ(Live(), 0);
}

TEST_F(PjrtRecordsTest, MovedMemoryKeepsRecord) {
  Create(kA, 100);
  EXPECT_TRUE(records_.Moved(kA, kB));
  EXPECT_EQ(InUse(), 100);
  EXPECT_EQ(Peak(), 100);
  EXPECT_EQ(profiler_.Stats(kDefaultDevice).num_allocs, 1);
  Destroy(kA);
  EXPECT_EQ(InUse(), 100);
  Destroy(kB);
  EXPECT_EQ(InUse(), 0);
  EXPECT_FALSE(records_.Moved(kA, kB)) << "unknown";
}

TEST_F(PjrtRecordsTest, ExternalReferenceOutlivesDeletion) {
  Create(kA, 100);
  records_.ReferenceAdded(kA);
  records_.ReferenceAdded(kA);
  records_.Deleted(kA);
  records_.ReferenceDropped(kA);
  EXPECT_EQ(InUse(), 100);
  records_.ReferenceDropped(kA);
  EXPECT_EQ(InUse(), 0);
  Destroy(kA);
  EXPECT_EQ(RecordForeignFree(), 0);

  Create(kA, 100);
  records_.ReferenceAdded(kA);
  Destroy(kA);
  EXPECT_EQ(InUse(), 0) << "the handle owned the reference";
}

TEST_F(PjrtRecordsTest, TransferBuffersKeepCreationStack) {
  records_.TransferCreated(Caller::OfThisFunction(), kClient, kManager, {Bytes(10), Bytes(20), Bytes(40)});
  EXPECT_EQ(InUse(), 70);
  EXPECT_TRUE(records_.TransferRetrieved(kManager, 1, kA));
  EXPECT_FALSE(records_.TransferRetrieved(kManager, 3, kB));
  EXPECT_EQ(InUse(), 70);
  EXPECT_EQ(profiler_.Stats(kDefaultDevice).num_allocs, 3);
  EXPECT_EQ(records_.TransferDestroyed(kManager), 2) << "without the retrieved one";
  EXPECT_EQ(InUse(), 20);
  Destroy(kA);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(RecordForeignFree(), 0);
}

TEST_F(PjrtRecordsTest, LaterTransferWithSameHandleEndsMemoryOfEarlier) {
  records_.TransferCreated(Caller::OfThisFunction(), kClient, kManager, {Bytes(10), Bytes(20)});
  EXPECT_TRUE(records_.TransferRetrieved(kManager, 0, kA));
  records_.TransferCreated(Caller::OfThisFunction(), kClient, kManager, {Bytes(300)});
  EXPECT_EQ(InUse(), 310) << "the buffer that was retrieved is live";
  records_.TransferDestroyed(kManager);
  Destroy(kA);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(RecordForeignFree(), 0);
}

std::shared_ptr<PjrtProgram> Program(std::vector<DeviceId> devices) {
  auto program = std::make_shared<PjrtProgram>();
  program->client = kClient;
  program->name = "jit_step";
  program->devices = std::move(devices);
  program->code_bytes = 1000;
  program->temp_bytes = 300;
  program->peak_bytes = 4000;
  return program;
}

TEST_F(PjrtRecordsTest, ExecutableCodeCountsOnEachDevice) {
  const DeviceId second = profiler_.Device("second");
  records_.Loaded(Caller::OfThisFunction(), kA, Program({kDefaultDevice, second}));
  EXPECT_EQ(InUse(), 1000);
  EXPECT_EQ(profiler_.Stats(second).bytes_in_use, 1000);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  const std::map<std::string, std::string> tags(snapshot.samples[0].tags.begin(), snapshot.samples[0].tags.end());
  EXPECT_EQ(tags.at("executable"), "jit_step");
  EXPECT_EQ(tags.at("temp_bytes"), "300");
  EXPECT_EQ(tags.at("peak_bytes"), "4000");
  EXPECT_EQ(snapshot.samples[0].kind, MemoryKind::kExecutable);

  EXPECT_EQ(records_.ExecutableDeleted(kA), 2);
  EXPECT_EQ(InUse(), 0);
  bool known = false;
  records_.ExecutableDestroyed(kA, &known);
  EXPECT_TRUE(known);
  records_.ExecutableDestroyed(kA, &known);
  EXPECT_FALSE(known);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(RecordForeignFree(), 1);
}

TEST_F(PjrtRecordsTest, LeaksOfClientAreListed) {
  for (const PjrtHandle handle : {kA, kB}) Create(handle, 100);
  Alias(kC, kB);
  Create(&handles[10], 5, kOtherClient);
  records_.Loaded(Caller::OfThisFunction(), &handles[11], Program({kDefaultDevice}));
  const std::vector<PjrtRecords::Leak> rows = records_.ClientDestroyed(kClient);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].count, 1);
  EXPECT_EQ(rows[0].bytes, 1000);
  EXPECT_EQ(rows[0].attributes.kind, MemoryKind::kExecutable);
  EXPECT_EQ(rows[1].count, 2);
  EXPECT_EQ(rows[1].bytes, 100);
  EXPECT_EQ(InUse(), 1205);
  // A buffer of another client with the same address is independent.
  Create(kA, 7, kOtherClient);
  Destroy(kA);
  EXPECT_EQ(InUse(), 1205);
}

TEST_F(PjrtRecordsTest, PinnedMemoryCountsWhileMapped) {
  PjrtMemory pinned = Bytes(4096);
  pinned.attributes.kind = MemoryKind::kPinnedHost;
  records_.HostMapped(Caller::OfThisFunction(), kA, pinned);
  const auto held = [&] { return profiler_.Stats(kDefaultDevice, MemorySpace::kPinnedHost).bytes_in_use; };
  EXPECT_EQ(held(), 4096);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(records_.HostUnmapped(kA), 1);
  EXPECT_EQ(held(), 0);
  records_.HostUnmapped(kA);
  EXPECT_EQ(RecordForeignFree(), 0);
}

TEST_F(PjrtRecordsTest, DroppedRecordIsNoForeignFree) {
  Options options;
  options.max_live_buffers = 1;
  Profiler small(options);
  PjrtRecords records(small);
  const Caller caller = Caller::OfThisFunction();
  records.Created(caller, kClient, kA, Bytes(100));
  records.Created(caller, kClient, kB, Bytes(100));
  EXPECT_EQ(small.GetTrackerStats().dropped_records, 1);
  bool known = false;
  records.Destroyed(kB, &known);
  EXPECT_TRUE(known);
  EXPECT_EQ(small.GetTrackerStats().foreign_frees, 0);
}

}  // namespace
}  // namespace hbmprof::internal
