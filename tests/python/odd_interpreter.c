// A library that looks like an interpreter which must not be read: ODD_VERSION is its PY_VERSION_HEX, ODD_FREE_THREADED
// the value in its _Py_DebugOffsets, ODD_TYPE the name of its code type.
#include <stdint.h>
#include <string.h>

__attribute__((visibility("default"))) const unsigned long Py_Version = ODD_VERSION;

struct Type {
  uint64_t references;
  const void* type;
  uint64_t size;
  const char* name;
};
__attribute__((visibility("default"))) struct Type PyType_Type = {1, &PyType_Type, 0, "type"};
__attribute__((visibility("default"))) struct Type PyUnicode_Type = {1, &PyType_Type, 0, "str"};
__attribute__((visibility("default"))) struct Type PyBytes_Type = {1, &PyType_Type, 0, "bytes"};
__attribute__((visibility("default"))) struct Type PyCode_Type = {1, &PyType_Type, 0, ODD_TYPE};

// Large enough for every version's.
__attribute__((visibility("default"))) uint64_t _PyRuntime[1 << 16];

__attribute__((constructor)) static void Fill(void) {
  memcpy(_PyRuntime, "xdebugpy", 8);
  _PyRuntime[1] = ODD_VERSION;
  _PyRuntime[2] = ODD_FREE_THREADED;
  for (int i = 3; i < 200; ++i) _PyRuntime[i] = 0xffff;  // no offset
}
