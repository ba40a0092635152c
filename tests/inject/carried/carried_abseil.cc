// Abseil of this module's own: flags, time, statuses, cords (sampled, which the injected library never does), mutexes
// and their deadlock detection, the symbolizer, and the failure signal handler.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/symbolize.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/internal/cordz_functions.h"
#include "absl/strings/internal/cordz_handle.h"
#include "absl/strings/internal/cordz_info.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/inject/carried/carried.h"

ABSL_FLAG(int32_t, carried_number, 3, "A flag of each module that carries abseil");
ABSL_FLAG(absl::Duration, carried_time, absl::Seconds(1), "Another");

namespace {

void Print(const char* who, const char* what, const std::string& text) {
  std::printf("%s: %s: %s\n", who, what, text.c_str());
}

std::string Symbol(void* address) {
  char name[200];
  return absl::Symbolize(address, name, sizeof(name)) ? name : "no name";
}

absl::StatusOr<int> Half(int number) {
  if (number % 2 == 0) return number / 2;
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(number, " is odd"));
  status.SetPayload("carried/number", absl::Cord(absl::StrCat(number)));
  return status;
}

// Eight threads take turns; every turn is waited for.
int TakeTurns() {
  absl::Mutex mutex;
  absl::CondVar changed;
  int turn = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        absl::MutexLock lock(&mutex);
        while (turn % 8 != t) changed.Wait(&mutex);
        ++turn;
        changed.SignalAll();
      }
    });
  }
  mutex.LockWhen(absl::Condition(
      +[](int* turns) { return *turns == 400; }, &turn));
  mutex.Unlock();
  for (std::thread& thread : threads) thread.join();
  return turn;
}

// Returns what the handler prints about the function that failed, without times and addresses, which differ in each
// run.
void WriteName(const char* text) {
  if (text != nullptr && std::strstr(text, "fail_carried") != nullptr) std::printf("in fail_carried\n");
  std::fflush(stdout);
}

}  // namespace

int use_carried(const char* who) {
  std::vector<std::string> words = {"carried", "--carried_number=42", "--carried_time=90m", "rest"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  const std::vector<char*> rest = absl::ParseCommandLine(static_cast<int>(argv.size()), argv.data());
  Print(who, "flags",
        absl::StrCat(absl::GetFlag(FLAGS_carried_number), " ", absl::FormatDuration(absl::GetFlag(FLAGS_carried_time)),
                     " ", rest.size(), " ", absl::FindCommandLineFlag("carried_number")->DefaultValue()));

  const absl::Time time = absl::FromUnixSeconds(1234567890);
  Print(who, "time", absl::FormatTime(absl::RFC3339_full, time, absl::FixedTimeZone(3600)));
  const absl::Time before = absl::Now();
  absl::SleepFor(absl::Milliseconds(1));
  if (absl::Now() <= before) return 1;

  const absl::StatusOr<int> half = Half(84);
  const absl::StatusOr<int> none = Half(7);
  if (!half.ok() || none.ok()) return 2;
  Print(who, "statuses", absl::StrCat(*half, ", ", none.status().ToString(absl::StatusToStringMode::kWithEverything)));

  // All cords are sampled for once.
  namespace cords = absl::cord_internal;
  const int32_t interval = cords::get_cordz_mean_interval();
  cords::set_cordz_mean_interval(1);
  std::vector<absl::Cord> kept;
  for (int i = 0; i < 20; ++i) kept.emplace_back(std::string(1000 + i, 'c'));
  for (absl::Cord& cord : kept) cord.Append(kept[0]);
  int sampled = 0;
  {
    cords::CordzSnapshot snapshot;
    for (const cords::CordzInfo* info = cords::CordzInfo::Head(snapshot); info != nullptr;
         info = info->Next(snapshot)) {
      ++sampled;
    }
  }
  Print(who, "cords", absl::StrCat(kept.size(), " of ", kept[1].size(), " bytes, sampled: ", sampled > 0));
  kept.clear();
  cords::set_cordz_mean_interval(interval);

  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kReport);
  Print(who, "turns", absl::StrCat(TakeTurns()));
  absl::flat_hash_map<std::string, int> map = {{"one", 1}, {"two", 2}};
  Print(who, "map", absl::StrFormat("%d of %d", map["two"], map.size()));

  absl::InitializeSymbolizer("");
  Print(who, "symbols", Symbol(reinterpret_cast<void*>(&use_carried)));
  return 0;
}

void fail_carried() {
  if (std::freopen("/dev/null", "w", stderr) == nullptr) return;  // where the handler writes everything
  absl::FailureSignalHandlerOptions options;
  options.writerfn = &WriteName;
  absl::InstallFailureSignalHandler(options);
  *static_cast<volatile int*>(nullptr) = 1;
}
