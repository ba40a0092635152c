// Programs and plug-ins that carry a library of their own, each compiled in (carried_protobuf.cc, carried_abseil.cc):
// what carrier_program.cc asks of whichever it is. All prints the same at each run.
#ifndef HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_
#define HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_

extern "C" {
// Uses this module's copy of the library and prints what comes of it. Returns 0 if all is as it must be.
[[gnu::visibility("default")]] int use_carried(const char* who);
// Ends the process by a signal, the way the library handles it.
[[gnu::visibility("default")]] void fail_carried();
}

#endif  // HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_
