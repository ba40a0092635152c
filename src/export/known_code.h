// The table of known libraries: tells the program's own code from the code of libraries, and says which library holds
// the memory of a call stack. docs/command.md lists the libraries.
#ifndef HBMPROF_SRC_EXPORT_KNOWN_CODE_H_
#define HBMPROF_SRC_EXPORT_KNOWN_CODE_H_

#include <string>
#include <string_view>

namespace hbmprof::internal {

// What the code of a frame does with the memory that it allocates.
enum class CodeRole {
  kNone,       // no code: the frame has no name and no binary, or is a mark that the writer of a profile adds
  kRuntime,    // allocates only for its callers: libc, CUDA's runtime and driver, the interpreter
  kFramework,  // also allocates for the code and for the libraries that call it: PyTorch
  kAllocator,  // a function of a framework that hands out memory, whatever that is for
  kOperator,   // the same, that runs in a thread of the framework's: a part of PyTorch's backward pass
  kLibrary,    // allocates for itself: NCCL, cuBLAS
  kPackage,    // a Python package that is not in the table: a library of the own code, if there is any
  kGenerated,  // what Python's exec() runs: the same, and also a library of a package
  kOwnCode,    // the program's own code: it has a name or a binary, and is none of the above
};

// Ranks roles. The frames of a stack that count as own code are those with the lowest rank in it: without a frame of
// kOwnCode, a package is the program itself, as that of a server, and an operator names the memory of its thread;
// without one of these, generated code is the program, as in `python -c`; without it, all frames count but those of
// allocators.
inline constexpr int kOwnRanks = 5;
inline int OwnRank(CodeRole role) {
  switch (role) {
    case CodeRole::kOwnCode:
      return 0;
    case CodeRole::kPackage:
    case CodeRole::kOperator:
      return 1;
    case CodeRole::kGenerated:
      return 2;
    case CodeRole::kAllocator:
      return 4;
    default:
      return 3;
  }
}

struct FrameOwner {
  CodeRole role = CodeRole::kNone;
  // Its name; "" for kNone and kOwnCode. That of a package is a part of a text that OwnerOf got; others are never
  // freed.
  std::string_view library;
};

// Returns what a frame belongs to. `source` is the function's source file, `binary` the path of the binary. Texts that
// are not known are empty. Without a binary, `source` may be one. Only the first 4096 bytes of a text count.
FrameOwner OwnerOf(std::string_view name, std::string_view source, std::string_view binary);

// Returns the name under which a frame is shown if it counts as own code: "backward: AddmmBackward0 [PyTorch]" for an
// operator, else `name`, the name that OwnerOf got.
std::string OwnName(const FrameOwner& owner, std::string_view name);

// Finds the holder of the memory of a call stack. The holder is the innermost known library that is called by the
// program's own code, directly or through other known libraries. A framework is the holder only if no other library is
// between it and the own code, because it also allocates for them; a runtime only if there is nothing else. A package
// is a library only if there is own code.
class MemoryHolder {
 public:
  // Adds the next frame, from the innermost one to the outermost one.
  void Add(const FrameOwner& frame);
  // Returns whether further frames do not count.
  bool is_complete() const { return is_complete_; }
  // Returns the holder of the frames that were added: the name of a library, kOwnCodeName or kUnknownName.
  std::string_view name() const;

 private:
  bool is_complete_ = false;
  bool has_own_code_ = false;
  std::string_view runtime_;
  std::string_view framework_;
  std::string_view package_;
  std::string_view library_;
};

inline constexpr std::string_view kOwnCodeName = "own code";
inline constexpr std::string_view kUnknownName = "unknown";  // the stack has no frame of code
inline constexpr std::string_view kIdleName = "idle memory of pools";
// The names under which memory is shown that no call stack holds: it is in use for the driver, and not recorded.
inline constexpr std::string_view kUnaccountedName = "unaccounted (contexts, driver, calls not recorded)";
inline constexpr std::string_view kUnaccountedOfDeviceName = "unaccounted (driver and other processes)";
inline constexpr std::string_view kDriverCacheName = "CUDA memory pools (idle)";

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_KNOWN_CODE_H_
