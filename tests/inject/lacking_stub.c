// A libcuda.so.1 to link with, which has a function that the libraries at run time lack.
int cuInit(unsigned flags) { return (int)flags; }
int cuMemAlloc_v2(unsigned long long* pointer, unsigned long bytes) { return pointer == 0 || bytes == 0; }
int cuStreamBeginRecaptureToGraph(void) { return 0; }
