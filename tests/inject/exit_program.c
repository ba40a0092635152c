/* Ends with an exit code that nothing else has. */
#include <stdio.h>

int main(void) {
  puts("done");
  return 5;
}
