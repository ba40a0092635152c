// The interface that carrier_program.cc uses for programs and plugins that contain their own copy of a library
// (carried_protobuf.cc, carried_abseil.cc). The output is the same in each run.
#ifndef HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_
#define HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_

extern "C" {
// Uses this module's copy of the library and prints the results. Returns 0 if all are correct.
[[gnu::visibility("default")]] int use_carried(const char* who);
// Ends the process by a signal, the way the library handles it.
[[gnu::visibility("default")]] void fail_carried();
}

#endif  // HBMPROF_TESTS_INJECT_CARRIED_CARRIED_H_
