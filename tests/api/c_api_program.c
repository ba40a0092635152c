/* A C program that uses the whole C interface.
 *
 *   c_api_program init FILE     sets up the profiler, records 1,000 bytes, writes its profile to FILE when it exits
 *   c_api_program check FILE    checks the result of each function, writes a profile; exit code 0, or 1 and the failed
 *                             checks
 *   c_api_program leak N CODE   records N buffers of 1,000 bytes on device 3 and exits with CODE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hbmprof/c_api.h"

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "check failed: %s\n", what);
  failures = 1;
}
#define EXPECT(condition) expect((condition) != 0, #condition)

static char memory[1024];

static void check_tracker(void) {
  hbmprof_tracker_stats stats;
  memset(&stats, 0, sizeof(stats));
  EXPECT(hbmprof_get_tracker_stats(NULL) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_get_tracker_stats(&stats) == HBMPROF_INVALID_ARGUMENT);
  stats.struct_size = sizeof(stats);
  EXPECT(hbmprof_get_tracker_stats(&stats) == HBMPROF_OK);
  EXPECT(stats.struct_size == sizeof(stats));
  EXPECT(stats.foreign_frees == 1);
  EXPECT(stats.dropped_records == 1);
  EXPECT(stats.dropped_bytes == (int64_t)1 << 41);
  EXPECT(stats.replaced_records == 0);
  EXPECT(stats.live_records == 2);
  EXPECT(stats.host_bytes > 0 && stats.host_bytes <= stats.max_host_bytes);
}

static long long dropped(void) {
  hbmprof_tracker_stats stats;
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  EXPECT(hbmprof_get_tracker_stats(&stats) == HBMPROF_OK);
  return (long long)stats.dropped_records;
}

/* Not inlined: the profile has its name. */
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
  EXPECT(stats.pool_bytes == 0);
  EXPECT(stats.bytes_limit == HBMPROF_NOT_KNOWN);
  EXPECT(stats.largest_free_block_bytes == HBMPROF_NOT_KNOWN);
  EXPECT(stats.driver_bytes_in_use == HBMPROF_NOT_KNOWN);
  EXPECT(stats.driver_peak_bytes_in_use == HBMPROF_NOT_KNOWN);
  EXPECT(stats.driver_cache_bytes == HBMPROF_NOT_KNOWN);
  EXPECT(stats.unaccounted == HBMPROF_NOT_KNOWN);
  EXPECT(stats.baseline == HBMPROF_NOT_KNOWN);
  EXPECT(hbmprof_get_stats(62, &stats) == 0);
  EXPECT(stats.bytes_in_use == 7);
  check_tracker();

  hbmprof_reset_peak(0);
  hbmprof_reset_peak(-1);
  EXPECT(hbmprof_get_stats(0, &stats) == 0);
  EXPECT(stats.peak_bytes_in_use == 1000);

  EXPECT(hbmprof_device("TPU:0") != hbmprof_device("TPU:1"));
  EXPECT(hbmprof_get_stats(hbmprof_device("TPU:0"), &stats) == 0);
  EXPECT(stats.bytes_in_use == 0);

  EXPECT(hbmprof_get_stats(0, NULL) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_get_stats(63, &stats) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_get_space_stats(0, 3, &stats) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_get_stats(-1, &stats) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(strstr(hbmprof_last_error(), "device -1") != NULL);

  /* Deeper than the limit: no more labels, and as many pops. */
  for (i = 0; i < 100; ++i) hbmprof_tag_push("depth", "x");
  for (i = 0; i < 100; ++i) hbmprof_tag_pop();
  hbmprof_tag_pop();

  EXPECT(hbmprof_save_device_memory_profile("/nowhere/at/all.pb.gz") == HBMPROF_NOT_FOUND);
  EXPECT(strstr(hbmprof_last_error(), "/nowhere/at/all.pb.gz") != NULL);
  EXPECT(hbmprof_save_device_memory_profile(path) == 0);
}

/* Segments and blocks of a pool, attributes and handles. Leaves nothing live on its device. */
static void check_pool(void) {
  hbmprof_attributes attributes;
  hbmprof_stats stats;
  long long before;
  const char* slab = (const char*)0x7000000000;
  const int device = hbmprof_device("NPU:0");
  memset(&attributes, 0, sizeof(attributes));
  memset(&stats, 0, sizeof(stats));
  attributes.struct_size = sizeof(attributes);
  attributes.device = device;
  attributes.allocator = hbmprof_allocator("arena");
  stats.struct_size = sizeof(stats);
  EXPECT(hbmprof_allocator("") == 0);
  EXPECT(attributes.allocator == hbmprof_allocator("arena"));

  EXPECT(hbmprof_record_segment(slab, 4096, &attributes) == 1);
  EXPECT(hbmprof_record_block(slab, 1000, &attributes) == 1);
  EXPECT(hbmprof_record_block(slab + 2048, 100, &attributes) == 1);
  EXPECT(hbmprof_record_block_resize(slab, 500, &attributes) == 1);
  EXPECT(hbmprof_record_block_resize(slab, 500, NULL) == 0); /* another pool */
  EXPECT(hbmprof_get_stats(device, &stats) == 0);
  EXPECT(stats.bytes_in_use == 4096);
  EXPECT(stats.pool_bytes == 4096);
  EXPECT(stats.idle_bytes == 4096 - 600);
  EXPECT(stats.num_live == 3);

  EXPECT(hbmprof_record_resize(slab, 3000) == 1);
  EXPECT(hbmprof_record_block_free(slab, &attributes) == 1);
  EXPECT(hbmprof_record_block_free(slab, &attributes) == 0);
  EXPECT(hbmprof_record_segment(slab + 8192, 50, &attributes) == 1);
  EXPECT(hbmprof_record_segment_free(slab + 8192, &attributes) == 1);
  EXPECT(hbmprof_record_segment_free(slab + 8192, &attributes) == 0);
  EXPECT(hbmprof_get_stats(device, &stats) == 0);
  EXPECT(stats.bytes_in_use == 3000);

  /* Every kind counts in its space. An old program's struct ends before `kind`. */
  attributes.kind = HBMPROF_KIND_PINNED_HOST;
  EXPECT(hbmprof_record_alloc_with(hbmprof_handle(35, 1), 70, &attributes) == 1);
  EXPECT(hbmprof_get_space_stats(device, HBMPROF_SPACE_PINNED_HOST, &stats) == 0);
  EXPECT(stats.bytes_in_use == 70);
  attributes.struct_size = offsetof(hbmprof_attributes, kind);
  EXPECT(hbmprof_record_alloc_with(hbmprof_handle(36, 1), 8, &attributes) == 1);
  EXPECT(hbmprof_get_stats(device, &stats) == 0);
  EXPECT(stats.bytes_in_use == 3008);
  EXPECT(hbmprof_handle(35, 1) != hbmprof_handle(36, 1));
  EXPECT(hbmprof_handle(0, 1) == NULL && hbmprof_handle(64, 1) == NULL &&
         hbmprof_handle(32, (uint64_t)1 << 57) == NULL);
  EXPECT(hbmprof_handle(31, 1) == NULL);
  EXPECT(strcmp(hbmprof_last_error(), "hbmprof_handle: name_space is 31, not 32 to 63") == 0);
  EXPECT(hbmprof_record_alloc_with(hbmprof_handle(37, 1), 8, NULL) == 1);
  EXPECT(hbmprof_record_free(hbmprof_handle(37, 1)) == 1);

  /* Without a struct_size only an allocation is dropped. */
  before = dropped();
  attributes.struct_size = 0;
  EXPECT(hbmprof_record_block_free(slab, &attributes) == 0 && hbmprof_record_segment_free(slab, &attributes) == 0);
  EXPECT(hbmprof_record_block_resize(slab, 8, &attributes) == 0);
  EXPECT(dropped() == before);
  EXPECT(hbmprof_record_block(slab, 8, &attributes) == 0 && dropped() == before + 1);

  hbmprof_drop_device(-1);
  hbmprof_drop_device(device);
  EXPECT(hbmprof_get_stats(device, &stats) == 0);
  EXPECT(stats.bytes_in_use == 0);
}

static void check_switch(void) {
  EXPECT(hbmprof_enabled() == 1);
  hbmprof_set_enabled(0);
  EXPECT(hbmprof_enabled() == 0);
  EXPECT(hbmprof_record_alloc(&memory[9], 1, 0) == 0);
  EXPECT(hbmprof_record_block(&memory[9], 1, NULL) == 0);
  hbmprof_set_enabled(1);
  EXPECT(hbmprof_record_alloc(&memory[9], 1, 0) == 1);
  EXPECT(hbmprof_record_free(&memory[9]) == 1);
}

/* The profile as bytes is the profile that is written to `path`: gzip, of about that size. */
static void check_bytes(void) {
  uint8_t* bytes = &((uint8_t*)memory)[0];
  size_t size = 1;
  EXPECT(hbmprof_save_device_memory_profile(NULL) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_device_memory_profile(NULL, &size) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_device_memory_profile(&bytes, NULL) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_device_memory_profile(&bytes, &size) == HBMPROF_OK);
  EXPECT(bytes != NULL && size > 100 && bytes[0] == 0x1f && bytes[1] == 0x8b);
  hbmprof_free_profile(bytes);
  hbmprof_free_profile(NULL);
}

static void check_http(void) {
  hbmprof_http_answer answer;
  struct {
    hbmprof_http_answer answer;
    char beyond;
  } older;
  memset(&answer, 0, sizeof(answer));
  EXPECT(hbmprof_answer_http_get("/metrics", NULL) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_answer_http_get("/metrics", &answer) == HBMPROF_INVALID_ARGUMENT);
  answer.struct_size = sizeof(answer);
  EXPECT(hbmprof_answer_http_get(NULL, &answer) == HBMPROF_INVALID_ARGUMENT);

  EXPECT(hbmprof_answer_http_get("/metrics", &answer) == HBMPROF_OK);
  EXPECT(answer.status == 200 && answer.struct_size == sizeof(answer));
  EXPECT(strcmp(answer.content_type, "text/plain; version=0.0.4; charset=utf-8") == 0);
  EXPECT(answer.size == strlen(answer.body));
  EXPECT(strstr(answer.body, "\n# TYPE hbmprof_device_memory_bytes gauge\n") != NULL);
  hbmprof_free_http_answer(&answer);
  EXPECT(answer.body == NULL && answer.content_type == NULL && answer.size == 0);
  hbmprof_free_http_answer(&answer);
  hbmprof_free_http_answer(NULL);

  EXPECT(hbmprof_answer_http_get("/debug/pprof/heap?max_samples=16000", &answer) == HBMPROF_OK);
  EXPECT(answer.status == 200 && strcmp(answer.content_type, "application/octet-stream") == 0);
  EXPECT(answer.size > 100 && (uint8_t)answer.body[0] == 0x1f && (uint8_t)answer.body[1] == 0x8b);
  hbmprof_free_http_answer(&answer);

  EXPECT(hbmprof_answer_http_get("/other", &answer) == HBMPROF_OK);
  EXPECT(answer.status == 404 && strstr(answer.body, "/debug/pprof/heap") != NULL);
  hbmprof_free_http_answer(&answer);
  EXPECT(hbmprof_answer_http_get("/metrics?x=1", &answer) == HBMPROF_OK);
  EXPECT(answer.status == 400);
  hbmprof_free_http_answer(&answer);

  /* A larger struct of a later header is filled as far as the library knows it. */
  memset(&older, 0x5a, sizeof(older));
  older.answer.struct_size = sizeof(older);
  EXPECT(hbmprof_answer_http_get("/metrics", &older.answer) == HBMPROF_OK);
  EXPECT(older.answer.status == 200 && older.beyond == 0x5a);
  hbmprof_free_http_answer(&older.answer);
}

static void init(const char* path) {
  hbmprof_options options;
  memset(&options, 0x5a, sizeof(options));
  options.struct_size = 0;
  EXPECT(hbmprof_options_from_environment(NULL) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_options_from_environment(&options) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_init(&options) == HBMPROF_INVALID_ARGUMENT);
  options.struct_size = sizeof(options);
  EXPECT(hbmprof_options_from_environment(&options) == HBMPROF_OK);
  EXPECT(options.struct_size == sizeof(options));
  EXPECT(options.enabled == 1);
  EXPECT(options.max_stack_depth == 7); /* HBMPROF_STACK_DEPTH of the test */
  EXPECT(options.unwinder == HBMPROF_UNWINDER_AUTO);
  EXPECT(options.max_live_buffers == 1 << 24);
  EXPECT(strcmp(options.output, "/nowhere/%p.pb.gz") == 0); /* HBMPROF_OUTPUT of the test */
  EXPECT(strcmp(options.oom_output, "") == 0);
  EXPECT(options.oom_report == 1 && options.output_on_signals == 0);
  EXPECT(strcmp(options.socket_dir, "") == 0);
  EXPECT(options.python == 1);
  EXPECT(options.output_mode == 0600);
  EXPECT(strcmp(options.record, "") == 0 && options.record_max_bytes == 1 << 30);
  EXPECT(options.flight_events == 123 && options.flight_seconds == 2.5);
  EXPECT(strcmp(options.log, "stderr") == 0);
  EXPECT(options.output_interval == 0 && strcmp(options.dump_output, "") == 0);
  EXPECT(options.dump_in_use_percent == 80 && options.dump_peak_growth == 0 && options.dump_keep == 10);
  options.max_sites = 0;
  EXPECT(hbmprof_init(&options) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(strstr(hbmprof_last_error(), "max_sites is 0") != NULL);
  options.max_sites = 1000;
  options.flight_seconds = -1;
  EXPECT(hbmprof_init(&options) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(strstr(hbmprof_last_error(), "flight_seconds is -1") != NULL);
  options.flight_seconds = 0;
  options.record_max_bytes = 1;
  EXPECT(hbmprof_init(&options) == HBMPROF_INVALID_ARGUMENT);
  options.record_max_bytes = 0;
  options.unwinder = 2; /* not a value of hbmprof_unwinder */
  EXPECT(hbmprof_init(&options) == HBMPROF_INVALID_ARGUMENT);
  options.unwinder = HBMPROF_UNWINDER_AUTO;
  options.output = path;
  options.output_mode = 0640;
  /* An old program's struct ends before output_mode: the environment's value holds. */
  options.struct_size = offsetof(hbmprof_options, output_mode);
  EXPECT(hbmprof_init(&options) == HBMPROF_OK);
  EXPECT(hbmprof_init(&options) == HBMPROF_FAILED_PRECONDITION);
  EXPECT(strstr(hbmprof_last_error(), "exists already") != NULL);
  EXPECT(hbmprof_record_alloc(&memory[0], 1000, 0) == 1);
}

/* A recording beside `path`; hbmprof_log_memory() without a log. */
static void check_recording(const char* path) {
  char file[4096];
  char head[6] = "";
  FILE* stream;
  snprintf(file, sizeof(file), "%s.hbmrec", path);
  EXPECT(hbmprof_stop_recording() == HBMPROF_FAILED_PRECONDITION);
  EXPECT(hbmprof_start_recording(NULL) == HBMPROF_INVALID_ARGUMENT);
  EXPECT(hbmprof_start_recording("/no/such/folder/x.hbmrec") == HBMPROF_NOT_FOUND);
  EXPECT(hbmprof_start_recording(file) == HBMPROF_OK);
  EXPECT(hbmprof_start_recording(file) == HBMPROF_FAILED_PRECONDITION);
  EXPECT(hbmprof_record_alloc(&memory[9], 1, 0) == 1);
  EXPECT(hbmprof_record_free(&memory[9]) == 1);
  hbmprof_log_memory("checkpoint");
  hbmprof_log_memory(NULL);
  EXPECT(hbmprof_stop_recording() == HBMPROF_OK);
  stream = fopen(file, "rb");
  EXPECT(stream != NULL && fread(head, 1, sizeof(head), stream) == sizeof(head));
  EXPECT(memcmp(head, "HBMREC", sizeof(head)) == 0);
  if (stream != NULL) fclose(stream);
  EXPECT(remove(file) == 0);
}

/* Starts a flight recorder, a log and a recording to `path` with the options of the struct. Ends the recording, and
   then saves a flight recording. */
static void record(const char* path) {
  char file[4096];
  hbmprof_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  EXPECT(hbmprof_options_from_environment(&options) == HBMPROF_OK);
  snprintf(file, sizeof(file), "%s.log", path);
  options.record = path;
  options.flight_seconds = 60;
  options.log = file;
  EXPECT(hbmprof_init(&options) == HBMPROF_OK);
  EXPECT(hbmprof_record_alloc(&memory[0], 1000, 0) == 1);
  hbmprof_log_memory("checkpoint");
  EXPECT(hbmprof_save_flight_recording(NULL) == HBMPROF_INVALID_ARGUMENT);
  snprintf(file, sizeof(file), "%s.flight", path);
  EXPECT(hbmprof_save_flight_recording(file) == HBMPROF_FAILED_PRECONDITION); /* a recording is in progress */
  EXPECT(hbmprof_stop_recording() == HBMPROF_OK);
  EXPECT(hbmprof_record_alloc(&memory[1], 1000, 0) == 1);
  EXPECT(hbmprof_save_flight_recording(file) == HBMPROF_OK);
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "record") == 0) {
    record(argv[2]);
    return failures;
  }
  if (argc == 3 && strcmp(argv[1], "check") == 0) {
    check(argv[2]);
    check_pool();
    check_http();
    check_switch();
    check_bytes();
    check_recording(argv[2]);
    return failures;
  }
  if (argc == 3 && strcmp(argv[1], "init") == 0) {
    init(argv[2]);
    return failures;
  }
  if (argc == 4 && strcmp(argv[1], "leak") == 0) {
    int count = atoi(argv[2]);
    int i;
    for (i = 0; i < count && i < (int)sizeof(memory); ++i) hbmprof_record_alloc(&memory[i], 1000, 3);
    return atoi(argv[3]);
  }
  fprintf(stderr, "usage: c_api_program check FILE | init FILE | record FILE | leak N CODE\n");
  return 2;
}
