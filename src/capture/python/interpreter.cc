#include "src/capture/python/interpreter.h"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sys/auxv.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "src/base/python_versions.h"
#include "src/base/traceback.h"
#include "src/capture/architecture.h"
#include "src/capture/python/python_frames.h"

namespace hbmprof::internal {

std::atomic<const PythonInterpreter*> readable_python{nullptr};

#if defined(HBMPROF_HAS_FRAME_RULES)
namespace {

// Until 3.11, two mutexes of the C library are before the key of the thread states in _PyRuntime. They have 40 bytes on
// x86-64 and 48 on aarch64.
constexpr uint16_t kMutexBytes = 2 * (sizeof(pthread_mutex_t) - 40);

// Offsets of the release builds for 64-bit Linux, from the interpreters' own headers. The debug builds have the same.
constexpr PythonLayout Layout38() {
  PythonLayout layout = {};
  layout.chain = PythonFrameChain::kOnePerActivation;
  layout.tss = 1392 + kMutexBytes;
  layout.finalizing = 16;
  layout.thread_id = 176;
  layout.thread_frame = 24;
  layout.frame_code = 32;
  layout.frame_previous = 24;
  layout.frame_instruction = 104;
  layout.code_filename = 104;
  layout.code_name = 112;
  layout.code_first_line = 40;
  layout.code_line_table = 120;
  layout.ascii_text = 48;
  layout.other_text = 72;
  return layout;
}

constexpr PythonLayout Layout39() {
  PythonLayout layout = Layout38();
  layout.tss = 584 + kMutexBytes;
  return layout;
}

constexpr PythonLayout Layout310() {
  PythonLayout layout = Layout39();
  layout.chain = PythonFrameChain::kOnePerActivationWithCframe;
  layout.thread_cframe = 48;
  layout.thread_root_cframe = 264;
  layout.cframe_previous = 8;
  layout.frame_instruction = 96;
  return layout;
}

constexpr PythonLayout Layout311() {
  PythonLayout layout = {};
  layout.chain = PythonFrameChain::kEntryFrames;
  layout.tss = 592 + kMutexBytes;
  layout.finalizing = 24;
  layout.thread_id = 152;
  layout.thread_cframe = 56;
  layout.thread_root_cframe = 336;
  layout.cframe_frame = 8;
  layout.cframe_previous = 16;
  layout.frame_code = 32;
  layout.frame_previous = 48;
  layout.frame_instruction = 56;
  layout.frame_owner = 69;
  layout.frame_is_entry = 68;
  layout.code_filename = 112;
  layout.code_name = 128;
  layout.code_first_line = 72;
  layout.code_line_table = 136;
  layout.code_first_traceable = 168;
  layout.code_adaptive = 184;
  layout.ascii_text = 48;
  layout.other_text = 72;
  return layout;
}

constexpr PythonLayout Layout312() {
  PythonLayout layout = Layout311();
  layout.chain = PythonFrameChain::kShims;
  layout.tss = 1544;
  layout.thread_id = 136;
  layout.thread_root_cframe = 0;
  layout.cframe_frame = 0;
  layout.cframe_previous = 0;
  layout.frame_code = 0;
  layout.frame_previous = 8;
  layout.frame_owner = 70;
  layout.frame_is_entry = 0;
  layout.code_first_line = 68;
  layout.code_first_traceable = 176;
  layout.code_adaptive = 192;
  layout.code_version = 92;
  layout.ascii_text = 40;
  layout.other_text = 56;
  return layout;
}

// From 3.13 on, the interpreter describes the fields of kDescribedFields itself: here it matters only whether they are
// 0.
constexpr PythonLayout Layout313() {
  PythonLayout layout = Layout312();
  layout.tss = 2160;
  layout.thread_cframe = 0;
  layout.thread_frame = 72;
  layout.code_first_traceable = 184;
  return layout;
}

constexpr PythonLayout Layout314() {
  PythonLayout layout = Layout313();
  layout.tss = 2336;
  layout.code_first_traceable = 192;
  return layout;
}

constexpr PythonLayout kLayouts[] = {Layout38(),  Layout39(),  Layout310(), Layout311(),
                                     Layout312(), Layout313(), Layout314()};
static_assert(sizeof(kLayouts) / sizeof(kLayouts[0]) == kLastPythonMinor - kFirstPythonMinor + 1);

// Where _Py_DebugOffsets, which 3.13 and later have at the start of _PyRuntime, keeps a field's offset.
struct DescribedField {
  uint16_t PythonLayout::*field;
  uint16_t at_313;
  uint16_t at_314;
};
constexpr DescribedField kDescribedFields[] = {
    {&PythonLayout::finalizing, 32, 32},        {&PythonLayout::thread_frame, 184, 208},
    {&PythonLayout::thread_id, 192, 216},       {&PythonLayout::frame_previous, 232, 256},
    {&PythonLayout::frame_code, 240, 264},      {&PythonLayout::frame_instruction, 248, 272},
    {&PythonLayout::frame_owner, 264, 288},     {&PythonLayout::code_filename, 280, 320},
    {&PythonLayout::code_name, 296, 336},       {&PythonLayout::code_line_table, 304, 344},
    {&PythonLayout::code_first_line, 312, 352}, {&PythonLayout::code_adaptive, 344, 384},
};

template <typename T>
T Load(uintptr_t address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(value));
  return value;
}

// The symbols that an object exports, by the tables that the dynamic linker itself uses.
class Exports {
 public:
  explicit Exports(const link_map* object) : bias_(object->l_addr) {
    for (const ElfW(Dyn)* entry = object->l_ld; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
      // The dynamic linker has made these addresses absolute, except in the kernel's object.
      const uintptr_t address = entry->d_un.d_ptr;
      if (entry->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const ElfW(Sym)*>(address);
      if (entry->d_tag == DT_STRTAB) names_ = reinterpret_cast<const char*>(address);
      if (entry->d_tag == DT_GNU_HASH) hash_ = reinterpret_cast<const uint32_t*>(address);
      if ((entry->d_tag == DT_SYMTAB || entry->d_tag == DT_STRTAB || entry->d_tag == DT_GNU_HASH) && address < bias_) {
        symbols_ = nullptr;
        return;
      }
    }
  }

  struct Symbol {
    uintptr_t address = 0;  // 0: not defined in the object
    uintptr_t bytes = 0;
  };
  Symbol Find(std::string_view name) const {
    if (symbols_ == nullptr || names_ == nullptr || hash_ == nullptr) return {};
    uint32_t hash = 5381;
    for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
    const uint32_t buckets = hash_[0];
    const uint32_t first = hash_[1];
    const uint32_t* bucket = hash_ + 4 + hash_[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    if (buckets == 0 || bucket[hash % buckets] < first) return {};
    const uint32_t* chain = bucket + buckets;
    for (uint32_t i = bucket[hash % buckets];; ++i) {
      const ElfW(Sym)& symbol = symbols_[i];
      if ((chain[i - first] | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && name == names_ + symbol.st_name) {
        return {bias_ + symbol.st_value, symbol.st_size};
      }
      if ((chain[i - first] & 1) != 0) return {};
    }
  }

 private:
  const uintptr_t bias_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  const uint32_t* hash_ = nullptr;
};

// The first interpreter found. Written by the thread that set `is_claimed`.
std::atomic<bool> is_claimed{false};
PythonInterpreter interpreter;
char version_text[16];
std::atomic<bool> has_version{false};
std::atomic<const char*> problem_text{""};

// Reads the offsets of the fields that the interpreter describes itself (_Py_DebugOffsets). Returns a description of
// the problem, or null if there is none.
const char* ReadDescribedFields(uintptr_t version, PythonInterpreter* found) {
  constexpr uint64_t kMaxOffset = 4096;
  if (std::memcmp(reinterpret_cast<const void*>(found->runtime), "xdebugpy", 8) != 0 ||
      Load<uint64_t>(found->runtime + 8) != version) {
    return "it does not describe its structs";
  }
  if (Load<uint64_t>(found->runtime + 16) != 0) return "it is free-threaded";
  for (const DescribedField& described : kDescribedFields) {
    const uint64_t offset = Load<uint64_t>(found->runtime + (found->minor == 13 ? described.at_313 : described.at_314));
    if (offset >= kMaxOffset || (offset == 0 && found->layout.*described.field != 0)) {
      return "it describes its structs in an unknown way";
    }
    found->layout.*described.field = static_cast<uint16_t>(offset);
  }
  return nullptr;
}

// Fills in `found` from the symbols that `find` finds. Returns a description of the problem, or null if there is none.
template <typename Find>
const char* Check(const Find& find, PythonInterpreter* found) {
  constexpr uintptr_t kTypeOfObject = 8;
  constexpr uintptr_t kNameOfType = 24;
  const uintptr_t version_at = find("Py_Version").address;
  const auto version = version_at != 0 ? static_cast<uintptr_t>(Load<unsigned long>(version_at)) : 0;
  if (version != 0) {
    found->minor = static_cast<int>(version >> 16 & 0xff);
    std::snprintf(version_text, sizeof(version_text), "%d.%d.%d", static_cast<int>(version >> 24 & 0xff), found->minor,
                  static_cast<int>(version >> 8 & 0xff));
  } else {
    found->minor = find("PyIter_Send").address != 0                 ? 10
                   : find("PyFrame_GetCode").address != 0           ? 9
                   : find("PyCode_NewWithPosOnlyArgs").address != 0 ? 8
                                                                    : 7;
    std::snprintf(version_text, sizeof(version_text), "3.%d", found->minor);
  }
  has_version.store(true, std::memory_order_release);
  if (version >> 24 > 3 || found->minor > kLastPythonMinor) return "hbmprof does not know this version";
  if (found->minor < kFirstPythonMinor) return "the version is too old";
  found->layout = kLayouts[found->minor - kFirstPythonMinor];
  if (found->minor >= 13) {
    if (const char* problem = ReadDescribedFields(version, found)) return problem;
  }
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

}  // namespace

void LookForPython(const link_map* object, bool is_permanent) {
  const Exports own(object);
  const uintptr_t runtime = own.Find("_PyRuntime").address;
  if (runtime == 0 || is_claimed.exchange(true)) return;
  // Not the first one of the linker's list: another thread may be changing the list.
  dl_find_object found;
  const auto main_headers = reinterpret_cast<void*>(getauxval(AT_PHDR));
  const link_map* main_program = _dl_find_object(main_headers, &found) == 0 ? found.dlfo_link_map : object;
  // A symbol that the main program defines replaces that of a library: the program may have copies of the library's
  // data.
  const Exports first(main_program);
  const auto find = [&](std::string_view name) {
    const Exports::Symbol symbol = first.Find(name);
    return symbol.address != 0 ? symbol : own.Find(name);
  };
  interpreter.runtime = find("_PyRuntime").address;
  if (_dl_find_object(reinterpret_cast<void*>(interpreter.runtime), &found) != 0) return;
  interpreter.is_permanent = is_permanent;
  interpreter.object_start = reinterpret_cast<uintptr_t>(found.dlfo_map_start);
  interpreter.object_limit = reinterpret_cast<uintptr_t>(found.dlfo_map_end);
  interpreter.object_tables = found.dlfo_eh_frame;
  const char* problem = Check(find, &interpreter);
  if (problem != nullptr) return RejectPython(problem);
  readable_python.store(&interpreter, std::memory_order_release);
  may_have_named_frames.store(true, std::memory_order_relaxed);
}

void RejectPython(const char* problem) {
  problem_text.store(problem, std::memory_order_release);
  readable_python.store(nullptr, std::memory_order_release);
}

PythonFinding FindPython() {
  PythonFinding finding = {};
  if (!has_version.load(std::memory_order_acquire)) return {{}, ""};
  std::memcpy(finding.version, version_text, sizeof(finding.version));
  finding.problem = problem_text.load(std::memory_order_acquire);
  return finding;
}

#else

void LookForPython(const link_map*, bool) {}
void RejectPython(const char*) {}
PythonFinding FindPython() { return {{}, ""}; }

#endif

}  // namespace hbmprof::internal
