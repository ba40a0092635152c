// A program that has taken many thread-specific keys before it first uses the library, as PyTorch does. A program of
// its own, because the library's first use must come after the keys.
#include <gtest/gtest.h>
#include <pthread.h>

#include <vector>

#include "src/capture/capture.h"
#include "src/capture/paths/paths.h"

namespace {

using hbmprof::Caller;
using hbmprof::Unwinder;
using hbmprof::internal::StackCapture;

TEST(ThreadKeysTest, ProgramWithManyKeysUsesThePathCache) {
  std::vector<pthread_key_t> keys(100);
  for (pthread_key_t& key : keys) ASSERT_EQ(pthread_key_create(&key, nullptr), 0);
  const StackCapture capture(Unwinder::kAuto);
  const Caller caller = Caller::OfThisFunction();
  uintptr_t pcs[128];
  for (int i = 0; i < 100; ++i) EXPECT_GT(capture.Capture(caller, pcs, 128).depth, 0);
  EXPECT_NE(capture.FindPath(caller, 128), nullptr) << "each event walks the stack";
  for (const pthread_key_t key : keys) pthread_key_delete(key);
}

}  // namespace
