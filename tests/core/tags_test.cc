// Tag scopes and their limits. The registry belongs to the process, so tests that exhaust it run in their own
// processes.

#include "src/core/tables/tags.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/tag.h"

namespace hbmprof::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::pair<std::string, std::string>> Tags() { return TagsOf(current_tags); }

TEST(ScopedTag, LabelsUntilItEnds) {
  EXPECT_EQ(current_tags, kNoTags);
  EXPECT_THAT(Tags(), IsEmpty());
  {
    ScopedTag tag("model", "llama-8b");
    EXPECT_THAT(Tags(), ElementsAre(Pair("model", "llama-8b")));
  }
  EXPECT_EQ(current_tags, kNoTags);
}

TEST(ScopedTag, InnerScopeHidesTheSameKey) {
  ScopedTag model("model", "a");
  {
    ScopedTag phase("phase", "prefill");
    EXPECT_THAT(Tags(), ElementsAre(Pair("model", "a"), Pair("phase", "prefill")));
    {
      ScopedTag inner("model", "b");
      EXPECT_THAT(Tags(), ElementsAre(Pair("model", "b"), Pair("phase", "prefill")));
    }
    EXPECT_THAT(Tags(), ElementsAre(Pair("model", "a"), Pair("phase", "prefill")));
  }
  EXPECT_THAT(Tags(), ElementsAre(Pair("model", "a")));
}

TEST(ScopedTag, OrderOfScopesMakesNoDifference) {
  TagSetId first;
  {
    ScopedTag a("a", "1");
    ScopedTag b("b", "2");
    first = current_tags;
  }
  ScopedTag b("b", "2");
  ScopedTag a("a", "1");
  EXPECT_EQ(current_tags, first);
}

TEST(ScopedTag, LabelsOnlyItsThread) {
  ScopedTag tag("thread", "main");
  std::thread([] { EXPECT_THAT(Tags(), IsEmpty()); }).join();
}

TEST(ScopedTag, EmptyKeyAddsNothing) {
  const int64_t dropped = DroppedTagValues();
  ScopedTag no_key("", "value");
  EXPECT_THAT(Tags(), IsEmpty());
  ScopedTag no_value("empty_value", "");
  EXPECT_THAT(Tags(), ElementsAre(Pair("empty_value", "")));
  EXPECT_EQ(DroppedTagValues(), dropped);
}

TEST(ScopedTag, KeysOfTheProfileItselfGetAPrefix) {
  for (const char* key : {"device", "kind", "allocator", "bytes", "pprof::base", "pprof::"}) {
    ScopedTag tag(key, "x");
    EXPECT_THAT(Tags(), ElementsAre(Pair(std::string("tag_") + key, "x")));
  }
  for (const char* key : {"devices", "Device", "pprof", "pprof:"}) {
    ScopedTag tag(key, "x");
    EXPECT_THAT(Tags(), ElementsAre(Pair(key, "x")));
  }
}

TEST(ScopedTag, KeysAndValuesAreCopiedAndCutAt128Bytes) {
  const std::string longest(128, 'k');
  auto key = std::make_unique<std::string>(200, 'k');
  auto value = std::make_unique<std::string>(200, 'v');
  ScopedTag tag(*key, *value);
  key.reset();
  value.reset();
  EXPECT_THAT(Tags(), ElementsAre(Pair(longest, std::string(128, 'v'))));
  // The part that is cut off makes no difference.
  const TagSetId tags = current_tags;
  ScopedTag same(longest + "tail", std::string(128, 'v') + "tail");
  EXPECT_EQ(current_tags, tags);
}

TEST(ScopedTag, CutSplitsNoCharacter) {
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001f600"}) {  // of two, three and four bytes
    for (size_t before = 128 - character.size(); before <= 128; ++before) {
      std::string text(before, 'x');
      text += character;
      const std::string whole = text.size() <= 128 ? text : text.substr(0, before);
      const std::string& tail = text.size() == 128 ? "tail" : "";
      ScopedTag tag("key", text + tail);
      EXPECT_THAT(Tags(), ElementsAre(Pair("key", whole)));
      ScopedTag same("key", "other");
      ScopedTag long_key(text + tail, "value");
      EXPECT_THAT(Tags(), ElementsAre(Pair("key", "other"), Pair(whole, "value")));
    }
  }
}

TEST(ScopedTag, InvalidUtf8IsCutAt128Bytes) {
  ScopedTag tag("bytes", std::string(200, '\x80'));
  EXPECT_THAT(Tags(), ElementsAre(Pair("tag_bytes", std::string(128, '\x80'))));
}

TEST(ScopedTag, KeyValueBoundaryMatters) {
  TagSetId first;
  {
    ScopedTag tag("ab", "c");
    first = current_tags;
  }
  ScopedTag tag("a", "bc");
  EXPECT_NE(current_tags, first);
}

TEST(ScopedTag, ValuesCanContainAnyByte) {
  const std::string zero("a\0b", 3);
  ScopedTag tag("any_byte", zero);
  EXPECT_THAT(Tags(), ElementsAre(Pair("any_byte", zero)));
}

TEST(ScopedTag, ValueBeyondTheLimitBecomesOther) {
  const int64_t dropped = DroppedTagValues();
  for (int i = 0; i < 1000; ++i) {
    ScopedTag tag("request", std::to_string(i));
    ASSERT_THAT(Tags(), ElementsAre(Pair("request", std::to_string(i))));
  }
  EXPECT_EQ(DroppedTagValues(), dropped);
  {
    ScopedTag tag("request", "1000");
    EXPECT_THAT(Tags(), ElementsAre(Pair("request", "other")));
  }
  EXPECT_EQ(DroppedTagValues(), dropped + 1);
  // Counted for every scope, also if the value is repeated. Known values do not change.
  for (int i = 0; i < 2; ++i) {
    ScopedTag tag("request", "1000");
    EXPECT_THAT(Tags(), ElementsAre(Pair("request", "other")));
  }
  EXPECT_EQ(DroppedTagValues(), dropped + 3);
  ScopedTag known("request", "999");
  EXPECT_THAT(Tags(), ElementsAre(Pair("request", "999")));
  // Other keys have a limit of their own.
  ScopedTag unrelated("request_class", "batch");
  EXPECT_THAT(Tags(), ElementsAre(Pair("request", "999"), Pair("request_class", "batch")));
  EXPECT_EQ(DroppedTagValues(), dropped + 3);
}

TEST(ScopedTag, ThreadsThatAddTheSameTagsAgree) {
  constexpr int kThreads = 8;
  std::vector<std::vector<TagSetId>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const std::string value = std::to_string(i);
        ScopedTag outer("outer", value);
        ScopedTag inner("inner", value);
        ASSERT_THAT(Tags(), ElementsAre(Pair("inner", value), Pair("outer", value)));
        seen[t].push_back(current_tags);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<TagSetId>(seen[0].begin(), seen[0].end()).size(), 500u);
  for (const std::vector<TagSetId>& others : seen) EXPECT_EQ(others, seen[0]);
}

// Runs `check` in its own process, whose registry no other test fills. `check` returns the problem, or "".
void InFreshProcess(const std::function<std::string()>& check) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const std::string problem = check();
        std::fprintf(stderr, "result: %s.", problem.c_str());
        std::_Exit(problem.empty() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "result: \\.");
}

TEST(ScopedTagLimits, KeyBeyondTheLimitIsCounted) {
  InFreshProcess([]() -> std::string {
    for (int i = 0; i < kMaxTagKeys; ++i) ScopedTag tag("key" + std::to_string(i), "v");
    if (DroppedTagValues() != 0) return "counted too early";
    ScopedTag outer("key0", "v");
    ScopedTag tag("one too many", "v");
    if (Tags().size() != 1) return "the 65th key was added";
    if (DroppedTagValues() != 1) return "not counted";
    ScopedTag known("key63", "v");
    if (Tags().size() != 2) return "a known key was refused";
    return "";
  });
}

TEST(ScopedTagLimits, ScopeBeyondTheSetLimitIsCounted) {
  InFreshProcess([]() -> std::string {
    // 600 x 600 combinations are more than fit.
    TagSetId largest = 0;
    for (int a = 0; a < 600; ++a) {
      ScopedTag outer("a", std::to_string(a));
      for (int b = 0; b < 600; ++b) {
        const TagSetId before = current_tags;
        const int64_t dropped = DroppedTagValues();
        ScopedTag inner("b", std::to_string(b));
        largest = std::max(largest, current_tags);
        if (DroppedTagValues() == dropped && TagsOf(current_tags).empty()) return "lost and not counted";
        if (DroppedTagValues() != dropped && current_tags != before) return "counted and still added";
      }
    }
    if (largest != kMaxTagSets - 1) return "largest set is " + std::to_string(largest);
    if (DroppedTagValues() == 0) return "nothing was counted";
    ScopedTag a("a", "0");
    ScopedTag b("b", "0");
    if (Tags().size() != 2) return "a known combination was refused";
    return "";
  });
}

}  // namespace
}  // namespace hbmprof::internal
