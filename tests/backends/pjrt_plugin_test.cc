// libhbmprof_pjrt.so in a program that loads a plugin by its path: it replaces the plugin that it wraps. If there is
// none, every call returns an error with the reason.
//
// The plugin is the fake one, or a real one: that of HBMPROF_TEST_PJRT_PLUGIN, else the CPU plugin that scripts/test.sh
// installs, if it is there.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/program_run.h"

namespace {

using hbmprof_test::CommandResult;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kShim = HBMPROF_PJRT_SHIM;
const std::string kFake = HBMPROF_FAKE_PJRT;

// Runs the host with the shim as its plugin. The shim wraps `plugin`.
CommandResult Host(const std::string& plugin, std::vector<std::string> environment = {},
                   const std::string& profile = "") {
  environment.push_back("HBMPROF_PJRT_PLUGIN=" + plugin);
  std::vector<std::string> argv = {HBMPROF_PJRT_HOST, kShim};
  if (!profile.empty()) argv.push_back(profile);
  return hbmprof_test::RunCommand(argv, environment);
}

// Returns the path of a real plugin, empty if there is none.
std::string RealPlugin() {
  const char* const named = std::getenv("HBMPROF_TEST_PJRT_PLUGIN");
  if (named != nullptr) return named;
  const std::string installed = HBMPROF_PYPI "/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";
  return access(installed.c_str(), R_OK) == 0 ? installed : "";
}

std::string NewFile(const std::string& name) { return hbmprof_test::NewDirectory() + "/" + name; }

void ExpectTheBufferIn(const std::string& path) {
  const hbmprof_test::ProfileView view = hbmprof_test::ViewProfile(path);
  EXPECT_EQ(view.Sum("inuse_space"), 4096);
  EXPECT_EQ(view.SumUnder("inuse_space", "(anonymous namespace)::KeepActivations"), 4096);
  EXPECT_EQ(view.SumWhere("inuse_space", "shape", "f32[1024]"), 4096);
}

TEST(PjrtPlugin, ReplacesTheWrappedPlugin) {
  const std::string saved = NewFile("saved.pb.gz");
  const std::string at_exit = NewFile("exit.pb.gz");
  const CommandResult result = Host(kFake, {"HBMPROF_OUTPUT=" + at_exit}, saved);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out,
            "api 0.114, 1144 bytes, the same again\ninitialized\nplatform fake\nbuffer made\nsaved: 0\ndestroyed: 0\n");
  EXPECT_THAT(result.err, HasSubstr("1 x 4096 B, kind device, on FAKE_0, made in "));
  ExpectTheBufferIn(saved);
  ExpectTheBufferIn(at_exit);  // a leak stays in the profile when the client is gone
}

TEST(PjrtPlugin, StaticTagsLabelItsSamples) {
  const std::string saved = NewFile("tags.pb.gz");
  EXPECT_EQ(Host(kFake, {"HBMPROF_TAGS=model=llama,kind=x"}, saved).exit_code, 0);
  const auto view = hbmprof_test::ProfileView(*hbmprof_test::ReadProfile(saved));
  EXPECT_EQ(view.SumWhere("inuse_space", "model", "llama"), 4096);
  EXPECT_EQ(view.SumWhere("inuse_space", "tag_kind", "x"), 4096);
  EXPECT_EQ(view.SumWhere("inuse_space", "kind", "device"), 4096);
}

TEST(PjrtPlugin, RecordsNothingWhileOff) {
  const std::string saved = NewFile("off.pb.gz");
  const CommandResult result = Host(kFake, {"HBMPROF=0"}, saved);
  EXPECT_THAT(result.out, HasSubstr("buffer made"));
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_EQ(hbmprof_test::ProfileView(*hbmprof_test::ReadProfile(saved)).Sum("inuse_space"), 0);
}

// One line on stderr and one error, the same, from the first call; no crash.
void ExpectNoPlugin(const CommandResult& result, const std::string& why) {
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("initialize: error 5: hbmprof: libhbmprof_pjrt.so has no PJRT plugin to wrap: "));
  EXPECT_THAT(result.out, HasSubstr(why));
  EXPECT_THAT(result.err, StartsWith("hbmprof: libhbmprof_pjrt.so has no PJRT plugin to wrap: "));
  EXPECT_THAT(result.err, HasSubstr(why));
}

TEST(PjrtPlugin, ErrorIfFileIsMissing) {
  ExpectNoPlugin(Host("/no/such/plugin.so"), "HBMPROF_PJRT_PLUGIN: /no/such/plugin.so: cannot open shared object file");
}

TEST(PjrtPlugin, ErrorIfFileIsNoLibrary) { ExpectNoPlugin(Host(HBMPROF_SOURCE_DIR "/README.md"), "README.md: "); }

TEST(PjrtPlugin, ErrorIfFileIsAPipe) {
  const std::string pipe = NewFile("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectNoPlugin(Host(pipe), "HBMPROF_PJRT_PLUGIN: " + pipe + " is not a regular file");
}

TEST(PjrtPlugin, ErrorIfLibraryIsNoPlugin) {
  ExpectNoPlugin(Host("libz.so.1"), "libz.so.1 is not a PJRT plugin: it has no function GetPjrtApi");
}

TEST(PjrtPlugin, ErrorIfPluginIsItself) { ExpectNoPlugin(Host(kShim), "is libhbmprof_pjrt.so itself"); }

TEST(PjrtPlugin, ErrorNamesTheVariable) {
  // The variable by which JAX and pytorch/xla find libtpu names the library itself, which replaces libtpu.
  ExpectNoPlugin(Host("", {"TPU_LIBRARY_PATH=" + kShim, "LD_LIBRARY_PATH="}),
                 "set HBMPROF_PJRT_PLUGIN to the path of one");
}

TEST(PjrtPlugin, FindsPluginAsJaxDoes) {
  EXPECT_THAT(Host("", {"TPU_LIBRARY_PATH=" + kFake}).out, HasSubstr("platform fake"));
  EXPECT_THAT(Host("", {"PTXLA_TPU_LIBRARY_PATH=" + kFake, "TPU_LIBRARY_PATH=" + kShim}).out,
              HasSubstr("platform fake"));
}

TEST(PjrtPlugin, FindsLibtpuBesideLoadedPackages) {
  if (HBMPROF_SANITIZED) GTEST_SKIP() << "nothing can be preloaded before a sanitizer's runtime";
  // A library of JAX, and in the same folder the package with libtpu. Both are the same file, so that its GetPjrtApi is
  // the first one in the program.
  const std::string packages = NewFile("lib") + "/site-packages";
  for (const std::string folder : {"/jaxlib", "/libtpu"}) std::filesystem::create_directories(packages + folder);
  std::filesystem::copy_file(kFake, packages + "/jaxlib/xla_extension.so");
  std::filesystem::create_symlink("../jaxlib/xla_extension.so", packages + "/libtpu/libtpu.so");
  const CommandResult result = Host("", {"LD_PRELOAD=" + packages + "/jaxlib/xla_extension.so", "LD_LIBRARY_PATH="});
  EXPECT_THAT(result.out, HasSubstr("platform fake")) << result.err;
}

TEST(PjrtPlugin, ExportsOnlyPluginAndCFunctions) {
  const CommandResult result = hbmprof_test::RunCommand({"nm", "-D", "--defined-only", "--format=posix", kShim});
  if (result.exit_code != 0) GTEST_SKIP() << "no nm here: " << result.err;
  std::vector<std::string> others;
  std::string rest = result.out;
  int symbols = 0;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string name = rest.substr(0, rest.find(' '));
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    ++symbols;
    if (name != "GetPjrtApi" && name.rfind("hbmprof_", 0) != 0) others.push_back(name);
  }
  EXPECT_THAT(others, IsEmpty());
  EXPECT_GE(symbols, 2);
  const CommandResult needed = hbmprof_test::RunCommand({"readelf", "-d", kShim});
  EXPECT_THAT(needed.out, Not(HasSubstr("protobuf")));
}

TEST(PjrtPlugin, ReplacesARealPlugin) {
  if (HBMPROF_SANITIZED) GTEST_SKIP() << "a real plugin is not built with the sanitizer";
  const std::string plugin = RealPlugin();
  if (plugin.empty()) GTEST_SKIP() << "no real PJRT plugin here (scripts/test.sh installs one where PyPI is reachable)";
  const CommandResult bare = hbmprof_test::RunCommand({HBMPROF_PJRT_HOST, plugin});
  const std::string saved = NewFile("real.pb.gz");
  const CommandResult result = Host(plugin, {}, saved);
  EXPECT_EQ(result.exit_code, 0);
  std::string expected = bare.out;
  if (const size_t at = expected.find("destroyed: "); at != std::string::npos) expected.insert(at, "saved: 0\n");
  EXPECT_EQ(result.out, expected) << "the same output, including the plugin's errors";
  if (bare.out.find("buffer made") != std::string::npos) ExpectTheBufferIn(saved);
}

}  // namespace
