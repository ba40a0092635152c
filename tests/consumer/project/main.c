/* Uses the C interface of the installed library. Prints what went wrong and exits 1, else writes the profile to
 * argv[1] and exits 0. */
#include <hbmprof/c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  const size_t bytes = 64;
  void* buffer;
  hbmprof_stats stats;
  if (argc != 2) return 2;

  /* Recorded as it comes from malloc, before it is written: no compiler may warn of that. */
  buffer = malloc(bytes);
  if (hbmprof_record_alloc(buffer, bytes, 3) != 1 || hbmprof_record_free(buffer) != 1) {
    fprintf(stderr, "c_consumer: the first allocation was not recorded\n");
    return 1;
  }
  hbmprof_tag_push("phase", "decode");
  if (hbmprof_record_alloc(buffer, bytes, 3) != 1) {
    fprintf(stderr, "c_consumer: the allocation was not recorded\n");
    return 1;
  }
  hbmprof_tag_pop();
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  if (hbmprof_get_stats(3, &stats) != 0 || stats.bytes_in_use != (int64_t)bytes) {
    fprintf(stderr, "c_consumer: wrong stats: %s\n", hbmprof_last_error());
    return 1;
  }
  if (hbmprof_save_device_memory_profile(argv[1]) != 0) {
    fprintf(stderr, "c_consumer: %s\n", hbmprof_last_error());
    return 1;
  }
  if (hbmprof_record_free(buffer) != 1) {
    fprintf(stderr, "c_consumer: the record was gone\n");
    return 1;
  }
  free(buffer);
  return 0;
}
