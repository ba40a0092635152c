// dump_while_allocating FILE: writes the profile to FILE again and again while four threads allocate.

#include <string>
#include <thread>

#include "tests/programs/program.h"

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  hbmprof::Profiler::Default();
  for (uint64_t i = 0; i < 4; ++i) std::thread(AllocateForEver, i, 1000).detach();
  for (int i = 0; i < 60; ++i) {
    const absl::Status status = hbmprof::save_device_memory_profile(argv[1]);
    Check(status.ok(), std::string(status.message()).c_str());
  }
  std::puts("done");
  std::fflush(stdout);
  std::_Exit(0);
}
