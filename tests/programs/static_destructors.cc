// static_destructors: buffers are allocated and freed by the constructors and destructors of objects that are older and
// younger than the profiler, and by a failing call after the main thread's own objects are destroyed.

#include <string>

#include "hbmprof/c_api.h"
#include "tests/programs/program.h"

namespace {

class Owner {
 public:
  explicit Owner(uint64_t number) : number_(number) { Allocate(0); }
  ~Owner() {
    hbmprof::ScopedTag tag("when", "static_destruction");
    CHECK_THAT(hbmprof::Profiler::Default().RecordFree(Buffer(number_, 0)));
    Allocate(1);
    Allocate(2);
    CHECK_THAT(hbmprof::Profiler::Default().RecordFree(Buffer(number_, 1)));
    CHECK_THAT(hbmprof::Profiler::Default().Stats(hbmprof::kDefaultDevice).bytes_in_use > 0);
    CHECK_THAT(hbmprof::device_memory_profile().ok());
    // A long error, after the objects of the main thread that ended were destroyed.
    CHECK_THAT(hbmprof_save_device_memory_profile(("/nowhere/" + std::string(300, 'x')).c_str()) != 0);
    CHECK_THAT(std::string(hbmprof_last_error()).find("/nowhere/") != std::string::npos);
  }

 private:
  void Allocate(uint64_t i) { CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(Buffer(number_, i), 1000)); }
  const uint64_t number_;
};

// Older than the profiler, and so destroyed after the dump at exit.
struct AtTheVeryEnd {
  ~AtTheVeryEnd() {
    CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(Buffer(50, 0), 7));
    CHECK_THAT(hbmprof::device_memory_profile().ok());
    std::puts("done");
  }
};
AtTheVeryEnd at_the_very_end;

// There is no profiler yet: this makes it, before main.
Owner before_main(0);

}  // namespace

int main() {
  LimitTime();
  static Owner within_main(1);
  CHECK_THAT(hbmprof_save_device_memory_profile(("/nowhere/" + std::string(200, 'y')).c_str()) != 0);
  static Owner later(2);
}
