// Prints the coverage of the driver's functions, as a program that links hbmprof can query it.
#include <dlfcn.h>

#include <cstdio>

#include "hbmprof/cuda_coverage.h"

int main() {
  dlopen("libcuda.so.1", RTLD_NOW);
  const auto coverage = hbmprof::CudaCoverage();
  if (!coverage.ok()) {
    std::printf("%s\n", coverage.status().ToString().c_str());
    return 1;
  }
  for (const hbmprof::CudaEntryPoint& entry : *coverage) {
    std::printf("%s: %s%s%s\n", entry.name.c_str(), hbmprof::CudaEntryStateName(entry.state),
                entry.note.empty() ? "" : ": ", entry.note.c_str());
  }
  return 0;
}
