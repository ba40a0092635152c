// Directories for the files of one test process.
#ifndef HBMPROF_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
#define HBMPROF_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof_test {

// The directories that this process has made. They are removed, with their contents, when the process exits. A forked
// child removes none of them.
class TemporaryDirectories {
 public:
  static TemporaryDirectories& Instance() {
    static TemporaryDirectories directories;
    return directories;
  }

  std::string Add() {
    std::string path = ::testing::TempDir() + "/hbmprof_test_XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      ADD_FAILURE() << "mkdtemp " << path;
      return path;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    paths_.push_back(path);
    return path;
  }

  ~TemporaryDirectories() {
    if (getpid() != owner_) return;
    for (const std::string& path : paths_) {
      // A test may have removed the permission to change its directory.
      std::error_code ignored;
      std::filesystem::permissions(path, std::filesystem::perms::owner_all, ignored);
      std::filesystem::remove_all(path, ignored);
    }
  }

 private:
  TemporaryDirectories() = default;

  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::vector<std::string> paths_;
};

// Creates an empty directory and returns its path. It is removed when the test process exits. Thread-safe.
inline std::string NewDirectory() { return TemporaryDirectories::Instance().Add(); }

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
