// What differs between processors: the registers of a thread that is traced and stopped, and the system call that the
// stop has interrupted.
#ifndef HBMPROF_SRC_TOOL_ATTACH_REGISTERS_H_
#define HBMPROF_SRC_TOOL_ATTACH_REGISTERS_H_

#include <sys/types.h>
#include <sys/user.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/tool/attach/target.h"

namespace hbmprof::tool {

uint64_t ProgramCounter(const user_regs_struct& registers);
uint64_t StackPointer(const user_regs_struct& registers);
// By DWARF's numbers.
std::vector<uint64_t> DwarfRegisters(const user_regs_struct& registers);
// Whether a thread that was stopped twice has not moved meanwhile, as far as the registers show it.
bool IsSamePlace(const user_regs_struct& a, const user_regs_struct& b);
// Whether the thread has the C library's data of a thread.
bool IsThreadOfLibc(const Target& target, pid_t tid, const user_regs_struct& registers);

// The kernel ends some waits (epoll_wait) with EINTR when the thread is stopped. Changes the registers of such a thread
// so that it makes the call again, if they do not have all of its arguments. `call`: the text of /proc/PID/syscall
// before the stop. Returns whether it has changed them.
bool FindInterruptedCall(const std::string& call, user_regs_struct& stopped);
// Whether the stop has interrupted a wait in the kernel that can go on afterwards.
bool IsWaiting(const Target& target, const user_regs_struct& stopped);
// Returns the registers with which a thread that waits makes its wait again by itself.
user_regs_struct ToWaitAgain(user_regs_struct stopped);
// Returns the registers with which the thread runs the stub, whose data is at `data`.
user_regs_struct ToRunStub(user_regs_struct stopped, uint64_t entry, uint64_t data);

// Changes the registers that a thread had when it was stopped so that it goes on with its wait, or ends it if a handler
// of the program's will run now. Returns whether they must be written.
struct GoingOn {
  bool was_borrowed = false;
  bool was_changed = false;  // by FindInterruptedCall
  uint64_t restarting = 0;   // StubData::restarting
};
bool PrepareToGoOn(pid_t tid, const GoingOn& how, user_regs_struct& registers);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ATTACH_REGISTERS_H_
