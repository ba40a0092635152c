// A program that uses OpenCL: opencl_program PLATFORM CASE. Prints "KIND COUNT BYTES" for what it holds at its end.
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void* __libc_malloc(size_t bytes);

// The allocations of libhbmprof_gpu.so fail while it is set.
static _Atomic int is_starved;

void* malloc(size_t bytes) {
  struct dl_find_object caller;
  const int fails = is_starved && _dl_find_object(__builtin_return_address(0), &caller) == 0 &&
                    strstr(caller.dlfo_link_map->l_name, "libhbmprof_gpu.so") != NULL;
  return fails ? NULL : __libc_malloc(bytes);
}

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

enum { kDevice, kPinned, kManaged, kArray, kAlias, kKinds };
static const char* const kNames[kKinds] = {"device", "pinned_host", "managed", "array", "alias"};
static atomic_long counts[kKinds];
static atomic_long sums[kKinds];

static void check(int is_right, const char* what) {
  if (is_right) return;
  printf("failed: %s\n", what);
  exit(1);
}

static void held(int kind, size_t bytes, int sign) {
  counts[kind] += sign;
  sums[kind] += sign * (long)bytes;
}

__attribute__((noinline)) static cl_mem buffer(cl_mem_flags flags, size_t bytes, int kind) {
  cl_int error = 1;
  const cl_mem made = clCreateBuffer(context, flags, bytes, NULL, &error);
  check(made != NULL && error == CL_SUCCESS, "clCreateBuffer");
  held(kind, bytes, 1);
  return made;
}

static void release(cl_mem mem, size_t bytes, int kind) {
  check(clReleaseMemObject(mem) == CL_SUCCESS, "clReleaseMemObject");
  held(kind, bytes, -1);
}

__attribute__((noinline)) static void leaks_weights(void) {
  for (int i = 0; i < 3; ++i) buffer(CL_MEM_READ_WRITE, 1 << 20, kDevice);
}

__attribute__((noinline)) static void* shared_memory(size_t bytes) {
  void* const made = clSVMAlloc(context, CL_MEM_READ_WRITE, bytes, 0);
  check(made != NULL, "clSVMAlloc");
  held(kManaged, bytes, 1);
  return made;
}

__attribute__((noinline)) static void leaks_cache(void) {
  for (int i = 0; i < 2; ++i) shared_memory(7777);
}

static void frees(void) {
  const cl_mem one = buffer(CL_MEM_READ_WRITE, 4096, kDevice);
  const cl_mem pinned = buffer(CL_MEM_ALLOC_HOST_PTR, 8192, kPinned);
  void* const first = shared_memory(100);
  void* second = shared_memory(200);
  release(one, 4096, kDevice);
  release(pinned, 8192, kPinned);
  clSVMFree(context, first);
  held(kManaged, 100, -1);
  clSVMFree(context, NULL);
  check(clEnqueueSVMFree(queue, 1, &second, NULL, NULL, 0, NULL, NULL) == CL_SUCCESS, "clEnqueueSVMFree");
  held(kManaged, 200, -1);
  check(clFinish(queue) == CL_SUCCESS, "clFinish");
}

static atomic_int callbacks;
static void CL_CALLBACK free_them(cl_command_queue from, cl_uint count, void** memory, void* data) {
  (void)from;
  for (cl_uint i = 0; i < count; ++i) clSVMFree(data, memory[i]);
  callbacks += 1;
}

static void frees_by_callback(void) {
  void* memory = shared_memory(300);
  check(clEnqueueSVMFree(queue, 1, &memory, &free_them, context, 0, NULL, NULL) == CL_SUCCESS, "clEnqueueSVMFree");
  clFinish(queue);
  while (callbacks == 0) usleep(1000);
  held(kManaged, 300, -1);
}

static void views(void) {
  cl_int error = 1;
  const cl_mem whole = buffer(CL_MEM_READ_WRITE, 1 << 16, kDevice);
  const cl_buffer_region region = {4096, 8192};
  const cl_mem part = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
  check(error == CL_SUCCESS, "clCreateSubBuffer");
  held(kAlias, 0, 1);
  clReleaseMemObject(whole);  // the part holds it
  const cl_mem ended = buffer(CL_MEM_READ_WRITE, 1 << 15, kDevice);
  const cl_mem its_part = clCreateSubBuffer(ended, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
  check(error == CL_SUCCESS, "clCreateSubBuffer");
  clReleaseMemObject(its_part);
  release(ended, 1 << 15, kDevice);
  (void)part;
  static char own[4096] __attribute__((aligned(4096)));
  check(clCreateBuffer(context, CL_MEM_USE_HOST_PTR, sizeof(own), own, NULL) != NULL, "CL_MEM_USE_HOST_PTR");
  held(kAlias, 0, 1);
}

static void retains(void) {
  const cl_mem kept = buffer(CL_MEM_READ_WRITE, 5000, kDevice);
  clRetainMemObject(kept);
  clReleaseMemObject(kept);
  const cl_mem gone = buffer(CL_MEM_READ_WRITE, 6000, kDevice);
  clRetainMemObject(gone);
  clReleaseMemObject(gone);
  release(gone, 6000, kDevice);
}

static void images(void) {
  cl_int error = 1;
  const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
  cl_image_desc shape;
  memset(&shape, 0, sizeof(shape));
  shape.image_type = CL_MEM_OBJECT_IMAGE2D;
  shape.image_width = 64;
  shape.image_height = 32;
  const cl_mem image = clCreateImage(context, CL_MEM_READ_ONLY, &format, &shape, NULL, &error);
  check(error == CL_SUCCESS, "clCreateImage");
  size_t bytes = 0;
  clGetMemObjectInfo(image, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL);
  check(bytes >= 64 * 32 * 4, "CL_MEM_SIZE of an image");
  held(kArray, bytes, 1);
  const cl_mem freed = clCreateImage(context, CL_MEM_READ_ONLY, &format, &shape, NULL, &error);
  check(error == CL_SUCCESS, "clCreateImage");
  clReleaseMemObject(freed);
  const cl_mem pipe = clCreatePipe(context, 0, 16, 32, NULL, &error);
  if (pipe == NULL) return;  // most devices have none
  clGetMemObjectInfo(pipe, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL);
  held(kDevice, bytes, 1);
}

static void* extension(const char* name) { return clGetExtensionFunctionAddressForPlatform(platform, name); }

static void unified(void) {
  const clHostMemAllocINTEL_fn host = (clHostMemAllocINTEL_fn)extension("clHostMemAllocINTEL");
  const clDeviceMemAllocINTEL_fn on_device = (clDeviceMemAllocINTEL_fn)extension("clDeviceMemAllocINTEL");
  const clSharedMemAllocINTEL_fn shared = (clSharedMemAllocINTEL_fn)extension("clSharedMemAllocINTEL");
  const clMemFreeINTEL_fn free_one = (clMemFreeINTEL_fn)extension("clMemFreeINTEL");
  const clMemBlockingFreeINTEL_fn free_blocking = (clMemBlockingFreeINTEL_fn)extension("clMemBlockingFreeINTEL");
  if (host == NULL) {
    printf("no USM\n");
    return;
  }
  cl_int error = 1;
  check(host(context, NULL, 1000, 0, &error) != NULL && error == CL_SUCCESS, "clHostMemAllocINTEL");
  held(kPinned, 1000, 1);
  check(on_device(context, device, NULL, 2000, 0, &error) != NULL && error == CL_SUCCESS, "clDeviceMemAllocINTEL");
  held(kDevice, 2000, 1);
  check(shared(context, NULL, NULL, 3000, 0, &error) != NULL && error == CL_SUCCESS, "clSharedMemAllocINTEL");
  held(kManaged, 3000, 1);
  check(free_one(context, on_device(context, device, NULL, 4000, 0, NULL)) == CL_SUCCESS, "clMemFreeINTEL");
  check(free_blocking(context, shared(context, device, NULL, 5000, 0, NULL)) == CL_SUCCESS, "clMemBlockingFreeINTEL");
}

// The errors are those of the driver.
static void failures(void) {
  cl_int error = 1;
  check(clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, &error) == NULL, "a buffer of no bytes");
  check(error == CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE");
  check(clCreateBuffer(NULL, CL_MEM_READ_WRITE, 100, NULL, &error) == NULL, "a buffer of no context");
  check(error == CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT");
  check(clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, NULL) == NULL, "a buffer of no bytes");
  check(clCreateSubBuffer(NULL, 0, CL_BUFFER_CREATE_TYPE_REGION, NULL, &error) == NULL, "a part of nothing");
  check(error == CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT");
  check(clSVMAlloc(context, CL_MEM_READ_WRITE, 0, 0) == NULL, "SVM of no bytes");
  check(extension("clNoSuchFunction") == NULL, "a function that does not exist");
}

static void* of_thread(void* unused) {
  for (int i = 1; i <= 200; ++i) {
    const cl_mem one = buffer(CL_MEM_READ_WRITE, 64 * i, kDevice);
    void* const two = shared_memory(32 * i);
    if (i == 200) break;
    release(one, 64 * i, kDevice);
    clSVMFree(context, two);
    held(kManaged, 32 * i, -1);
  }
  return unused;
}

static void threads(void) {
  pthread_t all[8];
  for (int i = 0; i < 8; ++i) check(pthread_create(&all[i], NULL, &of_thread, NULL) == 0, "pthread_create");
  for (int i = 0; i < 8; ++i) pthread_join(all[i], NULL);
}

// The child records nothing, and its calls still work.
static void forks(void) {
  buffer(CL_MEM_READ_WRITE, 1234, kDevice);
  const pid_t child = fork();
  if (child == 0) {
    clReleaseMemObject(clCreateBuffer(context, CL_MEM_READ_WRITE, 99999, NULL, NULL));
    clSVMFree(context, clSVMAlloc(context, CL_MEM_READ_WRITE, 99999, 0));
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child's end");
}

// The layer's first event, and the end of the buffer, in a thread of the driver.
static void has_no_memory(void) {
  is_starved = 1;
  cl_int error = 1;
  const cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, 1234, NULL, &error);
  check(made != NULL && error == CL_SUCCESS, "clCreateBuffer without memory for the layer");
  check(clReleaseMemObject(made) == CL_SUCCESS && clFinish(queue) == CL_SUCCESS, "clReleaseMemObject");
  is_starved = 0;
}

// As a plugin does that looks for devices.
static void unloads(void) {
  for (int i = 0; i < 2; ++i) {
    void* const loader = dlopen("libOpenCL.so.1", RTLD_LAZY);
    check(loader != NULL && dlclose(loader) == 0, "dlclose");
  }
  typedef cl_mem (*Create)(cl_context, cl_mem_flags, size_t, void*, cl_int*);
  const Create create = (Create)dlsym(RTLD_DEFAULT, "clCreateBuffer");
  check(create(context, CL_MEM_READ_WRITE, 4321, NULL, NULL) != NULL, "a function of dlsym");
  held(kDevice, 4321, 1);
}

int main(int argc, char** argv) {
  cl_platform_id platforms[8];
  cl_uint count = 0;
  const unsigned number = argc > 2 ? (unsigned)atoi(argv[1]) : 99;
  if (clGetPlatformIDs(8, platforms, &count) != CL_SUCCESS || number >= count) {
    printf("no platform\n");
    return 77;
  }
  platform = platforms[number];
  const char* const what = argv[2];
  check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) == CL_SUCCESS, "clGetDeviceIDs");
  cl_ulong total = 0;
  clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(total), &total, NULL);
  if (strcmp(what, "parts") == 0) {
    const cl_device_partition_property properties[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id parts[64];
    check(clCreateSubDevices(device, properties, 64, parts, NULL) == CL_SUCCESS, "clCreateSubDevices");
    device = parts[1];
  }
  context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
  queue = clCreateCommandQueueWithProperties(context, device, NULL, NULL);
  check(context != NULL && queue != NULL, "a context and a queue");
  if (strcmp(what, "leaks") == 0 || strcmp(what, "exits") == 0 || strcmp(what, "parts") == 0) {
    leaks_weights();
    leaks_cache();
  }
  if (strcmp(what, "frees") == 0) frees(), frees_by_callback();
  if (strcmp(what, "views") == 0) views();
  if (strcmp(what, "retains") == 0) retains();
  if (strcmp(what, "images") == 0) images();
  if (strcmp(what, "unified") == 0) unified();
  if (strcmp(what, "failures") == 0) failures();
  if (strcmp(what, "threads") == 0) threads();
  if (strcmp(what, "forks") == 0) forks();
  if (strcmp(what, "unloads") == 0) unloads();
  if (strcmp(what, "has_no_memory") == 0) has_no_memory();
  printf("limit 1 %lu\n", (unsigned long)total);
  for (int i = 0; i < kKinds; ++i) printf("%s %ld %ld\n", kNames[i], counts[i], sums[i]);
  fflush(stdout);
  if (strcmp(what, "exits") == 0) _exit(0);
  return 0;
}
