// Writes a Snapshot as a pprof profile (profile.proto, gzip-compressed).
//
// Not here: taking the snapshot (profiler.h); one call that does both (hbmprof.h).
#ifndef HBMPROF_PPROF_H_
#define HBMPROF_PPROF_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/snapshot.h"

namespace hbmprof {

// Gives code addresses names. Implementations need not be thread-safe.
class Symbolizer {
 public:
  // The bytes are the symbolizer's and live as long as it does.
  struct Name {
    std::string_view system_name;  // mangled; empty if unknown
    std::string_view name;         // demangled, without parameters and template arguments
  };
  virtual ~Symbolizer() = default;
  // The names of `addresses` (each inside the call instruction, not after it), in their order. `modules` are the
  // snapshot's. An address it cannot name gets an empty Name. Never fails.
  virtual std::vector<Name> Symbolize(const std::vector<Snapshot::Module>& modules,
                                      const std::vector<uint64_t>& addresses) = 0;
};

// A Symbolizer that reads the ELF symbol tables (.symtab, else .dynsym) of the modules' files, each once per process
// (later calls use a cache keyed by build id); no DWARF, no child process. Thread-safe.
Symbolizer& ElfSymbolizer();

// The profile of `snapshot` as gzip bytes. `symbolizer` may be null: then functions have no names and pprof needs the
// binaries. Sample types alloc_objects, alloc_space, peak_objects, peak_space, inuse_objects, inuse_space, the last
// being the default; the labels device, kind, allocator, the tags, and numeric bytes. docs/profile.md describes every
// field. Errors: kResourceExhausted if the host has no memory for it.
absl::StatusOr<std::string> SerializePprof(const Snapshot& snapshot, Symbolizer* symbolizer);

// SerializePprof into a file: written beside `path`, synced, then given that name, so that `path` is either complete or
// as it was. A new file has the permissions 0600; one that is replaced keeps its permissions, and its owner where the
// process may give files away. Symbolic links are followed. In a sticky directory that anyone may write to, such as
// /tmp, a link or file of another user is refused. Errors carry the path, what failed and the system's reason:
// kNotFound (no such directory), kPermissionDenied, kResourceExhausted (disk full, file size limit), kInvalidArgument
// (no file name, or something that is not a regular file), kInternal; nothing is left behind.
absl::Status WritePprof(const Snapshot& snapshot, Symbolizer* symbolizer, std::string_view path);

}  // namespace hbmprof

#endif  // HBMPROF_PPROF_H_
