/* The C interface, for C, Rust, Go and any other language that can call C. Everything acts on the process's own
 * profiler (Profiler::Default() in C++).
 *
 * Conventions:
 * 1. Every function may be called from any thread at any time. None throws, aborts, or calls back.
 * 2. Strings are NUL-terminated, never null, and copied; nothing is kept of the caller's memory.
 * 3. A function that can fail returns 0 for success, else a positive absl::StatusCode; hbmprof_last_error() then says
 *    what happened.
 * 4. Sizes are bytes. A device is a number: N from 0 to 62 is the device "GPU:N", the CUDA device N of this process
 *    (hbmprof/allocation.h says which GPU that is). Any other device, such as a TPU, is given a number by
 *    hbmprof_device(). Allocations on a number that is neither are recorded on the device "unknown".
 * 5. Structs that we fill start with struct_size, which the caller sets to sizeof; fields beyond it are not written.
 */
#ifndef HBMPROF_C_API_H_
#define HBMPROF_C_API_H_

#include <stddef.h>
#include <stdint.h>

/* The memory that an argument points to is not read, so it need not have been written when it is recorded. Without this
 * g++ and gcc warn of it (-Wmaybe-uninitialized). */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define HBMPROF_NOT_READ_(argument) __attribute__((access(none, argument)))
#else
#define HBMPROF_NOT_READ_(argument)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The number of the device named `name`, which is added if it is new; the label `device` shows the name. The same name
 * has the same number in every thread, for the life of the process. At most 64 devices have a name; all further names
 * share one number, of the device "other". Names are cut at 64 bytes. Takes a lock: call it once and keep the number.
 * Returns -1 if the host has no memory for the name, or if called inside one of the profiler's own functions (from a
 * signal handler that interrupted it). */
int hbmprof_device(const char* name);

/* Records that `ptr` now names `bytes` bytes of `device`, with the caller's call stack and the current tags.
 * Call it after the allocation succeeded. Returns 1 if recorded, else 0 (off, null, or a limit: see the stats). */
int hbmprof_record_alloc(const void* ptr, size_t bytes, int device) HBMPROF_NOT_READ_(1);

/* Removes the record of `ptr`. Call it before the memory is really freed. Returns 1 if there was one, else 0. */
int hbmprof_record_free(const void* ptr) HBMPROF_NOT_READ_(1);

/* Gives the record of `ptr` another size, in bytes, after the memory was reallocated where it is; the record keeps its
 * call stack and tags. Memory that was moved is a free and an allocation. Returns 1 if done, else 0 and nothing changed
 * (off, no record, or a limit). */
int hbmprof_record_resize(const void* ptr, size_t bytes) HBMPROF_NOT_READ_(1);

/* Adds the label key=value to what this thread allocates until the matching hbmprof_tag_pop(). Pushes nest, at most 64
 * deep; deeper ones add nothing but must be popped too. A pop without a push does nothing. See hbmprof/tag.h for the
 * limits on keys and values. */
void hbmprof_tag_push(const char* key, const char* value);
void hbmprof_tag_pop(void);

/* Sets a counter of the program's own, such as requests served. See hbmprof::SetCounter. */
void hbmprof_set_counter(const char* name, int64_t value);

typedef struct hbmprof_stats {
  size_t struct_size;         /* in: sizeof(hbmprof_stats) */
  int64_t bytes_in_use;       /* of the device: tracked and not freed */
  int64_t peak_bytes_in_use;  /* highest bytes_in_use so far */
  int64_t num_allocs;         /* recorded ever */
  int64_t num_live;           /* recorded and not freed */
  int64_t largest_alloc_size; /* largest ever */
  int64_t foreign_frees;      /* of the process: frees of unknown pointers */
  int64_t dropped_records;    /* of the process: allocations not tracked because a limit was reached */
  int64_t dropped_bytes;      /* their bytes */
} hbmprof_stats;

/* Fills `stats` for `device`. Fails with 3 (invalid argument) for a null `stats`, a struct_size too small to hold
 * bytes_in_use, or a number that is no device's. */
int hbmprof_get_stats(int device, hbmprof_stats* stats);

/* Writes the profile to `path`; see hbmprof::save_device_memory_profile. */
int hbmprof_save_device_memory_profile(const char* path);

/* Why this thread's last failing call failed; "" if none has. Valid until the thread's next failing call. */
const char* hbmprof_last_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HBMPROF_C_API_H_ */
