// Unchanged programs that are started with the injected library on the fake driver, and their profiles.
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/compat/first_glibc.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ExpectDone;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

struct Injected {
  std::string output = NewDirectory() + "/profile.pb.gz";
  std::vector<std::string> environment;
  std::string preload = HBMPROF_INJECTED;
  bool uses_fakes = true;  // by LD_LIBRARY_PATH

  CommandResult Run(const std::vector<std::string>& command) const {
    std::vector<std::string> all = environment;
    all.push_back("LD_PRELOAD=" + preload);
    if (uses_fakes) all.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES);
    all.push_back("HBMPROF_GPU_OUTPUT=" + output);
    return RunCommand(command, all);
  }
  ProfileView View() const { return ViewProfile(output); }
};

std::string Program(const std::string& name) { return HBMPROF_INJECT_PROGRAMS "/" + name; }

// Returns the profile of a case of cases_program, which must succeed.
ProfileView RunCase(Injected injected, std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
  arguments.insert(arguments.begin(), Program("inject_cases"));
  injected.environment = std::move(environment);
  ExpectDone(injected.Run(arguments));
  return injected.View();
}

// --- Every way to the driver, every kind of memory. ---

struct Kind {
  const char* name;
  int64_t bytes;
  const char* label;
};

class MatrixTest : public ::testing::TestWithParam<std::tuple<std::string, Kind>> {};

TEST_P(MatrixTest, RecordsOnceWithUserFrame) {
  const auto& [route, kind] = GetParam();
  const Injected injected;
  ExpectDone(injected.Run({Program("inject_matrix_" + route), kind.name, "hold"}));
  const ProfileView view = injected.View();
  // The program opens memory that it has allocated itself, which also counts. Usually another process allocates it.
  const bool ipc = std::string(kind.name) == "ipc";
  EXPECT_EQ(view.Sum("inuse_objects"), ipc ? 2 : 1);
  EXPECT_EQ(view.Sum("inuse_space"), kind.bytes + (ipc ? 8192 : 0));
  EXPECT_EQ(view.SumWhere("inuse_space", "kind", kind.label), kind.bytes);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:1"), view.Sum("inuse_space"));
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
  EXPECT_EQ(view.Comment("tracker", "replaced_records"), "0");
  ASSERT_EQ(view.SumUnder("inuse_objects", "user_allocates"), 1);
  for (const ProfileView::Sample& sample : view.samples) {
    if (!sample.Has("user_allocates")) continue;
    const auto user = std::find(sample.functions.begin(), sample.functions.end(), "user_allocates");
    if (route == "static" || route == "shared") {
      EXPECT_LE(user - sample.functions.begin(), 2) << "above it only the runtime's own";
    } else {
      EXPECT_EQ(user, sample.functions.begin());
    }
    EXPECT_EQ(sample.functions.back(), "_start");
  }
}

TEST_P(MatrixTest, FreesToZero) {
  const auto& [route, kind] = GetParam();
  const Injected injected;
  ExpectDone(injected.Run({Program("inject_matrix_" + route), kind.name, "free"}));
  const ProfileView view = injected.View();
  EXPECT_EQ(view.Sum("inuse_objects"), 0);
  EXPECT_EQ(view.Sum("inuse_space"), 0);
  EXPECT_EQ(view.SumUnder("alloc_objects", "user_allocates"), 1);
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
}

INSTANTIATE_TEST_SUITE_P(
    Inject, MatrixTest,
    ::testing::Combine(::testing::Values("static", "shared", "linked", "dlsym", "get_proc_address"),
                       ::testing::Values(Kind{"linear", 12345, "device"}, Kind{"pitch", 3072, "device"},
                                         Kind{"managed", 2222, "managed"}, Kind{"pinned", 3333, "pinned_host"},
                                         Kind{"async", 4444, "device"}, Kind{"pool", 5555, "device"},
                                         Kind{"vmm", 2 * kMiB, "vmm"}, Kind{"array", 4096, "array"},
                                         Kind{"graph", 7777, "graph"}, Kind{"ipc", 8192, "external"})),
    [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

// --- Patterns of real programs. ---

TEST(InjectTest, GgmlPoolEndsAtZero) {
  const ProfileView view = RunCase({}, {"ggml"});
  EXPECT_EQ(view.Sum("inuse_space"), 0);
  EXPECT_EQ(view.Sum("alloc_space"), 32 * kMiB);
  EXPECT_EQ(view.Sum("peak_space"), 32 * kMiB);
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
}

TEST(InjectTest, ReusedAddressesInThreadsEndAtZero) {
  const ProfileView view = RunCase({}, {"threads"});
  EXPECT_EQ(view.Sum("inuse_space"), 0);
  EXPECT_GT(view.Sum("alloc_objects"), 1000);
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
  EXPECT_EQ(view.Comment("tracker", "replaced_records"), "0");
}

TEST(InjectTest, GraphMemoryCountsFromLaunchToFree) {
  const auto in_use = [](const char* moment) {
    SCOPED_TRACE(moment);
    const ProfileView view = RunCase({}, {"graphs", moment});
    EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
    // The other memory that graphs have reserved is idle, and only the context is unaccounted.
    EXPECT_EQ(view.Comment("device GPU:0", "unaccounted"), view.Comment("device GPU:0", "baseline"));
    const bool launched = std::string(moment) != "made";
    const int64_t bytes = view.SumWhere("inuse_space", "kind", "graph");
    EXPECT_EQ(view.SumWhere("alloc_space", "kind", "graph") > 0, launched) << "each launch allocates";
    EXPECT_EQ(view.Comment("device GPU:0", "driver_cache"), std::to_string(launched ? 5 * kMiB - bytes : 0));
    return bytes;
  };
  EXPECT_EQ(in_use("made"), 0);
  EXPECT_EQ(in_use("launched"), kMiB);
  EXPECT_EQ(in_use("launched_again"), kMiB) << "and freed in between";
  EXPECT_EQ(in_use("destroyed"), kMiB) << "as the driver keeps it";
  EXPECT_EQ(in_use("freed"), 0);
  EXPECT_EQ(in_use("freed_by_another_graph"), 0);
}

TEST(InjectTest, EveryVersionOfAddNodeIsTracked) {
  EXPECT_EQ(RunCase({}, {"graph_nodes"}).SumWhere("inuse_space", "kind", "graph"), 2 * kMiB);
}

TEST(InjectTest, PerThreadDefaultStreamCallsAreTracked) {
  EXPECT_EQ(RunCase({}, {"per_thread"}).Sum("inuse_space"), 4444);
}

TEST(InjectTest, DestroyedContextEndsOnlyItsMemory) {
  EXPECT_EQ(RunCase({}, {"contexts"}).Sum("inuse_space"), 100);
  EXPECT_EQ(RunCase({}, {"contexts", "reset"}).Sum("inuse_space"), 0);
}

TEST(InjectTest, CodeSizeIsMeasured) {
  EXPECT_EQ(RunCase({}, {"module"}).SumWhere("inuse_space", "kind", "executable"), 2 * kMiB);
  EXPECT_EQ(RunCase({}, {"module", "unload"}).SumWhere("inuse_space", "kind", "executable"), 0);
}

// --- How programs find the driver. ---

TEST(InjectTest, EveryLookupReturnsTheWrapper) {
  const CommandResult run = Injected().Run({Program("inject_cases"), "get_proc_address"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::istringstream lines(run.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_THAT(line, HasSubstr("libhbmprof_gpu.so"));
  EXPECT_EQ(count, 14);
}

// The real runtime, static and shared, and NVIDIA's libraries that contain one each. Their lookups end with an error:
// the fake driver does not work with them.
struct RealRuntime {
  const char* program;
  const char* argument;
  int runtimes;  // that look up the driver's calls

  friend std::ostream& operator<<(std::ostream& out, const RealRuntime& runtime) { return out << runtime.program; }
};

class RealRuntimeTest : public ::testing::TestWithParam<RealRuntime> {};

TEST_P(RealRuntimeTest, GetsTheWrappers) {
  const std::vector<std::string> command = {GetParam().program, GetParam().argument};
  if (access(command[0].c_str(), X_OK) != 0) {
    GTEST_SKIP() << "what this needs to be built was neither in build/pypi (scripts/test.sh) nor in a CUDA toolkit";
  }
  Injected injected;
  injected.preload = HBMPROF_INJECT_SPY ":" HBMPROF_INJECTED;
  const CommandResult run = injected.Run(command);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, RunCommand(command, {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES}).out);
  std::map<std::string, std::string> given;
  int lookups = 0;
  std::istringstream lines(run.err);
  for (std::string name, library; lines >> name >> library; ++lookups) given[name] = library;
  EXPECT_GT(lookups, 400 * GetParam().runtimes);
  for (const char* name :
       {"cuGetProcAddress:", "cuMemAlloc:", "cuMemAllocPitch:", "cuMemAllocManaged:", "cuMemFree:", "cuMemHostAlloc:",
        "cuMemFreeHost:", "cuMemHostRegister:", "cuMemAllocAsync:", "cuMemFreeAsync:", "cuMemAllocFromPoolAsync:",
        "cuMemPoolCreate:", "cuArrayCreate:", "cuArray3DCreate:", "cuArrayDestroy:", "cuIpcOpenMemHandle:",
        "cuIpcCloseMemHandle:", "cuGraphAddMemAllocNode:", "cuGraphDestroy:"}) {
    EXPECT_EQ(given[name], "libhbmprof_gpu.so") << name;
  }
  EXPECT_EQ(given["cuInit:"], "libcuda.so.1");
}

INSTANTIATE_TEST_SUITE_P(Inject, RealRuntimeTest,
                         ::testing::Values(RealRuntime{HBMPROF_INJECT_PROGRAMS "/inject_real_runtime_12", "", 1},
                                           RealRuntime{HBMPROF_INJECT_PROGRAMS "/inject_real_runtime_12_shared", "", 1},
                                           RealRuntime{HBMPROF_INJECT_PROGRAMS "/inject_real_runtime_13", "", 1},
                                           RealRuntime{HBMPROF_INJECT_PROGRAMS "/inject_real_runtime_13_shared", "", 1},
                                           RealRuntime{HBMPROF_GPU_PROGRAMS "/gpu_program_cublas", "refused", 2},
                                           RealRuntime{HBMPROF_GPU_PROGRAMS "/gpu_program_nccl", "refused", 1}),
                         [](const auto& info) { return std::string(std::strrchr(info.param.program, '/') + 1); });

// The first allocation looks for NVML, which is not there.
TEST(InjectTest, SearchesLeaveNoErrorForDlerror) {
  const ProfileView view = RunCase({}, {"dlerror"});
  EXPECT_EQ(view.Sum("inuse_space"), 100);
}

TEST(InjectTest, DlsymForwardsOtherNames) {
  for (const bool has_driver : {true, false}) {
    SCOPED_TRACE(has_driver);
    const std::string path = has_driver ? "LD_LIBRARY_PATH=" HBMPROF_DOUBLES : "LD_LIBRARY_PATH=";
    Injected injected;
    injected.uses_fakes = false;
    injected.environment = {path};
    const CommandResult run = injected.Run({Program("inject_dlsym")});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, RunCommand({Program("inject_dlsym")}, {path}).out);
    EXPECT_THAT(run.out, HasSubstr("RTLD_NEXT from a library: the C library's"));
    EXPECT_THAT(run.out, HasSubstr("a wrapped name: a library's own\nwithout an error\n"));
  }
}

// The library uses the C library's dlsym and the driver's own functions, not the preloaded ones.
TEST(InjectTest, DeepBoundLibraryByPathIsTracked) {
  const Injected injected;
  ExpectDone(injected.Run({Program("inject_deep_bind"), HBMPROF_DEEP_BIND_LIBRARY}));
  const ProfileView view = injected.View();
  EXPECT_EQ(view.Sum("alloc_space"), 2 * (1000 + 2000)) << "through its runtime, and the driver's function";
  EXPECT_EQ(view.Sum("inuse_space"), 2 * 2000);
}

TEST(InjectTest, PythonProgramThatHasEndedShowsItsVariables) {
  const Injected injected;
  const CommandResult run = injected.Run({"python3", HBMPROF_ENDED_PYTHON_PROGRAM});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = injected.View();
  EXPECT_EQ(view.SumUnder("inuse_space", "load_weights"), 3 << 20);
  EXPECT_EQ(view.Sum("inuse_space"), 3 << 20);
}

// --- The program's behaviour does not change. ---

TEST(InjectTest, FailuresAreReturnedAndNotRecorded) {
  Injected injected;
  injected.environment = {"FAKE_CUDA_FAIL=cuMemAlloc_v2:2:0"};
  const CommandResult run = injected.Run({Program("inject_cases"), "fails"});
  EXPECT_EQ(run.out, "2 1\n") << "out of memory, invalid value";
  EXPECT_EQ(run.out, RunCommand({Program("inject_cases"), "fails"},
                                {"FAKE_CUDA_FAIL=cuMemAlloc_v2:2:0", "LD_LIBRARY_PATH=" HBMPROF_DOUBLES})
                         .out);
  EXPECT_EQ(injected.View().Sum("alloc_objects"), 0);
}

TEST(InjectTest, CrashIsUnchanged) {
  const CommandResult run = Injected().Run({Program("inject_cases"), "crash"});
  EXPECT_EQ(run.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(run.err, "");
}

TEST(InjectTest, OffRecordsAndWritesNothing) {
  Injected injected;
  injected.environment = {"HBMPROF=0"};
  ExpectDone(injected.Run({Program("inject_cases"), "plain"}));
  EXPECT_NE(access(injected.output.c_str(), F_OK), 0);
}

TEST(InjectTest, ProgramWithoutCudaWritesNoProfile) {
  const Injected injected;
  const CommandResult run = injected.Run({"/bin/echo", "hello"});
  EXPECT_EQ(run.out, "hello\n");
  EXPECT_EQ(run.err, "");
  EXPECT_NE(access(injected.output.c_str(), F_OK), 0);
}

// The folder of the distribution's libraries.
#if defined(__aarch64__)
const std::string kLibraries = "/usr/lib/aarch64-linux-gnu/";
#else
const std::string kLibraries = "/usr/lib/x86_64-linux-gnu/";
#endif

// Programs that contain their own protobuf or abseil, and plugins that contain another copy, with and without preloaded
// allocators.
class CarriesTest : public ::testing::TestWithParam<std::tuple<std::string, std::string, std::string, std::string>> {
 protected:
  // "" for none. Skips if it is not installed.
  static std::string Allocator(const std::string& name) {
    const std::string path = kLibraries + name;
    return name.empty() || access(path.c_str(), R_OK) != 0 ? "" : path;
  }
};

TEST_P(CarriesTest, BehavesTheSameAndWritesAProfile) {
  const auto& [library, how, allocator, order] = GetParam();
  const std::string program = Program("inject_carries_" + library);
  const std::string plugin = Program("libinject_plugin_" + library + ".so");
  if (access(program.c_str(), X_OK) != 0) GTEST_SKIP() << "no static " << library << " was found when this was built";
  const std::string other = Allocator(allocator);
  if (other.empty() && !allocator.empty()) GTEST_SKIP() << allocator << " is not on this machine";
  Injected injected;
  if (!other.empty())
    injected.preload = order == "first" ? injected.preload + ":" + other : other + ":" + injected.preload;
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails ? "fails at the end" : "ends well");
    std::vector<std::string> command = {program, plugin, how};
    if (fails) command.push_back("fails");
    const CommandResult as_ever = RunCommand(command, {"LD_PRELOAD=" + other, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES});
    const CommandResult run = injected.Run(command);
    EXPECT_EQ(run.exit_code, as_ever.exit_code);
    EXPECT_EQ(run.out, as_ever.out);
    EXPECT_EQ(run.err, as_ever.err);
    EXPECT_EQ(as_ever.exit_code, !fails ? 7 : library == "abseil" ? 128 + SIGSEGV : 128 + SIGABRT) << as_ever.err;
    EXPECT_THAT(as_ever.out, ::testing::EndsWith(fails && library == "abseil" ? "done\nin fail_carried\n" : "done\n"));
  }
  const ProfileView view = injected.View();
  EXPECT_EQ(view.Sum("inuse_space"), 1000 + 2000);
  EXPECT_EQ(view.SumUnder("inuse_space", "user_allocates"), 1000 + 2000);
}

std::string CarriesName(const ::testing::TestParamInfo<CarriesTest::ParamType>& info) {
  const auto& [library, how, allocator, order] = info.param;
  const std::string beside = allocator.empty() ? "alone" : allocator.substr(3, allocator.find_first_of("_.") - 3);
  return library + "_" + how + "_" + beside + (allocator.empty() ? "" : "_" + order);
}
INSTANTIATE_TEST_SUITE_P(Alone, CarriesTest,
                         ::testing::Combine(::testing::Values("protobuf", "abseil"),
                                            ::testing::Values("local", "deep_bind"), ::testing::Values(""),
                                            ::testing::Values("")),
                         CarriesName);
INSTANTIATE_TEST_SUITE_P(Beside, CarriesTest,
                         ::testing::Combine(::testing::Values("protobuf", "abseil"),
                                            ::testing::Values("local", "deep_bind"),
                                            ::testing::Values("libjemalloc.so.2", "libtcmalloc_minimal.so.4"),
                                            ::testing::Values("first", "last")),
                         CarriesName);

TEST(InjectTest, WorksBesideAnotherPreloadedAllocator) {
  for (const std::string allocator : {"libjemalloc.so.2", "libtcmalloc_minimal.so.4"}) {
    const std::string path = kLibraries + allocator;
    if (access(path.c_str(), R_OK) != 0) {
      std::printf("not tried: %s is not there\n", path.c_str());
      continue;
    }
    SCOPED_TRACE(path);
    for (const bool first : {true, false}) {
      Injected injected;
      injected.preload = first ? path + ":" HBMPROF_INJECTED : HBMPROF_INJECTED ":" + path;
      ExpectDone(injected.Run({Program("inject_cases"), "threads"}));
      EXPECT_EQ(injected.View().Sum("inuse_space"), 0);
    }
  }
}

TEST(InjectTest, FailureBeforeItsConstructorsIsReported) {
  const CommandResult run = Injected().Run({Program("inject_early")});
  EXPECT_EQ(run.out, "done\n");
  EXPECT_THAT(run.err, HasSubstr("hbmprof: out of memory on GPU:0: cuMemAlloc_v2 of 1.00 TiB failed\n"));
}

// With a glibc before 2.34, a failed search for a symbol calls malloc.
TEST(InjectTest, WorksBesideAMallocThatSearchesAtItsFirstCall) {
  for (const bool first : {true, false}) {
    SCOPED_TRACE(first);
    Injected injected;
    injected.preload = first ? HBMPROF_LAZY_MALLOC ":" HBMPROF_INJECTED : HBMPROF_INJECTED ":" HBMPROF_LAZY_MALLOC;
    ExpectDone(injected.Run({Program("inject_cases")}));
    EXPECT_EQ(injected.View().Sum("inuse_space"), 100);
  }
}

TEST(InjectTest, ExportsAndDependenciesAreMinimal) {
  const CommandResult symbols = RunCommand({"nm", "-D", "--defined-only", HBMPROF_INJECTED});
  ASSERT_EQ(symbols.exit_code, 0) << symbols.err;
  std::vector<std::string> names;
  std::istringstream lines(symbols.out);
  std::string versions;  // of dlsym
  for (std::string address, type, name; lines >> address >> type >> name;) {
    const std::string bare = name.substr(0, name.find('@'));
    if (bare == "dlsym") versions += name.substr(bare.size()) + " ";
    if (type == "A") continue;  // the name of a version
    // A reference of a program to a version of AMD's library is not bound to another version.
    EXPECT_EQ(bare.rfind("hip", 0) == 0, name == bare) << name;
    if (names.empty() || names.back() != bare) names.push_back(bare);
  }
  EXPECT_THAT(versions,
              ::testing::AnyOf("@" HBMPROF_FIRST_GLIBC " @@GLIBC_2.34 ", "@@GLIBC_2.34 @" HBMPROF_FIRST_GLIBC " "));
  std::vector<std::string> allowed;
  std::ifstream file(HBMPROF_INJECT_EXPORTS);
  for (std::string name; file >> name;) allowed.push_back(name);
  ASSERT_GT(allowed.size(), 50u);
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(allowed));
  for (const std::string& name : allowed) {
    EXPECT_TRUE(name.rfind("cu", 0) == 0 || name.rfind("hip", 0) == 0 || name.rfind("hal", 0) == 0 ||
                name.rfind("mu", 0) == 0 || name == "dlsym" || name == "dlopen" || name == "_exit" || name == "_Exit" ||
                name == "kill" || name == "raise" || name.rfind("exec", 0) == 0 || name == "hbmprof_driver_coverage" ||
                name.rfind("hbmprof_attach", 0) == 0 || name == "hbmprof_detach" ||
                name.rfind("hbmprof_injected_", 0) == 0 || name.rfind("_ZN3c1027report", 0) == 0 ||
                name.rfind("_ZN3tsl12BFCAllocator10AddTraceMe", 0) == 0 || name == "InitializeInjectionNvtx2" ||
                name == "InitInjectionMstx" || name == "clGetLayerInfo" || name == "clInitLayer" ||
                name == "clInitLayerWithProperties" || name == "hbmprof_opencl_layer")
        << name;
  }

  const CommandResult dynamic = RunCommand({"readelf", "-d", HBMPROF_INJECTED});
  std::istringstream entries(dynamic.out);
  int needed = 0;
  for (std::string line; std::getline(entries, line);) {
    if (line.find("(NEEDED)") == std::string::npos) continue;
    ++needed;
    EXPECT_THAT(line,
                ::testing::ContainsRegex("\\[(libc.so.6|libm.so.6|libdl.so.2|libpthread.so.0|ld-linux-.*.so.[12])\\]"));
  }
  EXPECT_GT(needed, 0);
}

#if defined(HBMPROF_OLD_GLIBC_FOLDER)  // HBMPROF_PORTABLE

// The library uses only functions of the C library that glibc 2.17 has.
TEST(InjectTest, NeedsNoNewerLibcThan217) {
  const CommandResult versions = RunCommand({"readelf", "--version-info", "--wide", HBMPROF_INJECTED});
  ASSERT_EQ(versions.exit_code, 0) << versions.err;
  const size_t needs = versions.out.find("Version needs section");
  ASSERT_NE(needs, std::string::npos);
  std::istringstream words(versions.out.substr(needs));
  int count = 0;
  for (std::string word; words >> word;) {
    int minor = 0;
    if (std::sscanf(word.c_str(), "GLIBC_2.%d", &minor) != 1) continue;
    ++count;
    EXPECT_LE(minor, 17) << word;
  }
  EXPECT_GT(count, 0);
}

// Each function for which the linker gets a substitute is one that old_glibc.cc calls.
TEST(InjectTest, ListsOfOldGlibcHaveNoUnusedName) {
  std::ifstream source_file(HBMPROF_OLD_GLIBC_SOURCE);
  if (!source_file.is_open()) GTEST_SKIP() << "the sources are not on this machine";
  const std::string source{std::istreambuf_iterator<char>(source_file), {}};
  for (const char* const library : {"dl", "pthread"}) {
    std::ifstream functions(std::string(HBMPROF_OLD_GLIBC_FOLDER) + "/" + library + ".cc");
    const std::string text{std::istreambuf_iterator<char>(functions), {}};
    const std::regex name("\\.symver old_\\w+,(\\w+)");
    std::sregex_iterator listed(text.begin(), text.end(), name);
    EXPECT_NE(listed, std::sregex_iterator()) << library;
    for (; listed != std::sregex_iterator(); ++listed) {
      EXPECT_TRUE(std::regex_search(source, std::regex("OLD_FUNCTION\\(\\w+, [\\w*]+, " + (*listed)[1].str() + ",")))
          << (*listed)[1] << " is unused: remove it from the lists in cmake/hbmprof_injected.cmake";
    }
  }
}

// Before glibc 2.30, the dynamic linker finds these functions only in the library that is named with their version.
TEST(InjectTest, NamesTheLibrariesOfOldGlibc) {
  const CommandResult versions = RunCommand({"readelf", "--version-info", "--wide", HBMPROF_INJECTED});
  const CommandResult symbols = RunCommand({"readelf", "--dyn-syms", "--wide", HBMPROF_INJECTED});
  ASSERT_EQ(versions.exit_code + symbols.exit_code, 0) << versions.err << symbols.err;
  std::map<int, std::string> files;  // by the number of the version
  std::istringstream needs(versions.out.substr(versions.out.find("Version needs section")));
  std::string file;
  for (std::string line; std::getline(needs, line);) {
    if (const size_t at = line.find("File: "); at != std::string::npos) {
      file = line.substr(at + 6, line.find(' ', at + 6) - at - 6);
    } else if (const size_t number = line.find("Version: "); number != std::string::npos) {
      files[std::stoi(line.substr(number + 9))] = file;
    }
  }
  const std::map<std::string, std::string> old_files = {{"dlinfo", "libdl.so.2"},
                                                        {"dlvsym", "libdl.so.2"},
                                                        {"dladdr1", "libdl.so.2"},
                                                        {"pthread_create", "libpthread.so.0"},
                                                        {"pthread_once", "libpthread.so.0"},
                                                        {"pthread_sigmask", "libpthread.so.0"},
                                                        {"sem_wait", "libpthread.so.0"}};
  size_t found = 0;
  std::istringstream lines(symbols.out);
  for (std::string line; std::getline(lines, line);) {
    for (const auto& [name, old_file] : old_files) {
      const size_t at = line.find(" UND " + name + "@");
      if (at == std::string::npos) continue;
      ++found;
      EXPECT_EQ(files[std::stoi(line.substr(line.rfind('(') + 1))], old_file) << line;
    }
  }
  EXPECT_EQ(found, old_files.size());
}

#endif

// Each allocation that the library makes fails in turn, until no call makes more. The program checks that every call
// reaches the driver once and returns its result. It frees all memory at its end.
TEST(InjectTest, CallsReachDriverOnceWithoutHostMemory) {
  const Injected injected;
  bool reached = true;
  int64_t dropped = 0;
  for (int nth = 1; reached; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_LT(nth, 2000);
    const CommandResult run = injected.Run({Program("inject_no_memory"), std::to_string(nth)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    reached = run.out == "reached\n";
    ASSERT_TRUE(reached || run.out == "not reached\n") << run.out;
    const ProfileView view = injected.View();
    const int64_t lost = std::stoll(view.Comment("tracker", "dropped_records"));
    EXPECT_LE(lost, reached ? 1 : 0);
    // Memory that another graph frees stays if the node of that graph could not be recorded. Memory of a context that
    // is reset stays if there is no list of the records that survive.
    EXPECT_THAT(view.Sum("inuse_space"), ::testing::AnyOf(0, lost * kMiB, lost * 1000));
    EXPECT_TRUE(lost > 0 || view.Comment("tracker", "foreign_frees") == "0") << "what was recorded was found again";
    dropped += lost;
  }
  EXPECT_GT(dropped, 10) << "the library does allocate";
}

// The newest version of the C library that a file needs, as {major, minor}.
std::pair<int, int> NeededCLibrary(const std::string& path) {
  const CommandResult versions = RunCommand({"readelf", "--version-info", "--wide", path});
  EXPECT_EQ(versions.exit_code, 0) << versions.err;
  std::pair<int, int> newest;
  bool needs = false;  // the line is in the section of needed versions, not in that of defined versions
  std::istringstream lines(versions.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("Version ", 0) == 0) needs = line.find("Version needs section") == 0;
    const size_t at = line.find("Name: GLIBC_");
    int major = 0;
    int minor = 0;
    if (!needs || at == std::string::npos || std::sscanf(line.c_str() + at, "Name: GLIBC_%d.%d", &major, &minor) != 2) {
      continue;
    }
    newest = std::max(newest, {major, minor});
  }
  return newest;
}

TEST(InjectTest, NeedsDocumentedGlibc) {
  for (const char* library : {HBMPROF_INJECTED, HBMPROF_INJECTED_PJRT}) {
    SCOPED_TRACE(library);
    const std::pair<int, int> needed = NeededCLibrary(library);
    EXPECT_GE(needed, std::make_pair(2, 2)) << "readelf's output was not understood";
    EXPECT_LE(needed, std::make_pair(2, 35));
  }
}

// --- A program that links hbmprof::cuda. More of such programs: joined_test.cc. ---

TEST(InjectTest, LinkedProgramIsRecordedOnce) {
  if (access(Program("inject_linked").c_str(), X_OK) != 0)
    GTEST_SKIP() << "hbmprof::cuda is not built: no CUDA toolkit";
  for (const bool frees : {false, true}) {
    Injected injected;
    const std::string own = NewDirectory() + "/own.pb.gz";
    injected.environment = {"FAKE_CUDART_DRIVER=1"};
    std::vector<std::string> command = {Program("inject_linked"), own};
    if (frees) command.push_back("free");
    ExpectDone(injected.Run(command));
    for (const std::string& path : {own, injected.output}) {
      SCOPED_TRACE(path);
      const ProfileView view = ViewProfile(path);
      EXPECT_EQ(view.Sum("alloc_objects"), 2);
      EXPECT_EQ(view.Sum("inuse_space"), frees ? 333 : 777 + 333);
      EXPECT_EQ(view.SumUnder("alloc_space", "user_allocates"), 777);
      EXPECT_EQ(view.SumUnder("alloc_space", "library_allocates"), 333);
      EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
      EXPECT_EQ(view.Comment("tracker", "replaced_records"), "0");
      for (const ProfileView::Sample& sample : view.samples) {
        if (!sample.Has("user_allocates")) continue;
        EXPECT_EQ(sample.functions[0], "user_allocates");
      }
    }
  }
}

// --- The device's own numbers. ---

TEST(InjectTest, UntrackedMemoryIsUnaccounted) {
  const std::string nvml = "LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE;
  struct Case {
    std::vector<std::string> environment;
    const char* scope;
  };
  for (const Case& c : std::vector<Case>{{{nvml}, "process"}, {{nvml, "FAKE_NVML_PROCESS=0"}, "device"}}) {
    SCOPED_TRACE(c.scope);
    const Injected injected;
    std::vector<std::string> environment = c.environment;
    environment.push_back(std::string("LD_PRELOAD=") + HBMPROF_INJECTED);
    environment.push_back("HBMPROF_GPU_OUTPUT=" + injected.output);
    ExpectDone(RunCommand({Program("inject_cases"), "untracked_memory"}, environment));
    const ProfileView view = injected.View();
    EXPECT_EQ(view.Comment("device GPU:0", "driver_scope"), c.scope);
    const int64_t baseline = std::stoll(view.Comment("device GPU:0", "baseline"));
    EXPECT_EQ(baseline, 3 * kMiB) << "the double's context";
    EXPECT_EQ(std::stoll(view.Comment("device GPU:0", "unaccounted")), baseline + 64 * kMiB);
    EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string(kMiB));
  }
}

TEST(InjectTest, IntegratedDeviceHasNoBytesOfTheHost) {
  Injected injected;
  injected.uses_fakes = false;
  injected.environment = {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE, "FAKE_CUDA_INTEGRATED=1",
                          "FAKE_NVML_MEMORY=0", "FAKE_NVML_PROCESS=0"};
  ExpectDone(injected.Run({Program("inject_cases"), "untracked_memory"}));
  const ProfileView view = injected.View();
  EXPECT_EQ(view.Comment("device GPU:0", "limit"), std::to_string(1024 * kMiB));
  EXPECT_EQ(view.Comment("device GPU:0", "unaccounted"), "n/a") << "the host uses 67 MiB of the memory";
  injected.environment.pop_back();
  ExpectDone(injected.Run({Program("inject_cases"), "untracked_memory"}));
  EXPECT_EQ(injected.View().Comment("device GPU:0", "driver_scope"), "process") << "NVML knows the process";
}

TEST(InjectTest, LocalityDomainIsAPartOfItsDevice) {
  Injected injected;
  injected.uses_fakes = false;
  injected.environment = {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE, "FAKE_CUDA_POOL_KEEPS=1"};
  ExpectDone(injected.Run({Program("inject_cases"), "locations"}));
  const ProfileView view = injected.View();
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:1"), 2 * kMiB);
  EXPECT_EQ(view.SumWhere("inuse_space", "kind", "vmm"), 2 * kMiB);
  EXPECT_EQ(view.SumWhere("alloc_space", "kind", "managed"), 8 * kMiB);
  EXPECT_EQ(view.SumWhere("alloc_space", "kind", "pinned_host"), 4 * kMiB);
  EXPECT_EQ(view.Comment("device GPU:0", "driver_cache"), "0");
  EXPECT_EQ(view.Comment("device GPU:1", "driver_cache"), std::to_string(4 * kMiB)) << "of the domain's pool only";
}

// The drivers since 580 write each failing call into a log, also ours.
TEST(InjectTest, OwnQuestionsDoNotFail) {
  for (const char* const pools : {"FAKE_CUDA_POOL_KEEPS=1", "FAKE_CUDA_POOLS=0"}) {
    SCOPED_TRACE(pools);
    Injected injected;
    const std::string log = NewDirectory() + "/log";
    injected.environment = {"HBMPROF_OUTPUT_INTERVAL=0.05", "FAKE_CUDA_LOG=" + log, pools};
    ExpectDone(injected.Run({Program("inject_cases"), "questions"}));
    std::ifstream lines(log);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(lines), {}), "");
  }
}

TEST(InjectTest, ContextIsMemoryFromTheStart) {
  const ProfileView view = RunCase({}, {"physical_memory_before_the_context"});
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string(3 * kMiB));
  EXPECT_EQ(view.Comment("device GPU:0", "baseline"), std::to_string(3 * kMiB)) << "the double's context";
  EXPECT_EQ(view.Comment("device GPU:0", "unaccounted"), view.Comment("device GPU:0", "baseline"));
}

TEST(InjectTest, IdlePoolMemoryIsNotUnaccounted) {
  const ProfileView view = RunCase({}, {"pools"}, {"FAKE_CUDA_POOL_KEEPS=1"});
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), "0");
  EXPECT_EQ(view.Comment("device GPU:0", "driver_cache"), std::to_string(8 * kMiB));
  EXPECT_EQ(view.Comment("device GPU:0", "unaccounted"), view.Comment("device GPU:0", "baseline"));
}

// --- Profiles at intervals. ---

TEST(InjectTest, ProfilesAreWrittenAtAnInterval) {
  Injected injected;
  const std::string directory = NewDirectory();
  injected.output = directory + "/%n.pb.gz";
  injected.environment = {"HBMPROF_OUTPUT_INTERVAL=0.05"};
  ExpectDone(injected.Run({Program("inject_cases"), "interval"}));
  glob_t found = {};
  ASSERT_EQ(glob((directory + "/*.pb.gz").c_str(), 0, nullptr, &found), 0);
  EXPECT_GE(found.gl_pathc, 3u);
  EXPECT_LE(found.gl_pathc, 10u);
  globfree(&found);
}

TEST(InjectTest, BadIntervalIsReportedAndIgnored) {
  Injected injected;
  injected.environment = {"HBMPROF_OUTPUT_INTERVAL=soon"};
  const CommandResult run = injected.Run({Program("inject_cases"), "plain"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("HBMPROF_OUTPUT_INTERVAL='soon'"));
  EXPECT_EQ(injected.View().Sum("inuse_space"), 100);
}

}  // namespace
