// A library that allocates memory of a module of CANN.
#include "src/backends/ascend/hal_driver.h"

namespace hbmprof::internal::ascend_driver {
extern "C" int halMemAlloc(void** ptr, Flags bytes, Flags flags);
}

extern "C" int allocate_with(void** ptr, unsigned long long bytes, unsigned long long flags) {
  volatile int result = hbmprof::internal::ascend_driver::halMemAlloc(ptr, bytes, flags);
  return result;  // after the call: no tail call
}
extern "C" int allocate(void** ptr, unsigned long long bytes, unsigned long long module) {
  volatile int result = allocate_with(ptr, bytes, module << 56 | 1 << 10);
  return result;
}
