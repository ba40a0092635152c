// How programs find the driver's functions: dlsym and dlopen of this preloaded library, which all libraries of the
// process call, and the functions that it exports. dlsym and dlopen do two things:
//   - dlsym of a wrapped function of the driver, in a given library, returns the wrapper;
//   - a library that is loaded with RTLD_DEEPBIND gets its references set (deep_bind.h): in dlopen if a path names it,
//     else in the first dlsym in it.
// Every other call jumps to the next function of that name: a preloaded library's, or the C library's.
//
// They must be jumps, because the C library identifies the caller by the return address: RTLD_NEXT means "after the
// caller", and the search path of dlopen is the caller's. So the entry points are written in assembly and read only the
// arguments. dlsym with RTLD_NEXT or RTLD_DEFAULT jumps if the process has a driver: the search finds the wrappers that
// this library exports if they come first.
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

#include "src/backends/cuda/driver/driver_shim.h"
#include "src/backends/cuda/driver/driver_table.h"
#include "src/base/compat/first_glibc.h"
#include "src/base/linker_error.h"
#include "src/base/references.h"
#include "src/inject/linker/deep_bind.h"

extern "C" {

using DlsymFunction = void*(void* handle, const char* name);
using DlopenFunction = void*(const char* file, int flags);

// The next functions: those of a library that is preloaded after this one, else the C library's. Read by the assembly
// below.
[[gnu::visibility("hidden")]] DlsymFunction* hbmprof_real_dlsym = nullptr;
[[gnu::visibility("hidden")]] DlopenFunction* hbmprof_real_dlopen = nullptr;

// The C library's dlsym. The search of another library's dlsym with RTLD_NEXT would begin after that library.
[[gnu::visibility("hidden")]] DlsymFunction* hbmprof_c_library_dlsym = nullptr;

// Returns the newest version of dlopen and dlsym that the C library has. A version that it does not have must not be
// looked up: the error would take memory from malloc. A preloaded malloc that calls dlsym at its first call, to find
// the C library's malloc, would call this file again, without end.
static const char* NewestVersion() {
  constexpr int kMoved = 34;  // glibc 2.34 moved them from libdl.so.2 to libc.so.6
  int minor = 0;
  for (const char* digit = gnu_get_libc_version() + 2; *digit >= '0' && *digit <= '9'; ++digit) {
    minor = minor * 10 + (*digit - '0');
  }
  return minor >= kMoved ? "GLIBC_2.34" : HBMPROF_FIRST_GLIBC;
}

// Can run before this library's constructors, and in several threads at the same time: all store the same values.
[[gnu::visibility("hidden"), gnu::used]] void hbmprof_find_real() {
  const char* const version = NewestVersion();
  void* real = dlvsym(RTLD_NEXT, "dlsym", version);
  if (real == nullptr) real = dlvsym(RTLD_NEXT, "dlsym", HBMPROF_FIRST_GLIBC);
  if (real == nullptr) __builtin_trap();  // not possible: every process has a C library
  auto* const find_next = reinterpret_cast<DlsymFunction*>(real);
  __atomic_store_n(&hbmprof_c_library_dlsym, find_next, __ATOMIC_RELEASE);
  // Without a version: those of other libraries have none.
  const auto find = [find_next](auto& function, const char* name) {
    __atomic_store_n(&function, reinterpret_cast<decltype(+function)>(find_next(RTLD_NEXT, name)), __ATOMIC_RELEASE);
  };
  find(hbmprof_real_dlopen, "dlopen");
  find(hbmprof_real_dlsym, "dlsym");
}

// The next dlsym, for this library itself: HBMPROF_DLSYM of src/backends/cuda/driver/driver_table.cc.
[[gnu::visibility("hidden")]] void* hbmprof_call_real_dlsym(void* library, const char* name) {
  if (__atomic_load_n(&hbmprof_real_dlsym, __ATOMIC_ACQUIRE) == nullptr) hbmprof_find_real();
  return hbmprof_real_dlsym(library, name);
}

namespace {

// Keeps the process's driver loaded while this object lives.
class Driver {
 public:
  Driver() {
    // A constructor that runs before that of this library can call dlsym.
    if (__atomic_load_n(&hbmprof_real_dlopen, __ATOMIC_ACQUIRE) == nullptr) hbmprof_find_real();
    library_ = hbmprof_real_dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  }
  ~Driver() {
    if (library_ != nullptr) dlclose(library_);
    hbmprof::internal::ClearLinkerError();
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  bool is_loaded() const { return library_ != nullptr; }
  bool Has(const char* name) const { return is_loaded() && hbmprof_call_real_dlsym(library_, name) != nullptr; }

 private:
  void* library_;
};

}  // namespace

// Sets the values of the wrappers in this library's table of symbols to 0, which the dynamic linker takes for
// undefined. Threads that do so at the same time write the same values.
extern "C++" bool hbmprof::internal::HideLackingFunctions() {
  static std::atomic<bool> is_done{false};
  if (is_done.load(std::memory_order_relaxed)) return true;
  const Driver driver;
  if (!driver.is_loaded()) return false;
  for (int i = 0; i < hbmprof::internal::cuda_driver::kWrappedCount; ++i) {
    const char* const name = hbmprof::internal::cuda_driver::kEntryNames[i];
    if (driver.Has(name)) continue;
    Dl_info info;
    ElfW(Sym)* symbol = nullptr;
    void* const wrapper = hbmprof::internal::CudaWrapperByName(name);
    if (dladdr1(wrapper, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0 || symbol == nullptr) continue;
    if (info.dli_saddr == wrapper)
      hbmprof::internal::WriteProtected(reinterpret_cast<void**>(&symbol->st_value), nullptr);
  }
  is_done.store(true, std::memory_order_relaxed);
  return true;
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
  const Driver driver;
  auto* const objects = static_cast<const link_map*>(hbmprof_real_dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD));
  for (const link_map* object = objects; object != nullptr; object = object->l_next) {
    hbmprof::internal::ForEachReference(object->l_addr, object->l_ld, [&](const char* name, void** slot, bool is_weak) {
      void* const wrapper = name[0] == 'c' && name[1] == 'u' ? hbmprof::internal::CudaWrapperByName(name) : nullptr;
      if (wrapper == nullptr || *slot != wrapper || driver.Has(name)) return;
      void* const other = hbmprof_c_library_dlsym(RTLD_NEXT, name);
      if (other == nullptr && !is_weak) EndWithoutFunction(*object, name);
      hbmprof::internal::WriteProtected(slot, other);
    });
  }
}

}  // namespace

// Returns whether dlsym must call hbmprof_dlsym_wrapped.
[[gnu::visibility("hidden"), gnu::used]] bool hbmprof_is_wrapped(void* handle, const char* name) {
  if (hbmprof::internal::CudaWrapperByName(name) == nullptr) return false;
  const bool has_driver = hbmprof::internal::HideLackingFunctions();
  return handle == RTLD_DEFAULT ? !has_driver : handle != RTLD_NEXT;
}

// Does what dlsym does for the name of a wrapped function and for the handle of a library, or for RTLD_DEFAULT if there
// is no driver. The result does not depend on the caller.
[[gnu::visibility("hidden"), gnu::used]] void* hbmprof_dlsym_wrapped(void* handle, const char* name) {
  void* function = hbmprof_call_real_dlsym(handle, name);
  if (handle == RTLD_DEFAULT && function == hbmprof::internal::CudaWrapperByName(name)) {
    function = hbmprof_c_library_dlsym(RTLD_NEXT, name);
  }
  // Another library's function of that name is returned unchanged.
  return hbmprof::internal::CudaWrapperOf(function);
}

// Returns whether `file` is a path for which the result of dlopen does not depend on the caller.
[[gnu::visibility("hidden"), gnu::used]] bool hbmprof_is_path(const char* file) {
  return std::strchr(file, '/') != nullptr && std::strchr(file, '$') == nullptr;
}

[[gnu::visibility("hidden"), gnu::used]] void* hbmprof_dlopen_deep_bound(const char* file, int flags) {
  return hbmprof::internal::OpenDeepBound(file, flags);
}

// Whether a library was loaded with RTLD_DEEPBIND by a name that is not a path. The search for it depends on the
// caller, so dlopen jumps to the C library, and the references are set at the first dlsym with the handle that it
// returned. 0: never; 1: since the last dlsym of such a handle; 2: earlier.
[[gnu::visibility("hidden")]] char hbmprof_deep_bound_by_name = 0;

[[gnu::visibility("hidden"), gnu::used]] void hbmprof_set_references_once(void* handle) {
  link_map* module = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &module) != 0) return;
  // The last libraries whose references were set. A second change of their references would have no effect.
  static std::atomic<uintptr_t> done[64] = {};
  static std::atomic<unsigned> next{0};
  const uintptr_t library = reinterpret_cast<uintptr_t>(handle) ^ reinterpret_cast<uintptr_t>(module->l_ld) << 16;
  // A library that is loaded again can have the same handle and address, and has new references.
  char state = 1;
  if (__atomic_compare_exchange_n(&hbmprof_deep_bound_by_name, &state, 2, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    for (std::atomic<uintptr_t>& one : done) one.store(0, std::memory_order_relaxed);
  }
  for (const std::atomic<uintptr_t>& one : done) {
    if (one.load(std::memory_order_acquire) == library) return;
  }
  hbmprof::internal::SetReferencesOf(handle);
  done[next.fetch_add(1, std::memory_order_relaxed) % 64].store(library, std::memory_order_release);
}
}

// The arguments are in rdi and rsi (aarch64: x0 and x1): the handle and the name (dlsym), or the file and the flags
// (dlopen).
#if defined(__x86_64__)
asm(R"(
    .macro hbmprof_save
    pushq   %rdi
    .cfi_adjust_cfa_offset 8
    pushq   %rsi
    .cfi_adjust_cfa_offset 8
    subq    $8, %rsp
    .cfi_adjust_cfa_offset 8
    .endm
    .macro hbmprof_restore
    addq    $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq    %rsi
    .cfi_adjust_cfa_offset -8
    popq    %rdi
    .cfi_adjust_cfa_offset -8
    .endm
    .macro hbmprof_entry name
    .p2align 4
    .globl hbmprof_\name, hbmprof_\name\()_old
    .type hbmprof_\name, @function
    .type hbmprof_\name\()_old, @function
    .symver hbmprof_\name\()_old, \name\()@GLIBC_2.2.5, remove
    .symver hbmprof_\name\()_new, \name\()@@GLIBC_2.34, remove
    .globl hbmprof_\name\()_new
    .type hbmprof_\name\()_new, @function
    .hidden hbmprof_\name
hbmprof_\name:
hbmprof_\name\()_old:
hbmprof_\name\()_new:
    .cfi_startproc
    endbr64
    .endm
    .macro hbmprof_jump_to_real name
    movq    hbmprof_real_\name(%rip), %rax
    testq   %rax, %rax
    jne     3f
    hbmprof_save
    call    hbmprof_find_real
    hbmprof_restore
    movq    hbmprof_real_\name(%rip), %rax
3:
    jmp     *%rax
    .cfi_endproc
    .size hbmprof_\name, .-hbmprof_\name
    .size hbmprof_\name\()_old, .-hbmprof_\name\()_old
    .size hbmprof_\name\()_new, .-hbmprof_\name\()_new
    .endm

    .text
    hbmprof_entry dlsym
    testq   %rsi, %rsi
    je      1f
    leaq    1(%rdi), %rax
    cmpq    $1, %rax            # RTLD_NEXT is -1, RTLD_DEFAULT 0
    jbe     2f
    cmpb    $0, hbmprof_deep_bound_by_name(%rip)
    je      2f
    hbmprof_save
    call    hbmprof_set_references_once
    hbmprof_restore
2:
    cmpb    $'c', (%rsi)
    jne     1f
    cmpb    $'u', 1(%rsi)
    jne     1f
    hbmprof_save
    call    hbmprof_is_wrapped
    hbmprof_restore
    testb   %al, %al
    jne     hbmprof_dlsym_wrapped
1:
    hbmprof_jump_to_real dlsym

    hbmprof_entry dlopen
    testl   $8, %esi            # RTLD_DEEPBIND
    je      1f
    testq   %rdi, %rdi
    je      1f
    cmpq    $0, hbmprof_real_dlopen(%rip)
    je      1f
    hbmprof_save
    call    hbmprof_is_path
    hbmprof_restore
    testb   %al, %al
    jne     hbmprof_dlopen_deep_bound
    movb    $1, hbmprof_deep_bound_by_name(%rip)
1:
    hbmprof_jump_to_real dlopen
)");
#elif defined(__aarch64__)
asm(R"(
    .macro hbmprof_save
    stp     x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov     x29, sp
    stp     x0, x1, [sp, #16]
    .endm
    .macro hbmprof_restore
    ldp     x0, x1, [sp, #16]
    ldp     x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    .cfi_restore x29
    .cfi_restore x30
    .endm
    .macro hbmprof_entry name
    .p2align 4
    .globl hbmprof_\name, hbmprof_\name\()_old
    .type hbmprof_\name, %function
    .type hbmprof_\name\()_old, %function
    .symver hbmprof_\name\()_old, \name\()@GLIBC_2.17, remove
    .symver hbmprof_\name\()_new, \name\()@@GLIBC_2.34, remove
    .globl hbmprof_\name\()_new
    .type hbmprof_\name\()_new, %function
    .hidden hbmprof_\name
hbmprof_\name:
hbmprof_\name\()_old:
hbmprof_\name\()_new:
    .cfi_startproc
    hint    #34                 // bti c
    .endm
    .macro hbmprof_jump_to_real name
    adrp    x9, hbmprof_real_\name
    ldr     x16, [x9, :lo12:hbmprof_real_\name]
    cbnz    x16, 3f
    hbmprof_save
    bl      hbmprof_find_real
    hbmprof_restore
    adrp    x9, hbmprof_real_\name
    ldr     x16, [x9, :lo12:hbmprof_real_\name]
3:
    br      x16
    .cfi_endproc
    .size hbmprof_\name, .-hbmprof_\name
    .size hbmprof_\name\()_old, .-hbmprof_\name\()_old
    .size hbmprof_\name\()_new, .-hbmprof_\name\()_new
    .endm

    .text
    hbmprof_entry dlsym
    cbz     x1, 1f
    add     x9, x0, #1
    cmp     x9, #1              // RTLD_NEXT is -1, RTLD_DEFAULT 0
    b.ls    2f
    adrp    x9, hbmprof_deep_bound_by_name
    ldrb    w9, [x9, :lo12:hbmprof_deep_bound_by_name]
    cbz     w9, 2f
    hbmprof_save
    bl      hbmprof_set_references_once
    hbmprof_restore
2:
    ldrb    w9, [x1]
    cmp     w9, #'c'
    b.ne    1f
    ldrb    w9, [x1, #1]
    cmp     w9, #'u'
    b.ne    1f
    hbmprof_save
    bl      hbmprof_is_wrapped
    and     w9, w0, #0xff
    hbmprof_restore
    cbz     w9, 1f
    b       hbmprof_dlsym_wrapped
1:
    hbmprof_jump_to_real dlsym

    hbmprof_entry dlopen
    tbz     w1, #3, 1f          // RTLD_DEEPBIND
    cbz     x0, 1f
    adrp    x9, hbmprof_real_dlopen
    ldr     x9, [x9, :lo12:hbmprof_real_dlopen]
    cbz     x9, 1f
    hbmprof_save
    bl      hbmprof_is_path
    and     w9, w0, #0xff
    hbmprof_restore
    cbz     w9, 4f
    b       hbmprof_dlopen_deep_bound
4:
    mov     w10, #1
    adrp    x9, hbmprof_deep_bound_by_name
    strb    w10, [x9, :lo12:hbmprof_deep_bound_by_name]
1:
    hbmprof_jump_to_real dlopen
)");
#else
#error "The jumps to the C library are not written for this processor"
#endif

namespace hbmprof::internal {

namespace {

bool was_loaded_late = false;

// Whether this library comes after the C library in the list of loaded objects. A library that is loaded with the
// program comes before it.
bool IsAfterCLibrary() {
  static const char in_this_library = 0;
  const auto map_of = [](const void* address) {
    Dl_info info;
    link_map* map = nullptr;
    return dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 ? map : nullptr;
  };
  const link_map* const c_library = map_of(reinterpret_cast<const void*>(&gnu_get_libc_version));
  const link_map* object = map_of(&in_this_library);
  while (object != nullptr && object != c_library) object = object->l_prev;
  return object != nullptr;
}

// The assembly of dlopen needs the pointer in the first call with RTLD_DEEPBIND.
[[gnu::constructor]] void FindReal() {
  hbmprof_find_real();
  was_loaded_late = IsAfterCLibrary();
  if (was_loaded_late) return;  // no reference was bound to a wrapper
  HideLackingFunctions();
  SetReferencesToLackingFunctions();
}

}  // namespace

bool WasLoadedLate() { return was_loaded_late; }

}  // namespace hbmprof::internal
