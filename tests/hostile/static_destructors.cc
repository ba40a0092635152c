// Allocates before main, in destructors of static and thread-local objects, and in handlers at exit, also after those
// that other libraries have.
#include <cstdlib>
#include <thread>

#include "tests/hostile/hostile.h"

namespace {

struct Object {
  explicit Object(const char* name) : name_(name) { Churn(10); }
  ~Object() {
    Churn(10);
    std::puts(name_);
  }
  const char* name_;
};

Object first("first static");
thread_local Object local("thread-local");

[[gnu::init_priority(101)]] Object earliest("earliest static");

}  // namespace

int main() {
  std::atexit([] { Churn(10); });
  Allocate(1000);
  static Object inner("function static");
  std::thread([] { Churn(static_cast<int>(local.name_[0]) % 3 + 1); }).join();
  std::atexit([] {
    Churn(10);
    std::puts("handler");
  });
  Churn(static_cast<int>(local.name_[0]) % 3 + 1);
  return 0;
}
