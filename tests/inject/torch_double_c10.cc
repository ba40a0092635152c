#include "tests/inject/double.h"
#include "tests/inject/torch_double.h"

namespace {

int reports = 0;

}  // namespace

void c10::reportMemoryUsageToProfiler(void* ptr, int64_t size, size_t, size_t reserved, Device) {
  if (ptr != nullptr && size % 512 == 0 && reserved != 0) ++reports;
}
void c10::reportOutOfMemoryToProfiler(int64_t size, size_t allocated, size_t reserved, Device device) {
  if (size == 4711 && allocated == 815 && reserved == 42 && device.index == 0) ++reports;
}
int double_reports() { return reports; }
