// Units are found by the address ranges in the units, because .debug_aranges is optional and clang does not write it.
// Each unit that contains a wanted address is read once. For every unit, and for every function and inlined call in
// it, the wanted addresses in its ranges are looked up.
#include "src/tool/symbols/debug_info.h"

#include <dwarf.h>
#include <elfutils/libdwelf.h>
#include <fcntl.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "src/base/descriptor.h"
#include "src/base/regular_file.h"
#include "src/symbolize/demangle.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

constexpr uint64_t kPageMask = 4095;
// A limit for damaged files. No compiler nests entries this deep.
constexpr int kMaxDepth = 512;

const Dwfl_Callbacks kCallbacks = {nullptr, dwfl_standard_find_debuginfo, dwfl_offline_section_address, nullptr};

std::string TextOf(Dwarf_Attribute* attribute) {
  const char* text = attribute == nullptr ? nullptr : dwarf_formstring(attribute);
  return text == nullptr ? "" : text;
}

std::string Absolute(const char* file, const char* directory) {
  if (file == nullptr) return "";
  if (*file == '/' || directory == nullptr || *directory == '\0') return file;
  return std::string(directory) + "/" + file;
}

// Returns the linkage name of a function: its own, or that of its abstract origin or declaration.
std::string LinkageName(Dwarf_Die* die) {
  Dwarf_Attribute attribute;
  const std::string name = TextOf(dwarf_attr_integrate(die, DW_AT_linkage_name, &attribute));
  return name.empty() ? TextOf(dwarf_attr_integrate(die, DW_AT_MIPS_linkage_name, &attribute)) : name;
}

std::string PlainName(Dwarf_Die* die) {
  Dwarf_Attribute attribute;
  return TextOf(dwarf_attr_integrate(die, DW_AT_name, &attribute));
}

// Returns the name in the source with its namespaces and classes. Used for a function without a linker symbol.
std::string QualifiedName(Dwarf_Die* die) {
  std::string name = PlainName(die);
  if (name.empty()) return "";
  Dwarf_Attribute attribute;
  // Finds the declaration: follows the references to the abstract origin and to the specification.
  Dwarf_Die declared = *die;
  for (int i = 0; i < 4; ++i) {
    Dwarf_Die other;
    if (dwarf_formref_die(dwarf_attr(&declared, DW_AT_abstract_origin, &attribute), &other) == nullptr &&
        dwarf_formref_die(dwarf_attr(&declared, DW_AT_specification, &attribute), &other) == nullptr) {
      break;
    }
    declared = other;
  }
  Dwarf_Die* scopes = nullptr;
  const int count = dwarf_getscopes_die(&declared, &scopes);
  for (int i = 1; i < count; ++i) {
    const int tag = dwarf_tag(&scopes[i]);
    if (tag != DW_TAG_namespace && tag != DW_TAG_class_type && tag != DW_TAG_structure_type) continue;
    const char* scope = dwarf_diename(&scopes[i]);
    std::string_view text = scope == nullptr ? "" : scope;
    if (text.empty()) text = tag == DW_TAG_namespace ? "(anonymous namespace)" : "{unnamed}";
    name.insert(0, std::string(text) + "::");
  }
  std::free(scopes);
  return name;
}

int64_t Number(Dwarf_Die* die, unsigned name) {
  Dwarf_Attribute attribute;
  Dwarf_Word value = 0;
  if (dwarf_attr_integrate(die, name, &attribute) == nullptr || dwarf_formudata(&attribute, &value) != 0) return 0;
  return static_cast<int64_t>(value);
}

// Calls `read` with the file if it is an ELF file.
void WithElf(const std::string& path, const std::function<void(Elf*)>& read) {
  elf_version(EV_CURRENT);
  const internal::FileDescriptor file(internal::OpenRegularFile(path.c_str(), O_RDONLY));
  if (file.get() < 0) return;
  if (Elf* elf = elf_begin(file.get(), ELF_C_READ_MMAP, nullptr); elf != nullptr) {
    if (elf_kind(elf) == ELF_K_ELF) read(elf);
    elf_end(elf);
  }
}

// Calls `visit(begin, end)` for the ranges of addresses of the entry.
template <typename Visit>
void ForEachRange(Dwarf_Die& die, const Visit& visit) {
  Dwarf_Addr base, begin, end;
  for (ptrdiff_t at = 0; (at = dwarf_ranges(&die, at, &base, &begin, &end)) > 0;) visit(begin, end);
}

// Calls `visit` with the elements of `wanted`, which is sorted by address, whose address is in [begin, end).
template <typename Wanted, typename Visit>
void ForEachIn(std::vector<Wanted>& wanted, uint64_t begin, uint64_t end, const Visit& visit) {
  auto want = absl::c_lower_bound(wanted, begin, [](const Wanted& w, uint64_t address) { return w.address < address; });
  for (; want != wanted.end() && want->address < end; ++want) visit(*want);
}

}  // namespace

std::string BuildIdOf(const std::string& path) {
  std::string text;
  WithElf(path, [&text](Elf* elf) {
    const void* bytes = nullptr;
    const ssize_t size = dwelf_elf_gnu_build_id(elf, &bytes);
    if (size > 0) text = absl::BytesToHexString({static_cast<const char*>(bytes), static_cast<size_t>(size)});
  });
  return text;
}

bool HasDebugInformation(const std::string& path) {
  bool is_found = false;
  WithElf(path, [&is_found](Elf* elf) {
    Dwarf* const dwarf = dwarf_begin_elf(elf, DWARF_C_READ, nullptr);
    is_found = dwarf != nullptr;
    dwarf_end(dwarf);
  });
  return is_found;
}

// `max_entries` limits the search: a folder of debug files has thousands of entries, but the root folder of a system
// has millions.
DebugFiles::DebugFiles(const std::vector<std::string>& directories, size_t max_entries) {
  for (const std::string& dir : directories) Search(dir, max_entries);
}

std::vector<std::string> DebugFiles::Candidates(const std::string& path, const std::string& build_id) const {
  std::vector<std::string> files;
  if (build_id.size() >= 3) {
    files = ValueOr(by_build_id_, build_id);
    const std::string installed =
        Cat("/usr/lib/debug/.build-id/", build_id.substr(0, 2), "/", build_id.substr(2), ".debug");
    if (IsFile(installed)) files.push_back(installed);
  }
  if (!path.empty() && path.front() == '/' && IsFile(path)) files.push_back(path);
  return files;
}

void DebugFiles::Search(const std::string& dir, size_t max_entries) {
  std::error_code error;
  fs::recursive_directory_iterator entry(dir, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (++entries_ > max_entries) {
      problems_.push_back(Cat("--debug-dir ", dir, ": not searched to the end: there are more than ", max_entries,
                              " files and folders; name the folder that has the debug files"));
      return;
    }
    if (!IsFile(entry->path())) continue;
    const std::string id = BuildIdOf(entry->path().string());
    if (!id.empty()) by_build_id_[id].push_back(entry->path().string());
  }
  if (error) problems_.push_back(Cat("--debug-dir ", dir, ": not searched to the end: ", error.message()));
}

absl::StatusOr<std::unique_ptr<DwarfSymbolizer>> DwarfSymbolizer::Open(const std::string& path) {
  Dwfl* const dwfl = dwfl_begin(&kCallbacks);
  if (dwfl == nullptr) return ResourceExhausted(path + ": " + dwfl_errmsg(-1));
  std::unique_ptr<DwarfSymbolizer> file(new DwarfSymbolizer(dwfl));
  file->module_ = dwfl_report_offline(dwfl, "module", path.c_str(), -1);
  dwfl_report_end(dwfl, nullptr, nullptr);
  if (file->module_ != nullptr) file->elf_ = dwfl_module_getelf(file->module_, &file->elf_bias_);
  if (file->elf_ == nullptr) return InvalidArgument(path + ": " + dwfl_errmsg(-1));
  file->dwarf_ = dwfl_module_getdwarf(file->module_, &file->dwarf_bias_);
  return file;
}

uint64_t DwarfSymbolizer::AddressOf(uint64_t file_offset, uint64_t mapping_offset) const {
  size_t count = 0;
  if (elf_getphdrnum(elf_, &count) != 0) return UINT64_MAX;
  std::vector<GElf_Phdr> code;
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr segment;
    if (gelf_getphdr(elf_, static_cast<int>(i), &segment) == nullptr) continue;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0) code.push_back(segment);
  }
  for (const GElf_Phdr& segment : code) {
    if (file_offset >= segment.p_offset && file_offset < segment.p_offset + segment.p_filesz) {
      return file_offset - segment.p_offset + segment.p_vaddr;
    }
  }
  // In a separate debug file the addresses of the segments are right, but their file offsets are not.
  if (code.size() != 1 || file_offset < mapping_offset) return UINT64_MAX;
  const uint64_t address = (code[0].p_vaddr & ~kPageMask) + (file_offset - (mapping_offset & ~kPageMask));
  return address < code[0].p_vaddr + code[0].p_memsz ? address : UINT64_MAX;
}

void DwarfSymbolizer::FindUnits(std::vector<Wanted>& wanted) const {
  Dwarf_CU* cu = nullptr;
  Dwarf_Half version;
  uint8_t type;
  Dwarf_Die die;
  Dwarf_Die split;
  while (dwarf_ != nullptr && dwarf_get_units(dwarf_, cu, &cu, &version, &type, &die, &split) == 0) {
    if (type != DW_UT_compile && type != DW_UT_skeleton) continue;
    ForEachRange(die, [&](uint64_t begin, uint64_t end) {
      ForEachIn(wanted, begin, end, [&](Wanted& want) {
        if (want.unit.addr != nullptr && want.unit_begin > begin) return;
        // The contents of a skeleton unit are in the split file, if that file was found.
        want.unit = type == DW_UT_skeleton && split.addr != nullptr ? split : die;
        want.unit_begin = begin;
      });
    });
  }
}

void DwarfSymbolizer::Visit(Dwarf_Die die, int depth, std::vector<Wanted>& wanted) {
  if (depth > kMaxDepth) return;
  do {
    const int tag = dwarf_tag(&die);
    if (tag == DW_TAG_subprogram || tag == DW_TAG_inlined_subroutine) {
      ForEachRange(die, [&](uint64_t begin, uint64_t end) {
        ForEachIn(wanted, begin, end, [&](Wanted& want) { want.scopes.emplace_back(depth, die); });
      });
    }
    switch (tag) {
      // These entries contain no code.
      case DW_TAG_base_type:
      case DW_TAG_enumeration_type:
      case DW_TAG_formal_parameter:
      case DW_TAG_variable:
      case DW_TAG_member:
      case DW_TAG_typedef:
        break;
      default: {
        Dwarf_Die child;
        if (dwarf_child(&die, &child) == 0) Visit(child, depth + 1, wanted);
      }
    }
  } while (dwarf_siblingof(&die, &die) == 0);
}

void DwarfSymbolizer::SymbolizeUnit(Dwarf_Die unit, std::vector<Wanted>& wanted) {
  Dwarf_Attribute attribute;
  const char* directory = dwarf_formstring(dwarf_attr(&unit, DW_AT_comp_dir, &attribute));
  Dwarf_Files* files = nullptr;
  size_t file_count = 0;
  if (dwarf_getsrcfiles(&unit, &files, &file_count) != 0) file_count = 0;
  Dwarf_Die child;
  if (dwarf_child(&unit, &child) == 0) Visit(child, 0, wanted);

  for (Wanted& want : wanted) {
    // Sorts the scopes, innermost first. If two functions share a range, it belongs to the one that is nested deeper.
    absl::c_reverse(want.scopes);
    absl::c_stable_sort(want.scopes, [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string file;
    int64_t line = 0;
    if (Dwarf_Line* row = dwarf_getsrc_die(&unit, want.address); row != nullptr) {
      int number = 0;
      if (dwarf_lineno(row, &number) == 0) line = number;
      file = Absolute(dwarf_linesrc(row, nullptr, nullptr), directory);
    }
    for (auto& [depth, die] : want.scopes) {
      SourceFrame frame;
      frame.system_name = LinkageName(&die);
      want.has_linkage_name = !frame.system_name.empty();
      if (want.has_linkage_name) {
        frame.name = hbmprof::internal::ShortFunctionName(frame.system_name.c_str());
      } else {
        frame.name = hbmprof::internal::ShortenDemangled(QualifiedName(&die));
        frame.system_name = PlainName(&die);
      }
      frame.file = file;
      frame.line = line;
      frame.start_line = Number(&die, DW_AT_decl_line);
      want.frames->push_back(std::move(frame));
      if (dwarf_tag(&die) == DW_TAG_subprogram) break;
      // The position of the next frame is the call site of this frame.
      const auto call_file = static_cast<size_t>(Number(&die, DW_AT_call_file));
      file = call_file < file_count ? Absolute(dwarf_filesrc(files, call_file, nullptr, nullptr), directory) : "";
      line = Number(&die, DW_AT_call_line);
    }
    // The code has lines but is outside of every function, as code in assembly is.
    if (want.scopes.empty() && line != 0) want.frames->push_back({"", "", file, line, 0});
  }
}

void DwarfSymbolizer::AddSymbolName(uint64_t address, std::vector<SourceFrame>& frames) const {
  GElf_Off offset = 0;
  GElf_Sym symbol;
  const char* name = dwfl_module_addrinfo(module_, address + elf_bias_, &offset, &symbol, nullptr, nullptr, nullptr);
  if (name == nullptr || *name == '\0') return;
  // If DWARF has a name but no linkage name, that name is better than a C symbol, which can contain a symbol version.
  if (!frames.empty() && !frames.back().name.empty() && std::string_view(name).substr(0, 2) != "_Z") return;
  // libdw returns the nearest symbol, which may be far away from code without a symbol. So a symbol with a size must
  // contain the address.
  if (symbol.st_size != 0 && offset >= symbol.st_size) return;
  if (frames.empty()) frames.emplace_back();
  frames.back().system_name = name;
  frames.back().name = hbmprof::internal::ShortFunctionName(name);
}

std::vector<std::vector<SourceFrame>> DwarfSymbolizer::Symbolize(const std::vector<uint64_t>& addresses) {
  std::vector<std::vector<SourceFrame>> frames(addresses.size());
  std::vector<Wanted> all;
  // libdw adds a bias to the virtual addresses of the file.
  for (size_t i = 0; i < addresses.size(); ++i) all.push_back({addresses[i] + elf_bias_ - dwarf_bias_, &frames[i]});
  absl::c_sort(all, [](const Wanted& a, const Wanted& b) { return a.address < b.address; });
  FindUnits(all);
  // The work of each unit. Within a unit the addresses stay sorted.
  std::vector<std::pair<Dwarf_Die, std::vector<Wanted>>> work;
  for (Wanted& want : all) {
    if (want.unit.addr == nullptr) continue;
    auto entry = absl::c_find_if(work, [&](const auto& w) { return w.first.addr == want.unit.addr; });
    if (entry == work.end()) entry = work.insert(entry, {want.unit, {}});
    entry->second.push_back(std::move(want));
  }
  std::vector<bool> wants_symbol(addresses.size(), true);
  for (auto& [unit, wanted] : work) {
    SymbolizeUnit(unit, wanted);
    for (const Wanted& want : wanted) {
      wants_symbol[static_cast<size_t>(want.frames - frames.data())] = !want.has_linkage_name;
    }
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (wants_symbol[i]) AddSymbolName(addresses[i], frames[i]);
  }
  return frames;
}

}  // namespace hbmprof::tool
