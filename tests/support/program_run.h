// Checks of programs that tests run: their files, profiles and output. Not in this file: running a program
// (pprof_tool.h), reading a profile without a test (profile_checker.h), directories for files (temporary_directory.h).
#ifndef HBMPROF_TESTS_SUPPORT_PROGRAM_RUN_H_
#define HBMPROF_TESTS_SUPPORT_PROGRAM_RUN_H_

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof_test {

// Returns the contents of `directory`: for each path relative to it, type and permissions, and the contents of a file
// or the target of a link. Unreadable contents and those of a core dump are left out.
inline std::map<std::string, std::string> FilesIn(const std::string& directory) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory, error)) {
    const std::string name = entry.path().lexically_relative(directory);
    struct stat info = {};
    lstat(entry.path().c_str(), &info);
    char mode[16];
    std::snprintf(mode, sizeof(mode), "%06o ", static_cast<unsigned>(info.st_mode));
    std::string& text = files[name] = mode;
    if (S_ISLNK(info.st_mode)) text += fs::read_symlink(entry.path(), error).string();
    if (!S_ISREG(info.st_mode) || name.rfind("core", 0) == 0) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

// Returns the profile in `path`. The test fails if it is not well-formed.
inline ProfileView ViewProfile(const std::string& path) {
  const auto profile = ReadProfile(path);
  if (!profile.ok()) {
    ADD_FAILURE() << path << ": " << profile.status();
    return ProfileView(Profile());
  }
  EXPECT_EQ(CheckProfile(*profile), "") << path;
  return ProfileView(*profile);
}

// Expects that a program has succeeded and printed only "done".
inline void ExpectDone(const CommandResult& run) {
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "done\n");
  EXPECT_EQ(run.err, "");
}

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_PROGRAM_RUN_H_
