// Writes a Snapshot as a pprof profile (profile.proto, gzip-compressed).
//
// save_device_memory_profile (hbmprof.h) takes the snapshot and writes it in one call.
#ifndef HBMPROF_PPROF_H_
#define HBMPROF_PPROF_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/snapshot.h"

namespace hbmprof {

// Finds the names of functions. An implementation need not be thread-safe.
class Symbolizer {
 public:
  // The names of one function. The text belongs to the symbolizer and lives as long as it does.
  struct Name {
    std::string_view system_name;  // as in the symbol table: mangled; empty if not known
    std::string_view name;         // demangled, without parameters and template arguments
  };
  virtual ~Symbolizer() = default;
  // Returns one Name for each address, in the order of `addresses`: the names of the function that contains the
  // address, or an empty Name if they are not known. An address lies inside a call instruction, not after it. `modules`
  // are the modules of the snapshot.
  virtual std::vector<Name> Symbolize(const std::vector<Snapshot::Module>& modules,
                                      const std::vector<uint64_t>& addresses) = 0;
};

// Returns the Symbolizer that reads the ELF symbol table of each module: .symtab of its file, or of its separate debug
// file in /usr/lib/debug/.build-id, or .dynsym of its file; the first of these that exists. It demangles C++ and Rust
// names. It reads no debug information and starts no process. Names that were found are kept for the life of the
// process; a file is read again for other functions. Thread-safe.
Symbolizer& ElfSymbolizer();

// Limits for the size of a profile, for servers that refuse larger profiles. 0 means no limit.
struct PprofOptions {
  // The number of samples. If there would be more, the samples with the fewest bytes (the larger of `inuse` and `peak`)
  // become one sample for each device and kind of memory. Its only frame is "[small call stacks]", and it has no labels
  // but `device` and `kind`. All sums stay the same.
  size_t max_samples = 0;
  // The bytes of the profile before it is compressed. If it would be larger, more samples are merged.
  size_t max_bytes = 0;
};

// Returns `snapshot` as a profile: gzip bytes. Without a symbolizer (null) functions have no names; pprof then needs
// the program's files. docs/spec/profile.md describes every value, label and comment of the profile. Bytes of names and
// tags that are not UTF-8 become U+FFFD. Errors: kInvalidArgument if the snapshot is not consistent (an index is
// outside its vector, a kind does not exist, tags are not sorted by key, or a module ends before it begins; the message
// has the element), if the symbolizer did not return one name for each address, or if the profile exceeds a limit of
// `options` even when as many samples as possible are merged. kResourceExhausted if the host has no memory.
absl::StatusOr<std::string> SerializePprof(const Snapshot& snapshot, Symbolizer* symbolizer,
                                           const PprofOptions& options = {});

// Writes SerializePprof's result to the file `path`. The bytes are written to a temporary file beside `path`, synced,
// and renamed, so `path` is either the complete profile or unchanged. A new file has the permissions 0600. A replaced
// file keeps its permissions, and its owner and group if the process is allowed to set them. In a sticky directory that
// everyone may write to, such as /tmp, a file of another user (except the owner of the directory) is refused.
// Errors: those of SerializePprof; kNotFound (the directory does not exist), kPermissionDenied, kResourceExhausted
// (disk full, file size limit), kInvalidArgument (`path` has no file name or names something that is not a regular
// file, such as a symbolic link), kInternal. The message has the path, the operation and the system's reason. No file
// is left behind.
absl::Status WritePprof(const Snapshot& snapshot, Symbolizer* symbolizer, std::string_view path);

}  // namespace hbmprof

#endif  // HBMPROF_PPROF_H_
