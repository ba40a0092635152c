// Code addresses of one ELF file to functions, files, lines and inlined calls, from its DWARF; from its symbol table
// where it has no DWARF.
#ifndef HBMPROF_SRC_TOOL_DWARF_SYMBOLIZER_H_
#define HBMPROF_SRC_TOOL_DWARF_SYMBOLIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hbmprof::tool {

struct SourceFrame {
  std::string name;         // short
  std::string system_name;  // the linker's; "" for what it never sees
  std::string file;         // "" if unknown
  int64_t line = 0;         // likewise 0
  int64_t start_line = 0;
};

// Not for use from several threads at once; several instances may read one file.
class DwarfSymbolizer {
 public:
  // Error: kInvalidArgument if the file is no ELF file.
  static absl::StatusOr<std::unique_ptr<DwarfSymbolizer>> Open(const std::string& path);
  ~DwarfSymbolizer();

  bool has_dwarf() const;

  // The file's own address of the byte at `file_offset`, which a mapping that starts at `mapping_offset` of the file
  // covers; UINT64_MAX if no executable segment has it.
  uint64_t AddressOf(uint64_t file_offset, uint64_t mapping_offset) const;

  // The frames at each of the file's own addresses, the innermost inlined function first; empty where nothing is known.
  std::vector<std::vector<SourceFrame>> Symbolize(const std::vector<uint64_t>& addresses);

 private:
  struct Impl;
  explicit DwarfSymbolizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_DWARF_SYMBOLIZER_H_
