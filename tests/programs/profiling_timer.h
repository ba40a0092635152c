// ProfilingTimer: a signal that interrupts the program repeatedly, at any instruction.
#ifndef HBMPROF_TESTS_PROGRAMS_PROFILING_TIMER_H_
#define HBMPROF_TESTS_PROGRAMS_PROFILING_TIMER_H_

#include <signal.h>
#include <sys/time.h>

#include "tests/support/check.h"

// Under a thread sanitizer handlers run only where the program calls into the system: never inside the tracker.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kTimerInterruptsTheTracker = false;
#else
inline constexpr bool kTimerInterruptsTheTracker = true;
#endif

// While an object of this class exists, `handler` runs after every `microseconds` of processor time that the process
// used. Only one object may exist at a time.
class ProfilingTimer {
 public:
  ProfilingTimer(void (*handler)(int), int microseconds) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    CHECK_THAT(sigaction(SIGPROF, &action, nullptr) == 0);
    SetInterval(microseconds);
  }
  ~ProfilingTimer() { Stop(); }
  ProfilingTimer(const ProfilingTimer&) = delete;
  ProfilingTimer& operator=(const ProfilingTimer&) = delete;

  // For a forked child, which must not run the handler.
  static void Stop() { SetInterval(0); }

 private:
  static void SetInterval(int microseconds) {
    const itimerval interval = {{0, microseconds}, {0, microseconds}};
    CHECK_THAT(setitimer(ITIMER_PROF, &interval, nullptr) == 0);
  }
};

#endif  // HBMPROF_TESTS_PROGRAMS_PROFILING_TIMER_H_
