// See dwarf_symbolizer.h.
//
// Units are found by the address ranges in the units, because .debug_aranges is optional and clang does not write it.
// Each unit that contains a wanted address is read once. For every function and inlined call in it, the wanted
// addresses in its ranges are looked up.
#include "src/tool/symbols/dwarf_symbolizer.h"

#include <dwarf.h>

#include <cstdlib>

#include "src/symbolize/demangle.h"

namespace hbmprof::tool {
namespace {

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

}  // namespace

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

void DwarfSymbolizer::ReadUnits() {
  if (!units_.empty() || dwarf_ == nullptr) return;
  Dwarf_CU* cu = nullptr;
  Dwarf_Half version;
  uint8_t type;
  Dwarf_Die die;
  Dwarf_Die split;
  while (dwarf_get_units(dwarf_, cu, &cu, &version, &type, &die, &split) == 0) {
    if (type != DW_UT_compile && type != DW_UT_skeleton) continue;
    Dwarf_Addr base;
    Dwarf_Addr begin;
    Dwarf_Addr end;
    for (ptrdiff_t at = 0; (at = dwarf_ranges(&die, at, &base, &begin, &end)) > 0;) {
      // The contents of a skeleton unit are in the split file, if that file was found.
      if (begin < end) units_.push_back({begin, end, 0, type == DW_UT_skeleton && split.addr != nullptr ? split : die});
    }
  }
  absl::c_sort(units_, [](const Unit& a, const Unit& b) { return a.begin < b.begin; });
  uint64_t widest = 0;
  for (Unit& unit : units_) unit.widest_end = widest = std::max(widest, unit.end);
}

const DwarfSymbolizer::Unit* DwarfSymbolizer::UnitAt(uint64_t address) const {
  auto unit = absl::c_upper_bound(units_, address, [](uint64_t value, const Unit& u) { return value < u.begin; });
  while (unit != units_.begin()) {
    --unit;
    if (unit->widest_end <= address) break;
    if (address < unit->end) return &*unit;
  }
  return nullptr;
}

void DwarfSymbolizer::Visit(Dwarf_Die die, int depth, std::vector<Wanted>& wanted) {
  if (depth > kMaxDepth) return;
  do {
    const int tag = dwarf_tag(&die);
    if (tag == DW_TAG_subprogram || tag == DW_TAG_inlined_subroutine) {
      Dwarf_Addr base;
      Dwarf_Addr begin;
      Dwarf_Addr end;
      for (ptrdiff_t at = 0; (at = dwarf_ranges(&die, at, &base, &begin, &end)) > 0;) {
        auto first =
            absl::c_lower_bound(wanted, begin, [](const Wanted& w, uint64_t address) { return w.address < address; });
        for (; first != wanted.end() && first->address < end; ++first) first->scopes.emplace_back(depth, die);
      }
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
  std::vector<size_t> order(addresses.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  absl::c_sort(order, [&](size_t a, size_t b) { return addresses[a] < addresses[b]; });

  ReadUnits();
  // The work of each unit. Within a unit the addresses stay sorted.
  std::vector<std::pair<Dwarf_Die, std::vector<Wanted>>> work;
  for (const size_t i : order) {
    // libdw adds a bias to the virtual addresses of the file.
    const uint64_t address = addresses[i] + elf_bias_ - dwarf_bias_;
    const Unit* unit = UnitAt(address);
    if (unit == nullptr) continue;
    auto entry = absl::c_find_if(work, [&](const auto& w) { return w.first.addr == unit->die.addr; });
    if (entry == work.end()) entry = work.insert(entry, {unit->die, {}});
    entry->second.push_back({address, &frames[i]});
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
