// Becomes a daemon after it has allocated: two forks, a session of its own, every descriptor closed. Then it opens its
// own files, which get the lowest numbers. If a library had kept descriptors with these numbers, it would write into
// these files or close them.
#include <fcntl.h>
#include <sys/wait.h>

#include <cstring>
#include <thread>

#include "tests/hostile/hostile.h"

namespace {

void Write(int file, const char* text) {
  REQUIRE(write(file, text, std::strlen(text)) == static_cast<ssize_t>(std::strlen(text)));
}

void Daemon() {
  for (int descriptor = 0; descriptor < 1024; ++descriptor) close(descriptor);
  // Six files, so that they get all numbers that were in use.
  int files[6];
  char name[] = "log.0";
  for (int& file : files) {
    file = open(name, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (file < 0) _exit(98);
    ++name[4];
  }
  Allocate(2000);
  for (int i = 0; i < 4; ++i) std::thread(Churn, 200).join();
  for (const int file : files) Write(file, "started\n");
  Linger();
  Churn(200);
  for (const int file : files) Write(file, "stopped\n");
  // All files are still open and contain only the lines of the program.
  for (const int file : files) {
    if (fcntl(file, F_GETFL) < 0 || lseek(file, 0, SEEK_END) != 16) _exit(97);
  }
}

}  // namespace

int main() {
  Allocate(1000);
  std::thread(Churn, 200).join();
  const pid_t first = fork();
  REQUIRE(first >= 0);
  if (first == 0) {
    REQUIRE(setsid() > 0);
    const pid_t second = fork();
    REQUIRE(second >= 0);
    if (second > 0) _exit(0);
    Daemon();
    std::exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(first, &status, 0) == first && status == 0);
  std::puts("started");
}
