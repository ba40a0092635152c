// The answers for the routes of a program's HTTP server. examples/http_routes serves them.
#include "hbmprof/http.h"

#include <iterator>
#include <string>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/hbmprof.h"
#include "tests/support/profile_checker.h"

namespace hbmprof {
namespace {

using ::hbmprof_test::ParseProfile;
using ::hbmprof_test::ProfileView;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpTest : public ::testing::Test {
 protected:
  HttpTest() {
    const ScopedTag tag("http phase", "decode");
    profiler_.RecordAlloc(&buffer_, 12'345, {profiler_.Device("http_test:0"), MemoryKind::kDevice, {}});
  }
  ~HttpTest() override { profiler_.RecordFree(&buffer_); }

  Profiler& profiler_ = Profiler::Default();
  char buffer_ = 0;
};

TEST_F(HttpTest, HeapIsTheProfile) {
  const HttpAnswer answer = AnswerHttpGet("/debug/pprof/heap");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.content_type, "application/octet-stream");
  const auto profile = ParseProfile(answer.body);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(ProfileView(*profile).SumWhere("inuse_space", "device", "http_test:0"), 12'345);
}

TEST_F(HttpTest, HeapHasLimits) {
  // Each size is a sample of its own.
  char buffers[100];
  for (size_t i = 0; i < std::size(buffers); ++i) profiler_.RecordAlloc(&buffers[i], 1000 + i, {});
  const auto profile = ParseProfile(AnswerHttpGet("/debug/pprof/heap?gc=1&debug=0&max_samples=40").body);
  for (char& buffer : buffers) profiler_.RecordFree(&buffer);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_LE(profile->sample_size(), 40);
}

TEST_F(HttpTest, MetricsAreSplitByTheTagsOfTheQuery) {
  const HttpAnswer answer = AnswerHttpGet("/metrics?tags=http%20phase,http+other");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(answer.body, HasSubstr("{device=\"http_test:0\",kind=\"device\",tag_http_phase=\"decode\",tag_http_other="
                                     "\"\"} 12345\n"));
  EXPECT_THAT(AnswerHttpGet("/metrics").body, HasSubstr("{device=\"http_test:0\",kind=\"device\"} 12345\n"));
}

TEST_F(HttpTest, ErrorSaysWhatIsAllowed) {
  for (const auto& [target, status, text] :
       {std::tuple("/", 404, "the routes are /debug/pprof/heap and /metrics"), std::tuple("", 404, "the routes are"),
        std::tuple("/metricsx", 404, "the routes are"),
        std::tuple("/metrics?tag=a", 400, "/metrics has the parameter tags, not 'tag'"),
        std::tuple("/debug/pprof/heap?seconds=5", 400, "max_samples and max_bytes, not 'seconds'"),
        std::tuple("/debug/pprof/heap?max_samples=-1", 400, "max_samples='-1' is not a number"),
        std::tuple("/debug/pprof/heap?max_samples", 400, "max_samples='' is not a number"),
        std::tuple("/debug/pprof/heap?max_bytes=1", 400, "max_bytes is 1, but a profile with the fewest samples has"),
        std::tuple("/debug/pprof/heap?%", 400, "not '%'")}) {
    const HttpAnswer answer = AnswerHttpGet(target);
    EXPECT_EQ(answer.status, status) << target;
    EXPECT_EQ(answer.content_type, "text/plain; charset=utf-8");
    EXPECT_THAT(answer.body, StartsWith("hbmprof: "));
    EXPECT_THAT(answer.body, HasSubstr(text)) << target;
  }
}

}  // namespace
}  // namespace hbmprof
