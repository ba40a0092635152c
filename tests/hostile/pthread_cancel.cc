// Cancels threads that allocate.
#include <pthread.h>

#include "tests/hostile/hostile.h"

namespace {

struct Cleanup {
  ~Cleanup() { Churn(3); }  // while the thread is being cancelled
};

void* Work(void*) {
  const Cleanup cleanup;
  for (;;) {
    Churn(50);
    pthread_testcancel();
  }
}

}  // namespace

int main() {
  for (int i = 0; i < 100; ++i) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, nullptr, &Work, nullptr) == 0);
    if (i % 2 == 0) usleep(500);
    REQUIRE(pthread_cancel(thread) == 0);
    void* result = nullptr;
    REQUIRE(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
  }
  std::puts("done");
}
