// A libcuda.so.1 to link with, which has a function that the libraries at run time lack.
int cuInit(unsigned flags) { return (int)flags; }
int cuStreamBeginRecaptureToGraph(void) { return 0; }
