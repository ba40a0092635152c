// The stub: the code that a borrowed thread runs, and the data by which it and the command talk.
#ifndef HBMPROF_SRC_TOOL_ATTACH_STUB_H_
#define HBMPROF_SRC_TOOL_ATTACH_STUB_H_

#include <sys/user.h>
#include <unistd.h>

#include <cstdint>

namespace hbmprof::tool {

// On the thread's own stack. The command reads and writes it from outside.
struct StubData {
  enum State : int32_t { kStarted = 0, kReady = 1, kCalled = 2, kLeft = 3 };  // negative: errno of mmap

  // The registers with which the thread makes its wait again if the command has died. They are the first member,
  // because the stub's assembly restores them by their offsets.
  user_regs_struct registers;
  int32_t state = kStarted;
  uint32_t go = 0;       // 1: the texts have been written; 2: nothing shall be called
  uint64_t scratch = 0;  // the memory that the stub has got
  uint64_t mode = 0;     // for `open`
  uint64_t open = 0, error = 0, symbol = 0, errno_location = 0;  // functions of the C library; `error` may be 0
  uint64_t handle = 0, error_text = 0, function = 0;
  int32_t result = 0;
  uint32_t is_done = 0;  // 1: `open` and what follows it were called
  int32_t memory_file = -1;
  uint64_t restarting = 0;         // aarch64: the signals with SA_RESTART
  uint64_t blocked = 0, mask = 0;  // signals: of the stub, and of the thread
  char memory_name[24] = {};       // of the file in memory that the stub makes; "": none
  pid_t owner = getpid();
};

// Of the scratch memory: the vector registers, the texts, and the stack from its end downwards.
inline constexpr uint64_t kVectorBytes = 0x8000;
inline constexpr uint64_t kPathAt = 0x8000;
inline constexpr uint64_t kFunctionAt = 0x9000;
inline constexpr uint64_t kOptionsAt = 0xa000;
inline constexpr uint64_t kTextsEnd = 0x10000;
inline constexpr uint64_t kScratchBytes = 0x70000;

}  // namespace hbmprof::tool

// The bytes of the stub, which the linker collects, and the instruction with which it begins. There, rbx (x19 on
// aarch64) has the address of StubData, and the stack pointer is StubData's address less kStubStack.
extern "C" const char __start_hbmprof_stub[];
extern "C" const char __stop_hbmprof_stub[];
extern "C" const char hbmprof_stub_entry[];
inline constexpr uint64_t kStubStack = 64;

#endif  // HBMPROF_SRC_TOOL_ATTACH_STUB_H_
