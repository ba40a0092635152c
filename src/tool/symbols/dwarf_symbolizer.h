// Translates code addresses of one ELF file to functions, files, lines and inlined calls, from its DWARF, or from its
// symbol table if it has no DWARF.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_DWARF_SYMBOLIZER_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_DWARF_SYMBOLIZER_H_

#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <gelf.h>

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
  // The DWARF is that of the file, or of its separate debug file where libdw finds one: beside it, in .debug or
  // /usr/lib/debug, or as DEBUGINFOD_URLS says. Error: kInvalidArgument if the file is not an ELF file.
  static absl::StatusOr<std::unique_ptr<DwarfSymbolizer>> Open(const std::string& path);
  ~DwarfSymbolizer() { dwfl_end(dwfl_); }
  DwarfSymbolizer(const DwarfSymbolizer&) = delete;
  DwarfSymbolizer& operator=(const DwarfSymbolizer&) = delete;

  bool has_dwarf() const { return dwarf_ != nullptr; }

  // Returns the virtual address, as the ELF file defines it, of the byte at `file_offset` of the file. The byte must
  // lie in a mapping that starts at `mapping_offset` of the file. Returns UINT64_MAX if no executable segment contains
  // it.
  uint64_t AddressOf(uint64_t file_offset, uint64_t mapping_offset) const;

  // Returns the frames at each virtual address of the file, innermost inlined function first; empty if unknown.
  std::vector<std::vector<SourceFrame>> Symbolize(const std::vector<uint64_t>& addresses);

 private:
  struct Unit {
    uint64_t begin;
    uint64_t end;
    uint64_t widest_end;  // the greatest end of this unit and all units before it
    Dwarf_Die die;
  };
  struct Wanted {
    uint64_t address;
    std::vector<SourceFrame>* frames;
    std::vector<std::pair<int, Dwarf_Die>> scopes = {};  // functions and inlined calls around it, by depth
    bool has_linkage_name = false;                       // the outermost scope has one
  };

  explicit DwarfSymbolizer(Dwfl* dwfl) : dwfl_(dwfl) {}
  void ReadUnits();
  // Returns the unit with code at the address in the DWARF file; nullptr if there is none.
  const Unit* UnitAt(uint64_t address) const;
  static void SymbolizeUnit(Dwarf_Die unit, std::vector<Wanted>& wanted);
  static void Visit(Dwarf_Die die, int depth, std::vector<Wanted>& wanted);
  // Sets the name of the outermost frame to that of the linker symbol at the virtual address, if that name is better.
  void AddSymbolName(uint64_t address, std::vector<SourceFrame>& frames) const;

  Dwfl* const dwfl_;
  Dwfl_Module* module_ = nullptr;
  Elf* elf_ = nullptr;
  GElf_Addr elf_bias_ = 0;
  Dwarf* dwarf_ = nullptr;
  Dwarf_Addr dwarf_bias_ = 0;
  std::vector<Unit> units_;  // by begin
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_DWARF_SYMBOLIZER_H_
