/* A C program that uses the whole C interface.
 *
 *   c_api_program check FILE    checks what every function answers, writes a profile; exit code 0, or 1 and why
 *   c_api_program leak N CODE   records N buffers of 1,000 bytes on device 3 and exits with CODE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hbmprof/c_api.h"

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "does not hold: %s\n", what);
  failures = 1;
}
#define EXPECT(condition) expect((condition) != 0, #condition)

static char memory[1024];

/* Has its own frame, for its name in the profile. */
__attribute__((noinline)) static void check(const char* path) {
  hbmprof_stats stats;
  int i;

  EXPECT(strcmp(hbmprof_last_error(), "") == 0);
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);

  hbmprof_tag_push("phase", "load");
  EXPECT(hbmprof_record_alloc(&memory[0], 1000, 0) == 1);
  hbmprof_tag_pop();
  EXPECT(hbmprof_record_alloc(&memory[1], 500, 0) == 1);
  EXPECT(hbmprof_record_alloc(&memory[2], 7, 62) == 1);
  EXPECT(hbmprof_record_alloc(NULL, 7, 0) == 0);
  EXPECT(hbmprof_record_alloc(&memory[3], (size_t)1 << 41, 0) == 0);
  EXPECT(hbmprof_record_free(&memory[1]) == 1);
  EXPECT(hbmprof_record_free(&memory[1]) == 0);
  EXPECT(hbmprof_record_free(NULL) == 0);
  hbmprof_set_counter("requests", 12);

  EXPECT(hbmprof_get_stats(0, &stats) == 0);
  EXPECT(stats.struct_size == sizeof(stats));
  EXPECT(stats.bytes_in_use == 1000);
  EXPECT(stats.peak_bytes_in_use == 1500);
  EXPECT(stats.num_allocs == 2);
  EXPECT(stats.num_live == 1);
  EXPECT(stats.largest_alloc_size == 1000);
  EXPECT(stats.foreign_frees == 1);
  EXPECT(stats.dropped_records == 1);
  EXPECT(stats.dropped_bytes == (int64_t)1 << 41);
  EXPECT(hbmprof_get_stats(62, &stats) == 0);
  EXPECT(stats.bytes_in_use == 7);

  EXPECT(hbmprof_device("TPU:0") != hbmprof_device("TPU:1"));
  EXPECT(hbmprof_get_stats(hbmprof_device("TPU:0"), &stats) == 0);
  EXPECT(stats.bytes_in_use == 0);

  EXPECT(hbmprof_get_stats(0, NULL) == 3);
  EXPECT(hbmprof_get_stats(63, &stats) == 3);
  EXPECT(hbmprof_get_stats(-1, &stats) == 3);
  EXPECT(strstr(hbmprof_last_error(), "device -1") != NULL);

  /* Deeper than the limit: no more labels, and as many pops. */
  for (i = 0; i < 100; ++i) hbmprof_tag_push("depth", "x");
  for (i = 0; i < 100; ++i) hbmprof_tag_pop();
  hbmprof_tag_pop();

  EXPECT(hbmprof_save_device_memory_profile("/nowhere/at/all.pb.gz") > 0);
  EXPECT(strstr(hbmprof_last_error(), "/nowhere/at/all.pb.gz") != NULL);
  EXPECT(hbmprof_save_device_memory_profile(path) == 0);
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "check") == 0) {
    check(argv[2]);
    return failures;
  }
  if (argc == 4 && strcmp(argv[1], "leak") == 0) {
    int count = atoi(argv[2]);
    int i;
    for (i = 0; i < count && i < (int)sizeof(memory); ++i) hbmprof_record_alloc(&memory[i], 1000, 3);
    return atoi(argv[3]);
  }
  fprintf(stderr, "usage: c_api_program check FILE | leak N CODE\n");
  return 2;
}
