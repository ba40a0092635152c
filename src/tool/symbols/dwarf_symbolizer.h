// Translates code addresses of one ELF file to functions, files, lines and inlined calls, from its DWARF, or from its
// symbol table if it has no DWARF.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_DWARF_SYMBOLIZER_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_DWARF_SYMBOLIZER_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

struct SourceFrame {
  std::string name;         // short
  std::string system_name;  // linker symbol; "" if there is none
  std::string file;         // "" if unknown
  int64_t line = 0;         // 0 if unknown
  int64_t start_line = 0;
};

// Not thread-safe. Several instances may read the same file.
class DwarfSymbolizer {
 public:
  // Error: kInvalidArgument if the file is not an ELF file.
  static absl::StatusOr<std::unique_ptr<DwarfSymbolizer>> Open(const std::string& path);
  ~DwarfSymbolizer();

  bool has_dwarf() const;

  // Returns the virtual address, as the ELF file defines it, of the byte at `file_offset` of the file. The byte must
  // lie in a mapping that starts at `mapping_offset` of the file. Returns UINT64_MAX if no executable segment contains
  // it.
  uint64_t AddressOf(uint64_t file_offset, uint64_t mapping_offset) const;

  // Returns the frames at each virtual address of the file, innermost inlined function first; empty if unknown.
  std::vector<std::vector<SourceFrame>> Symbolize(const std::vector<uint64_t>& addresses);

 private:
  struct Impl;
  explicit DwarfSymbolizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_DWARF_SYMBOLIZER_H_
