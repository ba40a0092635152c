// Shows that every rule of the checker can fail: each case damages a correct profile at one point.
#include "tests/support/profile_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <functional>
#include <ostream>
#include <string>

namespace hbmprof_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::string Compress(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class Builder {
 public:
  int64_t Text(const std::string& text) {
    for (int i = 0; i < p.string_table_size(); ++i) {
      if (p.string_table(i) == text) return i;
    }
    p.add_string_table(text);
    return p.string_table_size() - 1;
  }

  Profile p;
};

// Two mappings, two functions, two samples.
Profile GoodProfile() {
  Builder b;
  Profile& p = b.p;
  b.Text("");
  for (const char* type : {"alloc", "peak", "pool_peak", "reserved", "inuse"}) {
    for (const bool is_bytes : {false, true}) {
      auto* value_type = p.add_sample_type();
      value_type->set_type(b.Text(std::string(type) + (is_bytes ? "_space" : "_objects")));
      value_type->set_unit(b.Text(is_bytes ? "bytes" : "count"));
    }
  }
  p.set_default_sample_type(b.Text("inuse_space"));
  p.mutable_period_type()->set_type(b.Text("space"));
  p.mutable_period_type()->set_unit(b.Text("bytes"));
  p.set_period(1);
  p.set_time_nanos(1);
  p.set_drop_frames(b.Text("ours::.*"));
  p.add_comment(b.Text("device GPU:0 in_use=7 peak=9"));
  p.add_comment(b.Text("hbmprof version=1 uptime=100"));
  for (int i = 0; i < 3; ++i) {
    auto* mapping = p.add_mapping();
    mapping->set_id(i + 1);
    mapping->set_memory_start(0x1000 * (i + 1));
    mapping->set_memory_limit(0x1000 * (i + 2));
    mapping->set_filename(b.Text("/bin/" + std::to_string(i)));
    mapping->set_build_id(b.Text("ab0" + std::to_string(i)));
    mapping->set_has_functions(true);
    auto* function = p.add_function();
    function->set_id(i + 1);
    function->set_name(b.Text("f" + std::to_string(i)));
    function->set_system_name(b.Text("_f" + std::to_string(i)));
    auto* location = p.add_location();
    location->set_id(i + 1);
    location->set_mapping_id(i + 1);
    location->set_address(0x1000 * (i + 1) + 5);
    location->add_line()->set_function_id(i + 1);
  }
  for (int i = 0; i < 2; ++i) {
    auto* sample = p.add_sample();
    sample->add_location_id(i + 1);
    sample->add_location_id(3);
    for (int value = 0; value < 10; ++value) sample->add_value(10 * (i + 1) + value);
    sample->set_value(0, 100);
    sample->mutable_ages()->set_class_width_log2(1);
    sample->mutable_ages()->set_first_class(62);
    for (const int64_t count : {int64_t{4}, sample->value(8) - 4}) sample->mutable_ages()->add_born_counts(count);
    for (const int64_t bytes : {int64_t{0}, sample->value(9)}) sample->mutable_ages()->add_born_bytes(bytes);
    sample->mutable_ages()->add_freed_by_octave(60);
    for (const auto& [key, value] : {std::pair{"device", "GPU:0"}, std::pair{"kind", "device"}}) {
      auto* label = sample->add_label();
      label->set_key(b.Text(key));
      label->set_str(b.Text(value));
    }
    auto* label = sample->add_label();
    label->set_key(b.Text("bytes"));
    label->set_num(64);
    label->set_num_unit(b.Text("bytes"));
  }
  return p;
}

TEST(ProfileChecker, AcceptsAGoodProfile) { EXPECT_EQ(CheckProfile(GoodProfile()), ""); }

struct Damage {
  const char* name;
  const char* complaint;
  std::function<void(Profile*)> inflict;
};
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class ProfileCheckerRejects : public testing::TestWithParam<Damage> {};

TEST_P(ProfileCheckerRejects, ReportsTheReason) {
  Profile profile = GoodProfile();
  GetParam().inflict(&profile);
  EXPECT_THAT(CheckProfile(profile), HasSubstr(GetParam().complaint));
}

constexpr int64_t kNoString = 1000;

INSTANTIATE_TEST_SUITE_P(
    Damages, ProfileCheckerRejects,
    testing::Values(
        Damage{"FirstStringNotEmpty", "string_table[0]", [](Profile* p) { p->set_string_table(0, "x"); }},
        Damage{"StringTwice", "twice", [](Profile* p) { p->add_string_table("device"); }},
        Damage{"MissingSampleType", "ten sample types", [](Profile* p) { p->mutable_sample_type()->RemoveLast(); }},
        Damage{"SwappedSampleTypes", "sample type 0", [](Profile* p) { p->mutable_sample_type()->SwapElements(0, 1); }},
        Damage{"StringOfNobody", "used by nobody: \"left over\"", [](Profile* p) { p->add_string_table("left over"); }},
        Damage{"NoDefault", "default_sample_type", [](Profile* p) { p->clear_default_sample_type(); }},
        Damage{"DefaultIsPeakThoughThereIsSomethingInUse", "default_sample_type is not inuse_space",
               [](Profile* p) { p->set_default_sample_type(p->sample_type(3).type()); }},
        Damage{"DefaultIsInUseThoughNothingIs", "default_sample_type is not peak_space",
               [](Profile* p) {
                 p->set_string_table(p->comment(1), "hbmprof version=1");
                 for (auto& sample : *p->mutable_sample()) sample.clear_ages();
                 for (auto& sample : *p->mutable_sample()) sample.set_value(9, 0);
               }},
        Damage{"HasFunctionsWithoutANamedAddress", "mapping 1 has_functions",
               [](Profile* p) {
                 p->mutable_location(0)->clear_line();
                 p->mutable_location(0)->add_line()->set_function_id(3);
                 p->mutable_function(2)->clear_system_name();
               }},
        Damage{"NamedWithoutHasFunctions", "mapping 3 lacks has_functions",
               [](Profile* p) { p->mutable_mapping(2)->clear_has_functions(); }},
        Damage{"NoPeriodType", "period_type", [](Profile* p) { p->clear_period_type(); }},
        Damage{"NoPeriod", "period is", [](Profile* p) { p->clear_period(); }},
        Damage{"NoTime", "time_nanos", [](Profile* p) { p->clear_time_nanos(); }},
        Damage{"Duration", "duration_nanos", [](Profile* p) { p->set_duration_nanos(1); }},
        Damage{"DocUrl", "doc_url", [](Profile* p) { p->set_doc_url(1); }},
        Damage{"BadDropFrames", "drop_frames is not", [](Profile* p) { p->set_string_table(p->drop_frames(), "("); }},
        Damage{"DropFramesNoString", "drop_frames", [](Profile* p) { p->set_drop_frames(kNoString); }},
        Damage{"CommentNoString", "comment", [](Profile* p) { p->add_comment(kNoString); }},
        Damage{"CommentOfTwoLines", "several lines", [](Profile* p) { p->set_string_table(p->comment(0), "a\nb"); }},
        Damage{"MappingIdZero", "mapping 0 has id", [](Profile* p) { p->mutable_mapping(0)->clear_id(); }},
        Damage{"MappingIdSkipped", "mapping 1 has id", [](Profile* p) { p->mutable_mapping(1)->set_id(7); }},
        Damage{"MappingEmpty", "empty", [](Profile* p) { p->mutable_mapping(0)->set_memory_limit(0x1000); }},
        Damage{"MappingNoFile", "no filename", [](Profile* p) { p->mutable_mapping(0)->clear_filename(); }},
        Damage{"MappingBadString", "bad string", [](Profile* p) { p->mutable_mapping(0)->set_build_id(kNoString); }},
        Damage{"MappingBuildIdNotHex", "lower-case hex",
               [](Profile* p) { p->set_string_table(p->mapping(0).build_id(), "AB00"); }},
        Damage{"MappingsOverlap", "overlaps", [](Profile* p) { p->mutable_mapping(1)->set_memory_limit(0x3001); }},
        Damage{"MappingsOutOfOrder", "out of order",
               [](Profile* p) {
                 p->mutable_mapping(1)->set_memory_start(0x8000);
                 p->mutable_mapping(1)->set_memory_limit(0x9000);
               }},
        Damage{"FunctionIdSkipped", "function 0 has id", [](Profile* p) { p->mutable_function(0)->set_id(2); }},
        Damage{"FunctionNoName", "no name", [](Profile* p) { p->mutable_function(0)->clear_name(); }},
        Damage{"FunctionBadString", "bad string", [](Profile* p) { p->mutable_function(0)->set_filename(kNoString); }},
        Damage{"FunctionTwice", "function 2 is there twice",
               [](Profile* p) {
                 p->mutable_function(1)->set_name(p->function(0).name());
                 p->mutable_function(1)->set_system_name(p->function(0).system_name());
               }},
        Damage{"LocationIdSkipped", "location 0 has id", [](Profile* p) { p->mutable_location(0)->set_id(9); }},
        Damage{"LocationNoMapping", "has no mapping", [](Profile* p) { p->mutable_location(0)->set_mapping_id(9); }},
        Damage{"LocationOutsideMapping", "outside of its mapping",
               [](Profile* p) { p->mutable_location(0)->set_address(0x2000); }},
        Damage{"LocationUnnamed", "has no function", [](Profile* p) { p->mutable_location(0)->clear_line(); }},
        Damage{"LineNoFunction", "line without a function",
               [](Profile* p) { p->mutable_location(0)->mutable_line(0)->set_function_id(9); }},
        Damage{"LocationBlank", "neither address nor name",
               [](Profile* p) {
                 p->mutable_location(0)->clear_mapping_id();
                 p->mutable_location(0)->clear_address();
                 p->mutable_location(0)->clear_line();
               }},
        Damage{"LocationTwice", "location 4 is there twice",
               [](Profile* p) {
                 *p->add_location() = p->location(0);
                 p->mutable_location(3)->set_id(4);
               }},
        Damage{"ValueMissing", "has 9 values", [](Profile* p) { p->mutable_sample(0)->mutable_value()->RemoveLast(); }},
        Damage{"BirthMissing", "add up to inuse_objects",
               [](Profile* p) { p->mutable_sample(0)->mutable_ages()->set_born_counts(0, 3); }},
        Damage{"NoBirths", "add up to inuse_objects", [](Profile* p) { p->mutable_sample(0)->clear_ages(); }},
        Damage{"BirthOfMoreBytes", "add up to inuse_space",
               [](Profile* p) { p->mutable_sample(1)->mutable_ages()->set_born_bytes(0, 1); }},
        Damage{"NegativeBirths", "negative",
               [](Profile* p) {
                 p->mutable_sample(0)->mutable_ages()->set_born_bytes(0, -1);
                 p->mutable_sample(0)->mutable_ages()->set_born_bytes(1, p->sample(0).value(9) + 1);
               }},
        Damage{"ClassWithoutBytes", "different numbers",
               [](Profile* p) { p->mutable_sample(0)->mutable_ages()->add_born_counts(0); }},
        Damage{"ClassTooLate", "64 classes", [](Profile* p) { p->mutable_sample(0)->mutable_ages()->set_first_class(63); }},
        Damage{"AgesOfLiveBuffers", "than freed buffers",
               [](Profile* p) { p->mutable_sample(1)->mutable_ages()->set_freed_by_octave(0, 77); }},
        Damage{"AgesWithoutUptime", "no uptime",
               [](Profile* p) { p->set_string_table(p->comment(1), "hbmprof version=1"); }},
        Damage{"AllZero", "only zeros",
               [](Profile* p) {
                 for (int i = 0; i < 10; ++i) p->mutable_sample(0)->set_value(i, 0);
               }},
        Damage{"NoLocation", "no location", [](Profile* p) { p->mutable_sample(0)->clear_location_id(); }},
        Damage{"UnknownLocation", "does not exist", [](Profile* p) { p->mutable_sample(0)->set_location_id(0, 9); }},
        Damage{"LabelNoKey", "without a key", [](Profile* p) { p->mutable_sample(0)->mutable_label(0)->clear_key(); }},
        Damage{"LabelReservedKey", "reserved key",
               [](Profile* p) {
                 p->add_string_table("pprof::base");
                 auto* label = p->mutable_sample(0)->add_label();
                 label->set_key(p->string_table_size() - 1);
                 label->set_str(1);
               }},
        Damage{"LabelTwice", "twice", [](Profile* p) { *p->mutable_sample(0)->add_label() = p->sample(0).label(0); }},
        Damage{"LabelBadString", "bad string",
               [](Profile* p) { p->mutable_sample(0)->mutable_label(0)->set_str(kNoString); }},
        Damage{"LabelTextAndNumber", "text and number",
               [](Profile* p) { p->mutable_sample(0)->mutable_label(0)->set_num(1); }},
        Damage{"LabelNumberNoUnit", "without unit",
               [](Profile* p) { p->mutable_sample(0)->mutable_label(2)->clear_num_unit(); }},
        Damage{"LabelZeroNoUnit", "without unit",
               [](Profile* p) {
                 p->mutable_sample(0)->mutable_label(2)->clear_num_unit();
                 p->mutable_sample(0)->mutable_label(2)->clear_num();
               }},
        Damage{"NoDevice", "no label device",
               [](Profile* p) { p->mutable_sample(0)->mutable_label()->DeleteSubrange(0, 1); }},
        Damage{"NoKind", "no label kind",
               [](Profile* p) { p->mutable_sample(0)->mutable_label()->DeleteSubrange(1, 1); }},
        Damage{"SampleTwice", "stack and labels of an earlier one",
               [](Profile* p) { p->mutable_sample(1)->set_location_id(0, 1); }}),
    [](const auto& info) { return info.param.name; });

TEST(ParseProfile, ReadsGzipData) {
  const absl::StatusOr<Profile> parsed = ParseProfile(Compress(GoodProfile().SerializeAsString()));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(DescribeProfile(*parsed), DescribeProfile(GoodProfile()));
}

TEST(ParseProfile, RejectsMalformedInput) {
  const std::string bytes = Compress(GoodProfile().SerializeAsString());
  EXPECT_FALSE(ParseProfile("").ok());
  EXPECT_FALSE(ParseProfile("text").ok());
  EXPECT_FALSE(ParseProfile(bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(ParseProfile(bytes.substr(0, bytes.size() / 2)).ok());
  EXPECT_FALSE(ParseProfile(bytes + bytes).ok());
  EXPECT_FALSE(ParseProfile(Compress("\xff\xff\xff")).ok());
  EXPECT_FALSE(ReadProfile("/nonexistent/profile").ok());
}

TEST(ProfileView, ResolvesStacksLabelsAndValues) {
  const ProfileView view(GoodProfile());
  ASSERT_EQ(view.samples.size(), 2u);
  EXPECT_THAT(view.samples[0].functions, ElementsAre("f0", "f2"));
  EXPECT_THAT(view.samples[0].labels,
              UnorderedElementsAre(Pair("device", "GPU:0"), Pair("kind", "device"), Pair("bytes", "64")));
  EXPECT_EQ(view.samples[1].values.at("inuse_space"), 29);
  EXPECT_EQ(view.Sum("inuse_space"), 19 + 29);
  EXPECT_EQ(view.SumUnder("alloc_objects", "f1"), 100);
  EXPECT_EQ(view.SumUnder("alloc_objects", "f2"), 200);
  EXPECT_EQ(view.SumWhere("peak_space", "device", "GPU:0"), 13 + 23);
  EXPECT_EQ(view.SumWhere("peak_space", "device", "GPU:1"), 0);
}

TEST(ProfileView, FindsTheValuesInComments) {
  const ProfileView view(GoodProfile());
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), "7");
  EXPECT_EQ(view.Comment("device GPU:0", "peak"), "9");
  EXPECT_EQ(view.Comment("device GPU:0", "eak"), "");
  EXPECT_EQ(view.Comment("device GPU:1", "in_use"), "");
}

}  // namespace
}  // namespace hbmprof_test
