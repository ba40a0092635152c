// A library that calls the program while the dynamic linker relocates it: to find the address of `picked`, the dynamic
// linker calls `resolve`. After that it writes more addresses into the same page, and makes the page read-only.
#include <unistd.h>

extern void (*hook_while_loading)(void);  // of ends_program.cc

static int five(void) { return 5; }

static int (*resolve(void))(void) {
  hook_while_loading();
  return five;
}

int picked(void) __attribute__((ifunc("resolve")));

void end_in_library(void) { _exit(picked()); }
