#include "src/export/recording.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/pprof.h"
#include "tests/support/made_recording.h"
#include "tests/support/make_recording.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof::internal {
namespace {

using ::hbmprof_test::MadeRecording;
using ::hbmprof_test::NewDirectory;
using ::testing::ElementsAre;
using ::testing::Pair;
using SiteKind = RecordingTables::SiteKind;

auto Fields(const RecordedEvent& event) {
  return std::tuple(event.time, event.kind, event.id, event.bytes, event.site, event.thread, event.is_continued);
}

std::vector<RecordedEvent> EventsOf(RecordingReader& reader) {
  std::vector<RecordedEvent> events;
  RecordedEvent event;
  while (reader.Next(&event)) events.push_back(event);
  return events;
}

void ExpectEqual(const std::vector<RecordedEvent>& read, const std::vector<RecordedEvent>& written) {
  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(Fields(read[i]), Fields(written[i])) << i;
}

// Two devices, a pool, tags, moved and failed allocations, samples, lost events.
MadeRecording SmallRecording() {
  MadeRecording recording;
  const uint32_t device = recording.Device("GPU:1", 1 << 30);
  const uint32_t page = recording.Site({{"llm::KvCache::AllocatePage"}, {"main"}},
                                       {device, MemoryKind::kDevice, "kv", {{"phase", "decode"}}, SiteKind::kPlain});
  const uint32_t segment =
      recording.Site({{"Pool::Grow"}, {"main"}}, {0, MemoryKind::kPool, "", {}, SiteKind::kSegment});
  const uint32_t block = recording.Site({{"allocate", "serve.py", 16}, {"Pool::Take"}, {"main"}},
                                        {0, MemoryKind::kDevice, "", {}, SiteKind::kBlock});
  const uint32_t moved = recording.Site({{"Tensor::Tensor"}, {"main"}});
  const uint16_t worker = recording.Thread(4243, "worker");
  recording.Live(0x7000, 4096, page);
  recording.Alloc(10, 0x10000, 1 << 20, segment)
      .AllocBlock(20, 0x8000000000010000, 4096, block, segment, worker)
      .Alloc(20, 0x8000, 4096, page)
      .SetTags(25, recording.TagSet({{"model", "base"}}), worker)
      .Free(30, 0x7000)
      .Move(40, 0x8000, 2048, moved)
      .FreeBlock(60, 0x8000000000010000, segment)
      .Mark(70, "after.pb.gz");
  recording.Add({MadeRecording::kStart + 75, 3, int64_t{1} << 40, kNoRecordedSite, 0, RecordedKind::kFailed});
  recording.Add({MadeRecording::kStart + 80, 0, 0, kNoRecordedSite, 0, RecordedKind::kResetPeak});
  DriverSample sample;
  sample.time = 45;
  sample.devices.push_back({device, 9000, std::nullopt, 1 << 30, 4096, 512});
  sample.host_resident_bytes = 77;
  sample.counters = {{"requests", 3}};
  recording.Sample(sample).Lost(61, 62, 9);
  return recording;
}

std::string Written(const MadeRecording& recording) {
  const std::string path = NewDirectory() + "/made.hbmrec";
  auto writer = RecordingWriter::Create(path);
  EXPECT_TRUE(writer.ok()) << writer.status();
  const absl::Status status = recording.WriteTo(**writer);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

std::unique_ptr<RecordingReader> Opened(const std::string& path) {
  auto reader = RecordingReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return reader.ok() ? std::move(*reader) : nullptr;
}

// The id of a kCharge is not written.
std::vector<RecordedEvent> AsWritten(std::vector<RecordedEvent> events) {
  for (RecordedEvent& event : events) {
    if (event.kind == RecordedKind::kCharge) event.id = 0;
  }
  return events;
}

TEST(RecordingTest, RoundTripIsUnchanged) {
  const MadeRecording made = SmallRecording();
  const auto reader = Opened(Written(made));
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->is_complete());
  EXPECT_EQ(reader->problem(), "");
  EXPECT_EQ(reader->event_count(), made.event_count());
  EXPECT_EQ(reader->end_time(), made.end_time());
  ExpectEqual(EventsOf(*reader), AsWritten(made.events()));
  reader->Rewind();
  ExpectEqual(EventsOf(*reader), AsWritten(made.events()));

  const RecordingTables& read = reader->tables();
  const RecordingTables& written = made.tables();
  EXPECT_EQ(read.start_time, written.start_time);
  EXPECT_EQ(read.start_unix_nanos, written.start_unix_nanos);
  EXPECT_EQ(read.names.host, "host0");
  EXPECT_EQ(read.names.process_id, 4242);
  EXPECT_THAT(read.names.allocators, ElementsAre("", "kv"));
  EXPECT_EQ(read.site_kinds, written.site_kinds);
  EXPECT_EQ(read.tag_sets, written.tag_sets);
  ASSERT_EQ(read.sites.size(), written.sites.size());
  for (size_t i = 0; i < read.sites.size(); ++i) {
    EXPECT_EQ(read.sites[i].device, written.sites[i].device);
    EXPECT_EQ(read.sites[i].kind, written.sites[i].kind);
    EXPECT_EQ(read.sites[i].tags, written.sites[i].tags);
    EXPECT_EQ(read.sites[i].inuse_bytes, written.sites[i].inuse_bytes);
    EXPECT_EQ(read.names.stacks[read.sites[i].stack].return_addresses,
              written.names.stacks[written.sites[i].stack].return_addresses);
  }
  ASSERT_EQ(read.names.named_frames.size(), 1u);
  EXPECT_EQ(read.names.named_frames[0].file, "serve.py");
  EXPECT_EQ(read.names.devices[1].name, "GPU:1");
  EXPECT_EQ(read.names.devices[1].spaces[0].bytes_limit, 1 << 30);
  EXPECT_EQ(read.functions.size(), written.functions.size());
  EXPECT_EQ(read.threads[1].name, "worker");
  EXPECT_EQ(read.marks[0].name, "after.pb.gz");
  ASSERT_EQ(read.live.size(), 1u);
  EXPECT_EQ(read.live[0].id, 0x7000u);

  ASSERT_EQ(reader->samples().size(), 1u);
  const DriverSample& sample = reader->samples()[0];
  EXPECT_EQ(sample.time, MadeRecording::kStart + 45);
  EXPECT_EQ(sample.devices[0].bytes_in_use, 9000);
  EXPECT_EQ(sample.devices[0].bytes_free, std::nullopt);
  EXPECT_EQ(sample.host_resident_bytes, 77);
  EXPECT_THAT(sample.counters, ElementsAre(Pair("requests", 3)));
  ASSERT_EQ(reader->lost().size(), 1u);
  EXPECT_EQ(reader->lost()[0].count, 9);
}

TEST(RecordingTest, TablesGrowBetweenEvents) {
  MadeRecording made;
  const std::string path = NewDirectory() + "/grows.hbmrec";
  auto writer = *RecordingWriter::Create(path);
  std::vector<RecordedEvent> events;
  for (int i = 0; i < 40; ++i) {
    std::vector<MadeRecording::Frame> frames(static_cast<size_t>(i % 7), {"Inner" + std::to_string(i)});
    frames.push_back({"main"});
    const uint32_t site = made.Site(frames);
    ASSERT_TRUE(writer->AddTables(made.tables()).ok());
    events.push_back({MadeRecording::kStart + i, uint64_t{100} + i, i, site, 0, RecordedKind::kAlloc});
    ASSERT_TRUE(writer->AddEvents(&events.back(), 1).ok());
    ASSERT_TRUE(writer->Flush(MadeRecording::kStart + i).ok());
  }
  ASSERT_TRUE(writer->Finish(MadeRecording::kStart + 40).ok());
  const auto reader = Opened(path);
  ASSERT_NE(reader, nullptr);
  ASSERT_EQ(reader->tables().sites.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(reader->tables().names.stacks[i].return_addresses, made.tables().names.stacks[i].return_addresses) << i;
  }
  EXPECT_EQ(reader->tables().functions.size(), made.tables().functions.size());
  ExpectEqual(EventsOf(*reader), events);
}

// Events of many buffers. The writer gets the buffers long after each other, and some of them after a flush whose time
// is before their events.
TEST(RecordingTest, MergesBuffersInTheOrderOfTime) {
  MadeRecording made;
  const uint32_t site = made.Site({{"main"}});
  for (int i = 1; i < 8; ++i) made.Thread(i, "");
  std::mt19937 random(3);
  const std::string path = NewDirectory() + "/merged.hbmrec";
  auto writer = *RecordingWriter::Create(path);
  ASSERT_TRUE(writer->AddTables(made.tables()).ok());
  std::vector<RecordedEvent> all;
  std::vector<RecordedEvent> buffers[8];
  int64_t time = MadeRecording::kStart;
  for (int step = 0; step < 20000; ++step) {
    time += random() % 50;
    const auto thread = static_cast<uint16_t>(random() % 8);
    const bool is_change = random() % 4 == 0;
    const RecordedEvent event{time, random(), 64, site, thread, RecordedKind::kAlloc, is_change};
    const RecordedEvent rest{time, 0, 12, site, thread, RecordedKind::kCharge, false};
    for (auto* list : {&all, &buffers[thread]}) {
      list->push_back(event);
      if (is_change) list->push_back(rest);
    }
    if (random() % 500 == 0) {
      auto& buffer = buffers[random() % 8];
      ASSERT_TRUE(writer->AddEvents(buffer.data(), buffer.size()).ok());
      buffer.clear();
      // All events before the earliest one that is still in a buffer are written.
      int64_t earliest = time;
      for (const auto& one : buffers) earliest = one.empty() ? earliest : std::min(earliest, one[0].time);
      ASSERT_TRUE(writer->Flush(earliest - 1).ok());
    }
  }
  for (const auto& buffer : buffers) ASSERT_TRUE(writer->AddEvents(buffer.data(), buffer.size()).ok());
  ASSERT_TRUE(writer->Finish(time).ok());
  const auto reader = Opened(path);
  ASSERT_NE(reader, nullptr);
  const std::vector<RecordedEvent> read = EventsOf(*reader);
  ASSERT_EQ(read.size(), all.size());
  for (size_t i = 1; i < read.size(); ++i) {
    ASSERT_LE(read[i - 1].time, read[i].time);
    ASSERT_TRUE(!read[i - 1].is_continued || read[i].thread == read[i - 1].thread);
  }
  // Events of different threads at the same time have no order.
  const auto sorted = [](std::vector<RecordedEvent> events) {
    std::stable_sort(events.begin(), events.end(), [](const RecordedEvent& a, const RecordedEvent& b) {
      return std::tie(a.time, a.thread) < std::tie(b.time, b.thread);
    });
    return events;
  };
  ExpectEqual(sorted(read), sorted(all));
  EXPECT_EQ(reader->problem(), "");
}

TEST(RecordingTest, EventTakesAtMostTwelveBytes) {
  for (const bool pool : {false, true}) {
    const std::string path = NewDirectory() + "/load.hbmrec";
    hbmprof_test::MadeLoad load;
    load.events = 200000;
    load.pool = pool;
    ASSERT_TRUE(hbmprof_test::MakeRecording(path, load).ok());
    const auto reader = Opened(path);
    ASSERT_NE(reader, nullptr);
    const auto bytes = static_cast<double>(std::filesystem::file_size(path));
    const double per_event = bytes / static_cast<double>(reader->event_count());
    RecordProperty(pool ? "bytes_per_event_pool" : "bytes_per_event", std::to_string(per_event));
    EXPECT_LE(per_event, 12.0) << pool;
    EXPECT_EQ(EventsOf(*reader).size(), static_cast<size_t>(reader->event_count()));
  }
}

// The ledger in the simplest form: all values are recomputed after each change.
struct Model {
  std::map<uint32_t, std::pair<int64_t, int64_t>> in_use;  // by site: objects and bytes
  std::map<uint32_t, std::pair<int64_t, int64_t>> at_peak;
  int64_t total = 0;
  int64_t peak = 0;

  void Add(uint32_t site, int64_t objects, int64_t bytes) {
    in_use[site].first += objects;
    in_use[site].second += bytes;
    total += bytes;
  }
  void End(bool reset = false) {
    if (!reset && total <= peak) return;
    peak = total;
    at_peak = in_use;
  }
};

TEST(RecordingStateTest, EqualsAModelAfterEachChange) {
  MadeRecording made;
  std::vector<uint32_t> plain;
  for (int i = 0; i < 6; ++i) plain.push_back(made.Site({{"f" + std::to_string(i)}}));
  const uint32_t segment = made.Site({{"grow"}}, {0, MemoryKind::kPool, "", {}, SiteKind::kSegment});
  const uint32_t block = made.Site({{"take"}}, {0, MemoryKind::kDevice, "", {}, SiteKind::kBlock});
  RecordingState state(made.tables());
  Model model;
  std::mt19937 random(7);
  struct Live {
    uint32_t site;
    int64_t bytes;
  };
  std::map<uint64_t, Live> live;
  int64_t time = MadeRecording::kStart;
  const auto apply = [&](RecordedKind kind, uint64_t id, int64_t bytes, uint32_t site, bool continued = false) {
    state.Apply({time, id, bytes, site, 0, kind, continued});
  };
  apply(RecordedKind::kAlloc, 1, 1 << 20, segment);
  model.Add(segment, 1, 1 << 20);
  model.End();
  for (int step = 0; step < 5000; ++step) {
    ++time;
    const uint64_t choice = random() % 10;
    if (choice < 4 || live.empty()) {
      const uint64_t id = 100 + static_cast<uint64_t>(step);
      const bool in_pool = random() % 3 == 0;
      const uint32_t site = in_pool ? block : plain[random() % plain.size()];
      const auto bytes = static_cast<int64_t>(random() % 1000);
      apply(RecordedKind::kAlloc, id, bytes, site, in_pool);
      if (in_pool) apply(RecordedKind::kCharge, 0, bytes, segment);
      model.Add(site, 1, bytes);
      if (in_pool) model.Add(segment, 0, -bytes);
      live[id] = {site, bytes};
    } else if (choice < 8) {
      const auto victim = std::next(live.begin(), static_cast<int64_t>(random() % live.size()));
      const bool in_pool = victim->second.site == block;
      apply(RecordedKind::kFree, victim->first, victim->second.bytes, victim->second.site, in_pool);
      if (in_pool) apply(RecordedKind::kCharge, 0, -victim->second.bytes, segment);
      model.Add(victim->second.site, -1, -victim->second.bytes);
      if (in_pool) model.Add(segment, 0, victim->second.bytes);
      live.erase(victim);
    } else if (choice < 9) {
      const auto entry = std::next(live.begin(), static_cast<int64_t>(random() % live.size()));
      if (entry->second.site == block) continue;
      const uint32_t to = plain[random() % plain.size()];
      const auto bytes = static_cast<int64_t>(random() % 1000);
      apply(RecordedKind::kMoveFrom, entry->first, entry->second.bytes, entry->second.site, true);
      apply(RecordedKind::kMoveTo, entry->first, bytes, to);
      model.Add(entry->second.site, -1, -entry->second.bytes);
      model.Add(to, 1, bytes);
      entry->second = {to, bytes};
    } else {
      if (random() % 20 != 0) continue;
      apply(RecordedKind::kResetPeak, 0, 0, kNoRecordedSite);
      model.End(true);
    }
    model.End();
    ASSERT_EQ(state.bytes_in_use(0), model.total) << step;
    ASSERT_EQ(state.peak_bytes(0), model.peak) << step;
    ASSERT_EQ(state.live().size(), live.size() + 1) << step;
    if (step % 100 != 0) continue;
    const Snapshot snapshot = state.ToSnapshot();
    int64_t peak = 0;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      const uint32_t site = sample.stack;  // each site has a stack of its own
      ASSERT_EQ(sample.inuse_objects, model.in_use[site].first) << step;
      ASSERT_EQ(sample.inuse_bytes, model.in_use[site].second) << step;
      ASSERT_EQ(sample.peak_objects, model.at_peak[site].first) << step;
      ASSERT_EQ(sample.peak_bytes, model.at_peak[site].second) << step;
      peak += sample.peak_bytes;
    }
    ASSERT_EQ(peak, model.peak);
    const DeviceStats& stats = snapshot.devices[0].spaces[0];
    ASSERT_EQ(stats.bytes_in_use, model.total);
    ASSERT_EQ(stats.peak_bytes_in_use, model.peak);
    ASSERT_EQ(stats.pool_bytes, 1 << 20);
    ASSERT_EQ(stats.bytes_reserved, model.in_use[segment].second);
    ASSERT_EQ(stats.num_live, static_cast<int64_t>(live.size()) + 1);
  }
}

TEST(RecordingStateTest, LateFreeKeepsNewBufferWithSameId) {
  MadeRecording made;
  const uint32_t first = made.Site({{"first"}});
  const uint32_t second = made.Site({{"second"}});
  RecordingState state(made.tables());
  state.Apply({10, 0x100, 4, first, 0, RecordedKind::kAlloc, false});
  state.Apply({20, 0x100, 8, second, 0, RecordedKind::kAlloc, false});
  state.Apply({30, 0x100, 4, first, 0, RecordedKind::kFree, false});
  ASSERT_EQ(state.live().size(), 1u);
  EXPECT_EQ(state.live().at(0x100).site, second);
  EXPECT_EQ(state.bytes_in_use(0), 8);
  // A renamed buffer keeps the time of its allocation.
  state.Apply({40, 0x100, 8, second, 0, RecordedKind::kMoveFrom, true});
  state.Apply({40, 0x900, 8, second, 0, RecordedKind::kMoveTo, false});
  ASSERT_EQ(state.live().count(0x900), 1u);
  EXPECT_EQ(state.live().at(0x900).time, 20);
  EXPECT_EQ(state.live().size(), 1u);
}

// The counts at the start are those of the file. The sanitizer of undefined behaviour finds an overflow.
TEST(RecordingStateTest, SumsWrapAround) {
  MadeRecording made;
  const uint32_t site = made.Site({{"site"}});
  Snapshot::Sample& sample = made.mutable_tables().sites[site];
  DeviceStats& stats = made.mutable_tables().names.devices[0].spaces[0];
  stats.num_allocs = stats.num_live = stats.bytes_in_use = INT64_MAX;
  sample.alloc_objects = sample.inuse_objects = sample.inuse_bytes = INT64_MAX;
  RecordingState state(made.tables());
  state.Apply({10, 0x100, 4, site, 0, RecordedKind::kAlloc, false});
  EXPECT_EQ(state.ToSnapshot().devices[0].spaces[0].num_allocs, INT64_MIN);
  EXPECT_EQ(state.ToSnapshot().devices[0].spaces[0].num_live, INT64_MIN);
  EXPECT_EQ(state.ToSnapshot().samples[0].inuse_objects, INT64_MIN);
  state.Apply({20, 0x100, 4, site, 0, RecordedKind::kFree, false});
  EXPECT_EQ(state.ToSnapshot().devices[0].spaces[0].num_live, INT64_MAX);
}

TEST(RecordingStateTest, SnapshotIsAProfile) {
  const MadeRecording made = SmallRecording();
  const auto reader = Opened(Written(made));
  ASSERT_NE(reader, nullptr);
  RecordingState state(reader->tables());
  EXPECT_EQ(state.bytes_in_use(3), 4096);
  RecordedEvent event;
  while (reader->Next(&event) && event.time <= MadeRecording::kStart + 30) state.Apply(event);
  const Snapshot snapshot = state.ToSnapshot(MadeRecording::kStart + 45, &reader->samples()[0]);
  EXPECT_EQ(snapshot.time_unix_nanos, MadeRecording::kStartUnix + 45);
  const DeviceStats& stats = snapshot.devices[1].spaces[0];
  EXPECT_EQ(stats.bytes_in_use, 4096);
  EXPECT_EQ(stats.peak_bytes_in_use, 8192);
  EXPECT_EQ(stats.driver_bytes_in_use, 9000);
  EXPECT_EQ(stats.unaccounted, 9000 - 4096 - 512);
  EXPECT_EQ(snapshot.devices[0].spaces[0].pool_bytes, 1 << 20);
  EXPECT_EQ(snapshot.devices[0].spaces[0].bytes_reserved, (1 << 20) - 4096);
  const auto names = NamesOfRecording(reader->tables());
  const auto profile = SerializePprof(snapshot, names.get());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_THAT(names->Symbolize({}, {MadeRecording::kCode + 15}),
              ElementsAre(testing::Field(&Symbolizer::Name::name, "llm::KvCache::AllocatePage")));
}

TEST(RecordingStateTest, SnapshotHasDriverValuesOnlyIfMemoryIsAsInTheSample) {
  MadeRecording made;
  const uint32_t site = made.Site({{"llm::KvCache::AllocatePage"}});
  made.Alloc(10, 0x1000, 4096, site);
  DriverSample sample;
  sample.time = 20;
  sample.devices.push_back({0, 9000, 1 << 20, 2 << 20, 1 << 19, 512});
  made.Sample(sample);
  made.Alloc(30, 0x2000, 8192, site);
  const auto reader = Opened(Written(made));
  ASSERT_NE(reader, nullptr);
  RecordingState state(reader->tables());
  RecordedEvent event;
  ASSERT_TRUE(reader->Next(&event));
  state.Apply(event);
  const DeviceStats before = state.ToSnapshot(MadeRecording::kStart + 25, &reader->samples()[0]).devices[0].spaces[0];
  EXPECT_EQ(before.driver_bytes_in_use, 9000);
  EXPECT_EQ(before.unaccounted, 9000 - 4096 - 512);
  ASSERT_TRUE(reader->Next(&event));
  state.Apply(event);
  const DeviceStats after = state.ToSnapshot(MadeRecording::kStart + 30, &reader->samples()[0]).devices[0].spaces[0];
  EXPECT_EQ(after.bytes_in_use, 4096 + 8192);
  for (const auto& value : {after.driver_bytes_in_use, after.unaccounted, after.bytes_free,
                            after.largest_free_block_bytes, after.driver_cache_bytes}) {
    EXPECT_EQ(value, std::nullopt);
  }
}

}  // namespace
}  // namespace hbmprof::internal
