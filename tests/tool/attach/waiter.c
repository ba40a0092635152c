// Waits for its input, without a driver.
#include <stdio.h>
#include <unistd.h>

int main(void) {
  char byte;
  puts("ready");
  fflush(stdout);
  return read(0, &byte, 1) < 0;
}
