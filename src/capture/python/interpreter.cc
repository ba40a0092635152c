#include "src/capture/python/interpreter.h"

#include <link.h>
#include <pthread.h>
#include <sys/auxv.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>

#include "src/base/exports.h"
#include "src/base/pages.h"
#include "src/capture/architecture.h"
#include "src/capture/objects.h"
#include "src/protocol/python_versions.h"

namespace hbmprof::internal {

std::atomic<const PythonInterpreter*> readable_python{nullptr};

namespace {

// Until 3.11, two mutexes of the C library are before the key of the thread states in _PyRuntime. They have 40 bytes on
// x86-64 and 48 on aarch64.
constexpr uint16_t kMutexBytes = 2 * (sizeof(pthread_mutex_t) - 40);

PythonFrameChain ChainOf(int minor) {
  if (minor >= 12) return PythonFrameChain::kShims;
  if (minor == 11) return PythonFrameChain::kEntryFrames;
  return minor == 10 ? PythonFrameChain::kOnePerActivationWithCframe : PythonFrameChain::kOnePerActivation;
}

// Offsets of the release builds for 64-bit Linux, from the interpreters' own headers. The debug builds have the same.
struct Field {
  uint16_t PythonLayout::*field;
  uint16_t offset[kLastPythonMinor - kFirstPythonMinor + 1];
  // From 3.13 on, where the interpreter itself keeps the offset (in _Py_DebugOffsets, at the start of _PyRuntime). 0:
  // it does not. If it does, `offset` matters only in that the field may be at offset 0 or not.
  uint16_t described_at[2];
};
// clang-format off
constexpr Field kFields[] = {
    //                                     3.8  3.9 3.10 3.11  3.12  3.13  3.14
    {&PythonLayout::tss, {1392 + kMutexBytes, 584 + kMutexBytes, 584 + kMutexBytes, 592 + kMutexBytes,
                                                               1544, 2160, 2336}, {}},
    {&PythonLayout::finalizing,           { 16,  16,  16,  24,   24,   24,   24}, { 32,  32}},
    {&PythonLayout::thread_id,            {176, 176, 176, 152,  136,  152,  152}, {192, 216}},
    {&PythonLayout::thread_frame,         { 24,  24,  24,   0,    0,   72,   72}, {184, 208}},
    {&PythonLayout::thread_cframe,        {  0,   0,  48,  56,   56,    0,    0}, {}},
    {&PythonLayout::thread_root_cframe,   {  0,   0, 264, 336,    0,    0,    0}, {}},
    {&PythonLayout::cframe_frame,         {  0,   0,   0,   8,    0,    0,    0}, {}},
    {&PythonLayout::cframe_previous,      {  0,   0,   8,  16,    0,    0,    0}, {}},
    {&PythonLayout::frame_code,           { 32,  32,  32,  32,    0,    0,    0}, {240, 264}},
    {&PythonLayout::frame_previous,       { 24,  24,  24,  48,    8,    8,    8}, {232, 256}},
    {&PythonLayout::frame_instruction,    {104, 104,  96,  56,   56,   56,   56}, {248, 272}},
    {&PythonLayout::frame_owner,          {  0,   0,   0,  69,   70,   70,   74}, {264, 288}},
    {&PythonLayout::frame_is_entry,       {  0,   0,   0,  68,    0,    0,    0}, {}},
    {&PythonLayout::code_filename,        {104, 104, 104, 112,  112,  112,  112}, {280, 320}},
    {&PythonLayout::code_name,            {112, 112, 112, 128,  128,  128,  128}, {296, 336}},
    {&PythonLayout::code_first_line,      { 40,  40,  40,  72,   68,   68,   68}, {312, 352}},
    {&PythonLayout::code_line_table,      {120, 120, 120, 136,  136,  136,  136}, {304, 344}},
    {&PythonLayout::code_first_traceable, {  0,   0,   0, 168,  176,  184,  192}, {}},
    {&PythonLayout::code_adaptive,        {  0,   0,   0, 184,  192,  200,  208}, {344, 384}},
    {&PythonLayout::code_version,         {  0,   0,   0,   0,   92,   92,   92}, {}},
    {&PythonLayout::ascii_text,           { 48,  48,  48,  48,   40,   40,   40}, {}},
    {&PythonLayout::other_text,           { 72,  72,  72,  72,   56,   56,   56}, {}},
};
// clang-format on

template <typename T>
T Load(uintptr_t address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(value));
  return value;
}

// Fills in the layout. Returns a description of the problem, or null if there is none.
const char* ReadLayout(uintptr_t version, PythonInterpreter* found) {
  constexpr uint64_t kMaxOffset = 4096;
  const int row = found->minor - kFirstPythonMinor;
  const int described = found->minor - 13;
  if (described >= 0) {
    if (std::memcmp(reinterpret_cast<const void*>(found->runtime), "xdebugpy", 8) != 0 ||
        Load<uint64_t>(found->runtime + 8) != version) {
      return "it does not describe its structs";
    }
    if (Load<uint64_t>(found->runtime + 16) != 0) return "it is free-threaded";
  }
  found->layout.chain = ChainOf(found->minor);
  for (const Field& field : kFields) {
    uint64_t offset = field.offset[row];
    if (described >= 0 && field.described_at[described] != 0) {
      offset = Load<uint64_t>(found->runtime + field.described_at[described]);
      if (offset >= kMaxOffset || (offset == 0 && field.offset[row] != 0)) {
        return "it describes its structs in an unknown way";
      }
    }
    found->layout.*field.field = static_cast<uint16_t>(offset);
  }
  return nullptr;
}

// Fills in `found`, the interpreter of the object with the symbols `own`. Returns a description of the problem, or null
// if there is none.
const char* Check(const link_map* object, const Exports& own, PythonInterpreter* found) {
  constexpr uintptr_t kTypeOfObject = 8;
  constexpr uintptr_t kNameOfType = 24;
  // Not the first one of the linker's list: another thread may be changing the list.
  dl_find_object loaded;
  const auto main_headers = reinterpret_cast<void*>(getauxval(AT_PHDR));
  const link_map* main_program = _dl_find_object(main_headers, &loaded) == 0 ? loaded.dlfo_link_map : object;
  // A symbol that the main program defines replaces that of a library: the program may have copies of the library's
  // data.
  const Exports first(main_program->l_addr, main_program->l_ld);
  const auto find = [&](std::string_view name) {
    const Exports::Symbol symbol = first.Find(name);
    return symbol.address != 0 ? symbol : own.Find(name);
  };
  found->runtime = find("_PyRuntime").address;
  if (_dl_find_object(reinterpret_cast<void*>(found->runtime), &loaded) != 0) return "it is being unloaded";
  found->object_start = reinterpret_cast<uintptr_t>(loaded.dlfo_map_start);
  found->object_limit = reinterpret_cast<uintptr_t>(loaded.dlfo_map_end);
  found->object_tables = loaded.dlfo_eh_frame;
  const uintptr_t version_at = find("Py_Version").address;
  const auto version = version_at != 0 ? static_cast<uintptr_t>(Load<unsigned long>(version_at)) : 0;
  if (version != 0) {
    found->minor = static_cast<int>(version >> 16 & 0xff);
    std::snprintf(found->version, sizeof(found->version), "%d.%d.%d", static_cast<int>(version >> 24 & 0xff),
                  found->minor, static_cast<int>(version >> 8 & 0xff));
  } else {
    found->minor = find("PyIter_Send").address != 0                 ? 10
                   : find("PyFrame_GetCode").address != 0           ? 9
                   : find("PyCode_NewWithPosOnlyArgs").address != 0 ? 8
                                                                    : 7;
    std::snprintf(found->version, sizeof(found->version), "3.%d", found->minor);
  }
  if (version >> 24 > 3 || found->minor > kLastPythonMinor) return "hbmprof does not know this version";
  if (found->minor < kFirstPythonMinor) return "the version is too old";
  if (const char* problem = ReadLayout(version, found)) return problem;
  found->code_type = find("PyCode_Type").address;
  found->unicode_type = find("PyUnicode_Type").address;
  found->bytes_type = find("PyBytes_Type").address;
  if (found->code_type == 0 || found->unicode_type == 0 || found->bytes_type == 0) {
    return "it does not export its types";
  }
  const auto* name = Load<const char*>(found->code_type + kNameOfType);
  if (Load<uintptr_t>(found->code_type + kTypeOfObject) != Load<uintptr_t>(found->unicode_type + kTypeOfObject) ||
      name == nullptr || std::strcmp(name, "code") != 0) {
    return "its types have an unknown layout";
  }
  if (found->layout.chain == PythonFrameChain::kOnePerActivation) {
    const auto evaluate = find("_PyEval_EvalFrameDefault");
    if (evaluate.address == 0) return "it does not export _PyEval_EvalFrameDefault";
    found->evaluate = evaluate.address;
    found->evaluate_bytes = evaluate.bytes;
  }
  return nullptr;
}

std::atomic<PythonInterpreter*> found_python{nullptr};

// The watcher of objects. Threads that find the interpreter at the same time all check it, so that none of them goes on
// before it is published.
void LookForPython(const link_map* object, bool is_permanent) {
  const Exports own(object->l_addr, object->l_ld);
  if (own.Find("_PyRuntime").address == 0) return;
  PythonInterpreter* found = found_python.load(std::memory_order_acquire);
  if (found == nullptr) {
    void* const pages = MapPages(sizeof(PythonInterpreter));
    if (pages == nullptr) return;
    auto* mine = new (pages) PythonInterpreter();
    mine->is_permanent = is_permanent;
    mine->problem = Check(object, own, mine);
    if (mine->problem == nullptr) mine->problem = "";
    if (found_python.compare_exchange_strong(found, mine, std::memory_order_acq_rel)) {
      found = mine;
    } else {
      UnmapPages(pages, sizeof(PythonInterpreter));
    }
  }
  if (*found->problem.load() != '\0') return;
  readable_python.store(found);
  if (*found->problem.load() != '\0') readable_python.store(nullptr);  // another thread has rejected it
}

}  // namespace

void WatchForPython() { WatchObjects(&LookForPython); }
const PythonInterpreter* FoundPython() { return found_python.load(std::memory_order_acquire); }

void RejectPython(const char* problem) {
  found_python.load(std::memory_order_acquire)->problem.store(problem);
  readable_python.store(nullptr);
}

}  // namespace hbmprof::internal
