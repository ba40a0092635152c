/* Passes memory that was never written to each function that takes a pointer to recorded memory. It is only compiled:
 * with optimisation gcc warns (-Wmaybe-uninitialized) if a function is not declared as one that does not read it. */
#include <hbmprof/c_api.h>
#include <stdlib.h>

#define PASS_UNWRITTEN(function, ...)         \
  int pass_unwritten_to_##function(void);     \
  int pass_unwritten_to_##function(void) {    \
    char* p = malloc(64);                     \
    const int result = function(__VA_ARGS__); \
    free(p);                                  \
    return result;                            \
  }

PASS_UNWRITTEN(hbmprof_record_alloc, p, 64, 0)
PASS_UNWRITTEN(hbmprof_record_alloc_with, p, 64, NULL)
PASS_UNWRITTEN(hbmprof_record_alloc_stack, p, 64, NULL, NULL, 0)
PASS_UNWRITTEN(hbmprof_record_free, p)
PASS_UNWRITTEN(hbmprof_record_resize, p, 64)
PASS_UNWRITTEN(hbmprof_record_segment, p, 64, NULL)
PASS_UNWRITTEN(hbmprof_record_block, p, 64, NULL)
PASS_UNWRITTEN(hbmprof_record_segment_free, p, NULL)
PASS_UNWRITTEN(hbmprof_record_block_free, p, NULL)
PASS_UNWRITTEN(hbmprof_record_block_resize, p, 64, NULL)
