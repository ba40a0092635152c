// Code made at run time, as a just-in-time compiler makes it. It has no unwind information.
#ifndef HBMPROF_TESTS_SUPPORT_MADE_CODE_H_
#define HBMPROF_TESTS_SUPPORT_MADE_CODE_H_

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace hbmprof_test {

// A function void(first, second), x86-64 or aarch64, on its own page, for the lifetime of the object.
class MadeCode {
 public:
  enum Kind {
    kWithFramePointer,      // keeps a frame pointer; calls first(second)
    kWithoutFramePointer,   // leaves the frame pointer's register alone; calls first(second)
    kWithOtherFramePointer  // sets the frame pointer's register to `second`; calls first()
  };
  explicit MadeCode(Kind kind)
      : page_(static_cast<unsigned char*>(
            mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    if (page_ == MAP_FAILED) std::abort();
#if defined(__aarch64__)
    // In kWith and kWithout: mov x2,x0; mov x0,x1; blr x2.
    static constexpr uint32_t kWith[] = {0xa9bf7bfd, 0x910003fd,  // stp x29,x30,[sp,-16]!; mov x29,sp
                                         0xaa0003e2, 0xaa0103e0, 0xd63f0040,
                                         0xa8c17bfd, 0xd65f03c0};  // ldp x29,x30,[sp],16; ret
    static constexpr uint32_t kWithout[] = {0xf81f0ffe,            // str x30,[sp,-16]!
                                            0xaa0003e2, 0xaa0103e0, 0xd63f0040,
                                            0xf84107fe, 0xd65f03c0};            // ldr x30,[sp],16; ret
    static constexpr uint32_t kOther[] = {0xa9bf7bfd, 0xaa0103fd,               // stp x29,x30,[sp,-16]!; mov x29,x1
                                          0xd63f0000, 0xa8c17bfd, 0xd65f03c0};  // blr x0; ldp x29,x30,[sp],16; ret
#else
    static constexpr unsigned char kWith[] = {0x55, 0x48, 0x89, 0xe5,                 // push %rbp; mov %rsp,%rbp
                                              0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7,     // mov %rdi,%rax; mov %rsi,%rdi
                                              0xff, 0xd0, 0x5d, 0xc3};                // call *%rax; pop %rbp; ret
    static constexpr unsigned char kWithout[] = {0x48, 0x83, 0xec, 0x08,              // sub $8,%rsp
                                                 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7,  // mov %rdi,%rax; mov %rsi,%rdi
                                                 0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08,
                                                 0xc3};                  // call *%rax; add $8,%rsp; ret
    static constexpr unsigned char kOther[] = {0x55, 0x48, 0x89, 0xf5,   // push %rbp; mov %rsi,%rbp
                                               0xff, 0xd7, 0x5d, 0xc3};  // call *%rdi; pop %rbp; ret
#endif
    // Not at the start of the page: the bytes before a return address are read.
    function_ = page_ + 256;
    if (kind == kWithFramePointer) std::memcpy(function_, kWith, sizeof(kWith));
    if (kind == kWithoutFramePointer) std::memcpy(function_, kWithout, sizeof(kWithout));
    if (kind == kWithOtherFramePointer) std::memcpy(function_, kOther, sizeof(kOther));
    __builtin___clear_cache(reinterpret_cast<char*>(page_), reinterpret_cast<char*>(page_) + kPageBytes);
    if (mprotect(page_, kPageBytes, PROT_READ | PROT_EXEC) != 0) std::abort();
  }
  ~MadeCode() { munmap(page_, kPageBytes); }
  MadeCode(const MadeCode&) = delete;
  MadeCode& operator=(const MadeCode&) = delete;

  // Adds no frame of its own, even where nothing is optimised.
  [[gnu::always_inline]] void Call(const void* first, const void* second = nullptr) const {
    void (*call)(const void*, const void*);
    std::memcpy(&call, &function_, sizeof(call));
    call(first, second);
  }
  [[gnu::always_inline]] void Call(void (*function)(), const void* second = nullptr) const {
    Call(reinterpret_cast<const void*>(function), second);
  }
  // Calls `inner`, which calls `function`.
  [[gnu::always_inline]] void Call(const MadeCode& inner, void (*function)()) const {
    Call(inner.function_, reinterpret_cast<const void*>(function));
  }
  bool Contains(uintptr_t address) const { return address - reinterpret_cast<uintptr_t>(page_) < kPageBytes; }

 private:
  static constexpr size_t kPageBytes = 4096;
  unsigned char* const page_;
  unsigned char* function_;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_MADE_CODE_H_
