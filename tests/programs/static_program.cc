// static_program: records with a few threads, through code made at run time as well, and writes a profile; also linked
// as a static program. Prints how stacks were captured.

#include <string>
#include <thread>

#include "tests/programs/program.h"
#include "tests/support/made_code.h"

namespace {

uint64_t next = 0;
[[gnu::noinline]] void RecordOne() { CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(Buffer(1, next++), 10)); }
[[gnu::noinline]] void Recurse(int depth) {
  if (depth == 0) {
    RecordOne();
  } else {
    Recurse(depth - 1);
  }
  asm volatile("");  // no tail call
}

}  // namespace

int main(int argc, char** argv) {
  LimitTime();
  if (argc != 2) return 2;
  const hbmprof_test::MadeCode with(hbmprof_test::MadeCode::kWithFramePointer);
  const hbmprof_test::MadeCode without(hbmprof_test::MadeCode::kWithoutFramePointer);
  for (int thread = 0; thread < 4; ++thread) {
    std::thread([&] {
      for (int i = 0; i < 50; ++i) Recurse(i % 30);
      with.Call(RecordOne);
      without.Call(RecordOne);
    }).join();
  }
  Recurse(5);
  const absl::Status status = hbmprof::save_device_memory_profile(argv[1]);
  Check(status.ok(), std::string(status.message()).c_str());
  const hbmprof::Snapshot snapshot = hbmprof::Profiler::Default().TakeSnapshot();
  std::printf("%s\n", snapshot.tracker.unwinder.c_str());
}
