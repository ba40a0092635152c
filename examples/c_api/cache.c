/* A page cache that forgets to free two of its pages, in C.
 *
 *   cc cache.c $(pkg-config --cflags --libs hbmprof-c) -o cache && ./cache cache.pb.gz
 */
#include <hbmprof/c_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { kPages = 5, kPageBytes = 4096 };

/* This function takes the place of a device's allocator. */
static void* device_alloc(size_t bytes) { return malloc(bytes); }
static int device_free(void* ptr) {
  free(ptr);
  return 1;
}

static void* add_page(const hbmprof_attributes* attributes) {
  void* page = device_alloc(kPageBytes);
  if (page != NULL) hbmprof_record_alloc_with(page, kPageBytes, attributes);
  return page;
}

static void remove_page(void* page) {
  hbmprof_record_free(page);
  if (!device_free(page)) hbmprof_record_refused_free();
}

int main(int argc, char** argv) {
  void* pages[kPages];
  hbmprof_attributes attributes = {sizeof(attributes), 0, HBMPROF_KIND_DEVICE, 0};
  hbmprof_stats stats = {0};
  int i;
  if (argc != 2) return 2;
  attributes.device = hbmprof_device("npu:0");
  attributes.allocator = hbmprof_allocator("cache");

  hbmprof_tag_push("phase", "decode");
  for (i = 0; i < kPages; ++i) pages[i] = add_page(&attributes);
  hbmprof_tag_pop();
  for (i = 2; i < kPages; ++i) remove_page(pages[i]);
  hbmprof_set_counter("requests", kPages);

  stats.struct_size = sizeof(stats);
  if (hbmprof_get_stats(attributes.device, &stats) != HBMPROF_OK ||
      hbmprof_save_device_memory_profile(argv[1]) != HBMPROF_OK) {
    fprintf(stderr, "cache: %s\n", hbmprof_last_error());
    return 1;
  }
  printf("%lld bytes in use, peak %lld\n", (long long)stats.bytes_in_use, (long long)stats.peak_bytes_in_use);
  return 0;
}
