// Writes its output and its errors into one file, up to the greatest size that the file may have. Profiles exceed it,
// but a message about that would take bytes from the output.
#include <sys/resource.h>

#include <csignal>

#include "tests/hostile/hostile.h"

namespace {

// Writes while the limit allows, at most `lines` lines.
void Write(int lines) {
  while (lines-- > 0 && write(STDOUT_FILENO, "a line of the program\n", 22) > 0) continue;
}

void WriteRest() { Write(1000); }

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) {
    const int output = open("output", O_CREAT | O_WRONLY | O_APPEND, 0644);
    REQUIRE(dup2(output, STDOUT_FILENO) == STDOUT_FILENO && dup2(output, STDERR_FILENO) == STDERR_FILENO);
    const rlimit limit = {400, 400};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    char again[] = "again";
    char* const command[] = {arguments[0], again, nullptr};
    execv("/proc/self/exe", command);
    return 1;
  }
  signal(SIGXFSZ, SIG_IGN);
  REQUIRE(std::atexit(&WriteRest) == 0);  // runs after hbmprof has tried to write the profile
  Write(5);
  Allocate(1000);
  Linger();
}
