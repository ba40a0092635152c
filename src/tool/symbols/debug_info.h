// Debug information: finds the file with a module's symbols by its build id, and translates code addresses of one ELF
// file to functions, files, lines and inlined calls, from its DWARF, or from its symbol table if it has no DWARF.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_INFO_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_INFO_H_

#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <gelf.h>

#include "src/tool/util/common.h"

namespace hbmprof::tool {

class DebugFiles {
 public:
  // Reads the build ids of all files below `directories`, in any layout. Visits at most `max_entries` files and
  // folders.
  explicit DebugFiles(const std::vector<std::string>& directories, size_t max_entries = 200000);

  // Returns the files that may belong to the module, best first: those below the directories, the debug file in
  // /usr/lib/debug, and the module's own path, which can have a different build id. Thread-safe.
  std::vector<std::string> Candidates(const std::string& path, const std::string& build_id) const;

  // One line for each directory that was not searched completely, with the reason.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void Search(const std::string& dir, size_t max_entries);

  size_t entries_ = 0;                                           // seen so far
  std::map<std::string, std::vector<std::string>> by_build_id_;  // below the directories
  std::vector<std::string> problems_;
};

// Returns the build id in lower-case hex; "" if the file is not an ELF file or has none.
std::string BuildIdOf(const std::string& path);

// Returns whether the file itself has DWARF.
bool HasDebugInformation(const std::string& path);

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
  struct Wanted {
    uint64_t address;
    std::vector<SourceFrame>* frames;
    Dwarf_Die unit = {};      // with code at the address; addr is null if there is none
    uint64_t unit_begin = 0;  // of its range with the address: of several units, the greatest counts
    std::vector<std::pair<int, Dwarf_Die>> scopes = {};  // functions and inlined calls around it, by depth
    bool has_linkage_name = false;                       // the outermost scope has one
  };

  explicit DwarfSymbolizer(Dwfl* dwfl) : dwfl_(dwfl) {}
  void FindUnits(std::vector<Wanted>& wanted) const;
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
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_INFO_H_
