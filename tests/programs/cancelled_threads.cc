// cancelled_threads: threads that are being cancelled record through code made at run time. Recording is not a
// cancellation point: each thread ends at its own cancellation point.

#include <pthread.h>

#include "tests/programs/program.h"
#include "tests/support/made_code.h"

namespace {

using hbmprof_test::MadeCode;

std::atomic<uint64_t> recorded{0};
void RecordOne() {
  CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(Buffer(1, recorded.load()), 10));
  recorded.fetch_add(1);
}

pthread_barrier_t cancelled;
std::atomic<int> done{0};
void* Record(void*) {
  const MadeCode with(MadeCode::kWithFramePointer);
  const MadeCode other(MadeCode::kWithOtherFramePointer);
  pthread_barrier_wait(&cancelled);
  for (int i = 0; i < 200; ++i) {
    with.Call(with, RecordOne);
    const uintptr_t block[64] = {};
    other.Call(RecordOne, block);
  }
  done.fetch_add(1);
  pthread_testcancel();
  CHECK_THAT(!"the thread goes on after its cancellation");
  return nullptr;
}

}  // namespace

int main() {
  LimitTime();
  constexpr int kThreads = 20;
  pthread_barrier_init(&cancelled, nullptr, 2);
  for (int i = 0; i < kThreads; ++i) {
    pthread_t thread;
    CHECK_THAT(pthread_create(&thread, nullptr, Record, nullptr) == 0);
    CHECK_THAT(pthread_cancel(thread) == 0);
    pthread_barrier_wait(&cancelled);
    void* result;
    CHECK_THAT(pthread_join(thread, &result) == 0);
    CHECK_THAT(result == PTHREAD_CANCELED);
    CHECK_THAT(done == i + 1);
  }
  CHECK_THAT(recorded == kThreads * 400);
  std::puts("done");
}
