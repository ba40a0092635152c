// A double of CANN's libprofapi.so, a tool of mstx (fake_mstx.cc): has domains of its own, and counts calls.
#include <atomic>

namespace {

using Function = void (*)();
std::atomic<int> calls{0};
int domain;

void* CreateDomain(const char*) { return &domain; }
void Regions(void* of_domain, const void*) { calls += of_domain == &domain ? 1 : 1000; }

}  // namespace

extern "C" {

int fake_profapi_calls() { return calls; }

int InitInjectionMstx(int (*get_table)(int module, Function*** table, unsigned* size)) {
  Function** table = nullptr;
  unsigned size = 0;
  if (get_table(2, &table, &size) != 0) return 1;
  *table[1] = reinterpret_cast<Function>(&CreateDomain);
  if (get_table(3, &table, &size) != 0) return 1;
  *table[3] = *table[4] = reinterpret_cast<Function>(&Regions);
  return 0;
}

}  // extern "C"
