// The resident memory of this process.
#ifndef HBMPROF_TESTS_SUPPORT_RESIDENT_BYTES_H_
#define HBMPROF_TESTS_SUPPORT_RESIDENT_BYTES_H_

#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "gtest/gtest.h"

namespace hbmprof_test {

// With a sanitizer, the result includes the sanitizer's shadow memory, which is much larger than the rest.
inline int64_t ResidentBytes() {
  long total = 0;
  long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &total, &resident) != 2) ADD_FAILURE() << "no /proc/self/statm";
  if (file != nullptr) std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_RESIDENT_BYTES_H_
