// Represents an injected library of another version, which is loaded before the real one. Its other functions must not
// be called.
extern "C" const char* hbmprof_injected_version() { return "999.0.0"; }
