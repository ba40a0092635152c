// A library whose constructor calls back into the program, while dlopen holds the dynamic linker's lock.
extern "C" void hbmprof_test_in_constructor();

[[gnu::constructor]] static void OnLoad() { hbmprof_test_in_constructor(); }
