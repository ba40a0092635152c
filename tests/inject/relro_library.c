// A library whose read-only data after relocation are on the same page as data that it changes. (ends_test.cc changes
// the library's program header, so that this page is only partly in the read-only range.)
#include <unistd.h>

static volatile int changed __attribute__((section(".data.rel.ro"))) = 1;

void end_in_library(void) {
  changed = 5;
  _exit(changed);
}
