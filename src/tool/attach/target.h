// A running process that is read and written from outside: its files in memory, their symbols, its threads.
#ifndef HBMPROF_SRC_TOOL_ATTACH_TARGET_H_
#define HBMPROF_SRC_TOOL_ATTACH_TARGET_H_

#include <elfutils/libdwfl.h>
#include <sys/types.h>

#include "src/base/descriptor.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns the value of a line of the file `status` of a process or thread, as it is now; "" if there is none.
std::string StatusIn(const std::string& file, std::string_view key);
// The same of /proc/ID/status.
std::string StatusOf(pid_t id, std::string_view key);

// By the name of a file: whether it is part of the C library, or of the dynamic linker.
bool IsLibc(const std::string& name);
bool IsLinker(const std::string& name);

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
  std::string Name() const { return internal::NameInProc(Cat(pid_)); }
  std::string Status(std::string_view key) const { return StatusOf(pid_, key); }
  // Returns kUnavailable if it no longer has the memory that it had when it was opened.
  absl::Status CheckIsThere() const;
  std::string ProcPath(std::string_view file) const;
  // Returns the path of this process's view of a file that the target sees as `path`.
  std::string OutsidePath(std::string_view path) const;
  bool SharesFiles() const;
  std::vector<pid_t> Threads() const;

  // The files that were mapped when it was opened, without devices.
  const std::vector<MappedFile>& files() const { return files_; }
  // The program's own file. Not always the first one: drivers map memory below it.
  const MappedFile& Program() const { return files_[program_]; }
  const MappedFile* FileAt(uint64_t address) const;
  // Returns the first file whose name begins with one of these texts; null if there is none.
  const MappedFile* Find(const std::vector<std::string_view>& starts) const;

  // Whole ranges only.
  bool Read(uint64_t address, void* to, size_t bytes) const;
  bool Write(uint64_t address, const void* from, size_t bytes) const;
  template <typename T>
  std::optional<T> Get(uint64_t address) const {
    T value;
    return Read(address, &value, sizeof(value)) ? std::optional<T>(value) : std::nullopt;
  }
  std::string Text(uint64_t address, size_t most = 1024) const;

  // The files, for libdwfl. Their names are those of OutsidePath.
  Dwfl* dwfl() const { return dwfl_.get(); }
  // Returns the address of a global symbol that the file defines; 0 if it defines none.
  uint64_t Symbol(const MappedFile& file, std::string_view name) const;

  // Returns an address in executable memory, behind the code of a file in the last page of its segment, where `code`
  // lies already, or where as many bytes are unused: they are as in the file. Only of files that are never unloaded. 0
  // if there is none.
  uint64_t PlaceFor(std::string_view code) const;

 private:
  struct EndDwfl {
    void operator()(Dwfl* dwfl) const { dwfl_end(dwfl); }
  };
  explicit Target(pid_t pid) : pid_(pid) {}
  void ReadMaps();
  // Returns the segments of the file that are loaded, with their addresses in the process.
  std::vector<GElf_Phdr> Segments(const MappedFile& file) const;

  const pid_t pid_;
  internal::FileDescriptor memory_;
  std::vector<MappedFile> files_;
  size_t program_ = 0;
  std::unique_ptr<Dwfl, EndDwfl> dwfl_;
};

// Returns why this process may not trace `target`, and what the user can do. `scope`: the value of Yama's ptrace_scope,
// -1 if the system has no Yama.
std::string WhyNotPermitted(pid_t target, uid_t owner, uid_t user, int scope);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ATTACH_TARGET_H_
