// How programs find the driver's functions: dlsym and dlopen of this preloaded library, which all libraries of the
// process call, and the functions that it exports. dlsym and dlopen do two things:
//   - dlsym of a wrapped function of the driver, in a given library, returns the wrapper;
//   - a library that is loaded by a path with RTLD_DEEPBIND gets its references set (deep_bind.h).
// Every other call jumps to the next function of that name: a preloaded library's, or the C library's.
//
// They must be jumps, because the C library identifies the caller by the return address: RTLD_NEXT means "after the
// caller", and the search path of dlopen is the caller's. dlsym with RTLD_NEXT or RTLD_DEFAULT jumps if the process has
// a driver: the search finds the wrappers that this library exports if they come first.
//
// A program that looks for a function that its driver lacks must not find the wrapper. So the wrappers of such
// functions are hidden from the dynamic linker, and references of the program to them that were set before are set
// again.
//
// Both functions are exported with the two symbol versions that the C library has: a program refers to the version that
// it was linked with, and other preloaded libraries look up either version. Such a library that comes later is asked
// for the driver's functions, too, so it sees the calls of the wrappers.
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "src/api/output/end_calls.h"
#include "src/backends/calls/driver.h"
#include "src/base/compat/first_glibc.h"
#include "src/base/protected_page.h"
#include "src/base/references.h"
#include "src/inject/driver_shim.h"
#include "src/inject/linker/deep_bind.h"
#include "src/inject/linker/jump_stub.h"

using namespace hbmprof::internal;  // NOLINT

extern "C" {

using DlsymFunction = void*(void* handle, const char* name);
using DlopenFunction = void*(const char* file, int flags);

// The next functions: those of a library that is preloaded after this one, else the C library's.
[[gnu::visibility("hidden")]] DlsymFunction* hbmprof_next_dlsym = nullptr;
[[gnu::visibility("hidden")]] DlopenFunction* hbmprof_next_dlopen = nullptr;

// The C library's dlsym. The search of another library's dlsym with RTLD_NEXT would begin after that library.
[[gnu::visibility("hidden")]] DlsymFunction* hbmprof_c_library_dlsym = nullptr;

// Can run before this library's constructors, and in several threads at the same time: all store the same values.
static void FindNextFunctions() {
  // Every C library has this version, so the search does not fail. (An error would take memory from malloc. A preloaded
  // malloc that calls dlsym at its first call, to find that of the C library, would call this file again, without end.)
  void* const c_library_dlsym = dlvsym(RTLD_NEXT, "dlsym", HBMPROF_FIRST_GLIBC);
  if (c_library_dlsym == nullptr) __builtin_trap();  // not possible: every process has a C library
  auto* const find_next = reinterpret_cast<DlsymFunction*>(c_library_dlsym);
  __atomic_store_n(&hbmprof_c_library_dlsym, find_next, __ATOMIC_RELEASE);
  // Without a version: those of other libraries have none.
  const auto find = [find_next](auto& function, const char* name) {
    __atomic_store_n(&function, reinterpret_cast<decltype(+function)>(find_next(RTLD_NEXT, name)), __ATOMIC_RELEASE);
  };
  find(hbmprof_next_dlopen, "dlopen");
  find(hbmprof_next_dlsym, "dlsym");
}

// The next dlsym, for this library itself: HBMPROF_DLSYM of src/backends/calls/driver.cc.
[[gnu::visibility("hidden")]] void* hbmprof_call_next_dlsym(void* library, const char* name) {
  if (__atomic_load_n(&hbmprof_next_dlsym, __ATOMIC_ACQUIRE) == nullptr) FindNextFunctions();
  return hbmprof_next_dlsym(library, name);
}

// Sets the values of the wrappers in this library's table of symbols to 0, which the dynamic linker takes for
// undefined. Threads that do so at the same time write the same values. Returns whether the driver is loaded.
static bool Hide(const WrappedDriver& of) {
  Driver::Loaded driver(of.driver);
  for (int i = 0; driver.is_loaded() && i < of.driver.wrapped_count; ++i) {
    if (driver.Find(of.driver.entry_names[i]) != nullptr) continue;
    Dl_info info;
    ElfW(Sym)* symbol = nullptr;
    void* const wrapper = of.wrappers[i];
    if (dladdr1(wrapper, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0 || symbol == nullptr) continue;
    if (info.dli_saddr == wrapper) StoreProtected(reinterpret_cast<void**>(&symbol->st_value), nullptr);
  }
  return driver.is_loaded();
}

static std::atomic<bool> hidden_drivers[std::size(wrapped_drivers)];

extern "C++" bool hbmprof::internal::HideLackingFunctions(const Driver* asked) {
  bool has_asked = false;
  for (const WrappedDriver& one : wrapped_drivers) {
    std::atomic<bool>& is_hidden = hidden_drivers[&one - wrapped_drivers];
    if (asked == nullptr || asked == &one.driver) {
      has_asked = is_hidden.load(std::memory_order_relaxed) || Hide(one);
      is_hidden.store(has_asked, std::memory_order_relaxed);
    }
  }
  return has_asked;
}

namespace {

// Ends the process as the dynamic linker does if it finds no function for a reference.
[[noreturn]] void EndWithoutFunction(const link_map& object, const char* name) {
  const char* const path = *object.l_name == '\0' ? program_invocation_name : object.l_name;
  dprintf(STDERR_FILENO, "%s: symbol lookup error: %s: undefined symbol: %s\n", program_invocation_name, path, name);
  constexpr int kLinkerError = 127;
  _exit(kLinkerError);
}

// Sets the references of the objects that were loaded with the program to wrappers of functions that the driver lacks,
// as the dynamic linker sets them without this library.
void SetReferencesToLackingFunctions() {
  auto* const objects = static_cast<const link_map*>(hbmprof_next_dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD));
  for (const link_map* object = objects; object != nullptr; object = object->l_next) {
    ForEachReference(object->l_addr, object->l_ld, [&](const char* name, void** slot, bool is_weak) {
      const Wrapped found = WrappedByName(name);
      if (found.wrapper == nullptr || *slot != found.wrapper) return;
      if (Driver::Loaded(*found.driver).Find(name) != nullptr) return;
      void* const other = hbmprof_c_library_dlsym(RTLD_NEXT, name);
      if (other == nullptr && !is_weak) EndWithoutFunction(*object, name);
      StoreProtected(slot, other);
    });
  }
}

}  // namespace

// Whether dlsym must call DlsymOfWrapped.
static bool IsWrapped(void* handle, const char* name) {
  const Wrapped found = name == nullptr ? Wrapped() : WrappedByName(name);
  if (found.wrapper == nullptr) return false;
  const bool has_driver = HideLackingFunctions(found.driver);
  return handle == RTLD_DEFAULT ? !has_driver : handle != RTLD_NEXT;
}

// Does what dlsym does for the name of a wrapped function and for the handle of a library, or for RTLD_DEFAULT if there
// is no driver. The result does not depend on the caller.
static void* DlsymOfWrapped(void* handle, const char* name) {
  void* function = hbmprof_call_next_dlsym(handle, name);
  if (handle == RTLD_DEFAULT && function == WrapperByName(name)) {
    function = hbmprof_c_library_dlsym(RTLD_NEXT, name);
  }
  // Another library's function of that name is returned unchanged.
  return WrapperOf(function);
}

// These return the function that dlsym and dlopen jump to.

[[gnu::visibility("hidden"), gnu::used]] DlsymFunction* hbmprof_choose_dlsym(void* handle, const char* name) {
  if (IsWrapped(handle, name)) return &DlsymOfWrapped;
  if (__atomic_load_n(&hbmprof_next_dlsym, __ATOMIC_ACQUIRE) == nullptr) FindNextFunctions();
  return hbmprof_next_dlsym;
}

[[gnu::visibility("hidden"), gnu::used]] DlopenFunction* hbmprof_choose_dlopen(const char* file, int flags) {
  if (__atomic_load_n(&hbmprof_next_dlopen, __ATOMIC_ACQUIRE) == nullptr) FindNextFunctions();
  // The result for a path does not depend on the caller.
  const bool is_path = file != nullptr && std::strchr(file, '/') != nullptr && std::strchr(file, '$') == nullptr;
  return is_path && (flags & RTLD_DEEPBIND) != 0 ? &OpenDeepBound : hbmprof_next_dlopen;
}
}

asm(R"(
    .macro hbmprof_exported name
    .p2align 4
    .globl hbmprof_\name\()_old, hbmprof_\name\()_new
    .symver hbmprof_\name\()_old, \name\()@)" HBMPROF_FIRST_GLIBC R"(, remove
    .symver hbmprof_\name\()_new, \name\()@@GLIBC_2.34, remove
    .hidden hbmprof_\name
hbmprof_\name\()_old:
hbmprof_\name\()_new:
    hbmprof_jump_stub hbmprof_\name hbmprof_choose_\name
    .type hbmprof_\name\()_old, STT_FUNC
    .type hbmprof_\name\()_new, STT_FUNC
    .size hbmprof_\name\()_old, .-hbmprof_\name\()_old
    .size hbmprof_\name\()_new, .-hbmprof_\name\()_new
    .endm

    .text
    hbmprof_exported dlsym
    hbmprof_exported dlopen
)");

namespace hbmprof::internal {

namespace {

bool was_loaded_late = false;

// Whether this library comes after the C library in the list of loaded objects. A library that is loaded with the
// program comes before it.
bool IsAfterCLibrary() {
  static const char in_this_library = 0;
  // Not dladdr, which searches the object's whole table of symbols.
  const auto map_of = [](const void* address) -> const link_map* {
    dl_find_object found;
    return _dl_find_object(const_cast<void*>(address), &found) == 0 ? found.dlfo_link_map : nullptr;
  };
  const link_map* const c_library = map_of(reinterpret_cast<const void*>(&gnu_get_libc_version));
  const link_map* object = map_of(&in_this_library);
  while (object != nullptr && object != c_library) object = object->l_prev;
  return object != nullptr;
}

[[gnu::constructor]] void FindFunctions() {
  FindNextFunctions();
  FindEndCalls();
  was_loaded_late = IsAfterCLibrary();
  if (was_loaded_late) return;  // no reference was bound to a wrapper
  HideLackingFunctions();
  SetReferencesToLackingFunctions();
}

}  // namespace

bool WasLoadedLate() { return was_loaded_late; }

}  // namespace hbmprof::internal
