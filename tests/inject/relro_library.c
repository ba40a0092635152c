// A library that changes data in the section that is read-only after relocation. ends_test.cc changes the program
// header of a copy, so that the page of these data is only partly in the read-only range, and stays writable.
#include <unistd.h>

static volatile int changed __attribute__((section(".data.rel.ro"))) = 1;

void end_in_library(void) {
  changed = 5;
  _exit(changed);
}
