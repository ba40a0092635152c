#include "src/capture/python/interpreter.h"

#include <link.h>
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

// Fills in the layout. Returns a description of the problem, or null if there is none.
const char* ReadLayout(uintptr_t version, PythonInterpreter* found) {
  constexpr uint64_t kMaxOffset = 4096;
  const int described = found->minor - 13;
  if (described >= 0) {
    if (std::memcmp(reinterpret_cast<const void*>(found->runtime), "xdebugpy", 8) != 0 ||
        Load<uint64_t>(found->runtime + 8) != version) {
      return "it does not describe its structs";
    }
    if (Load<uint64_t>(found->runtime + 16) != 0) return "it is free-threaded";
  }
  found->layout = UsualPythonLayout(found->minor);
  found->has_usual_layout = true;
  for (const PythonField& field : kPythonFields) {
    if (described < 0 || field.described_at[described] == 0) continue;
    const auto offset = Load<uint64_t>(found->runtime + field.described_at[described]);
    uint16_t& known = found->layout.*field.field;
    if (offset >= kMaxOffset || (offset == 0 && known != 0)) return "it describes its structs in an unknown way";
    if (offset != known && field.field != &PythonLayout::finalizing) found->has_usual_layout = false;
    known = static_cast<uint16_t>(offset);
  }
  return nullptr;
}

// Fills in `found`, the interpreter of the object with the symbols `own`. Returns a description of the problem; "" if
// there is none.
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
  return "";
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
    if (found_python.compare_exchange_strong(found, mine, std::memory_order_acq_rel)) {
      found = mine;
    } else {
      UnmapPages(pages, sizeof(PythonInterpreter));
    }
  }
  if (*found->problem == '\0') readable_python.store(found, std::memory_order_release);
}

}  // namespace

void WatchForPython() { WatchObjects(&LookForPython); }
const PythonInterpreter* FoundPython() { return found_python.load(std::memory_order_acquire); }

}  // namespace hbmprof::internal
