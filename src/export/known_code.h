// The table of known libraries: tells the program's own code from the code of libraries, and says which library holds
// the memory of a call stack. docs/command.md lists the libraries.
#ifndef HBMPROF_SRC_EXPORT_KNOWN_CODE_H_
#define HBMPROF_SRC_EXPORT_KNOWN_CODE_H_

#include <string_view>

namespace hbmprof::internal {

// What the code of a frame does with the memory that it allocates.
enum class CodeRole {
  kNone,       // no code: the frame has no name and no binary, or is a mark that the writer of a profile adds
  kRuntime,    // allocates only for its callers: libc, CUDA's runtime and driver, the interpreter
  kFramework,  // also allocates for the code and for the libraries that call it: PyTorch
  kLibrary,    // allocates for itself: NCCL, cuBLAS
  kOwnCode,    // the program's own code: it has a name or a binary, and is not of a known library
};

struct FrameOwner {
  CodeRole role = CodeRole::kNone;
  std::string_view library;  // its name; "" for kNone and kOwnCode. Those of the table are never freed
};

// Returns what a frame belongs to. `source` is the function's source file, `binary` the path of the binary. Texts that
// are not known are empty. Only the first 4096 bytes of a text count.
FrameOwner OwnerOf(std::string_view name, std::string_view source, std::string_view binary);

// Finds the holder of the memory of a call stack. The holder is the innermost known library that is called by the
// program's own code, directly or through other known libraries. A framework is the holder only if no other library is
// between it and the own code, because it also allocates for them; a runtime only if there is nothing else. The idle
// memory of a pool belongs to the framework or library that is innermost, because that is the one that has the pool.
class MemoryHolder {
 public:
  explicit MemoryHolder(bool is_idle_memory) : is_idle_memory_(is_idle_memory) {}

  // Adds the next frame, from the innermost one to the outermost one.
  void Add(const FrameOwner& frame);
  // Returns whether further frames do not count.
  bool is_complete() const { return is_complete_; }
  // Returns the holder of the frames that were added: the name of a library, kOwnCodeName or kUnknownName.
  std::string_view name() const;

 private:
  bool is_idle_memory_;
  bool is_complete_ = false;
  bool has_own_code_ = false;
  std::string_view runtime_;
  std::string_view framework_;
  std::string_view library_;
};

inline constexpr std::string_view kOwnCodeName = "own code";
inline constexpr std::string_view kUnknownName = "unknown";  // the stack has no frame of code
// The names under which memory is shown that no call stack holds: it is in use for the driver, and not recorded.
inline constexpr std::string_view kUnaccountedName = "unaccounted (contexts, modules, driver)";
inline constexpr std::string_view kUnaccountedOfDeviceName = "unaccounted (driver and other processes)";
inline constexpr std::string_view kDriverCacheName = "CUDA memory pools (idle)";

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_KNOWN_CODE_H_
