// Replacements for functions of libelf, for a shared library that contains Debian's static libelf.
//
// Debian's static libelf is not built for use in shared libraries: elf_error.c has a thread-local variable (the last
// error) with a relocation (on x86-64: R_X86_64_TPOFF32) that the linker rejects in a shared library. With the
// definitions below, the linker leaves out the object of elf_error.c. The shared libelf is not used, because this
// library is preloaded into every process that the program starts, and must not need another library there.
namespace {
thread_local int last_error = 0;
}

extern "C" {

[[gnu::visibility("hidden")]] void __libelf_seterrno(int error) { last_error = error; }

[[gnu::visibility("hidden")]] int elf_errno() {
  const int error = last_error;
  last_error = 0;
  return error;
}
}
