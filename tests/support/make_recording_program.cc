// Writes a recording of a made load (make_recording.h).
//
// usage: make_recording FILE [EVENTS] [leak] [burst] [pool]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/make_recording.h"

int main(int argc, char** argv) {
  hbmprof_test::MadeLoad load;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "leak") {
      load.leak = true;
    } else if (word == "burst") {
      load.burst = true;
    } else if (word == "pool") {
      load.pool = true;
    } else {
      load.events = std::atoll(argv[i]);
    }
  }
  if (argc < 2 || load.events <= 0) {
    std::fprintf(stderr, "usage: make_recording FILE [EVENTS] [leak] [burst] [pool]\n");
    return 2;
  }
  const absl::Status status = hbmprof_test::MakeRecording(argv[1], load);
  if (!status.ok()) std::fprintf(stderr, "make_recording: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
