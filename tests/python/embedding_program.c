// A C program that loads a Python interpreter (argv[1], a libpython) at run time, starts and ends it twice, calls it
// from another thread, closes it, and allocates on the CUDA driver before, meanwhile and after. With "RTLD_LOCAL" as
// argv[2], the interpreter's symbols are local.
#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void**, int);
extern int cuCtxSetCurrent(void*);
extern int cuMemAlloc_v2(uint64_t*, size_t);

typedef struct Object Object;
typedef struct {
  const char* name;
  Object* (*function)(Object*, Object*);
  int flags;
  const char* doc;
} MethodDef;

static void* library;
static size_t (*as_size)(Object*);
static Object* (*from_long)(long);

static void* Find(const char* name) {
  void* found = dlsym(library, name);
  if (found == NULL) fprintf(stderr, "no %s\n", name);
  assert(found != NULL);
  return found;
}

__attribute__((noinline)) static void EnterDevice(void) {
  void* context = NULL;
  assert(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
}

__attribute__((noinline)) static int Allocate(size_t size) {
  uint64_t address;
  const int error = cuMemAlloc_v2(&address, size);
  return error;
}

static Object* AllocateForPython(Object* self, Object* size) {
  (void)self;
  assert(Allocate(as_size(size)) == 0);
  return from_long(0);
}
static MethodDef method = {"allocate", AllocateForPython, /*METH_O*/ 8, NULL};

static void RunText(const char* text) {
  int (*run)(const char*, void*) = Find("PyRun_SimpleStringFlags");
  assert(run(text, NULL) == 0);
}

static void* CallFromThread(void* round) {
  char text[32];
  snprintf(text, sizeof(text), "from_thread_%d()", *(const int*)round);
  int (*ensure)(void) = Find("PyGILState_Ensure");
  void (*release)(int) = Find("PyGILState_Release");
  EnterDevice();
  Allocate(30001);
  for (int i = 0; i < 40; ++i) {
    const int state = ensure();
    RunText(text);
    release(state);
  }
  Allocate(30002);
  return NULL;
}

static void StartAndEnd(int round) {
  ((void (*)(int))Find("Py_InitializeEx"))(0);
  Object* main_module = ((Object * (*)(const char*)) Find("PyImport_AddModule"))("__main__");
  Object* function = ((Object * (*)(MethodDef*, Object*, Object*)) Find("PyCFunction_NewEx"))(&method, NULL, NULL);
  assert(((int (*)(Object*, const char*, Object*))Find("PyObject_SetAttrString"))(main_module, "allocate", function) ==
         0);
  char text[512];
  snprintf(text, sizeof(text),
           "def in_round_%d():\n"
           "    allocate(%d)\n"
           "def from_thread_%d():\n"
           "    allocate(%d)\n"
           "for _ in range(40):\n"
           "    in_round_%d()\n",
           round, 31000 + round, round, 32000 + round, round);
  RunText(text);
  void* saved = ((void* (*)(void))Find("PyEval_SaveThread"))();
  pthread_t thread;
  assert(pthread_create(&thread, NULL, CallFromThread, &round) == 0 && pthread_join(thread, NULL) == 0);
  ((void (*)(void*))Find("PyEval_RestoreThread"))(saved);
  assert(((int (*)(void))Find("Py_FinalizeEx"))() == 0);
  Allocate(33000);
}

int main(int argc, char** argv) {
  EnterDevice();
  for (int i = 0; i < 40; ++i) Allocate(34000);
  const int scope = argc > 2 && strcmp(argv[2], "RTLD_LOCAL") == 0 ? RTLD_LOCAL : RTLD_GLOBAL;
  library = dlopen(argv[1], RTLD_NOW | scope);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  assert(library != NULL);
  as_size = Find("PyLong_AsSize_t");
  from_long = Find("PyLong_FromLong");
  for (int round = 0; round < 2; ++round) StartAndEnd(round);
  dlclose(library);
  for (int i = 0; i < 40; ++i) Allocate(35000);
  puts("done");
  return 0;
}
