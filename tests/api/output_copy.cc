// A library that contains a copy of hbmprof.
#include <cstddef>

#include "hbmprof/c_api.h"

extern "C" [[gnu::visibility("default")]] void RecordInCopy(size_t bytes) {
  static char memory;
  hbmprof_record_alloc(&memory, bytes, 0);
}
