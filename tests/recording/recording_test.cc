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
#include "src/recording/writer.h"
#include "src/tool/reader/reader.h"
#include "src/tool/reader/state.h"
#include "tests/support/made_recording.h"
#include "tests/support/make_recording.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof::internal {
namespace {

using ::hbmprof_test::MadeRecording;
using ::hbmprof_test::NewDirectory;
using ::testing::ElementsAre;
using ::testing::Pair;

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
                                       {device, MemoryKind::kDevice, "kv", {{"phase", "decode"}}});
  const uint32_t segment = recording.Site({{"Pool::Grow"}, {"main"}}, {0, MemoryKind::kPool, "kv"});
  const uint32_t block =
      recording.Site({{"allocate", "serve.py", 16}, {"Pool::Take"}, {"main"}}, {0, MemoryKind::kDevice, "", {}, "kv"});
  const uint32_t moved = recording.Site({{"Tensor::Tensor"}, {"main"}});
  const uint16_t worker = recording.Thread(4243, "worker");
  recording.Live(0x7000, 4096, page);
  recording.Alloc(10, 0x10000, 1 << 20, segment)
      .Alloc(20, MadeRecording::BlockId(0x10000), 4096, block, worker)
      .Alloc(20, 0x8000, 4096, page)
      .SetTags(25, recording.TagSet({{"model", "base"}}), worker)
      .Free(30, 0x7000)
      .Move(40, 0x8000, 2048, moved)
      .Free(60, MadeRecording::BlockId(0x10000))
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

TEST(RecordingTest, RoundTripIsUnchanged) {
  const MadeRecording made = SmallRecording();
  const auto reader = Opened(Written(made));
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->is_complete());
  EXPECT_EQ(reader->problem(), "");
  EXPECT_EQ(reader->event_count(), made.event_count());
  EXPECT_EQ(reader->end_time(), made.end_time());
  ExpectEqual(EventsOf(*reader), made.events());
  reader->Rewind();
  ExpectEqual(EventsOf(*reader), made.events());

  const RecordingTables& read = reader->tables();
  const RecordingTables& written = made.tables();
  EXPECT_EQ(read.start_time, written.start_time);
  EXPECT_EQ(read.start_unix_nanos, written.start_unix_nanos);
  EXPECT_EQ(read.names.host, "host0");
  EXPECT_EQ(read.names.process_id, 4242);
  EXPECT_THAT(read.names.allocators, ElementsAre("", "kv"));
  EXPECT_EQ(read.site_pools, written.site_pools);
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
    const auto kind = is_change ? RecordedKind::kMoveFrom : RecordedKind::kAlloc;
    const RecordedEvent event{time, random(), 64, site, thread, kind, is_change};
    const RecordedEvent rest{time, event.id, 12, site, thread, RecordedKind::kMoveTo, false};
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
class Model {
 public:
  using Values = std::map<uint32_t, std::pair<int64_t, int64_t>>;  // by site: objects and bytes
  struct Sum {
    int64_t now = 0;
    int64_t peak = 0;
    Values at_peak;
  };
  struct Live {
    uint32_t site;
    int64_t bytes;
  };

  explicit Model(const RecordingTables& tables) : tables_(tables) {}

  // `allocated`: the buffer that the event has allocated; 0: none.
  void EndEvent(uint64_t allocated = 0, bool reset = false) {
    in_use_of_sites.clear();
    in_use.now = 0;
    reserved.clear();
    for (auto& [pool, sum] : pools) sum.now = 0;
    for (const auto& [id, one] : live) {
      auto& [objects, bytes] = in_use_of_sites[one.site];
      ++objects;
      bytes += one.bytes;
      const uint32_t from = tables_.site_pools[one.site];
      (from == 0 ? in_use : pools[from - 1]).now += one.bytes;
      if (tables_.IsSegment(one.site)) reserved[tables_.sites[one.site].allocator] += one.bytes;
    }
    if (in_use.now > in_use.peak || reset) peak_buffer = allocated;
    for (Sum* sum : {&in_use, &pools[1], &pools[2]}) {
      if (sum->now <= sum->peak && !reset) continue;
      sum->peak = sum->now;
      sum->at_peak = in_use_of_sites;
      // A new peak of a pool is one of the account, too, if the account's bytes are those of its peak.
      if (in_use.now == in_use.peak) in_use.at_peak = in_use_of_sites;
    }
  }
  // The buffer gets another site. If this is its first event, and it has made the peak, it was at the new site then,
  // too.
  void Move(uint64_t id, uint32_t to) {
    Live& one = live.at(id);
    if (id == peak_buffer) {
      for (const auto& [site, sign] : {std::pair(one.site, -1), std::pair(to, 1)}) {
        in_use.at_peak[site].first += sign;
        in_use.at_peak[site].second += sign * one.bytes;
      }
      peak_buffer = 0;
    }
    one.site = to;
  }

  std::map<uint64_t, Live> live;  // by id
  Values in_use_of_sites;
  Sum in_use;
  std::map<uint32_t, Sum> pools;         // by index of the name
  std::map<uint32_t, int64_t> reserved;  // likewise
  uint64_t peak_buffer = 0;

 private:
  const RecordingTables& tables_;
};

// Checks a snapshot's samples against the model. Each site has a stack of its own.
void ExpectSamples(const Snapshot& snapshot, const RecordingTables& tables, Model& model) {
  std::map<uint32_t, std::pair<int64_t, int64_t>> idle;  // by pool: now and at the peak
  int64_t in_use = 0, peak = 0, reserved = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    in_use += sample.inuse_bytes;
    peak += sample.peak_bytes;
    reserved += sample.reserved_bytes;
    if (sample.stack >= tables.names.stacks.size()) {
      ASSERT_EQ(sample.kind, MemoryKind::kPool);
      idle[sample.allocator] = {sample.inuse_bytes, sample.peak_bytes};
      continue;
    }
    const uint32_t site = sample.stack;
    const auto [objects, bytes] = model.in_use_of_sites[site];
    const uint32_t from = tables.site_pools[site];
    ASSERT_EQ(sample.reserved_bytes, from == 0 ? bytes : 0);
    ASSERT_EQ(sample.reserved_objects, from == 0 ? objects : 0);
    const bool is_segment = tables.IsSegment(site);
    ASSERT_EQ(std::pair(sample.inuse_objects, sample.inuse_bytes),
              is_segment ? std::pair(0l, 0l) : std::pair(objects, bytes));
    ASSERT_EQ(std::pair(sample.peak_objects, sample.peak_bytes),
              is_segment ? std::pair(0l, 0l) : model.in_use.at_peak[site]);
    ASSERT_EQ(std::pair(sample.pool_peak_objects, sample.pool_peak_bytes),
              is_segment || from == 0 ? std::pair(0l, 0l) : model.pools[from - 1].at_peak[site]);
  }
  ASSERT_EQ(in_use, model.in_use.now);
  ASSERT_EQ(reserved, model.in_use.now);
  ASSERT_EQ(peak, model.in_use.peak);
  ASSERT_EQ(snapshot.devices[0].spaces[0].bytes_in_use, model.in_use.now);
  ASSERT_EQ(snapshot.devices[0].spaces[0].peak_bytes_in_use, model.in_use.peak);
  for (const PoolStats& pool : snapshot.devices[0].pools) {
    const auto number = static_cast<uint32_t>(
        std::find(snapshot.allocators.begin(), snapshot.allocators.end(), pool.name) - snapshot.allocators.begin());
    ASSERT_EQ(pool.bytes_reserved, model.reserved[number]);
    ASSERT_EQ(pool.bytes_allocated, model.pools[number].now);
    ASSERT_EQ(pool.peak_bytes_allocated, model.pools[number].peak);
    ASSERT_EQ(idle[number].first, pool.bytes_reserved - pool.bytes_allocated);
  }
}

TEST(RecordingStateTest, EqualsAModelAfterEachChange) {
  constexpr int64_t kLarge = 1 << 20;
  MadeRecording made;
  std::vector<uint32_t> plain, blocks;
  for (int i = 0; i < 4; ++i) plain.push_back(made.Site({{"f" + std::to_string(i)}}));
  const uint32_t segment = made.Site({{"grow"}}, {0, MemoryKind::kPool, "outer"});
  for (int i = 0; i < 2; ++i) {
    blocks.push_back(made.Site({{"take" + std::to_string(i)}}, {0, MemoryKind::kDevice, "outer", {}, "outer"}));
  }
  const uint32_t large_block = made.Site({{"take a segment"}}, {0, MemoryKind::kDevice, "outer", {}, "outer"});
  const uint32_t nested = made.Site({{"take a segment"}}, {0, MemoryKind::kPool, "inner", {}, "outer"});
  const uint32_t inner = made.Site({{"take inside"}}, {0, MemoryKind::kDevice, "inner", {}, "inner"});
  RecordingState state(made.tables());
  Model model(made.tables());
  std::mt19937 random(7);
  int64_t time = MadeRecording::kStart;
  uint64_t next_id = 100;
  const auto apply = [&](RecordedKind kind, uint64_t id, int64_t bytes, uint32_t site, bool continued = false) {
    state.Apply({time, id, bytes, site, 0, kind, continued});
  };
  const auto alloc = [&](uint32_t site, int64_t bytes) {
    const uint64_t id = next_id++;
    apply(RecordedKind::kAlloc, id, bytes, site);
    model.live[id] = {site, bytes};
    model.EndEvent(id);
    return id;
  };
  const auto become = [&](uint64_t id, uint32_t site) {
    const Model::Live one = model.live.at(id);
    apply(RecordedKind::kMoveFrom, id, one.bytes, one.site, true);
    apply(RecordedKind::kMoveTo, id, one.bytes, site);
    model.Move(id, site);
    model.EndEvent();
  };
  become(alloc(plain[0], 3 * kLarge), segment);
  become(alloc(large_block, kLarge), nested);
  size_t segments_at_the_peak = 0;
  for (int step = 0; step < 5000; ++step) {
    ++time;
    const uint64_t choice = random() % 20;
    const auto chosen = std::next(model.live.begin(), static_cast<int64_t>(random() % model.live.size()));
    const bool is_small = chosen->second.bytes < kLarge;
    if (choice < 8) {
      const uint32_t sites[] = {plain[random() % plain.size()], blocks[random() % blocks.size()], inner};
      alloc(sites[random() % 3], static_cast<int64_t>(random() % 1000));
    } else if (choice < 14) {
      if (!is_small) continue;
      apply(RecordedKind::kFree, chosen->first, chosen->second.bytes, chosen->second.site);
      if (chosen->first == model.peak_buffer) model.peak_buffer = 0;
      model.live.erase(chosen);
      model.EndEvent();
    } else if (choice < 17) {  // a resize
      const auto bytes = static_cast<int64_t>(random() % 1000);
      if (!is_small) continue;
      apply(RecordedKind::kMoveFrom, chosen->first, chosen->second.bytes, chosen->second.site, true);
      apply(RecordedKind::kMoveTo, chosen->first, bytes, chosen->second.site);
      if (chosen->first == model.peak_buffer) model.peak_buffer = 0;
      chosen->second.bytes = bytes;
      model.EndEvent();
    } else if (choice < 19) {  // a new segment, which is freed at once or later
      const uint64_t id = alloc(plain[random() % plain.size()], static_cast<int64_t>(random() % 1000));
      if (random() % 2 == 0) alloc(blocks[0], 10);
      segments_at_the_peak += id == model.peak_buffer ? 1 : 0;
      become(id, segment);
    } else {
      const uint64_t last = next_id - 1;  // perhaps the one that has made the peak
      if (const auto one = model.live.find(last); one != model.live.end() && one->second.site == plain[1]) {
        become(last, plain[2]);
      }
      if (random() % 20 != 0) continue;
      apply(RecordedKind::kResetPeak, 0, 0, kNoRecordedSite);
      model.EndEvent(0, true);
    }
    ASSERT_EQ(state.bytes_in_use(0), model.in_use.now) << step;
    ASSERT_EQ(state.peak_bytes(0), model.in_use.peak) << step;
    ASSERT_EQ(state.live().size(), model.live.size()) << step;
    if (step % 50 != 0) continue;
    ExpectSamples(state.ToSnapshot(), made.tables(), model);
    ASSERT_FALSE(HasFatalFailure()) << step;
  }
  EXPECT_GT(segments_at_the_peak, 0u);
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
  // A buffer that moves keeps the time of its allocation.
  state.Apply({40, 0x100, 8, second, 0, RecordedKind::kMoveFrom, true});
  state.Apply({40, 0x100, 16, first, 0, RecordedKind::kMoveTo, false});
  ASSERT_EQ(state.live().count(0x100), 1u);
  EXPECT_EQ(state.live().at(0x100).time, 20);
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
  EXPECT_EQ(snapshot.devices[0].spaces[0].bytes_in_use, 1 << 20);
  EXPECT_EQ(snapshot.devices[0].spaces[0].idle_bytes, (1 << 20) - 4096);
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
