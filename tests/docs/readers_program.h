// The declarations of a reader's own program that the C++ snippets of README.md and docs/ use. docs_test.py includes
// this file before each snippet that is not a complete program.
#ifndef HBMPROF_TESTS_DOCS_READERS_PROGRAM_H_
#define HBMPROF_TESTS_DOCS_READERS_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>

inline int64_t served = 0;

inline void* MyAllocate(size_t bytes) { return std::malloc(bytes); }
inline bool MyFree(void* ptr) {
  std::free(ptr);
  return true;
}

struct PJRT_Api;
inline const PJRT_Api* GetPjrtApi() { return nullptr; }

#endif  // HBMPROF_TESTS_DOCS_READERS_PROGRAM_H_
