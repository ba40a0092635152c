// A library for RTLD_DEEPBIND that is linked with a driver, and calls a function which the driver at run time lacks.
int cuMemAlloc_v2(unsigned long long* pointer, unsigned long bytes);
int cuStreamBeginRecaptureToGraph(void);

int call_driver(int lacking) {
  unsigned long long pointer = 0;
  return lacking ? cuStreamBeginRecaptureToGraph() : cuMemAlloc_v2(&pointer, 100);
}
