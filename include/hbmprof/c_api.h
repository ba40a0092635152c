/* The C interface of hbmprof, for C and for every language that can call C: Rust, Go, Python (ctypes).
 * examples/c_api has a program in each of them.
 *
 * All functions act on the profiler of the process (Profiler::Default() in C++).
 *
 *   hbmprof_tag_push("phase", "load");
 *   void* p = my_device_malloc(4096);
 *   hbmprof_record_alloc(p, 4096, 0);                        after the allocation succeeded
 *   hbmprof_tag_pop();
 *   if (hbmprof_save_device_memory_profile("now.pb.gz") != 0) puts(hbmprof_last_error());
 *   hbmprof_record_free(p);                                  before the memory is freed
 *   my_device_free(p);
 *
 * Conventions, which hold for every function that does not say otherwise:
 *
 * 1. Threads: every function may be called by any thread at any time. Once the profiler exists (after hbmprof_init() or
 *    any other call), hbmprof_record_* and hbmprof_tag_* may also be called in signal handlers, and need less than
 *    4 KiB of stack. The call that makes the profiler needs 16 KiB. No function throws an exception, ends the process,
 *    or calls a function of the caller.
 * 2. Errors: a function that returns `int` as a status returns 0 for success, or else one of enum hbmprof_status;
 *    hbmprof_last_error() then describes the error. hbmprof_record_* return 1 if the event was recorded, else 0.
 * 3. Strings are UTF-8 and end with a zero byte. A null pointer ends the process, except where null is allowed. Strings
 *    are copied: no pointer of the caller is kept.
 * 4. Sizes are in bytes.
 * 5. A struct begins with struct_size, which the caller sets to sizeof(struct) before the call. A function writes only
 *    the fields that lie within struct_size, and uses the default value for each field beyond it. So a program that was
 *    compiled with an older version of this header works with a newer library.
 * 6. The library uses a pointer to recorded memory only as an id: it does not read or write that memory.
 *    hbmprof_handle() makes such a pointer from a handle that is not an address.
 * 7. A device is a number. 0 to 62 is the CUDA device "GPU:0" to "GPU:62" of this process (hbmprof/allocation.h says
 *    which GPU that is). hbmprof_device() returns the number of a device with any other name, 64 to 127. An allocation
 *    with one of these numbers that hbmprof_device() has not returned is recorded on the device "unnamed:N", with any
 *    other number on the device "unknown".
 * 8. In a program that was started with `hbmprof run`, all functions act on the profiler of the injected library.
 *    Profiler::Default() in hbmprof/profiler.h says which effects are different then.
 */
#ifndef HBMPROF_C_API_H_
#define HBMPROF_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "hbmprof/version.h"

/* Tells gcc that the function does not read what its pointer argument points to: the memory may be uninitialized.
 * Without it gcc warns (-Wmaybe-uninitialized). */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define HBMPROF_NOT_READ_(argument) __attribute__((access(none, argument)))
#else
#define HBMPROF_NOT_READ_(argument)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* The values are those of absl::StatusCode. A later version may return further values. */
enum hbmprof_status {
  HBMPROF_OK = 0,
  HBMPROF_INVALID_ARGUMENT = 3,
  HBMPROF_DEADLINE_EXCEEDED = 4,   /* it took too long: see the function */
  HBMPROF_NOT_FOUND = 5,           /* a directory of the path does not exist */
  HBMPROF_ALREADY_EXISTS = 6,      /* files with all possible names for a path with "%n" exist */
  HBMPROF_PERMISSION_DENIED = 7,   /* the system does not allow it */
  HBMPROF_RESOURCE_EXHAUSTED = 8,  /* no host memory, or no space on the disk */
  HBMPROF_FAILED_PRECONDITION = 9, /* not allowed in the present state: see the function */
  HBMPROF_INTERNAL = 13            /* any other error of the system */
};

/* Describes the last error of the calling thread: the call, the cause, and what to do where that is known. "" if there
 * was none, or if the host had no memory for the text at the thread's first error. A successful call does not change
 * it. At most 1,023 bytes are kept. The string is valid until the thread's next error, and not after the thread has
 * ended. */
const char* hbmprof_last_error(void);

/* ---- Setup ------------------------------------------------------------------------------------------------------- */

enum hbmprof_unwinder { HBMPROF_UNWINDER_AUTO = 0, HBMPROF_UNWINDER_FRAME_POINTER = 1, HBMPROF_UNWINDER_NONE = 3 };

/* The options of the process's profiler. hbmprof/options.h describes each field, with its range. */
typedef struct hbmprof_options {
  size_t struct_size;       /* in: sizeof(hbmprof_options) */
  int enabled;              /* 0 or 1 */
  int max_stack_depth;      /* frames */
  int unwinder;             /* enum hbmprof_unwinder */
  int64_t max_live_buffers; /* buffers */
  int64_t max_sites;        /* call sites */
  int64_t max_host_bytes;   /* bytes */
  const char* output;       /* path or ""; null is "" */
  const char* oom_output;   /* path or ""; null is "" */
  unsigned output_mode;     /* permission bits */
  int output_on_signals;    /* 0 or 1 */
  int oom_report;           /* 0 or 1 */
  const char* socket_dir;   /* path or ""; null is "" */
  int python;               /* 0 or 1 */
  const char* record;       /* path or ""; null is "" */
  int64_t record_max_bytes; /* bytes */
  int64_t flight_events;    /* events */
  double flight_seconds;    /* seconds */
  const char* log;          /* "stderr", path or ""; null is "" */
  double output_interval;   /* seconds */
  const char* dump_output;  /* path or ""; null is "" */
  int64_t dump_peak_growth; /* bytes */
  int dump_in_use_percent;  /* percent */
  int dump_keep;            /* profiles */
} hbmprof_options;

/* Sets each field of `options` to the value of its environment variable HBMPROF_*. A field gets its default if its
 * variable is not set or if it has no variable. A variable with a bad value is ignored, and reported on stderr once in
 * the process. The strings are valid until a variable of the environment is changed. Errors: HBMPROF_INVALID_ARGUMENT
 * if `options` is null or its struct_size does not reach `enabled`; HBMPROF_RESOURCE_EXHAUSTED. */
int hbmprof_options_from_environment(hbmprof_options* options);

/* Makes the profiler of the process with `options`, which are copied. Without this call the first use of the library
 * makes it with the options of the environment. Call it at the start of main(), after
 * hbmprof_options_from_environment() and after the program has set the fields that it wants to change:
 *
 *   hbmprof_options options = {.struct_size = sizeof(options)};
 *   if (hbmprof_options_from_environment(&options) == 0) {
 *     options.output = "/tmp/%p.%n.pb.gz";
 *     if (hbmprof_init(&options) != 0) puts(hbmprof_last_error());
 *   }
 *
 * Options of hbmprof/options.h that the struct does not have, such as the tags of the process, are those of the
 * environment.
 *
 * After an error the profiler is not changed. Errors: HBMPROF_INVALID_ARGUMENT if `options` is null, its struct_size is
 * not set, or a field is outside its range; HBMPROF_FAILED_PRECONDITION if the profiler exists already;
 * HBMPROF_RESOURCE_EXHAUSTED. */
int hbmprof_init(const hbmprof_options* options);

/* Turns recording on (1) or off (0). Events are ignored while it is off: buffers that are allocated meanwhile stay
 * unknown, and buffers that are freed meanwhile stay recorded. So call it at the start of a program, and do not use it
 * to pause recording. */
void hbmprof_set_enabled(int enabled);

/* Returns 1 if recording is on, else 0. */
int hbmprof_enabled(void);

/* ---- Devices, kinds and allocators ------------------------------------------------------------------------------- */

/* Returns the number of the device `name`, such as "TPU:0"; a new name is added. The names "GPU:0" to "GPU:62" have the
 * numbers 0 to 62. The label `device` of a profile shows the name. A name has the same number in every thread for the
 * life of the process. Names are cut at 64 bytes, or before the UTF-8 character that would be split there. At most 63
 * devices have a name of their own: all further names share one number, of the device "other". Takes a lock: call it
 * once and keep the number. Returns -1 if the host has no memory, or if called in a signal handler that interrupted a
 * function of this library.
 */
int hbmprof_device(const char* name);

/* Stores the numbers of the devices on which memory was recorded in `devices`, at most `capacity` of them, and returns
 * how many there are. `devices` may be null if `capacity` is 0. Calls the probes of the devices, which ask the driver:
 * do not call it for each request. Any thread may call it. Returns -1 if the host has no memory, or if called in a
 * signal handler that interrupted a function of this library. */
int hbmprof_devices(int* devices, int capacity);

/* Stores the name of `device`, with a zero byte at its end, in `name`; a name that needs more than `capacity` bytes is
 * cut. Returns the length of the whole name without the zero byte, at most 64. `name` may be null if `capacity` is 0.
 * The numbers 0 to 62 have a name also if there is no such GPU. For the numbers that hbmprof_device() returned, takes
 * as long as hbmprof_devices(). Any thread may call it. Returns -1 if there is no such device, if the host has no
 * memory, or if called in a signal handler that interrupted a function of this library. */
int hbmprof_device_name(int device, char* name, size_t capacity);

/* Returns the number of the allocator `name`; a new name is added. The label `allocator` of a profile shows the name.
 * "" has the number 0: no label. At most 254 other names have a number of their own: all further names share one
 * number, of the allocator "other". Otherwise like hbmprof_device(). */
int hbmprof_allocator(const char* name);

/* The kind of memory. A profile shows it as the label `kind`. hbmprof/allocation.h describes each kind. */
enum hbmprof_kind {
  HBMPROF_KIND_DEVICE = 0,
  HBMPROF_KIND_MANAGED = 1,
  HBMPROF_KIND_PINNED_HOST = 2,
  HBMPROF_KIND_POOL = 3, /* segments and idle memory of pools; recorded by hbmprof_record_segment() */
  HBMPROF_KIND_VMM = 4,
  HBMPROF_KIND_ARRAY = 5,
  HBMPROF_KIND_GRAPH = 6,
  HBMPROF_KIND_EXECUTABLE = 7,
  HBMPROF_KIND_EXTERNAL = 8,
  HBMPROF_KIND_ALIAS = 9 /* counted as 0 bytes */
};

/* The attributes of an allocation. If all fields except struct_size are zero, the allocation is on device 0, has the
 * kind "device" and no allocator name. If struct_size is not set, nothing is recorded (hbmprof_tracker_stats counts
 * an allocation in dropped_records). Convention 7 says which device a number without a device is. A kind that does not
 * exist, and HBMPROF_KIND_POOL, is recorded as the kind "device", and an allocator number that hbmprof_allocator() has
 * not returned without an allocator name. */
typedef struct hbmprof_attributes {
  size_t struct_size; /* in: sizeof(hbmprof_attributes) */
  int device;         /* number of a device */
  int kind;           /* enum hbmprof_kind */
  int allocator;      /* number of an allocator */
} hbmprof_attributes;

/* Returns a pointer that identifies a handle which is not an address. Pass it as the `ptr` of the functions below.
 * `name_space` is 32 to 63, chosen by the caller (1 to 31 are hbmprof's own); equal handles of different name spaces
 * are different buffers. `handle` is less than 2^57. Returns null if an argument is outside its range, and
 * hbmprof_last_error() then says which one; no function records a null pointer. */
const void* hbmprof_handle(int name_space, uint64_t handle);

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

/* Records a buffer of `bytes` bytes at `ptr` on `device`, with the calling thread's call stack and tags. Call it after
 * the allocation succeeded. If `ptr` has a live record already, that record ends first, because its free was not
 * recorded. Returns 1 if the buffer was recorded. Returns 0 if recording is off, if `ptr` is null, or if a limit was
 * reached (then it is counted in dropped_records of hbmprof_tracker_stats). */
int hbmprof_record_alloc(const void* ptr, size_t bytes, int device) HBMPROF_NOT_READ_(1);

/* Like hbmprof_record_alloc(), with all attributes. A null `attributes` is the same as all zeros. */
int hbmprof_record_alloc_with(const void* ptr, size_t bytes, const hbmprof_attributes* attributes) HBMPROF_NOT_READ_(1);

/* Like hbmprof_record_alloc_with(), with a stack that the caller has captured: `count` return addresses, innermost
 * first. It is for languages that keep their own call stacks. In Go, for example, the library can capture the stack
 * only up to the call of C. If the result of runtime.Callers() is passed here, the profile has the names of the Go
 * functions. The array is read during the call. It is cut at max_stack_depth of hbmprof_options. A null or empty array
 * is the same as hbmprof_record_alloc_with(). */
int hbmprof_record_alloc_stack(const void* ptr, size_t bytes, const hbmprof_attributes* attributes,
                               const uintptr_t* return_addresses, size_t count) HBMPROF_NOT_READ_(1);

/* Removes the record of `ptr`. Call it before the memory is freed: another thread may get the same address as soon as
 * it is free. If `ptr` is a segment, its blocks end too. Returns 1 if there was a record. Returns 0 if recording is
 * off, if `ptr` is null, or if there was none (then it is counted in foreign_frees of hbmprof_tracker_stats). Under
 * `hbmprof run`, memory of the driver keeps its record until the driver frees it, and this function returns 1. */
int hbmprof_record_free(const void* ptr) HBMPROF_NOT_READ_(1);

/* Counts in refused_frees of hbmprof_tracker_stats that the memory of a removed record could not be freed. The record
 * does not come back. */
void hbmprof_record_refused_free(void);

/* Gives the record of `ptr` another size, after the memory was resized at its address. The record keeps its call stack
 * and tags. (If the memory was moved, record a free and an allocation instead.) Returns 1 if the size was changed.
 * Returns 0 and changes nothing if recording is off, if there is no record, or if a limit was reached. */
int hbmprof_record_resize(const void* ptr, size_t bytes) HBMPROF_NOT_READ_(1);

/* Removes all live records of `device`. Call it after a device reset. Counts of past allocations stay. Does nothing if
 * `device` is not the number of a device. */
void hbmprof_drop_device(int device);

/* ---- Pools: segments and blocks ----------------------------------------------------------------------------------
 *
 * A pool reserves large segments of device memory and hands out blocks of them. A profile shows each block with the
 * call stack that requested it, and the idle memory of each pool. docs/pools.md explains it; hbmprof/profiler.h has the
 * exact rules of each function. Return values are as for hbmprof_record_alloc().
 *
 * The device and the allocator of `attributes` name the pool; its kind is not used. A null `attributes` names the pool
 * without an allocator name on device 0. All calls for one pool must name the same pool.
 *
 *   hbmprof_record_segment(slab, 64 << 20, &pool);           the pool reserved memory
 *   hbmprof_record_block(slab + 4096, 1024, &pool);          the pool handed out a part of it
 *   hbmprof_record_block_free(slab + 4096, &pool);           the part came back
 *   hbmprof_record_segment_free(slab, &pool);                the pool returns the memory to the device
 */

/* Records that the `bytes` bytes from `address` are a segment. If `address` names a live buffer, for example one that a
 * wrapper has recorded, that buffer becomes the segment and keeps its call stack, tags, size and device. So does a live
 * block of another pool that begins at `address`. Record a segment before its blocks. Returns 1 if there is a segment
 * of the pool at `address` now, else 0: see Profiler::RecordSegment in profiler.h. */
int hbmprof_record_segment(const void* address, size_t bytes, const hbmprof_attributes* attributes)
    HBMPROF_NOT_READ_(1);

/* Ends the pool's segment at `address`. A segment that was a block becomes a block of the outer pool again. A segment
 * ends also with hbmprof_record_free() of its address. Returns 1 if there was such a segment, else 0. */
int hbmprof_record_segment_free(const void* address, const hbmprof_attributes* attributes) HBMPROF_NOT_READ_(1);

/* Records that the pool handed out the `bytes` bytes from `address`, with the calling thread's call stack and tags. A
 * block may begin where its segment begins. Returns 1 if the block was recorded, else 0. */
int hbmprof_record_block(const void* address, size_t bytes, const hbmprof_attributes* attributes) HBMPROF_NOT_READ_(1);

/* Removes the record of the pool's block at `address`. Returns 1 if there was one, else 0. */
int hbmprof_record_block_free(const void* address, const hbmprof_attributes* attributes) HBMPROF_NOT_READ_(1);

/* Gives the pool's block at `address` another size, like hbmprof_record_resize(). Returns 1 if there is such a block,
 * else 0. */
int hbmprof_record_block_resize(const void* address, size_t bytes, const hbmprof_attributes* attributes)
    HBMPROF_NOT_READ_(1);

/* ---- Tags and counters ------------------------------------------------------------------------------------------- */

/* Begins a scope: adds the label `key`=`value` to all allocations that the calling thread records until the matching
 * hbmprof_tag_pop(). Scopes nest; an inner scope hides an outer one with the same key. Scopes deeper than 64 have no
 * effect but must be ended too. hbmprof/tag.h has the limits for keys and values. */
void hbmprof_tag_push(const char* key, const char* value);

/* Ends the innermost scope of the calling thread. Does nothing if there is none. */
void hbmprof_tag_pop(void);

/* Begins a scope in which all stacks that the calling thread records begin at the function with these registers: the
 * caller of a wrapper, which then is in no stack. `pc` is the return address, `sp` the stack pointer after the return
 * and `fp` the frame pointer register of that function; 0 for what is not known. hbmprof/caller.h has the rules for
 * scopes, and code that reads the registers. Returns the argument for hbmprof_end_caller(), which must end the scope
 * before that function returns. */
int hbmprof_begin_caller(uintptr_t pc, uintptr_t sp, uintptr_t fp);
void hbmprof_end_caller(int begun);

/* Sets the program's counter `name`, such as the number of requests served. Each profile contains it, so that `hbmprof
 * leaks --per requests` reports growth per request. A name is cut at 64 bytes. There are at most 64 names; further
 * names are ignored. Takes a lock: call it once per request or batch. */
void hbmprof_set_counter(const char* name, int64_t value);

/* Start and end a recording of every event to the file `path`, with the default options, as StartRecording and
 * StopRecording do (hbmprof/recording.h). Errors: HBMPROF_FAILED_PRECONDITION, HBMPROF_RESOURCE_EXHAUSTED,
 * HBMPROF_DEADLINE_EXCEEDED (stop took longer than ten seconds), and those of hbmprof_save_device_memory_profile. */
int hbmprof_start_recording(const char* path);
int hbmprof_stop_recording(void);

/* Writes the events of the flight recorder to the file `path`, as SaveFlightRecording does (hbmprof/recording.h).
 * Errors: HBMPROF_FAILED_PRECONDITION if the flight recorder or the profiler is off, or if a recording is in progress;
 * HBMPROF_RESOURCE_EXHAUSTED; those of hbmprof_save_device_memory_profile. */
int hbmprof_save_flight_recording(const char* path);

/* Writes a line for each device to the log that the option `log` names, as LogMemory does (hbmprof/recording.h). A null
 * `label` is an empty one. Costs one atomic load if there is no log. */
void hbmprof_log_memory(const char* label);

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

/* The value of a field of hbmprof_stats that is not known. */
#define HBMPROF_NOT_KNOWN INT64_MIN

enum hbmprof_space {
  HBMPROF_SPACE_DEVICE = 0,      /* memory of the device */
  HBMPROF_SPACE_MANAGED = 1,     /* kind managed */
  HBMPROF_SPACE_PINNED_HOST = 2, /* kind pinned_host */
};

/* One memory space of one device. Bytes, unless stated otherwise. */
typedef struct hbmprof_stats {
  size_t struct_size;         /* in: sizeof(hbmprof_stats) */
  int64_t bytes_in_use;       /* recorded and not freed, idle memory of pools included */
  int64_t peak_bytes_in_use;  /* highest bytes_in_use since the start or the last hbmprof_reset_peak() */
  int64_t num_allocs;         /* count: allocations ever recorded, blocks included */
  int64_t num_live;           /* count: recorded and not freed, blocks and segments included */
  int64_t largest_alloc_size; /* the largest allocation ever recorded */
  int64_t pool_bytes;         /* live segments; part of bytes_in_use */
  int64_t idle_bytes;         /* idle memory of all pools; part of pool_bytes */
  /* From the device itself; HBMPROF_NOT_KNOWN if the device does not report the number. Only for
   * HBMPROF_SPACE_DEVICE. */
  int64_t bytes_limit;              /* capacity of the device */
  int64_t largest_free_block_bytes; /* the largest allocation that could succeed now */
  int64_t driver_bytes_in_use;      /* in use as reported by the driver */
  int64_t driver_peak_bytes_in_use; /* the highest driver_bytes_in_use, as reported by the driver */
  int64_t driver_cache_bytes;       /* part of driver_bytes_in_use: idle bytes of the driver's own pools */
  int64_t unaccounted;              /* driver_bytes_in_use less bytes_in_use and driver_cache_bytes; may be negative */
  int64_t baseline;                 /* `unaccounted` when the device was first seen */
  int driver_is_process;            /* 1: the driver's numbers count this process only; 0: all processes */
  int64_t bytes_free;               /* free bytes of the device, which any process can allocate */
} hbmprof_stats;

/* Fills `stats` with the values of HBMPROF_SPACE_DEVICE, the device memory of `device`. Errors:
 * HBMPROF_INVALID_ARGUMENT if `stats` is null, its struct_size does not reach the end of bytes_in_use, or `device` is
 * not the number of a device; HBMPROF_FAILED_PRECONDITION in a forked child whose parent had recorded;
 * HBMPROF_RESOURCE_EXHAUSTED. */
int hbmprof_get_stats(int device, hbmprof_stats* stats);

/* Like hbmprof_get_stats(), for one memory space of `device`. `space` is one of enum hbmprof_space. Errors: those of
 * hbmprof_get_stats(), and HBMPROF_INVALID_ARGUMENT if `space` has another value. */
int hbmprof_get_space_stats(int device, int space, hbmprof_stats* stats);

/* The profiler's own work, for the whole process. Counts, unless stated otherwise. */
typedef struct hbmprof_tracker_stats {
  size_t struct_size;         /* in: sizeof(hbmprof_tracker_stats) */
  int64_t foreign_frees;      /* frees of buffers that were not recorded */
  int64_t replaced_records;   /* allocations at a live buffer's address: the free of that buffer was not seen */
  int64_t dropped_records;    /* allocations not recorded because a limit was reached */
  int64_t dropped_bytes;      /* their bytes */
  int64_t reentrant_events;   /* events from inside the profiler, which are not recorded */
  int64_t truncated_stacks;   /* stacks that lost their outermost frames */
  int64_t dropped_tag_values; /* scopes whose tag value became "other", or that had no effect */
  int64_t live_records;       /* buffers recorded now */
  int64_t sites;              /* different call sites so far */
  int64_t host_bytes;         /* bytes of host memory that the tables take */
  int64_t max_host_bytes;     /* bytes that they may take */
  int64_t refused_frees;      /* hbmprof_record_refused_free(), and frees that a wrapped call refused */
} hbmprof_tracker_stats;

/* Fills `stats`. Errors: HBMPROF_INVALID_ARGUMENT if `stats` is null or its struct_size does not reach the end of
 * foreign_frees; HBMPROF_FAILED_PRECONDITION in a forked child whose parent had recorded;
 * HBMPROF_RESOURCE_EXHAUSTED. */
int hbmprof_get_tracker_stats(hbmprof_tracker_stats* stats);

/* Starts a new peak of `device`: the peak becomes the bytes that are in use now. Does nothing if `device` is not the
 * number of a device. */
void hbmprof_reset_peak(int device);

/* ---- Failed allocations ------------------------------------------------------------------------------------------ */

/* Reports an allocation that failed for lack of memory, as ReportOutOfMemory of hbmprof/out_of_memory.h does: which
 * call stacks hold the memory, and why the allocation failed, on standard error, at most once a minute for each device.
 * `call` is the name of the function that failed. `bytes` are the requested bytes; -1 if they are not known. `space` is
 * one of enum hbmprof_space. Call it after the allocation has failed, in the thread that requested it, and not in a
 * signal handler. Returns 1 if this call wrote a report. Returns 0 if the last report of the device is less than a
 * minute old, if recording or the report is off, if `call` is null, if `device` is not the number of a device, or if
 * `space` has another value. */
int hbmprof_report_out_of_memory(const char* call, int64_t bytes, int device, int space);

/* ---- Profiles ---------------------------------------------------------------------------------------------------- */

/* Writes a profile of what is recorded now to `path`, as gzip-compressed pprof. "%p" in the path is replaced by the
 * process id, "%n" by a number for which no file exists, "%%" by a percent sign. Without "%n" an existing file is
 * replaced. The file appears complete or not at all. Errors: HBMPROF_FAILED_PRECONDITION in a forked child whose parent
 * had recorded, HBMPROF_NOT_FOUND, HBMPROF_PERMISSION_DENIED, HBMPROF_RESOURCE_EXHAUSTED, HBMPROF_INVALID_ARGUMENT
 * (`path` is null or names no regular file), HBMPROF_INTERNAL. */
int hbmprof_save_device_memory_profile(const char* path);

/* Stores the same profile in memory: *bytes points to *size bytes. The caller owns them and frees them with
 * hbmprof_free_profile(). Errors: HBMPROF_INVALID_ARGUMENT if an argument is null; then nothing is stored. After
 * HBMPROF_FAILED_PRECONDITION (in a forked child whose parent had recorded) and HBMPROF_RESOURCE_EXHAUSTED, *bytes is
 * null and *size is 0. */
int hbmprof_device_memory_profile(uint8_t** bytes, size_t* size);

/* Frees what hbmprof_device_memory_profile() stored. Null is ignored. */
void hbmprof_free_profile(uint8_t* bytes);

/* ---- The program's own HTTP server ------------------------------------------------------------------------------- */

/* The answer to a request. */
typedef struct hbmprof_http_answer {
  size_t struct_size;       /* in: sizeof(hbmprof_http_answer) */
  int status;               /* of HTTP: 200, 400, 404 or 503 */
  const char* content_type; /* value of the header Content-Type */
  const char* body;         /* `size` bytes, then a zero byte that does not belong to the body */
  size_t size;              /* bytes */
} hbmprof_http_answer;

/* Answers the request "GET `target`" for the routes /debug/pprof/heap (a profile) and /metrics (for Prometheus).
 * `target` is the path and the query of the request line; hbmprof/http.h describes it. A request that is wrong has an
 * answer, too: its status is not 200, and its body is a text. The caller frees the answer with
 * hbmprof_free_http_answer(). Errors, after which there is nothing to free: HBMPROF_INVALID_ARGUMENT if an argument is
 * null or the struct_size does not reach the end of `size`; HBMPROF_RESOURCE_EXHAUSTED. */
int hbmprof_answer_http_get(const char* target, hbmprof_http_answer* answer);

/* Frees what hbmprof_answer_http_get() stored, and sets the pointers to null. Null and a freed answer are ignored. */
void hbmprof_free_http_answer(hbmprof_http_answer* answer);

/* hbmprof_version() is in hbmprof/version.h. */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HBMPROF_C_API_H_ */
