#include "src/backends/musa/mu_driver.h"

namespace hbmprof::internal::mu_driver {
#define CALLS "src/backends/musa/mu_calls.inc"
#define NAMES                                                                                                         \
  Driver::Names {                                                                                                     \
    {"libmusa.so.1", "libmusa.so.4", "libmusa.so.1.0", "libmusa.so"}, "/libmusa.so", "mu", "GPU:", "musaMallocAsync", \
        nullptr                                                                                                       \
  }
#include "src/backends/calls/define_driver.inc"
}  // namespace hbmprof::internal::mu_driver
