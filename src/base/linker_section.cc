#include "src/base/linker_section.h"

#include <link.h>
#include <pthread.h>
#include <time.h>

#include "src/base/kept_errno.h"

namespace hbmprof::internal {

std::atomic<uint32_t> LinkerSection::open_{0};
std::atomic<uint32_t> LinkerSection::forks_{0};

void LinkerSection::BeforeFork() {
  const KeptErrno kept_errno;
  forks_.fetch_add(1);
  constexpr timespec kStep = {0, 100'000};
  // Another handler of this fork may hold a lock for which the owner of the linker's lock waits. So this ends.
  for (int i = 0; i < 1000 && open_.load() != 0; ++i) nanosleep(&kStep, nullptr);
}

void LinkerSection::InChild() {
  open_.store(0);
  forks_.store(0);
}

[[gnu::constructor]] static void WatchForks() {
  pthread_atfork(&LinkerSection::BeforeFork, &LinkerSection::AfterFork, &LinkerSection::InChild);
}

__thread uint64_t last_unload_count __attribute__((tls_model("initial-exec"))) = 0;

uint64_t UnloadCount() {
  static std::atomic<uint64_t> unknown{kUnknownUnloads};
  const LinkerSection section;
  if (!section.may_lock()) return last_unload_count = unknown.fetch_add(1, std::memory_order_relaxed);
  // What the function returns, if that is not 0, ends the iteration and is its result.
  const auto count = [](dl_phdr_info* info, size_t, void*) { return static_cast<int>(info->dlpi_subs + 1); };
  return last_unload_count = static_cast<uint64_t>(dl_iterate_phdr(count, nullptr));
}

}  // namespace hbmprof::internal
