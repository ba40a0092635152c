// No lock and no static-initialization guard is held while the dynamic linker is called: see loader_lock_program.cc.
#include <string>

#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::ExpectDone;
using ::hbmprof_test::RunCommand;

class LoaderLockTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LoaderLockTest, ConstructorCanUseTheLibrary) {
  ExpectDone(RunCommand({HBMPROF_LOADER_LOCK_PROGRAM, GetParam(), HBMPROF_LOADER_LOCK_LIBRARY},
                        {"LD_LIBRARY_PATH=" HBMPROF_NVML_DOUBLE, "HBMPROF_PJRT_PLUGIN=" HBMPROF_FAKE_PJRT}));
}

INSTANTIATE_TEST_SUITE_P(Of, LoaderLockTest, ::testing::Values("allocation", "nvml", HBMPROF_PJRT_SHIM),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.find('/') == std::string::npos ? name : std::string("pjrt_plugin");
                         });

}  // namespace
