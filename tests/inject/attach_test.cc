// Attaching the injected library to a running process, by the process itself. Each test runs attach_program.cc on the
// fake libraries, or attach_real_program.cc on the real libcuda.
#include <elf.h>
#include <linux/capability.h>
#include <sys/prctl.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_socket.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"
#include "tests/support/sanitized.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ControlAnswer;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::RunningProgram;
using ::hbmprof_test::ViewProfile;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kContext = 3 * kMiB;  // fake_cuda_context_bytes

class AttachTest : public ::testing::Test {
 protected:
  // As root, a real library makes /dev/nvidiactl. Programs that are started without this right cannot.
  static void SetUpTestSuite() { prctl(PR_CAPBSET_DROP, CAP_MKNOD, 0, 0, 0); }

  std::vector<std::string> Environment(const std::string& libraries, std::vector<std::string> more = {}) const {
    more.push_back("LD_LIBRARY_PATH=" + libraries);
    more.push_back("ATTACH_OPTIONS=HBMPROF_SOCKET_DIR=" + sockets_ + "\nHBMPROF_GPU_OUTPUT=" + profile_ + "\n");
    return more;
  }
  std::string Query(const RunningProgram& program, const std::string& request) const {
    return ControlAnswer(sockets_ + "/hbmprof." + std::to_string(program.pid()) + ".sock", request);
  }
  // The bytes of the device, by the records and by the driver.
  void ExpectSameTotals(const RunningProgram& program, int64_t bytes) const {
    const std::string stats = Query(program, "stats");
    EXPECT_THAT(stats, HasSubstr("\"bytes_in_use\":" + std::to_string(bytes) + ","));
    EXPECT_THAT(stats, HasSubstr("\"driver_bytes_in_use\":" + std::to_string(bytes) + ","));
    EXPECT_THAT(stats, HasSubstr("\"unaccounted\":0"));
  }

  const std::string directory_ = NewDirectory();
  const std::string sockets_ = NewDirectory();
  const std::string profile_ = directory_ + "/exit.pb.gz";
};

// On the fake driver with each form of the entries.
class AttachFormTest : public AttachTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(AttachFormTest, OldMemoryShrinksAndTotalsAreTheDrivers) {
  for (const char* const nvml : {":" HBMPROF_NVML_DOUBLE, ""}) {
    RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "leak"},
                           Environment(std::string(GetParam()) + nvml));
    EXPECT_EQ(program.ReadLine(), "attach 0");
    EXPECT_EQ(program.ReadLine(), "again 1");
    std::string info = Query(program, "info");
    for (int i = 0; i < 1000 && info.find("calls 1\n") == std::string::npos; ++i) info = Query(program, "info");
    EXPECT_THAT(info, HasSubstr("\nattach attached\n"));
    EXPECT_THAT(info, HasSubstr("\nbefore " + std::to_string(8 * kMiB + kContext) + " 0 GPU:0\n"));
    if (*nvml != '\0') ExpectSameTotals(program, 9 * kMiB + kContext);
    program.WriteLine("");
    EXPECT_EQ(program.ReadLine(), "freed 0");
    if (*nvml != '\0') ExpectSameTotals(program, 5 * kMiB + kContext);
    EXPECT_THAT(Query(program, "info"), HasSubstr("\nbefore " + std::to_string(3 * kMiB + kContext) + " 0 GPU:0\n"));
    program.WriteLine("");
    EXPECT_EQ(program.ReadLine(), "freed 0");
    EXPECT_THAT(Query(program, "info"), HasSubstr("\nbefore " + std::to_string(kContext) + " 0 GPU:0\n"));
    program.WriteLine("");
    EXPECT_EQ(program.Wait(), 0);
    const ProfileView view = ViewProfile(profile_);
    EXPECT_EQ(view.SumUnder("inuse_space", "allocate_after"), 2 * kMiB);
    EXPECT_EQ(view.SumUnder("inuse_space", "[before attach]"), kContext);
  }
}

TEST_P(AttachFormTest, EachMarkedCallCountsOnceBesideHammeringThreads) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "cycles", "500"},
                         Environment(std::string(GetParam()) + ":" HBMPROF_NVML_DOUBLE));
  EXPECT_EQ(program.ReadLine(), "cycles 500");
  program.WriteLine("");
  EXPECT_EQ(program.Wait(), 0);
  const ProfileView view = ViewProfile(profile_);
  EXPECT_EQ(view.SumUnder("inuse_objects", "allocate_after"), 7) << "the records of the earlier times have ended";
  EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_after"), 507);
  EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_before"), 0);
}

TEST_P(AttachFormTest, ArgumentsOnTheStackArrive) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "stack_arguments"}, Environment(GetParam()));
  EXPECT_EQ(program.ReadLine(), "in order 0");
  EXPECT_EQ(program.Wait(), 0);
  const ProfileView view = ViewProfile(profile_);
  // Stacks go on behind the entry.
  EXPECT_EQ(view.SumUnder("alloc_objects", "call_with_stack_arguments"), 2);
}

INSTANTIATE_TEST_SUITE_P(Driver, AttachFormTest,
                         ::testing::Values(HBMPROF_DOUBLES
#ifdef HBMPROF_DOUBLES_580
                                           ,
                                           HBMPROF_DOUBLES_580, HBMPROF_DOUBLES_595
#endif
                                           ),
                         [](const auto& info) {
                           const std::string folder = info.param;
                           return folder == HBMPROF_DOUBLES ? "470" : folder.substr(folder.size() - 3);
                         });

TEST_F(AttachTest, OneOfTwoThreadsAttaches) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "both"}, Environment(HBMPROF_DOUBLES));
  EXPECT_EQ(program.ReadLine(), "both 0");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, PreloadedLibraryRefuses) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "leak"},
                         Environment(HBMPROF_DOUBLES, {"LD_PRELOAD=" HBMPROF_INJECTED}));
  EXPECT_EQ(program.ReadLine(), "attach 2");
}

// The second copy of the library finds the wrappers of the first one in the slots.
TEST_F(AttachTest, ForeignSlotRefuses) {
  const std::string copy = directory_ + "/libcopy.so";
  std::filesystem::copy_file(HBMPROF_INJECTED, copy);
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "copy", copy}, Environment(HBMPROF_DOUBLES));
  EXPECT_EQ(program.ReadLine(), "first 0");
  EXPECT_EQ(program.ReadLine(), "second 6");
  EXPECT_EQ(program.ReadLine(), "first detach 0");
  EXPECT_EQ(program.ReadLine(), "second 0");
  EXPECT_EQ(program.ReadLine(), "first 6");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, ForkedChildRefuses) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "child"}, Environment(HBMPROF_DOUBLES));
  EXPECT_EQ(program.ReadLine(), "child attach 8");
  EXPECT_EQ(program.ReadLine(), "child detach 8");
  EXPECT_EQ(program.ReadLine(), "detach 0");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, ChildOfVforkRefuses) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "vfork"}, Environment(HBMPROF_DOUBLES));
  EXPECT_EQ(program.ReadLine(), "child attach 12");
  EXPECT_EQ(program.ReadLine(), "child detach 12");
  EXPECT_EQ(program.ReadLine(), "attach 0");
  EXPECT_EQ(program.ReadLine(), "detach 0");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, CancellationWaits) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "cancelled"}, Environment(HBMPROF_DOUBLES));
  EXPECT_EQ(program.ReadLine(), "attach 0");
  EXPECT_EQ(program.ReadLine(), "detach 0");
  EXPECT_EQ(program.ReadLine(), "attach 0");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, OptionsThatCannotBeTakenRefuse) {
  if (hbmprof_test::kSanitized) GTEST_SKIP() << "the allocator of a sanitizer ends the program";
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "options"}, Environment(HBMPROF_DOUBLES));
  EXPECT_EQ(program.ReadLine(), "too long 10");
  EXPECT_EQ(program.ReadLine(), "no memory 7");
  EXPECT_EQ(program.ReadLine(), "attach 0");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, ControlChannelThatCannotStartRefuses) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "no_thread"}, Environment(HBMPROF_DOUBLES),
                         directory_ + "/errors");
  EXPECT_EQ(program.ReadLine(), "no thread 11");
  EXPECT_EQ(program.ReadLine(), "attach 0");
  EXPECT_THAT(Query(program, "info"), HasSubstr("\nattach attached\n"));
  program.WriteLine("");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, WarnsIfNoCallIsSeen) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "silent"},
                         Environment(HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE));
  EXPECT_EQ(program.ReadLine(), "attach 0");
  const std::string dump = directory_ + "/dump.pb.gz";
  const auto has_warning = [&] {
    std::ofstream(dump, std::ios::binary) << Query(program, "profile");
    for (const std::string& comment : ViewProfile(dump).comments) {
      if (comment.find("was%20seen%20since%20hbmprof%20was%20attached,%20but") != std::string::npos) {
        return true;
      }
    }
    return false;
  };
  EXPECT_FALSE(has_warning());
  program.WriteLine("");
  EXPECT_EQ(program.ReadLine(), "taken 0");
  EXPECT_TRUE(has_warning());
  program.WriteLine("");
  EXPECT_EQ(program.ReadLine(), "called 0");
  EXPECT_FALSE(has_warning());
  program.WriteLine("");
}

TEST_F(AttachTest, WrongReportsAreNamedAfterEachAttach) {
  RunningProgram program({HBMPROF_INJECT_ATTACH, HBMPROF_INJECTED, "tensorflow", HBMPROF_TENSORFLOW_DOUBLE},
                         Environment(HBMPROF_DOUBLES));
  const std::string dump = directory_ + "/dump.pb.gz";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(program.ReadLine(), "attach 0");
    EXPECT_EQ(program.ReadLine(), "reported 0");
    std::ofstream(dump, std::ios::binary) << Query(program, "profile");
    EXPECT_THAT(ViewProfile(dump).comments, Contains(HasSubstr("TensorFlow's%20blocks%20are%20not%20shown"))) << i;
    program.WriteLine("");
  }
  EXPECT_EQ(program.Wait(), 0);
}

// Copies a library, and calls change(segment) for each of its program headers.
template <typename Change>
void CopyWithSegments(const std::string& from, const std::string& to, const Change& change) {
  std::ifstream original(from, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(original), {}};
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  auto* const segments = reinterpret_cast<Elf64_Phdr*>(bytes.data() + header.e_phoff);
  std::for_each(segments, segments + header.e_phnum, change);
  std::ofstream(to, std::ios::binary) << bytes;
}

void MakeExecutable(Elf64_Phdr& segment) {
  if (segment.p_type == PT_LOAD) segment.p_flags |= PF_X;
}

// In the first library, read-only references; in the others, all data can be executed, and references are read-only or
// stay writable.
TEST_F(AttachTest, PagesKeepTheirProtection) {
  const std::string injected = directory_ + "/libhbmprof_gpu.so";
  const std::string read_only = directory_ + "/read_only.so";
  const std::string writable = directory_ + "/writable.so";
  CopyWithSegments(HBMPROF_INJECTED, injected, &MakeExecutable);
  CopyWithSegments(HBMPROF_TENSORFLOW_DOUBLE, read_only, &MakeExecutable);
  CopyWithSegments(HBMPROF_TENSORFLOW_DOUBLE, writable, [](Elf64_Phdr& segment) {
    MakeExecutable(segment);
    if (segment.p_type == PT_GNU_RELRO) segment.p_type = PT_NULL;
  });
  for (const std::string& ours : {std::string(HBMPROF_INJECTED), injected}) {
    for (const std::string& other : {std::string(HBMPROF_TENSORFLOW_DOUBLE), read_only, writable}) {
      const CommandResult run =
          RunCommand({HBMPROF_INJECT_ATTACH, ours, "protections", other}, Environment(HBMPROF_DOUBLES));
      EXPECT_EQ(run.out, "attach 0\nchanged 0\ndetach 0\nchanged 0\n") << ours << ' ' << other << '\n' << run.err;
      EXPECT_EQ(run.exit_code, 0) << ours << ' ' << other;
    }
  }
}

TEST_F(AttachTest, UnknownFormRefuses) {
  RunningProgram program({HBMPROF_INJECT_ATTACH_REAL, HBMPROF_INJECTED}, Environment(HBMPROF_LACKING_STUB));
  EXPECT_EQ(program.ReadLine(), "without a driver 4 9");
  EXPECT_EQ(program.ReadLine(), "attach 5");
  program.WriteLine("");
  EXPECT_EQ(program.ReadLine(), "detach 9");
}

#if defined(HBMPROF_SHARED)
TEST_F(AttachTest, PythonStartsLate) {
  std::filesystem::create_symlink(HBMPROF_SHARED, directory_ + "/libhbmprof_c.so");
  std::filesystem::create_symlink(HBMPROF_INJECTED, directory_ + "/libhbmprof_gpu.so");
  const CommandResult run = RunCommand(
      {"/usr/bin/env", "python3", HBMPROF_ATTACH_PYTHON_PROGRAM, profile_},
      {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES, "HBMPROF_LIBRARY_DIR=" + directory_, "PYTHONPATH=" HBMPROF_PYTHON_PACKAGE});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, "hbmprof.start: an option contains a line break or a null byte\nin use " +
                         std::to_string(6 * kMiB + kContext) + "\nin use " + std::to_string(8 * kMiB + kContext) +
                         "\n");
  const ProfileView view = ViewProfile(profile_);
  EXPECT_EQ(view.Sum("inuse_space"), 8 * kMiB + kContext);
  EXPECT_EQ(view.SumUnder("inuse_space", "[before attach]"), 7 * kMiB + kContext);
  EXPECT_EQ(view.SumUnder("inuse_space", "allocate"), kMiB);
  EXPECT_EQ(view.SumWhere("alloc_space", "phase", "after"), kMiB);
}
#endif

TEST_F(AttachTest, WithoutADriver) {
  RunningProgram program({HBMPROF_INJECT_ATTACH_REAL, HBMPROF_INJECTED}, Environment(directory_));
  EXPECT_EQ(program.ReadLine(), "without a driver 4 9");
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(AttachTest, RealDriversSlotsAreSetAndRestored) {
  if (!std::filesystem::exists(HBMPROF_DRIVERS)) GTEST_SKIP() << "no " HBMPROF_DRIVERS;
  for (const auto& driver : std::filesystem::directory_iterator(HBMPROF_DRIVERS)) {
    SCOPED_TRACE(driver.path());
    RunningProgram program({HBMPROF_INJECT_ATTACH_REAL, HBMPROF_INJECTED},
                           Environment(driver.path(), {"HBMPROF_SOCKET_DIR=" + sockets_}));
    EXPECT_EQ(program.ReadLine(), "without a driver 4 9");
    EXPECT_EQ(program.ReadLine(), "attach 0");
    EXPECT_THAT(Query(program, "info"), HasSubstr("\nattach attached\n"));
    program.WriteLine("");
    EXPECT_EQ(program.ReadLine(), "detach 0");
    EXPECT_EQ(program.ReadLine(), "attach 0");
    program.WriteLine("");
    EXPECT_EQ(program.ReadLine(), "detach 0");
    EXPECT_EQ(program.Wait(), 0);
  }
}

}  // namespace
