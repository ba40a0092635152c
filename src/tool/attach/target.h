// A running process that is read and written from outside: its files in memory, their symbols, its threads.
#ifndef HBMPROF_SRC_TOOL_ATTACH_TARGET_H_
#define HBMPROF_SRC_TOOL_ATTACH_TARGET_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/descriptor.h"

namespace hbmprof::tool {

// Returns the value of a line of the file `status` of a process or thread, as it is now; "" if there is none.
std::string StatusIn(const std::string& file, std::string_view key);
// The same of /proc/ID/status.
std::string StatusOf(pid_t id, std::string_view key);

// By the name of a file: whether it is part of the C library, or of the dynamic linker.
bool IsLibc(std::string_view name);
bool IsLinker(std::string_view name);

// A file that the process has mapped.
struct MappedFile {
  std::string path;  // in the process's mount namespace
  std::string name;  // the part after the last slash
  uint64_t start = 0;
  uint64_t end = 0;
};

class Target {
 public:
  // Stops nothing. Errors: kNotFound (no such process, it has ended, it is a thread of the kernel); kPermissionDenied
  // with what the user can do.
  static absl::StatusOr<std::unique_ptr<Target>> Open(pid_t pid);

  pid_t pid() const { return pid_; }
  // In the process's own pid namespace.
  pid_t inner_pid() const;
  std::string Name() const;
  std::string Status(std::string_view key) const { return StatusOf(pid_, key); }
  // Returns kUnavailable if it no longer has the memory that it had when it was opened.
  absl::Status CheckIsThere() const;
  std::string ProcPath(std::string_view file) const;
  // Returns the path of this process's view of a file that the target sees as `path`.
  std::string OutsidePath(std::string_view path) const;
  // Whether it sees the same files as this process.
  bool SharesFiles() const;
  std::vector<pid_t> Threads() const;

  // The files that were mapped when it was opened, without devices.
  const std::vector<MappedFile>& files() const { return files_; }
  // The program's own file. Not always the first one: drivers map memory below it.
  const MappedFile& Program() const { return files_[program_]; }
  const MappedFile* FileAt(uint64_t address) const;
  // Returns the first file for whose name `is` returns true; null if there is none.
  const MappedFile* Find(bool (*is)(std::string_view name)) const;

  // Whole ranges only.
  bool Read(uint64_t address, void* to, size_t bytes) const;
  bool Write(uint64_t address, const void* from, size_t bytes) const;
  template <typename T>
  std::optional<T> Get(uint64_t address) const {
    T value;
    return Read(address, &value, sizeof(value)) ? std::optional<T>(value) : std::nullopt;
  }
  std::string Text(uint64_t address, size_t most = 1024) const;

  // Returns the address of a symbol that the file exports, from its tables in memory; 0 if it exports none.
  uint64_t Symbol(const MappedFile& file, std::string_view name) const;

  // Returns an address in executable memory, behind the code of a file in the last page of its segment, where `code`
  // lies already, or where as many bytes are unused: they are as in the file. Only of files that are never unloaded. 0
  // if there is none.
  uint64_t PlaceFor(std::string_view code) const;

 private:
  explicit Target(pid_t pid) : pid_(pid) {}
  void ReadMaps();

  const pid_t pid_;
  internal::FileDescriptor memory_;
  std::vector<MappedFile> files_;
  size_t program_ = 0;
};

// Returns why this process may not trace `target`, and what the user can do. `scope`: the value of Yama's ptrace_scope,
// -1 if the system has no Yama.
std::string WhyNotPermitted(pid_t target, uid_t owner, uid_t user, int scope);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ATTACH_TARGET_H_
