// OptionsFromEnvironment: each variable with valid and invalid values.

#include "hbmprof/options.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hbmprof {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr const char* kVariables[] = {
    "HBMPROF_UNWINDER",
    "HBMPROF_TAGS",
#define SWITCH(variable, field) variable,
#define TEXT(variable, field) variable,
#define NUMBER(variable, field, least, most) variable,
#define NUMBER_OR_0(variable, field, least, most) variable,
#define PAIR(variable, field, least, most, unit, second, second_least, second_most) variable,
#include "src/api/public/options.inc"
};

class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() { Clear(); }
  ~OptionsTest() override { Clear(); }
  static void Clear() {
    for (const char* variable : kVariables) unsetenv(variable);
  }

  // Returns the options of the environment with `variable` set to `value`, which is valid.
  DefaultOptions Good(const char* variable, const std::string& value) {
    setenv(variable, value.c_str(), 1);
    std::vector<std::string> problems;
    const DefaultOptions options = OptionsFromEnvironment(&problems);
    EXPECT_THAT(problems, IsEmpty()) << variable << "=" << value;
    return options;
  }
  // The same for an invalid value. Expects one line with the variable, the allowed values and the value that is used.
  DefaultOptions Bad(const char* variable, const std::string& value, const std::string& allowed,
                     const std::string& used) {
    setenv(variable, value.c_str(), 1);
    std::vector<std::string> problems;
    const DefaultOptions options = OptionsFromEnvironment(&problems);
    EXPECT_THAT(problems, ElementsAre(AllOf(StartsWith("hbmprof: " + std::string(variable) + "='"), HasSubstr(allowed),
                                            HasSubstr("using " + used), Not(HasSubstr("\n")))))
        << variable << "=" << value;
    return options;
  }
};

TEST_F(OptionsTest, EmptyEnvironmentGivesTheDefaults) {
  std::vector<std::string> problems;
  const DefaultOptions options = OptionsFromEnvironment(&problems);
  const Options defaults;
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_TRUE(options.enabled);
  EXPECT_EQ(options.max_stack_depth, defaults.max_stack_depth);
  EXPECT_EQ(options.unwinder, Unwinder::kAuto);
  EXPECT_EQ(options.max_live_buffers, defaults.max_live_buffers);
  EXPECT_EQ(options.max_sites, defaults.max_sites);
  EXPECT_EQ(options.max_host_bytes, defaults.max_host_bytes);
  EXPECT_EQ(options.output, "");
}

TEST_F(OptionsTest, EmptyVariablesAreTheSameAsUnset) {
  for (const char* variable : kVariables) setenv(variable, "", 1);
  std::vector<std::string> problems;
  EXPECT_TRUE(OptionsFromEnvironment(&problems).enabled);
  EXPECT_THAT(problems, IsEmpty());
}

TEST_F(OptionsTest, HbmprofTurnsRecordingOffAndOn) {
  EXPECT_FALSE(Good("HBMPROF", "0").enabled);
  EXPECT_TRUE(Good("HBMPROF", "1").enabled);
  for (const char* value : {"off", "false", "no", "False", "OFF", "Off", "NO"})
    EXPECT_FALSE(Good("HBMPROF", value).enabled);
  for (const char* value : {"on", "true", "yes", "On"}) EXPECT_TRUE(Good("HBMPROF", value).enabled);
  for (const char* value : {"2", "00", " 0", "0 ", "-1", "none", "disabled"}) {
    EXPECT_FALSE(Bad("HBMPROF", value, "0 (off, false, no) or 1 (on, true, yes)", "0").enabled) << value;
  }
}

TEST_F(OptionsTest, UnknownVariableIsAProblemWithTheNearestName) {
  setenv("HBMPROF_OUPUT", "/tmp/x", 1);
  setenv("HBMPROF_OUTPUTS_INTERVAL", "1", 1);
  setenv("HBMPROFILER", "1", 1);
  setenv("HBMPROF_SERVICE_HOST", "10.0.0.1", 1);  // as Kubernetes sets it
  std::vector<std::string> problems;
  OptionsFromEnvironment(&problems);
  for (const char* name : {"HBMPROF_OUPUT", "HBMPROF_OUTPUTS_INTERVAL", "HBMPROFILER", "HBMPROF_SERVICE_HOST"}) {
    unsetenv(name);
  }
  EXPECT_THAT(problems, testing::UnorderedElementsAre(
                            "hbmprof: HBMPROF_OUPUT is not a variable of hbmprof; the nearest one is HBMPROF_OUTPUT",
                            "hbmprof: HBMPROF_OUTPUTS_INTERVAL is not a variable of hbmprof; the nearest one is "
                            "HBMPROF_OUTPUT_INTERVAL"));
}

TEST_F(OptionsTest, OutputIsAnyPath) {
  EXPECT_EQ(Good("HBMPROF_OUTPUT", "/tmp/%p.%n.pb.gz").output, "/tmp/%p.%n.pb.gz");
  EXPECT_EQ(Good("HBMPROF_OUTPUT", "relative path").output, "relative path");
}

TEST_F(OptionsTest, OomOutputIsOffByDefault) {
  EXPECT_EQ(Good("HBMPROF_OOM_OUTPUT", "").oom_output, "");
  EXPECT_EQ(Good("HBMPROF_OOM_OUTPUT", "/tmp/%p.pb.gz").oom_output, "/tmp/%p.pb.gz");
  EXPECT_EQ(Good("HBMPROF_OOM_OUTPUT", "off").oom_output, "");
  EXPECT_EQ(Good("HBMPROF_OOM_OUTPUT", "OFF").oom_output, "");
  EXPECT_TRUE(Good("HBMPROF_OOM_OUTPUT", "off").oom_report);
  EXPECT_FALSE(Good("HBMPROF_OOM_OUTPUT", "silent").oom_report);
  EXPECT_EQ(Good("HBMPROF_OOM_OUTPUT", "silent").oom_output, "");
}

TEST_F(OptionsTest, StackDepthIsANumberFrom1To512) {
  EXPECT_EQ(Good("HBMPROF_STACK_DEPTH", "1").max_stack_depth, 1);
  EXPECT_EQ(Good("HBMPROF_STACK_DEPTH", "512").max_stack_depth, 512);
  for (const char* value : {"0", "513", "-5", "deep", "12frames", "1.5", "99999999999999999999", "0x20", "+", " "}) {
    EXPECT_EQ(Bad("HBMPROF_STACK_DEPTH", value, "1 to 512", "128").max_stack_depth, 128);
  }
}

TEST_F(OptionsTest, MaxSitesIsANumber) {
  EXPECT_EQ(Good("HBMPROF_MAX_SITES", "4194304").max_sites, 4194304);
  EXPECT_EQ(Bad("HBMPROF_MAX_SITES", "0", "1 to 4194304", "262144").max_sites, 262144);
}

TEST_F(OptionsTest, MaxLiveIsANumber) {
  EXPECT_EQ(Good("HBMPROF_MAX_LIVE", "1").max_live_buffers, 1);
  EXPECT_EQ(Good("HBMPROF_MAX_LIVE", "4294967296").max_live_buffers, int64_t{1} << 32);
  for (const char* value : {"0", "-1", "many", "4294967297", "1e6", "99999999999999999999999"}) {
    EXPECT_EQ(Bad("HBMPROF_MAX_LIVE", value, "1 to 4294967296", "16777216").max_live_buffers, 16777216);
  }
}

TEST_F(OptionsTest, MaxHostBytesIsANumber) {
  EXPECT_EQ(Good("HBMPROF_MAX_HOST_BYTES", "1").max_host_bytes, 1);
  EXPECT_EQ(Good("HBMPROF_MAX_HOST_BYTES", "1125899906842624").max_host_bytes, int64_t{1} << 50);
  for (const char* value : {"0", "-1", "1G", "1125899906842625", "1e6"}) {
    EXPECT_EQ(Bad("HBMPROF_MAX_HOST_BYTES", value, "1 to 1125899906842624", "2147483648").max_host_bytes,
              int64_t{1} << 31);
  }
}

TEST_F(OptionsTest, TagsAreAListOfKeysAndValues) {
  using ::testing::Pair;
  EXPECT_THAT(Good("HBMPROF_TAGS", "model=llama").tags, ElementsAre(Pair("model", "llama")));
  EXPECT_THAT(Good("HBMPROF_TAGS", "model=a b=c,pod=").tags, ElementsAre(Pair("model", "a b=c"), Pair("pod", "")));
  EXPECT_THAT(Good("HBMPROF_TAGS", std::string(128, 'k') + "=" + std::string(128, 'v')).tags, SizeIs(1));
  std::string many;
  for (int i = 0; i < 64; ++i) many += "k" + std::to_string(i) + "=v,";
  EXPECT_THAT(Good("HBMPROF_TAGS", many).tags, SizeIs(64));
  for (const std::string& value : {std::string("model"), std::string("=llama"), std::string("a=1,,b=2"), many + "k=v",
                                   std::string(129, 'k') + "=v", "k=" + std::string(129, 'v')}) {
    EXPECT_THAT(Bad("HBMPROF_TAGS", value, "KEY=VALUE,KEY=VALUE,...", "no tags").tags, IsEmpty());
  }
}

TEST_F(OptionsTest, UnwinderIsOneOfFourNames) {
  EXPECT_EQ(Good("HBMPROF_UNWINDER", "auto").unwinder, Unwinder::kAuto);
  EXPECT_TRUE(Good("HBMPROF_UNWINDER", "auto").python);
  EXPECT_EQ(Good("HBMPROF_UNWINDER", "native").unwinder, Unwinder::kAuto);
  EXPECT_FALSE(Good("HBMPROF_UNWINDER", "native").python);
  EXPECT_EQ(Good("HBMPROF_UNWINDER", "fp").unwinder, Unwinder::kFramePointer);
  EXPECT_EQ(Good("HBMPROF_UNWINDER", "none").unwinder, Unwinder::kNone);
  for (const char* value : {"AUTO", "dwarf", "fp,none", "libunwind", "none "}) {
    EXPECT_EQ(Bad("HBMPROF_UNWINDER", value, "auto, native, fp or none", "auto").unwinder, Unwinder::kAuto);
  }
}

TEST_F(OptionsTest, TriggersHaveRanges) {
  EXPECT_EQ(Good("HBMPROF_DUMP", "104857600").dump_peak_growth, 104857600);
  EXPECT_EQ(Good("HBMPROF_DUMP", "104857600").dump_in_use_percent, 0);
  EXPECT_EQ(Good("HBMPROF_DUMP", "90%").dump_in_use_percent, 90);
  EXPECT_EQ(Good("HBMPROF_DUMP", "90%").dump_peak_growth, 0);
  EXPECT_EQ(Good("HBMPROF_DUMP", "90%,5").dump_in_use_percent, 90);
  EXPECT_EQ(Good("HBMPROF_DUMP", "90%,5").dump_peak_growth, 5);
  for (const char* value : {"101%", "%", "-1", "5,101%", ",5", "90%5", "half"}) {
    const DefaultOptions options = Bad("HBMPROF_DUMP", value, "a number from 0 or 1 to 100 with % behind it", "none");
    EXPECT_EQ(options.dump_in_use_percent, 0);
    EXPECT_EQ(options.dump_peak_growth, 0);
  }
}

TEST_F(OptionsTest, IntervalIsANumberOfSeconds) {
  EXPECT_EQ(Good("HBMPROF_OUTPUT_INTERVAL", "").output_interval, 0);
  EXPECT_EQ(Good("HBMPROF_OUTPUT_INTERVAL", "0.5").output_interval, 0.5);
  EXPECT_EQ(Good("HBMPROF_OUTPUT_INTERVAL", "0").output_interval, 0);
  for (const char* value : {"-1", "soon", "nan", "2e8"}) {
    EXPECT_EQ(Bad("HBMPROF_OUTPUT_INTERVAL", value, "0.001 to 1e+08", "0").output_interval, 0);
  }
}

TEST_F(OptionsTest, RecordingsHaveAPathAndLimits) {
  EXPECT_EQ(Good("HBMPROF_RECORD", "/tmp/%p.hbmrec").record, "/tmp/%p.hbmrec");
  EXPECT_EQ(Bad("HBMPROF_RECORD_MAX_BYTES", "1", "0 or 1048576 to", "1073741824").record_max_bytes, 1 << 30);
  EXPECT_EQ(Good("HBMPROF_RECORD_MAX_BYTES", "1048576").record_max_bytes, 1 << 20);
  EXPECT_EQ(Good("HBMPROF_LOG", "stderr").log, "stderr");
  EXPECT_EQ(Good("HBMPROF_FLIGHT", "1000000").flight_events, 1'000'000);
  EXPECT_EQ(Good("HBMPROF_FLIGHT", "").flight_seconds, 0);
  EXPECT_EQ(Good("HBMPROF_FLIGHT", "2.5s").flight_seconds, 2.5);
  EXPECT_EQ(Good("HBMPROF_FLIGHT", "2.5s").flight_events, 0);
  EXPECT_EQ(Good("HBMPROF_FLIGHT", "100,30s").flight_events, 100);
  EXPECT_EQ(Good("HBMPROF_FLIGHT", "100,30s").flight_seconds, 30);
  EXPECT_EQ(Bad("HBMPROF_FLIGHT", "-1s", "0.001 to 1e+08 with s behind it", "none").flight_seconds, 0);
}

TEST_F(OptionsTest, BadVariablesAreReportedAndOthersApply) {
  setenv("HBMPROF", "maybe", 1);
  setenv("HBMPROF_STACK_DEPTH", "-1", 1);
  setenv("HBMPROF_UNWINDER", "magic", 1);
  setenv("HBMPROF_MAX_LIVE", "7", 1);
  std::vector<std::string> problems;
  const DefaultOptions options = OptionsFromEnvironment(&problems);
  EXPECT_THAT(problems, SizeIs(3));
  EXPECT_THAT(problems, Contains(HasSubstr("'magic'")));
  EXPECT_EQ(options.max_live_buffers, 7);
}

TEST_F(OptionsTest, VeryLongValueIsQuotedInPart) {
  std::vector<std::string> problems;
  setenv("HBMPROF_UNWINDER", std::string(100000, 'x').c_str(), 1);
  OptionsFromEnvironment(&problems);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_LT(problems[0].size(), 400u);
  Bad("HBMPROF_UNWINDER", "two\nlines\r\x1b[31m", "auto, native, fp or none", "auto");
}

}  // namespace
}  // namespace hbmprof
