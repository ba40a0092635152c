// With FAKE_CUDA_CALLS, the fake libcuda.so.1 notes which of its functions are called: byte i of the file that the
// environment variable FAKE_CUDA_CALLS names is 1 once a process has called the function of line i of the generated
// fake_cuda_names.h. Processes can share the file.
#ifndef HBMPROF_TESTS_SUPPORT_FAKE_CUDART_ENTRY_CALLS_H_
#define HBMPROF_TESTS_SUPPORT_FAKE_CUDART_ENTRY_CALLS_H_

#ifndef FAKE_CUDA_CALLS
#define FAKE_CUDA_TARGET "fake_impl_"
#define FAKE_CUDA_NOTE ""
#define FAKE_CUDA_NOTES_END ""
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#define FAKE_CUDA_TARGET "called_"
#if defined(__aarch64__)
#define FAKE_CUDA_NOTE_CODE \
  "adrp x16, flag_\\name; mov w17, #1; strb w17, [x16, :lo12:flag_\\name]; b fake_impl_\\name\n"
#else
#define FAKE_CUDA_NOTE_CODE "movb $1, flag_\\name(%rip); jmp fake_impl_\\name\n"
#endif
#define FAKE_CUDA_NOTE \
  ".pushsection fake_called, \"aw\"\nflag_\\name: .byte 0\n.popsection\ncalled_\\name: " FAKE_CUDA_NOTE_CODE
// The flags have pages of their own, in place of which the file is mapped.
#define FAKE_CUDA_NOTES_END ".section fake_called, \"aw\"\n.p2align 12\n.text\n"

extern "C" char __start_fake_called[] __attribute__((visibility("hidden")));
extern "C" char __stop_fake_called[] __attribute__((visibility("hidden")));

__attribute__((constructor)) static void MapCalls() {
  const char* path = std::getenv("FAKE_CUDA_CALLS");
  const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  const auto bytes = static_cast<size_t>(__stop_fake_called - __start_fake_called);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return;
  mmap(__start_fake_called, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  close(file);
}
#endif

#endif  // HBMPROF_TESTS_SUPPORT_FAKE_CUDART_ENTRY_CALLS_H_
