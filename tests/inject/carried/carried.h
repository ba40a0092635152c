// Programs and plug-ins that carry a library of their own, each compiled in (carried_protobuf.cc, carried_abseil.cc):
// the interface that carrier_program.cc uses for each of them. The output is the same in each run.
#ifndef HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_
#define HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_

extern "C" {
// Uses this module's copy of the library and prints the results. Returns 0 if all are correct.
[[gnu::visibility("default")]] int use_carried(const char* who);
// Ends the process by a signal, the way the library handles it.
[[gnu::visibility("default")]] void fail_carried();
}

#endif  // HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_
