/* Uses the C interface of the installed library. Prints what went wrong and exits 1, else writes the profile to
 * argv[1] and exits 0.
 *
 * It is compiled with optimisation and all warnings as errors. Memory comes from malloc and is never written before it
 * is recorded: a function whose pointer argument were declared as read would stop the build (-Wmaybe-uninitialized). */
#include <hbmprof/c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBytes = 64 };

static int fail(const char* problem) {
  fprintf(stderr, "c_consumer: %s: %s\n", problem, hbmprof_last_error());
  return 1;
}

static int record_buffer(void) {
  void* buffer = malloc(kBytes);
  hbmprof_attributes attributes;
  uintptr_t stack[2] = {0x1000, 0x2000};
  int recorded;
  memset(&attributes, 0, sizeof(attributes));
  attributes.struct_size = sizeof(attributes);
  attributes.kind = HBMPROF_KIND_MANAGED;
  recorded =
      hbmprof_record_alloc(buffer, kBytes, 3) + hbmprof_record_resize(buffer, kBytes) + hbmprof_record_free(buffer);
  hbmprof_record_refused_free();
  recorded += hbmprof_record_alloc_with(buffer, kBytes, &attributes) + hbmprof_record_free(buffer);
  recorded += hbmprof_record_alloc_stack(buffer, kBytes, &attributes, stack, 2) + hbmprof_record_free(buffer);
  free(buffer);
  return recorded == 7;
}

static int record_pool(void) {
  char* slab = malloc(kBytes);
  int recorded;
  if (slab == NULL) return 0;
  recorded = hbmprof_record_segment(slab, kBytes, NULL) + hbmprof_record_block(slab + 8, 8, NULL) +
             hbmprof_record_block_resize(slab + 8, 4, NULL) + hbmprof_record_block_free(slab + 8, NULL) +
             hbmprof_record_segment_free(slab, NULL);
  free(slab);
  return recorded == 5;
}

int main(int argc, char** argv) {
  void* buffer;
  hbmprof_stats stats;
  if (argc != 2) return 2;

  if (!record_buffer()) return fail("a buffer was not recorded");
  if (!record_pool()) return fail("a pool was not recorded");
  buffer = malloc(kBytes);
  hbmprof_tag_push("phase", "decode");
  if (hbmprof_record_alloc(buffer, kBytes, 3) != 1) return fail("the allocation was not recorded");
  hbmprof_tag_pop();
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  if (hbmprof_get_stats(3, &stats) != HBMPROF_OK || stats.bytes_in_use != kBytes) return fail("wrong stats");
  if (hbmprof_save_device_memory_profile(argv[1]) != HBMPROF_OK) return fail("no profile");
  if (hbmprof_record_free(buffer) != 1) return fail("the record was gone");
  free(buffer);
  return 0;
}
