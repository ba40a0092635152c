#include "hbmprof/version.h"

extern "C" const char* hbmprof_version(void) { return HBMPROF_VERSION_STRING; }
