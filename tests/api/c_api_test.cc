// The C interface, called from C++: the parts of its contract that c_api_program.c does not test.

#include "hbmprof/c_api.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/hbmprof.h"
#include "src/base/message.h"
#include "src/tool/reader/reader.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/temporary_directory.h"

namespace {

using ::hbmprof::Snapshot;
using ::hbmprof_test::RunCommand;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;
using ::testing::StrEq;

hbmprof_stats Stats(int device) {
  hbmprof_stats stats = {};
  stats.struct_size = sizeof(stats);
  EXPECT_EQ(hbmprof_get_stats(device, &stats), 0);
  return stats;
}

TEST(CApi, WorksFromACProgram) {
  const std::string path = ::testing::TempDir() + "/hbmprof_c_api_" + std::to_string(getpid()) + ".pb.gz";
  const auto run = RunCommand({HBMPROF_C_API_PROGRAM, "check", path});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto profile = hbmprof_test::ReadProfile(path);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(hbmprof_test::CheckProfile(*profile), "");
  const hbmprof_test::ProfileView view(*profile);
  EXPECT_EQ(view.Sum("inuse_space"), 1007);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:0"), 1000);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:62"), 7);
  EXPECT_EQ(view.SumWhere("inuse_space", "phase", "load"), 1000);
  EXPECT_EQ(view.SumUnder("inuse_space", "check"), 1007) << "the stacks begin at the C function that recorded";
  EXPECT_EQ(view.Comment("tracker", "dropped_records"), "1");
  std::remove(path.c_str());
}

TEST(CApi, InitUsesProgramAndEnvironment) {
  const std::string path = ::testing::TempDir() + "/hbmprof_c_init_" + std::to_string(getpid()) + ".pb.gz";
  const auto run = RunCommand(
      {HBMPROF_C_API_PROGRAM, "init", path},
      {"HBMPROF_STACK_DEPTH=7", "HBMPROF_OUTPUT=/nowhere/%p.pb.gz", "HBMPROF_MAX_LIVE=", "HBMPROF_TAGS=model=llama",
       "HBMPROF_FLIGHT=123,2.5s", "HBMPROF_DUMP=80%", "HBMPROF_LOG=stderr"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "the struct ended before output_mode";
  const auto profile = hbmprof_test::ReadProfile(path);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(hbmprof_test::ProfileView(*profile).SumWhere("inuse_space", "model", "llama"), 1000);
  std::remove(path.c_str());
}

TEST(CApi, BadVariableIsReportedOnce) {
  const std::string path = hbmprof_test::NewDirectory() + "/x.pb.gz";
  const auto run = RunCommand({HBMPROF_C_API_PROGRAM, "init", path},
                              {"HBMPROF_STACK_DEPTH=7", "HBMPROF_OUTPUT=/nowhere/%p.pb.gz", "HBMPROF_FLIGHT=123,2.5s",
                               "HBMPROF_DUMP=80%", "HBMPROF_LOG=stderr", "HBMPROF_MAX_LIVE=many"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, ::testing::MatchesRegex("[^\n]*HBMPROF_MAX_LIVE[^\n]*\n"));
}

TEST(CApi, InitStartsTheRecordingAndTheFlightRecorder) {
  const std::string path = hbmprof_test::NewDirectory() + "/a.hbmrec";
  const auto run = RunCommand({HBMPROF_C_API_PROGRAM, "record", path});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const std::string& file : {path, path + ".flight"}) {
    const auto reader = hbmprof::internal::RecordingReader::Open(file);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE((*reader)->is_complete()) << file;
    EXPECT_EQ((*reader)->event_count(), 1) << file;
  }
  std::ifstream log(path + ".log");
  std::string line;
  EXPECT_TRUE(std::getline(log, line));
  EXPECT_THAT(line, HasSubstr("checkpoint: GPU:0 in use 1000 B"));
}

TEST(CApi, EnumsHaveTheValuesOfCxx) {
  using hbmprof::MemoryKind;
  EXPECT_EQ(static_cast<int>(MemoryKind::kDevice), HBMPROF_KIND_DEVICE);
  EXPECT_EQ(static_cast<int>(MemoryKind::kManaged), HBMPROF_KIND_MANAGED);
  EXPECT_EQ(static_cast<int>(MemoryKind::kPinnedHost), HBMPROF_KIND_PINNED_HOST);
  EXPECT_EQ(static_cast<int>(MemoryKind::kPool), HBMPROF_KIND_POOL);
  EXPECT_EQ(static_cast<int>(MemoryKind::kVmm), HBMPROF_KIND_VMM);
  EXPECT_EQ(static_cast<int>(MemoryKind::kArray), HBMPROF_KIND_ARRAY);
  EXPECT_EQ(static_cast<int>(MemoryKind::kGraph), HBMPROF_KIND_GRAPH);
  EXPECT_EQ(static_cast<int>(MemoryKind::kExecutable), HBMPROF_KIND_EXECUTABLE);
  EXPECT_EQ(static_cast<int>(MemoryKind::kExternal), HBMPROF_KIND_EXTERNAL);
  EXPECT_EQ(static_cast<int>(MemoryKind::kAlias), HBMPROF_KIND_ALIAS);
  EXPECT_EQ(hbmprof::kMemoryKindCount, HBMPROF_KIND_ALIAS + 1);
  EXPECT_EQ(static_cast<int>(hbmprof::MemorySpace::kManaged), HBMPROF_SPACE_MANAGED);
  EXPECT_EQ(static_cast<int>(hbmprof::MemorySpace::kPinnedHost), HBMPROF_SPACE_PINNED_HOST);
  EXPECT_EQ(static_cast<int>(hbmprof::Unwinder::kFramePointer), HBMPROF_UNWINDER_FRAME_POINTER);
  EXPECT_EQ(static_cast<int>(hbmprof::Unwinder::kNone), HBMPROF_UNWINDER_NONE);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kInvalidArgument), HBMPROF_INVALID_ARGUMENT);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kDeadlineExceeded), HBMPROF_DEADLINE_EXCEEDED);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kNotFound), HBMPROF_NOT_FOUND);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kPermissionDenied), HBMPROF_PERMISSION_DENIED);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kResourceExhausted), HBMPROF_RESOURCE_EXHAUSTED);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kFailedPrecondition), HBMPROF_FAILED_PRECONDITION);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kInternal), HBMPROF_INTERNAL);
}

TEST(CApi, LongNamesAreCutBetweenTwoCharacters) {
  const std::string name = std::string(63, 'd') + "\u00e9 and more";
  const std::string cut(63, 'd');
  EXPECT_EQ(hbmprof_device(name.c_str()), hbmprof_device(cut.c_str()));
  EXPECT_EQ(hbmprof_allocator(name.c_str()), hbmprof_allocator(cut.c_str()));
  hbmprof_set_counter(name.c_str(), 3);
  const Snapshot snapshot = hbmprof::Profiler::Default().TakeSnapshot();
  EXPECT_EQ(snapshot.devices.back().name, cut);
  EXPECT_EQ(snapshot.allocators.back(), cut);
  EXPECT_EQ(snapshot.counters.back().first, cut);
}

TEST(CApi, AttributesWithoutTheirSizeAreRefused) {
  const int buffer = 0;
  hbmprof_attributes attributes = {};
  attributes.device = 3;
  const int64_t dropped = hbmprof::Profiler::Default().GetTrackerStats().dropped_records;
  EXPECT_EQ(hbmprof_record_alloc_with(&buffer, 5, &attributes), 0);
  EXPECT_EQ(hbmprof::Profiler::Default().GetTrackerStats().dropped_records, dropped + 1);
}

TEST(CApi, UnknownAttributesAreReplaced) {
  const int buffer = 0;
  hbmprof_attributes attributes = {};
  attributes.struct_size = sizeof(attributes);
  attributes.device = -7;
  attributes.kind = 99;
  attributes.allocator = -1;
  ASSERT_EQ(hbmprof_record_alloc_with(&buffer, 5, &attributes), 1);
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const auto found = profiler.FindBuffer(&buffer);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->attributes.device, profiler.Device("unknown"));
  EXPECT_EQ(found->attributes.kind, hbmprof::MemoryKind::kDevice);
  EXPECT_EQ(found->attributes.allocator, hbmprof::AllocatorId{});
  hbmprof_record_free(&buffer);
}

TEST(CApi, RecordsAGivenStack) {
  std::vector<uintptr_t> stack;
  for (uintptr_t i = 0; i < 600; ++i) stack.push_back(0x1000 + i);
  const auto recorded = [&](size_t count) {
    const int buffer = 0;
    EXPECT_EQ(hbmprof_record_alloc_stack(&buffer, 77, nullptr, stack.data(), count), 1);
    Snapshot::Stack found;
    const Snapshot snapshot = hbmprof::Profiler::Default().TakeSnapshot();
    for (const auto& sample : snapshot.samples) {
      if (sample.inuse_bytes == 77) found = snapshot.stacks[sample.stack];
    }
    EXPECT_EQ(hbmprof_record_free(&buffer), 1);
    return found;
  };
  for (const size_t count : {1, 2, 128}) {
    const Snapshot::Stack found = recorded(count);
    EXPECT_EQ(found.return_addresses, std::vector<uint64_t>(stack.begin(), stack.begin() + count));
    EXPECT_FALSE(found.truncated);
  }
  for (const size_t count : {129, 513, 600}) {
    const Snapshot::Stack found = recorded(count);
    EXPECT_EQ(found.return_addresses, std::vector<uint64_t>(stack.begin(), stack.begin() + 128));
    EXPECT_TRUE(found.truncated) << "128 is the default depth";
  }
  EXPECT_GT(recorded(0).return_addresses.size(), 2u) << "without a stack, the real one";
}

// A wrapper of the user, whose frame is in no stack. Returns the place that called it.
[[gnu::noinline]] uintptr_t Wrapper(const void* in_scope, const void* after) {
  const hbmprof::Caller caller = hbmprof::Caller::OfThisFunction();
  const int begun = hbmprof_begin_caller(caller.pc, caller.sp, caller.fp);
  hbmprof_end_caller(hbmprof_begin_caller(caller.pc, caller.sp, caller.fp));  // the outer scope is in effect
  EXPECT_EQ(hbmprof_record_alloc(in_scope, 1, 0), 1);
  hbmprof_end_caller(begun);
  EXPECT_EQ(hbmprof_record_alloc(after, 1, 0), 1);
  return caller.pc;
}

TEST(CApi, StacksBeginAtTheCallerOfAWrapper) {
  const char buffers[2] = {};
  const uintptr_t call = Wrapper(&buffers[0], &buffers[1]);
  const auto stack = [&](int i) {
    return hbmprof::Profiler::Default().FindBufferAt(&buffers[i])->stack.return_addresses;
  };
  EXPECT_EQ(stack(0).at(0), call);
  EXPECT_NE(stack(1).at(0), call) << "the scope has ended";
  EXPECT_EQ(stack(1).at(1), call);
  for (const char& buffer : buffers) hbmprof_record_free(&buffer);
}

TEST(CApi, ActsOnTheDefaultProfiler) {
  const int buffer = 0;
  ASSERT_EQ(hbmprof_record_alloc(&buffer, 123, 5), 1);
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  EXPECT_EQ(profiler.Stats(profiler.Device("GPU:5")).bytes_in_use, 123);
  EXPECT_EQ(Stats(5).bytes_in_use, 123);
  EXPECT_TRUE(profiler.RecordFree(&buffer));
  EXPECT_EQ(hbmprof_record_free(&buffer), 0);
}

TEST(CApi, ResizeKeepsTheRecord) {
  const int buffer = 0;
  EXPECT_EQ(hbmprof_record_resize(&buffer, 10), 0) << "not recorded";
  ASSERT_EQ(hbmprof_record_alloc(&buffer, 100, 8), 1);
  EXPECT_EQ(hbmprof_record_resize(&buffer, 300), 1);
  EXPECT_EQ(hbmprof_record_resize(&buffer, 200), 1);
  const hbmprof_stats stats = Stats(8);
  EXPECT_EQ(stats.bytes_in_use, 200);
  EXPECT_EQ(stats.peak_bytes_in_use, 300);
  EXPECT_EQ(stats.num_allocs, 1);
  EXPECT_EQ(stats.num_live, 1);
  EXPECT_EQ(hbmprof_record_free(&buffer), 1);
  EXPECT_EQ(Stats(8).bytes_in_use, 0);
  EXPECT_EQ(hbmprof_record_resize(nullptr, 10), 0);
}

// Returns the name of the device; "" if there is no such device.
std::string DeviceName(int device) {
  char name[65] = "";
  const int size = hbmprof_device_name(device, name, sizeof(name));
  EXPECT_EQ(size, *name == '\0' ? -1 : static_cast<int>(std::strlen(name)));
  return name;
}

TEST(CApi, NamesOfDevices) {
  EXPECT_EQ(DeviceName(0), "GPU:0");
  EXPECT_EQ(DeviceName(62), "GPU:62");
  const int named = hbmprof_device("CApi:NamesOfDevices");
  EXPECT_EQ(DeviceName(named), "CApi:NamesOfDevices");
  const std::string longest(64, 'n');
  EXPECT_EQ(DeviceName(hbmprof_device(longest.c_str())), longest);
  for (const int unknown : {-1, 63, 127, 128}) EXPECT_EQ(DeviceName(unknown), "") << unknown;
  EXPECT_EQ(hbmprof_device_name(named, nullptr, 0), 19);
  char cut[5] = "";
  EXPECT_EQ(hbmprof_device_name(named, cut, sizeof(cut)), 19);
  EXPECT_STREQ(cut, "CApi");
}

std::vector<int> Devices() {
  std::vector<int> devices(100);
  devices.resize(static_cast<size_t>(hbmprof_devices(devices.data(), 100)));
  return devices;
}

TEST(CApi, OneDeviceByNumberNameAndDefault) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const char buffers[5] = {};
  const int by_name = hbmprof_device("GPU:0");
  const int tpu = hbmprof_device("TPU:0");
  EXPECT_NE(tpu, by_name);
  EXPECT_EQ(hbmprof_device("TPU:0"), tpu);
  EXPECT_EQ(by_name, 0);
  EXPECT_EQ(hbmprof_device("GPU:62"), 62);
  EXPECT_GE(hbmprof_device("GPU:007"), 64);  // another name
  ASSERT_EQ(hbmprof_record_alloc(&buffers[0], 1, 0), 1);
  ASSERT_EQ(hbmprof_record_alloc(&buffers[1], 20, by_name), 1);
  ASSERT_TRUE(profiler.RecordAlloc(&buffers[2], 300, {profiler.Device("GPU:0")}));
  ASSERT_TRUE(profiler.RecordAlloc(&buffers[3], 4000));
  ASSERT_EQ(hbmprof_record_alloc(&buffers[4], 50000, tpu), 1);
  EXPECT_EQ(Stats(0).bytes_in_use, 4321);
  EXPECT_EQ(Stats(by_name).bytes_in_use, 4321);
  EXPECT_EQ(Stats(tpu).bytes_in_use, 50000);
  EXPECT_EQ(profiler.Stats(profiler.Device("TPU:0")).bytes_in_use, 50000);
  // Other tests of this process may have used more devices.
  const std::vector<int> devices = Devices();
  EXPECT_THAT(devices, IsSupersetOf({0, tpu}));
  EXPECT_EQ(hbmprof_devices(nullptr, 0), static_cast<int>(devices.size()));
  int one[] = {-1, -1};
  EXPECT_EQ(hbmprof_devices(one, 1), static_cast<int>(devices.size()));
  EXPECT_EQ(one[0], devices[0]);
  EXPECT_EQ(one[1], -1);
  const Snapshot snapshot = profiler.TakeSnapshot();
  std::string in_use;
  for (const auto& device : snapshot.devices) {
    if (device.spaces[0].bytes_in_use == 0) continue;  // of another test
    in_use += device.name + "=" + std::to_string(device.spaces[0].bytes_in_use) + " ";
  }
  EXPECT_EQ(in_use, "GPU:0=4321 TPU:0=50000 ");
  for (const char& buffer : buffers) hbmprof_record_free(&buffer);
}

TEST(CApi, UnknownNumberIsTheDeviceUnknown) {
  const char buffers[3] = {};
  const int unknown[] = {-1, 63, 1 << 30};
  for (int i = 0; i < 3; ++i) ASSERT_EQ(hbmprof_record_alloc(&buffers[i], 100, unknown[i]), 1);
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  EXPECT_EQ(profiler.Stats(profiler.Device("unknown")).bytes_in_use, 300);
  hbmprof_stats stats = {};
  stats.struct_size = sizeof(stats);
  for (const int device : unknown) EXPECT_EQ(hbmprof_get_stats(device, &stats), 3) << device;
  for (const char& buffer : buffers) hbmprof_record_free(&buffer);
}

// In a child process, so that names are left for the devices of other tests.
TEST(CApi, NamesBeyondTheLimitShareOneDevice) {
  EXPECT_EXIT(
      {
        std::vector<int> devices;
        for (int i = 0; i < 70; ++i) devices.push_back(hbmprof_device(("NPU:" + std::to_string(i)).c_str()));
        EXPECT_NE(devices[0], devices[1]);
        EXPECT_EQ(devices[68], devices[69]);
        const int buffer = 0;
        EXPECT_EQ(hbmprof_record_alloc(&buffer, 70, devices[69]), 1);
        EXPECT_EQ(Stats(devices[68]).bytes_in_use, 70);
        _exit(HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(CApi, WritesOnlyFieldsWithinStructSize) {
  const int buffer = 0;
  ASSERT_EQ(hbmprof_record_alloc(&buffer, 50, 6), 1);
  hbmprof_stats stats;
  std::memset(&stats, 0x5a, sizeof(stats));
  stats.struct_size = offsetof(hbmprof_stats, peak_bytes_in_use);  // an early version of the struct
  ASSERT_EQ(hbmprof_get_stats(6, &stats), 0);
  EXPECT_EQ(stats.struct_size, offsetof(hbmprof_stats, peak_bytes_in_use));
  EXPECT_EQ(stats.bytes_in_use, 50);
  EXPECT_EQ(stats.peak_bytes_in_use, 0x5a5a5a5a5a5a5a5a);
  EXPECT_EQ(stats.baseline, 0x5a5a5a5a5a5a5a5a);
  stats.struct_size = sizeof(size_t);
  EXPECT_EQ(hbmprof_get_stats(6, &stats), 3);
  EXPECT_THAT(hbmprof_last_error(), HasSubstr("struct_size"));
  struct {
    hbmprof_stats known;
    char later_fields[64];
  } larger = {};
  std::memset(larger.later_fields, 0x5a, sizeof(larger.later_fields));
  larger.known.struct_size = sizeof(larger);
  EXPECT_EQ(hbmprof_get_stats(6, &larger.known), 0);
  EXPECT_EQ(larger.known.bytes_in_use, 50);
  for (const char byte : larger.later_fields) EXPECT_EQ(byte, 0x5a);
  hbmprof_record_free(&buffer);
}

TEST(CApi, TagScopesNest) {
  const auto tags_now = [] {
    const int buffer = 0;
    EXPECT_EQ(hbmprof_record_alloc(&buffer, 1, 7), 1);
    std::string text;
    for (const auto& sample : hbmprof::Profiler::Default().TakeSnapshot().samples) {
      if (sample.inuse_bytes == 0) continue;
      for (const auto& [key, value] : sample.tags) text.append(key).append("=").append(value).append(" ");
    }
    hbmprof_record_free(&buffer);
    return text;
  };
  EXPECT_EQ(tags_now(), "");
  hbmprof_tag_push("a", "1");
  hbmprof_tag_push("b", "2");
  EXPECT_EQ(tags_now(), "a=1 b=2 ");
  for (int i = 0; i < 70; ++i) hbmprof_tag_push("b", ("deep" + std::to_string(i)).c_str());
  EXPECT_EQ(tags_now(), "a=1 b=deep61 ") << "the first two and 62 more took effect";
  for (int i = 0; i < 70; ++i) hbmprof_tag_pop();
  EXPECT_EQ(tags_now(), "a=1 b=2 ");
  hbmprof_tag_pop();
  EXPECT_EQ(tags_now(), "a=1 ");
  hbmprof_tag_pop();
  hbmprof_tag_pop();
  EXPECT_EQ(tags_now(), "");
  hbmprof_tag_push("c", "3");
  EXPECT_EQ(tags_now(), "c=3 ") << "a pop too many is not remembered";
  hbmprof_tag_pop();
}

TEST(CApi, ReportsAFailedAllocation) {
  const int device = hbmprof_device("c_api_oom:0");
  ::testing::internal::CaptureStderr();
  hbmprof::internal::UseStandardError();
  EXPECT_EQ(hbmprof_report_out_of_memory("my_malloc", 4096, device, HBMPROF_SPACE_DEVICE), 1);
  EXPECT_EQ(hbmprof_report_out_of_memory("my_malloc", -1, device, HBMPROF_SPACE_DEVICE), 0) << "once a minute";
  EXPECT_EQ(hbmprof_report_out_of_memory(nullptr, 1, 1, HBMPROF_SPACE_DEVICE), 0);
  EXPECT_EQ(hbmprof_report_out_of_memory("f", 1, -1, HBMPROF_SPACE_DEVICE), 0);
  EXPECT_EQ(hbmprof_report_out_of_memory("f", 1, 1, 3), 0);
  EXPECT_EQ(hbmprof_report_out_of_memory("other", -1, 1, HBMPROF_SPACE_DEVICE), 1);
  const std::string text = ::testing::internal::GetCapturedStderr();
  hbmprof::internal::UseStandardError();
  EXPECT_THAT(text, HasSubstr("hbmprof: out of memory on c_api_oom:0: my_malloc of 4.00 KiB failed\n"));
  EXPECT_THAT(text, HasSubstr("hbmprof: out of memory on GPU:1: other failed\n"));
}

TEST(CApi, LastErrorIsPerThreadAndKeptAfterSuccess) {
  ASSERT_NE(hbmprof_get_stats(1000, nullptr), 0);
  const std::string error = hbmprof_last_error();
  EXPECT_NE(error, "");
  Stats(0);
  EXPECT_EQ(hbmprof_last_error(), error);
  std::thread([] { EXPECT_THAT(hbmprof_last_error(), StrEq("")); }).join();
}

TEST(CApi, ErrorNamesTheCalledFunction) {
  hbmprof_stats stats = {};
  ASSERT_NE(hbmprof_get_stats(0, &stats), 0);
  EXPECT_THAT(hbmprof_last_error(), StartsWith("hbmprof_get_stats: "));
  ASSERT_NE(hbmprof_get_space_stats(0, HBMPROF_SPACE_MANAGED, &stats), 0);
  EXPECT_THAT(hbmprof_last_error(), StartsWith("hbmprof_get_space_stats: "));
}

TEST(CApi, LongErrorIsCut) {
  const std::string path = "/nowhere/" + std::string(100000, 'x');
  EXPECT_GT(hbmprof_save_device_memory_profile(path.c_str()), 0);
  EXPECT_THAT(hbmprof_last_error(), HasSubstr("/nowhere/xxx"));
}

}  // namespace
