// The output of SerializePprof, read with libprotobuf.
#include "hbmprof/pprof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/export/server_snapshot.h"
#include "tests/support/profile_checker.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof_test {
namespace {

using hbmprof::MemoryKind;
using hbmprof::Snapshot;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// Writes, parses and checks.
Profile Written(const Snapshot& snapshot, hbmprof::Symbolizer* symbolizer) {
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, symbolizer);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  if (!bytes.ok()) return {};
  absl::StatusOr<Profile> profile = ParseProfile(*bytes);
  EXPECT_TRUE(profile.ok()) << profile.status();
  if (!profile.ok()) return {};
  EXPECT_EQ(CheckProfile(*profile), "");
  return *std::move(profile);
}

// One module of 0x1000 bytes, one device, and a sample of `bytes` for each of `stacks`.
Snapshot SmallSnapshot(const std::vector<Snapshot::Stack>& stacks) {
  Snapshot s;
  s.modules = {{0x10000, 0x11000, 0, 0x10000, "/bin/app", "cc03"}};
  s.devices.resize(1);
  s.devices[0].name = "GPU:0";
  s.allocators = {""};
  s.stacks = stacks;
  s.time_unix_nanos = 1;
  for (uint32_t i = 0; i < stacks.size(); ++i) {
    Snapshot::Sample& sample = s.samples.emplace_back();
    sample.stack = i;
    sample.alloc_bytes = sample.inuse_bytes = 64;
    sample.alloc_objects = sample.inuse_objects = 1;
  }
  return s;
}

// The command needs memory for each frame of each sample, however small the file is.
TEST(SerializePprof, HasNoMoreFramesThanTheCommandReads) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "70 million frames take a minute under the thread sanitizer, and there is one thread";
#endif
  constexpr size_t kDepth = 100'000;
  constexpr int kSamples = 700;
  Snapshot snapshot = SmallSnapshot({{std::vector<uint64_t>(kDepth, 0x10010), false}});
  snapshot.samples.resize(kSamples, snapshot.samples[0]);
  for (int i = 0; i < kSamples; ++i) snapshot.samples[static_cast<size_t>(i)].tags = {{"step", std::to_string(i)}};
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, nullptr);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const absl::StatusOr<Profile> profile = ParseProfile(*bytes);
  ASSERT_TRUE(profile.ok()) << profile.status();
  int64_t frames = 0;
  for (const auto& sample : profile->sample()) frames += sample.location_id_size();
  EXPECT_LE(frames, 64 << 20);
  EXPECT_GT(frames, 48 << 20);
  EXPECT_EQ(ProfileView(*profile).Sum("inuse_objects"), kSamples);
}

TEST(SerializePprof, MatchesTheGoldenText) {
  const std::string path = std::string(HBMPROF_GOLDEN_DIR) + "/server_profile.txt";
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const std::string actual = DescribeProfile(Written(ServerSnapshot(), &symbolizer));
  if (getenv("HBMPROF_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << actual;
  std::ifstream file(path);
  const std::string expected{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(actual, expected) << "If the change is intended: HBMPROF_UPDATE_GOLDEN=1";
}

TEST(SerializePprof, EqualSnapshotsGiveEqualBytes) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  EXPECT_EQ(*SerializePprof(ServerSnapshot(), &symbolizer), *SerializePprof(ServerSnapshot(), &symbolizer));
}

TEST(SerializePprof, KeepsEveryByteOfTheSnapshot) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const Snapshot snapshot = ServerSnapshot();
  const ProfileView view(Written(snapshot, &symbolizer));
  for (const auto& [type, member] : std::vector<std::pair<std::string, int64_t Snapshot::Sample::*>>{
           {"alloc_objects", &Snapshot::Sample::alloc_objects},
           {"alloc_space", &Snapshot::Sample::alloc_bytes},
           {"peak_objects", &Snapshot::Sample::peak_objects},
           {"peak_space", &Snapshot::Sample::peak_bytes},
           {"pool_peak_objects", &Snapshot::Sample::pool_peak_objects},
           {"pool_peak_space", &Snapshot::Sample::pool_peak_bytes},
           {"reserved_objects", &Snapshot::Sample::reserved_objects},
           {"reserved_space", &Snapshot::Sample::reserved_bytes},
           {"inuse_objects", &Snapshot::Sample::inuse_objects},
           {"inuse_space", &Snapshot::Sample::inuse_bytes}}) {
    int64_t sum = 0;
    for (const Snapshot::Sample& sample : snapshot.samples) sum += sample.*member;
    EXPECT_EQ(view.Sum(type), sum) << type;
  }
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:0"), snapshot.devices[0].spaces[0].bytes_in_use);
  EXPECT_EQ(view.SumWhere("peak_space", "device", "GPU:0"), snapshot.devices[0].spaces[0].peak_bytes_in_use);
  EXPECT_EQ(view.SumUnder("inuse_space", "app::Decode"), 6 * kPageBytes);
  EXPECT_EQ(view.SumWhere("inuse_space", "phase", "decode"), 4 * kPageBytes);
}

TEST(SerializePprof, StatesPools) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const Snapshot snapshot = ServerSnapshot();
  const ProfileView view(Written(snapshot, &symbolizer));
  EXPECT_EQ(view.SumUnder("inuse_space", "[idle memory of bfc]"), (4 << 20) - 6 * kPageBytes);
  EXPECT_EQ(view.SumUnder("peak_space", "[idle memory of bfc]"), (4 << 20) - 9 * kPageBytes);
  EXPECT_EQ(view.SumWhere("reserved_space", "device", "GPU:0"), snapshot.devices[0].spaces[0].bytes_in_use);
  EXPECT_EQ(view.SumWhere("reserved_space", "kind", "pool"), 4 << 20);
  EXPECT_EQ(view.SumWhere("alloc_space", "kind", "pool"), 0);
  EXPECT_EQ(view.Sum("pool_peak_space"), 10 * kPageBytes);
  EXPECT_EQ(view.SumUnder("pool_peak_space", "app::Decode"), 10 * kPageBytes);
  const std::vector<std::pair<const char*, std::string>> comment = {
      {"device", "GPU:0"},          {"reserved", "4194304"},      {"allocated", "393216"}, {"idle", "3801088"},
      {"peak_reserved", "4194304"}, {"peak_allocated", "655360"}, {"segments", "1"}};
  for (const auto& [key, value] : comment) EXPECT_EQ(view.Comment("pool bfc", key), value) << key;
}

TEST(SerializePprof, SamplesHaveAllLabels) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const ProfileView view(Written(ServerSnapshot(), &symbolizer));
  ASSERT_EQ(view.samples.size(), 7u);
  EXPECT_THAT(view.samples[0].labels,
              UnorderedElementsAre(Pair("device", "GPU:0"), Pair("kind", "device"), Pair("bytes", "1048576")));
  EXPECT_THAT(view.samples[1].labels,
              UnorderedElementsAre(Pair("device", "GPU:0"), Pair("kind", "device"), Pair("allocator", "bfc"),
                                   Pair("phase", "decode"), Pair("request_class", "chat"), Pair("bytes", "65536")));
  for (const size_t pool : {3, 6}) {  // a segment, and the idle memory of its pool
    EXPECT_THAT(view.samples[pool].labels,
                UnorderedElementsAre(Pair("device", "GPU:0"), Pair("kind", "pool"), Pair("allocator", "bfc")));
  }
  EXPECT_THAT(view.samples[4].labels, Contains(Pair("kind", "managed")));
}

TEST(SerializePprof, WritesNamedFramesAsFunctionsWithFileAndLine) {
  constexpr uint64_t kNamed = Snapshot::kNamedFrame;
  Snapshot snapshot = SmallSnapshot(
      {{{kNamed | 0, 0x10010, kNamed | 1, kNamed | 2}, false}, {{kNamed | 0, 0x10010, kNamed | 1, kNamed | 3}, false}});
  // The same function at two lines, and another one of the same name.
  snapshot.named_frames = {{"forward", "/srv/model.py", 41, 30},
                           {"forward", "/srv/model.py", 42, 30},
                           {"forward", "/srv/other.py", 0, 7},
                           {"forward", "/srv/other.py", 8, 7}};
  const Profile profile = Written(snapshot, nullptr);
  ASSERT_EQ(profile.sample_size(), 2);
  const auto text = [&](int64_t index) { return profile.string_table(static_cast<int>(index)); };
  std::vector<std::string> lines;
  for (const auto& sample : profile.sample()) {
    for (const uint64_t id : sample.location_id()) {
      const auto& location = profile.location(static_cast<int>(id) - 1);
      if (location.line_size() == 0) continue;
      EXPECT_EQ(location.mapping_id(), 0u);
      EXPECT_EQ(location.address(), 0u);
      const auto& function = profile.function(static_cast<int>(location.line(0).function_id()) - 1);
      EXPECT_EQ(function.system_name(), 0);
      lines.push_back(text(function.name()) + " " + text(function.filename()) + " " +
                      std::to_string(function.start_line()) + " " + std::to_string(location.line(0).line()));
    }
  }
  EXPECT_THAT(lines,
              ElementsAre("forward /srv/model.py 30 41", "forward /srv/model.py 30 42", "forward /srv/other.py 7 0",
                          "forward /srv/model.py 30 41", "forward /srv/model.py 30 42", "forward /srv/other.py 7 8"));
  EXPECT_EQ(profile.function_size(), 2);
}

TEST(SerializePprof, NamedFrameWithoutANameIsUnknown) {
  Snapshot snapshot = SmallSnapshot({{{Snapshot::kNamedFrame}, false}});
  snapshot.named_frames = {{"", "/srv/model.py", 1, 1}};
  const ProfileView view(Written(snapshot, nullptr));
  ASSERT_EQ(view.samples.size(), 1u);
  EXPECT_THAT(view.samples[0].functions, ElementsAre("[unknown]"));
}

TEST(SerializePprof, CommentOfPythonHasItsVersionAndProblem) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}});
  EXPECT_EQ(ProfileView(Written(snapshot, nullptr)).Comment("python", "version"), "");
  snapshot.python = {"3.11.7", ""};
  EXPECT_THAT(ProfileView(Written(snapshot, nullptr)).comments, Contains("python version=3.11.7 functions=read"));
  snapshot.python = {"3.15.2", "hbmprof does not know this version"};
  EXPECT_THAT(
      ProfileView(Written(snapshot, nullptr)).comments,
      Contains("python version=3.15.2 functions=not_read problem=hbmprof%20does%20not%20know%20this%20version"));
}

TEST(SerializePprof, CommentOfTheEnvironmentHasItsVariables) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}});
  EXPECT_EQ(ProfileView(Written(snapshot, nullptr)).Comment("environment", "RANK"), "");
  snapshot.environment = {{"RANK", "3"}, {"POD_NAME", "a b=c"}};
  EXPECT_THAT(ProfileView(Written(snapshot, nullptr)).comments, Contains("environment RANK=3 POD_NAME=a%20b%3Dc"));
}

TEST(SerializePprof, OmitsTheSizeLabelOfZeroByteBuffers) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}});
  snapshot.samples[0].kind = MemoryKind::kAlias;
  snapshot.samples[0].alloc_bytes = snapshot.samples[0].inuse_bytes = 0;
  const ProfileView view(Written(snapshot, nullptr));
  ASSERT_EQ(view.samples.size(), 1u);
  EXPECT_THAT(view.samples[0].labels, UnorderedElementsAre(Pair("device", "GPU:0"), Pair("kind", "alias")));
  EXPECT_EQ(view.Sum("inuse_objects"), 1);
}

TEST(SerializePprof, WritesAnEmptySnapshot) {
  Snapshot snapshot;
  snapshot.time_unix_nanos = 1;
  const Profile profile = Written(snapshot, &hbmprof::ElfSymbolizer());
  EXPECT_EQ(profile.sample_size(), 0);
  EXPECT_EQ(profile.comment_size(), 2);
}

TEST(SerializePprof, SkipsSamplesWithoutValues) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}, {{0x10020}, false}});
  snapshot.samples[1] = Snapshot::Sample();
  snapshot.samples[1].stack = 1;
  const Profile profile = Written(snapshot, nullptr);
  EXPECT_EQ(profile.sample_size(), 1);
  EXPECT_EQ(profile.location_size(), 1);
}

TEST(SerializePprof, KeepsSampleWithOnlyAllocations) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}});
  snapshot.samples[0].inuse_objects = snapshot.samples[0].inuse_bytes = 0;
  EXPECT_EQ(Written(snapshot, nullptr).sample_size(), 1);
}

TEST(SerializePprof, MergesEqualSamples) {
  // The stacks of the first two are equal; the third differs in being truncated, the fourth in its tag.
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}, {{0x10010}, false}, {{0x10010}, true}, {{0x10010}, false}});
  snapshot.samples[3].tags = {{"phase", "decode"}};
  const ProfileView view(Written(snapshot, nullptr));
  ASSERT_EQ(view.samples.size(), 3u);
  EXPECT_EQ(view.samples[0].values.at("inuse_space"), 128);
  EXPECT_EQ(view.samples[0].values.at("alloc_objects"), 2);
  EXPECT_EQ(view.Sum("inuse_space"), 4 * 64);
}

// Tags without a key or a value are not written, and bad UTF-8 is replaced.
TEST(SerializePprof, MergesSamplesWhoseWrittenTagsAreEqual) {
  const Snapshot::Stack stack = {{0x10010}, false};
  Snapshot snapshot = SmallSnapshot({stack, stack, stack, stack, stack});
  snapshot.samples[1].tags = {{"phase", ""}};
  snapshot.samples[2].tags = {{"", "decode"}};
  snapshot.samples[3].tags = {{"\xFE", "a\xFF"}, {"\xFF", "b"}};
  snapshot.samples[4].tags = {{"\xEF\xBF\xBD", "a\xFE"}, {"a", ""}};
  std::sort(snapshot.samples[4].tags.begin(), snapshot.samples[4].tags.end());
  const ProfileView view(Written(snapshot, nullptr));
  ASSERT_EQ(view.samples.size(), 2u);
  EXPECT_EQ(view.samples[0].values.at("inuse_space"), 3 * 64);
  EXPECT_EQ(view.samples[1].labels.at("\xEF\xBF\xBD"), "a\xEF\xBF\xBD");
}

TEST(SerializePprof, AddsUpTheAgesOfMergedSamples) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}, {{0x10010}, false}, {{0x10010}, false}, {{0x10020}, false}});
  snapshot.uptime_seconds = 200;
  snapshot.birth_class_log2 = 2;
  for (uint32_t i = 0; i < 4; ++i) {
    Snapshot::Sample& sample = snapshot.samples[i];
    sample.alloc_objects = 10;
    sample.born = {{i / 2, 0, 32}, {7, 1, 32}};
    if (i != 1) sample.freed_by_octave = {0, i};
  }
  const Profile profile = Written(snapshot, nullptr);
  ASSERT_EQ(profile.sample_size(), 2);
  const auto& ages = profile.sample(0).ages();
  EXPECT_EQ(ages.class_width_log2(), 2u);
  EXPECT_EQ(ages.first_class(), 0u);
  EXPECT_THAT(ages.born_bytes(), ElementsAre(64, 32, 0, 0, 0, 0, 0, 96));
  EXPECT_THAT(ages.born_counts(), ElementsAre(0, 0, 0, 0, 0, 0, 0, 3));
  EXPECT_THAT(ages.freed_by_octave(), ElementsAre(0, 2));
  EXPECT_EQ(profile.sample(1).ages().first_class(), 1u);
  EXPECT_THAT(profile.sample(1).ages().born_bytes(), ElementsAre(32, 0, 0, 0, 0, 0, 32));
  EXPECT_EQ(ProfileView(profile).Comment("hbmprof", "uptime"), "200");
  snapshot.uptime_seconds.reset();
  const Profile without = Written(snapshot, nullptr);
  for (const auto& sample : without.sample()) EXPECT_FALSE(sample.has_ages());
}

TEST(SerializePprof, SizeLabelIsTheMeanOfAllAllocations) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}, {{0x10010}, false}});
  snapshot.samples[1].alloc_bytes = 4096;
  ProfileView view(Written(snapshot, nullptr));
  ASSERT_EQ(view.samples.size(), 1u) << "one stack with the same labels";
  EXPECT_EQ(view.samples[0].labels.at("bytes"), std::to_string((64 + 4096) / 2));
  snapshot.samples[0].kind = snapshot.samples[1].kind = MemoryKind::kPool;
  view = ProfileView(Written(snapshot, nullptr));
  ASSERT_EQ(view.samples.size(), 1u);
  EXPECT_EQ(view.samples[0].labels.count("bytes"), 0u);
}

TEST(SerializePprof, PutsAddressesInsideTheCall) {
  const Profile profile = Written(SmallSnapshot({{{0x10010, 0x11000}, false}}), nullptr);
  ASSERT_EQ(profile.location_size(), 2);
  EXPECT_EQ(profile.location(0).address(), 0x1000Fu);
  // The call is the module's last instruction: its return address lies outside.
  EXPECT_EQ(profile.location(1).address(), 0x10FFFu);
  EXPECT_EQ(profile.location(1).mapping_id(), 1u);
}

TEST(SerializePprof, NamesEmptyAndTruncatedStacks) {
  const Snapshot snapshot = SmallSnapshot({{{}, false}, {{0x10010}, true}, {{}, true}, {{0x10020}, true}});
  for (hbmprof::Symbolizer* symbolizer : {static_cast<hbmprof::Symbolizer*>(nullptr), &hbmprof::ElfSymbolizer()}) {
    const ProfileView view(Written(snapshot, symbolizer));
    ASSERT_EQ(view.samples.size(), 4u);
    EXPECT_THAT(view.samples[0].functions, ElementsAre("[no stack]"));
    EXPECT_EQ(view.samples[1].functions.size(), 2u);
    EXPECT_EQ(view.samples[1].functions[1], "[stack truncated]");
    EXPECT_THAT(view.samples[2].functions, ElementsAre("[no stack]", "[stack truncated]"));
  }
}

TEST(SerializePprof, NamesCodeWithoutSymbolsByFileAndAddress) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  for (const uint64_t slide : {uint64_t{0}, uint64_t{0x7000}}) {
    const ProfileView view(Written(ServerSnapshot(4, slide), &symbolizer));
    EXPECT_THAT(view.samples[3].functions, ElementsAre("libclosed.so.1+0x5677", "main"));
  }
}

TEST(SerializePprof, NamesCodeOfNoFileUnknown) {
  FakeSymbolizer symbolizer;
  const Profile profile = Written(SmallSnapshot({{{0x999999, 0}, false}}), &symbolizer);
  EXPECT_THAT(ProfileView(profile).samples[0].functions, ElementsAre("[unknown]", "[unknown]"));
  EXPECT_EQ(profile.location(0).mapping_id(), 0u);
}

TEST(SerializePprof, HasFunctionsFlagOnlyForNamedModules) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const Profile named = Written(ServerSnapshot(), &symbolizer);
  EXPECT_TRUE(named.mapping(0).has_functions());
  EXPECT_TRUE(named.mapping(1).has_functions());
  EXPECT_FALSE(named.mapping(2).has_functions());
  const Profile unnamed = Written(ServerSnapshot(), nullptr);
  for (const auto& mapping : unnamed.mapping()) EXPECT_FALSE(mapping.has_functions());
}

TEST(SerializePprof, HasNoFunctionsFlagForUnusedModules) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  Snapshot snapshot = ServerSnapshot();
  snapshot.modules.push_back({0x7f2000000000, 0x7f2000001000, 0, 0x7f2000000000, "/lib/libidle.so", "dd04"});
  const Profile profile = Written(snapshot, &symbolizer);
  ASSERT_EQ(profile.mapping_size(), 4);
  EXPECT_FALSE(profile.mapping(3).has_functions());
}

TEST(SerializePprof, HasNoUnusedStrings) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}, {{0x10020}, false}});
  snapshot.devices.resize(2);
  snapshot.devices[1].name = "idle device";
  snapshot.allocators.push_back("idle allocator");
  Snapshot::Sample& zero = snapshot.samples[1];
  zero = Snapshot::Sample();
  zero.stack = zero.device = zero.allocator = 1;
  zero.tags = {{"idle key", "idle value"}};
  const Profile profile = Written(snapshot, nullptr);  // the checker looks for them
  for (const std::string& text : profile.string_table()) {
    EXPECT_EQ(text.find("idle"), std::string::npos) << text;
    EXPECT_NE(text, "managed") << "no sample is of that kind";
    EXPECT_NE(text, "allocator") << "no sample has one";
  }
}

TEST(SerializePprof, DefaultIsPeakIfNothingIsInUse) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}});
  Snapshot::Sample& sample = snapshot.samples[0];
  sample.peak_objects = 1;
  sample.peak_bytes = 64;
  const auto shown_first = [&] {
    const Profile profile = Written(snapshot, nullptr);
    return profile.string_table(static_cast<int>(profile.default_sample_type()));
  };
  EXPECT_EQ(shown_first(), "inuse_space");
  sample.inuse_objects = sample.inuse_bytes = 0;
  EXPECT_EQ(shown_first(), "peak_space");
  sample.peak_objects = sample.peak_bytes = 0;
  EXPECT_EQ(shown_first(), "inuse_space") << "there is no peak to show either";
}

TEST(SerializePprof, WritesShortAndMangledNames) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const Profile profile = Written(ServerSnapshot(), &symbolizer);
  std::map<std::string, std::string> names;
  for (const auto& function : profile.function()) {
    names[profile.string_table(function.name())] = profile.string_table(function.system_name());
  }
  EXPECT_EQ(names["app::Server::Run"], "_ZN3app6Server3RunEv");
  EXPECT_EQ(names["main"], "main");
  EXPECT_EQ(names["libclosed.so.1+0x5677"], "");
}

TEST(SerializePprof, HasNoFunctionsWithoutSymbolizer) {
  const Profile profile = Written(ServerSnapshot(), nullptr);
  EXPECT_EQ(profile.function_size(), 3);  // [no stack], [stack truncated], [idle memory of bfc]
  EXPECT_EQ(profile.mapping_size(), 3);
}

TEST(SerializePprof, DropFramesMatchesOnlyOwnFunctions) {
  const Profile profile = Written(SmallSnapshot({}), nullptr);
  const auto is_dropped = MatchesRegex(profile.string_table(profile.drop_frames()));
  for (const char* ours : {"hbmprof::Profiler::RecordAlloc", "hbmprof::internal::ProfilerImpl::Record",
                           "hbmprof::cuda::Malloc", "hbmprof_record_alloc"}) {
    EXPECT_THAT(ours, is_dropped);
  }
  for (const char* user : {"main", "hbmprof_test::Run", "hbmprof_app::Profiler::Run", "app::hbmprof::internal::Run",
                           "hbmprof_record_alloc_hook", "hbmprof::TrackingAllocator::Allocate", "Profiler::Run"}) {
    EXPECT_THAT(user, Not(is_dropped));
  }
}

TEST(SerializePprof, CommentsShowEveryDevice) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const ProfileView view(Written(ServerSnapshot(), &symbolizer));
  ASSERT_EQ(view.comments.size(), 6u);  // GPU:0; its pool; GPU 1 twice; the tracker; the process
  EXPECT_EQ(view.Comment("device GPU:0 space=device", "in_use"), "6291456");
  EXPECT_EQ(view.Comment("device GPU:0", "peak"), "6291456");
  EXPECT_EQ(view.Comment("device GPU:0", "limit"), "67108864");
  EXPECT_EQ(view.Comment("device GPU:0", "idle"), "3801088");
  EXPECT_EQ(view.Comment("device GPU:0", "unaccounted"), "0");
  EXPECT_EQ(view.Comment("device GPU%201%3Db space=device", "limit"), "n/a");
  EXPECT_EQ(view.Comment("device GPU%201%3Db space=device", "unaccounted"), "n/a");
  EXPECT_EQ(view.Comment("device GPU%201%3Db space=managed", "in_use"), "4096");
  EXPECT_EQ(view.Comment("tracker", "dropped_records"), "3");
  EXPECT_EQ(view.Comment("tracker", "dropped_bytes"), "12288");
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "1");
  EXPECT_EQ(view.Comment("hbmprof", "unwinder"), "frame_pointer");
  EXPECT_EQ(view.Comment("hbmprof", "pid"), "4242");
  EXPECT_EQ(view.Comment("hbmprof", "host"), "node-7");
  EXPECT_EQ(view.Comment("hbmprof", "time"), "2023-11-14T22:13:20Z");
  EXPECT_NE(view.Comment("hbmprof", "version"), "");
}

TEST(SerializePprof, UnaccountedCanBeNegative) {
  Snapshot snapshot = ServerSnapshot();
  snapshot.devices[0].spaces[0].unaccounted = -4096;
  EXPECT_EQ(ProfileView(Written(snapshot, nullptr)).Comment("device GPU:0", "unaccounted"), "-4096");
}

TEST(SerializePprof, ShowsDeviceWithoutTrackedMemory) {
  Snapshot snapshot = SmallSnapshot({});
  EXPECT_EQ(ProfileView(Written(snapshot, nullptr)).Comment("device", "in_use"), "");
  snapshot.devices[0].spaces[0].driver_bytes_in_use = snapshot.devices[0].spaces[0].unaccounted = 5;
  EXPECT_EQ(ProfileView(Written(snapshot, nullptr)).Comment("device GPU:0", "in_use"), "0");
  EXPECT_EQ(ProfileView(Written(snapshot, nullptr)).Comment("device GPU:0", "unaccounted"), "5");
}

TEST(SerializePprof, InvalidUtf8IsReplaced) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}});
  const std::string cut = std::string(3, 'x') + "\xE4\xB8";  // the first two bytes of a three-byte character
  snapshot.samples[0].tags = {{"cut", cut},
                              {"empty", ""},
                              {"lines", "a\nb\tc"},
                              {"overlong", "\xC0\xAF|\xED\xA0\x80|\xF5\x80\x80\x80"},
                              {"text", "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80"},
                              {"zero", std::string("a\0b", 3)}};
  snapshot.devices[0].name = "\xFF";
  snapshot.devices[0].spaces[0].num_allocs = 1;
  snapshot.host = "two\nlines\xFE";
  snapshot.modules[0].path = "/bin/caf\xE9";
  const ProfileView view(Written(snapshot, &hbmprof::ElfSymbolizer()));
  const std::string bad = "\xEF\xBF\xBD";
  const auto& labels = view.samples[0].labels;
  EXPECT_EQ(labels.at("cut"), "xxx" + bad + bad);
  EXPECT_THAT(labels, Not(Contains(Key("empty"))));
  EXPECT_EQ(labels.at("lines"), "a\nb\tc");
  EXPECT_EQ(labels.at("overlong"), bad + bad + "|" + bad + bad + bad + "|" + bad + bad + bad + bad);
  EXPECT_EQ(labels.at("text"), "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80");
  EXPECT_EQ(labels.at("zero"), std::string("a\0b", 3));
  EXPECT_EQ(labels.at("device"), bad);
  EXPECT_EQ(view.Comment("hbmprof", "host"), "two%0Alines" + bad);
  EXPECT_THAT(view.samples[0].functions, ElementsAre("caf" + bad + "+0xf"));
}

TEST(SerializePprof, KeepsTheLargestValues) {
  Snapshot snapshot = SmallSnapshot({{{0x10010}, false}});
  snapshot.samples[0].inuse_bytes = INT64_MAX;
  snapshot.samples[0].alloc_bytes = INT64_MIN;
  const ProfileView view(Written(snapshot, nullptr));
  EXPECT_EQ(view.Sum("inuse_space"), INT64_MAX);
  EXPECT_EQ(view.Sum("alloc_space"), INT64_MIN);
}

TEST(SerializePprof, WritesManySamplesOfSharedStacks) {
  std::vector<Snapshot::Stack> stacks(5000);
  for (size_t i = 0; i < stacks.size(); ++i) {
    for (uint64_t frame = 0; frame < 24; ++frame) {
      stacks[i].return_addresses.push_back(0x10001 + (i * (frame + 1) * 7) % 0xFFF);
    }
  }
  const Profile profile = Written(SmallSnapshot(stacks), &hbmprof::ElfSymbolizer());
  EXPECT_EQ(ProfileView(profile).Sum("inuse_space"), 5000 * 64);
  EXPECT_LE(profile.location_size(), 0xFFF);
}

// Sanitizers reserve address space of their own and end the process where malloc fails.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(SerializePprof, ErrorWithoutHostMemory) {
  std::vector<Snapshot::Stack> stacks(200000);
  for (size_t i = 0; i < stacks.size(); ++i) stacks[i].return_addresses = {0x10001 + i, 0x10001 + i * 7};
  const Snapshot snapshot = SmallSnapshot(stacks);
  const pid_t child = fork();
  if (child == 0) {
    // Only a little more address space than is mapped now.
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (1 << 20);
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_AS, &limit);
    _exit(SerializePprof(snapshot, nullptr).status().code() == absl::StatusCode::kResourceExhausted ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}
#endif

// fork copies a lock of the C library that another thread holds:
//   thread 1   localtime_r: takes the lock .............. releases it
//   thread 2                          fork                               the child's copy of the lock stays locked
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(SerializePprof, WorksInForkedChildOfThreads) {
  const Snapshot snapshot = ServerSnapshot();
  std::atomic<bool> stop{false};
  std::thread other([&stop] {
    while (!stop) {
      const std::time_t now = 0;
      std::tm parts;
      localtime_r(&now, &parts);
    }
  });
  int status = 0;
  for (int i = 0; i < 100 && status == 0; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(SerializePprof(snapshot, nullptr).ok() ? 0 : 1);
    }
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "of child " << i;
  }
  stop = true;
  other.join();
}
#endif

TEST(WritePprof, WritesSerializedBytes) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const std::string path = NewDirectory() + "/profile.pb.gz";
  ASSERT_TRUE(WritePprof(ServerSnapshot(), &symbolizer, path).ok());
  const absl::StatusOr<Profile> read = ReadProfile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(DescribeProfile(*read), DescribeProfile(Written(ServerSnapshot(), &symbolizer)));
}

TEST(WritePprof, ErrorNamesThePath) {
  const absl::Status status = WritePprof(ServerSnapshot(), nullptr, "/nonexistent/dir/a.pb.gz");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/dir/a.pb.gz"));
}

// --- Snapshots that are not consistent -----------------------------------------------------------------------------

Snapshot TwoSamples() { return SmallSnapshot({{{0x10101}, false}, {{0x10201}, false}}); }

void ExpectRefused(const Snapshot& snapshot, const std::string& message) {
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, nullptr);
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << bytes.status();
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr(message));
  const std::string path = ::testing::TempDir() + "/hbmprof_refused.pb.gz";
  EXPECT_EQ(WritePprof(snapshot, nullptr, path).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::ifstream(path).good()) << "no file is written";
}

TEST(SnapshotChecks, StackIndexOutsideTheStacksIsAnError) {
  Snapshot snapshot = TwoSamples();
  snapshot.samples[1].stack = 2;
  ExpectRefused(snapshot, "samples[1] has a stack, device, allocator or kind that does not exist");
}

TEST(SnapshotChecks, AgesOutsideTheirLimitsAreAnError) {
  Snapshot snapshot = TwoSamples();
  snapshot.samples[1].born = {{64, 1, 1}};
  ExpectRefused(snapshot, "samples[1] has more than 64 classes of births");
  snapshot.samples[1].born = {{2, 1, 1}, {1, 1, 1}};
  ExpectRefused(snapshot, "unsorted classes");
  snapshot.samples[1].born.clear();
  snapshot.samples[1].freed_by_octave.resize(25);
  ExpectRefused(snapshot, "24 octaves");
  snapshot.samples[1].freed_by_octave.clear();
  snapshot.birth_class_log2 = -1;
  ExpectRefused(snapshot, "birth_class_log2 is -1");
}

TEST(SnapshotChecks, IndexOutsideTheNamedFramesIsAnError) {
  Snapshot snapshot = TwoSamples();
  snapshot.named_frames = {{"f", "/srv/model.py", 1, 1}};
  snapshot.stacks[1].return_addresses.push_back(Snapshot::kNamedFrame);
  EXPECT_TRUE(SerializePprof(snapshot, nullptr).ok());
  snapshot.stacks[1].return_addresses.back() |= 1;
  ExpectRefused(snapshot, "stacks[1] has a named frame that does not exist");
}

TEST(SnapshotChecks, DeviceIndexOutsideTheDevicesIsAnError) {
  Snapshot snapshot = TwoSamples();
  snapshot.samples[0].device = UINT32_MAX;
  ExpectRefused(snapshot, "samples[0] has a stack, device");
}

TEST(SnapshotChecks, AllocatorIndexOutsideTheAllocatorsIsAnError) {
  Snapshot snapshot = TwoSamples();
  snapshot.samples[1].allocator = 1;
  ExpectRefused(snapshot, "samples[1] has a stack, device, allocator");
}

TEST(SnapshotChecks, KindThatDoesNotExistIsAnError) {
  Snapshot snapshot = TwoSamples();
  snapshot.samples[1].kind = MemoryKind(hbmprof::kMemoryKindCount);
  ExpectRefused(snapshot, "samples[1] has a stack, device, allocator or kind");
}

TEST(SnapshotChecks, TagsMustBeSortedWithEachKeyOnce) {
  Snapshot snapshot = TwoSamples();
  snapshot.samples[0].tags = {{"b", "1"}, {"a", "2"}};
  ExpectRefused(snapshot, "samples[0] has tags that are not sorted by key, or a key twice");
  snapshot.samples[0].tags = {{"a", "1"}, {"a", "2"}};
  ExpectRefused(snapshot, "samples[0] has tags");
}

TEST(SnapshotChecks, ModuleThatEndsBeforeItBeginsIsAnError) {
  Snapshot snapshot = TwoSamples();
  std::swap(snapshot.modules[0].start, snapshot.modules[0].limit);
  ExpectRefused(snapshot, "modules[0] ends before it begins");
}

TEST(SnapshotChecks, SymbolizerThatReturnsTooFewNamesIsAnError) {
  class Forgetful : public hbmprof::Symbolizer {
    std::vector<Name> Symbolize(const std::vector<Snapshot::Module>&, const std::vector<uint64_t>&) override {
      return {{"f", "f"}};
    }
  } forgetful;
  const absl::Status status = SerializePprof(TwoSamples(), &forgetful).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 names for 2 addresses"));
}

// --- Limits. ---

// `count` stacks with 1, 2, ... bytes in use, on two devices in turn.
Snapshot ManyStacks(size_t count) {
  Snapshot s = SmallSnapshot({});
  s.devices.resize(2);
  s.devices[1].name = "GPU:1";
  for (size_t i = 0; i < count; ++i) {
    s.stacks.push_back({{0x10000 + 8 * i, 0x10ff0}});
    Snapshot::Sample& sample = s.samples.emplace_back();
    sample.stack = static_cast<uint32_t>(i);
    sample.device = static_cast<uint32_t>(i % 2);
    sample.tags = {{"phase", "decode"}};
    const auto bytes = static_cast<int64_t>(i) + 1;
    sample.alloc_bytes = sample.inuse_bytes = sample.peak_bytes = bytes;
    sample.alloc_objects = sample.inuse_objects = sample.peak_objects = 1;
  }
  return s;
}

ProfileView Limited(const Snapshot& snapshot, const hbmprof::PprofOptions& options) {
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, nullptr, options);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  const absl::StatusOr<Profile> profile = ParseProfile(*bytes);
  EXPECT_EQ(CheckProfile(*profile), "");
  if (options.max_bytes != 0) {
    EXPECT_LE(profile->ByteSizeLong(), options.max_bytes);
  }
  return ProfileView(*profile);
}

void ExpectSameSums(const ProfileView& a, const ProfileView& b) {
  for (const char* type :
       {"alloc_objects", "alloc_space", "peak_objects", "peak_space", "inuse_objects", "inuse_space"}) {
    EXPECT_EQ(a.Sum(type), b.Sum(type)) << type;
  }
}

TEST(PprofOptionsTest, MergesTheSmallestStacks) {
  const Snapshot snapshot = ManyStacks(400);
  const ProfileView all = Limited(snapshot, {});
  ASSERT_EQ(all.samples.size(), 400u);
  for (const size_t most : {size_t{10}, size_t{399}, size_t{2}}) {
    const ProfileView view = Limited(snapshot, {most, 0});
    EXPECT_EQ(view.samples.size(), most);
    ExpectSameSums(view, all);
    EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:1"), all.SumWhere("inuse_space", "device", "GPU:1"));
    const auto kept = static_cast<int64_t>(most) - 2;  // a merged sample for each device
    EXPECT_EQ(view.SumUnder("inuse_space", "[small call stacks]"), (400 - kept) * (401 - kept) / 2);
  }
  EXPECT_EQ(Limited(snapshot, {400, 0}).SumUnder("inuse_space", "[small call stacks]"), 0) << "they fit";
}

TEST(PprofOptionsTest, EachDeviceAndKindHasASample) {
  const absl::Status status = SerializePprof(ManyStacks(400), nullptr, {1, 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("max_samples is 1, but a sample for each device and kind of memory makes 2"));
  Snapshot one_device = ManyStacks(400);
  for (Snapshot::Sample& sample : one_device.samples) sample.device = 0;
  const ProfileView view = Limited(one_device, {1, 0});
  ASSERT_EQ(view.samples.size(), 1u);
  EXPECT_THAT(view.samples[0].labels, UnorderedElementsAre(Pair("device", "GPU:0"), Pair("kind", "device")));
  ExpectSameSums(view, Limited(ManyStacks(400), {}));
}

TEST(PprofOptionsTest, KeepsLargestStacksOfThePeak) {
  Snapshot snapshot = ManyStacks(400);
  snapshot.samples[0].peak_bytes = 1'000'000;
  const ProfileView view = Limited(snapshot, {3, 0});
  EXPECT_EQ(view.Sum("peak_space") - view.SumUnder("peak_space", "[small call stacks]"), 1'000'000);
}

TEST(PprofOptionsTest, BytesAreLimited) {
  const Snapshot snapshot = ManyStacks(400);
  const ProfileView all = Limited(snapshot, {});
  for (const size_t most : {size_t{20'000}, size_t{5'000}, size_t{1'500}}) {
    const ProfileView view = Limited(snapshot, {0, most});
    EXPECT_LT(view.samples.size(), all.samples.size());
    ExpectSameSums(view, all);
  }
  EXPECT_EQ(Limited(snapshot, {0, 1 << 20}).samples.size(), all.samples.size());
}

TEST(PprofOptionsTest, TooFewBytesAreAnError) {
  const absl::Status status = SerializePprof(ManyStacks(400), nullptr, {0, 10}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_bytes is 10, but a profile with the fewest samples has "));
}

// The default limits of Pyroscope.
TEST(PprofOptionsTest, FitsTheLimitsOfAStore) {
  const ProfileView view = Limited(ManyStacks(100'000), {16'000, 4 << 20});
  EXPECT_EQ(view.samples.size(), 16'000u);
}

}  // namespace
}  // namespace hbmprof_test
