// The offsets at which CPython's structs have the fields that describe the running Python functions.
#ifndef HBMPROF_SRC_CAPTURE_PYTHON_LAYOUTS_H_
#define HBMPROF_SRC_CAPTURE_PYTHON_LAYOUTS_H_

#include <pthread.h>

#include <cstdint>

#include "src/protocol/python_versions.h"

namespace hbmprof::internal {

// How the interpreter links a thread's frames, and how an activation (a call of the evaluation function) is found on
// the native stack.
enum class PythonFrameChain : uint8_t {
  kOnePerActivation,            // 3.8, 3.9: each frame is one activation, found by the function's address range
  kOnePerActivationWithCframe,  // 3.10: the same, but found by its _PyCFrame, which lies in its native frame
  kEntryFrames,                 // 3.11: the last frame of an activation has is_entry set; found by its _PyCFrame
  kShims,                       // 3.12 and later: a shim follows an activation's frames; it lies in its native frame
};

// Offsets in bytes. A field that a version does not have is 0.
struct PythonLayout {
  PythonFrameChain chain;
  uint16_t tss;         // _PyRuntime.gilstate.autoTSSkey
  uint16_t finalizing;  // _PyRuntime._finalizing
  // PyThreadState.
  uint16_t thread_id;
  uint16_t thread_frame;  // the current frame; 3.11 and 3.12: 0, it is in the cframe
  uint16_t thread_cframe;
  uint16_t thread_root_cframe;
  // _PyCFrame.
  uint16_t cframe_frame;
  uint16_t cframe_previous;
  // PyFrameObject or _PyInterpreterFrame.
  uint16_t frame_code;
  uint16_t frame_previous;
  uint16_t frame_instruction;  // before 3.11 an int32 f_lasti, then a pointer
  uint16_t frame_owner;
  uint16_t frame_is_entry;
  // PyCodeObject.
  uint16_t code_filename;
  uint16_t code_name;  // co_qualname; before 3.11 co_name
  uint16_t code_first_line;
  uint16_t code_line_table;
  uint16_t code_first_traceable;
  uint16_t code_adaptive;  // the instructions
  uint16_t code_version;
  // PyASCIIObject, PyCompactUnicodeObject.
  uint16_t ascii_text;
  uint16_t other_text;
};

// Until 3.11, two mutexes of the C library are before the key of the thread states in _PyRuntime. They have 40 bytes on
// x86-64 and 48 on aarch64.
inline constexpr uint16_t kPythonMutexBytes = 2 * (sizeof(pthread_mutex_t) - 40);

// Offsets of the release builds for 64-bit Linux, from the interpreters' own headers. The debug builds have the same.
struct PythonField {
  uint16_t PythonLayout::*field;
  uint16_t offset[kLastPythonMinor - kFirstPythonMinor + 1];
  // From 3.13 on, where the interpreter itself keeps the offset (in _Py_DebugOffsets, at the start of _PyRuntime). 0:
  // it does not. If it does, `offset` only says whether the field may be at offset 0, and where it is if the
  // interpreter has the usual layout, which is read faster.
  uint16_t described_at[2];
};
// clang-format off
inline constexpr PythonField kPythonFields[] = {
    //                                     3.8  3.9 3.10 3.11  3.12  3.13  3.14
    {&PythonLayout::tss, {1392 + kPythonMutexBytes, 584 + kPythonMutexBytes, 584 + kPythonMutexBytes, 592 + kPythonMutexBytes,
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

// The layout of the release builds of 3.`minor`.
constexpr PythonLayout UsualPythonLayout(int minor) {
  PythonLayout layout = {};
  layout.chain = minor >= 12   ? PythonFrameChain::kShims
                 : minor == 11 ? PythonFrameChain::kEntryFrames
                 : minor == 10 ? PythonFrameChain::kOnePerActivationWithCframe
                               : PythonFrameChain::kOnePerActivation;
  for (const PythonField& field : kPythonFields) layout.*field.field = field.offset[minor - kFirstPythonMinor];
  return layout;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PYTHON_LAYOUTS_H_
