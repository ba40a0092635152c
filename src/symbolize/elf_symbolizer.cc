// ElfSymbolizer: function names from the symbol tables of the modules' files.
//
// Not in this file: source lines (`hbmprof symbolize` reads DWARF), the list of modules (part of the snapshot).
#include <fcntl.h>
#include <gelf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hbmprof/pprof.h"
#include "src/base/descriptor.h"
#include "src/base/fork.h"
#include "src/base/lazy.h"
#include "src/base/mutex.h"
#include "src/base/never_destroyed.h"
#include "src/base/regular_file.h"
#include "src/symbolize/demangle.h"

namespace hbmprof {
namespace internal {
namespace {

// An open ELF file. It is read with read() and never mapped: access to a mapped file that is truncated raises SIGBUS.
class ElfFile {
 public:
  // The path of the kernel's object (vDSO) has no slash: it is no file.
  explicit ElfFile(const std::string& path)
      : file_(path.find('/') == std::string::npos ? -1 : OpenRegularFile(path.c_str(), O_RDONLY)) {
    if (file_.get() < 0 || elf_version(EV_CURRENT) == EV_NONE) return;
    elf_ = elf_begin(file_.get(), ELF_C_READ, nullptr);
    if (elf_ != nullptr && elf_kind(elf_) != ELF_K_ELF) {
      elf_end(elf_);
      elf_ = nullptr;
    }
  }
  ~ElfFile() {
    if (elf_ != nullptr) elf_end(elf_);
  }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  // Returns null if the file cannot be read or is not ELF.
  Elf* get() const { return elf_; }

  // Returns the build id in lower-case hex; "" if the file has none.
  std::string BuildId() const {
    for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf_, section)) != nullptr;) {
      GElf_Shdr header;
      if (gelf_getshdr(section, &header) == nullptr || header.sh_type != SHT_NOTE) continue;
      Elf_Data* data = elf_getdata(section, nullptr);
      if (data == nullptr) continue;
      GElf_Nhdr note;
      size_t name = 0;
      size_t description = 0;
      for (size_t offset = 0; (offset = gelf_getnote(data, offset, &note, &name, &description)) != 0;) {
        const char* bytes = static_cast<const char*>(data->d_buf);
        if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != sizeof("GNU") ||
            std::memcmp(bytes + name, "GNU", sizeof("GNU")) != 0) {
          continue;
        }
        std::string hex;
        for (size_t i = 0; i < note.n_descsz; ++i) {
          const auto byte = static_cast<unsigned char>(bytes[description + i]);
          hex += "0123456789abcdef"[byte >> 4];
          hex += "0123456789abcdef"[byte & 15];
        }
        return hex;
      }
    }
    return "";
  }

  // Returns the header of the section of this type (SHT_SYMTAB or SHT_DYNSYM), of zeros if there is none.
  GElf_Shdr Section(unsigned type) const {
    for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf_, section)) != nullptr;) {
      GElf_Shdr header;
      if (gelf_getshdr(section, &header) != nullptr && header.sh_type == type) return header;
    }
    return {};
  }

  // Reads at most `size` bytes at `offset` of the file; returns their number, 0 after its end and on failure.
  size_t Read(uint64_t offset, void* to, size_t size) const {
    const auto read = [&] { return pread(file_.get(), to, size, static_cast<off_t>(offset)); };
    return static_cast<size_t>(std::max<ssize_t>(RetryOnSignal(read), 0));
  }

  // Returns the name of a symbol, which begins at `offset` of the file, without the version that linkers append to it
  // ("f@@V1"). If it has no end, "".
  std::string Name(uint64_t offset) {
    for (size_t size = 4096; size <= 1 << 20; size *= 2) {
      const std::string_view part = std::string_view(part_).substr(std::min(offset - part_offset_, part_.size()));
      const size_t length = std::strcspn(part.data(), "@");
      if (length < part.size()) return std::string(part.substr(0, length));
      part_.resize(size);
      part_.resize(Read(part_offset_ = offset, part_.data(), size));
    }
    return "";
  }

 private:
  const FileDescriptor file_;
  Elf* elf_ = nullptr;
  std::string part_;  // of the file, at part_offset_: what Name has read last
  uint64_t part_offset_ = 0;
};

// A function of a file, or the addresses between two functions, which have no name.
struct Range {
  uint64_t start = 0;
  std::string system_name;
  std::string name;
};
using Ranges = std::map<uint64_t, Range>;  // by the address after it

// The names of one address, with the function's size. They are ordered so that the name to show comes first: exported
// names before local ones, names with a size before names without, names without a leading underscore before the others
// (malloc, not __libc_malloc), and then in alphabetical order. So every process shows the same name.
using Aliases = std::map<std::tuple<bool, bool, bool, std::string>, uint64_t>;

// Returns the ranges that contain `addresses`, which are sorted; none if `file` has no functions in its symbol table of
// this type. Reads the table in small parts and keeps none: tables of frameworks have more than 100 MiB.
Ranges ReadRanges(ElfFile& file, unsigned type, const std::vector<uint64_t>& addresses) {
  const GElf_Shdr table = file.Section(type);
  GElf_Shdr strings;
  if (table.sh_entsize != sizeof(Elf64_Sym)) return {};
  if (gelf_getshdr(elf_getscn(file.get(), table.sh_link), &strings) == nullptr) return {};
  // The symbols after one of the addresses, up to and including the next one. There are none if `last` is 0.
  struct Interval {
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    std::vector<Elf64_Sym> at_last;
  };
  std::vector<Interval> intervals(addresses.size() + 1);
  std::vector<Elf64_Sym> symbols(2048);
  for (uint64_t done = 0, count = 1; count != 0; done += count * sizeof(Elf64_Sym)) {
    const size_t size = std::min(symbols.size() * sizeof(Elf64_Sym), table.sh_size - done);
    count = file.Read(table.sh_offset + done, symbols.data(), size) / sizeof(Elf64_Sym);
    for (size_t i = 0; i < count; ++i) {
      const Elf64_Sym& symbol = symbols[i];
      const uint64_t address = symbol.st_value;
      const int symbol_type = ELF64_ST_TYPE(symbol.st_info);
      if ((symbol_type != STT_FUNC && symbol_type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF) continue;
      if (address == 0 || symbol.st_name == 0) continue;
      const auto found = std::lower_bound(addresses.begin(), addresses.end(), address);
      Interval& interval = intervals[static_cast<size_t>(found - addresses.begin())];
      interval.first = std::min(interval.first, address);
      if (address < interval.last) continue;
      if (address > interval.last) interval.at_last.clear();
      interval.last = address;
      interval.at_last.push_back(symbol);
    }
  }
  Ranges ranges;
  for (size_t i = 0, next; i < addresses.size(); i = next) {
    const uint64_t start = intervals[i].last;
    for (next = i + 1; next < intervals.size() && intervals[next].last == 0;) ++next;
    const uint64_t limit = next < intervals.size() ? intervals[next].first : UINT64_MAX;
    if (start == 0 && limit == UINT64_MAX) break;
    Aliases aliases;
    for (const Elf64_Sym& symbol : intervals[i].at_last) {
      const std::string name = file.Name(strings.sh_offset + symbol.st_name);
      const bool is_local = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL;
      aliases[{is_local, symbol.st_size == 0, name[0] == '_' && name[1] != 'Z', name}] = symbol.st_size;
    }
    uint64_t end = start;
    // A function in assembly can have the size 0. Then it ends at the next function; the last one is ignored.
    if (const auto best = aliases.begin(); start != 0 && (best->second != 0 || limit != UINT64_MAX)) {
      end = best->second == 0 ? limit : start + std::min(best->second, limit - start);
      const std::string& name = std::get<std::string>(best->first);
      ranges[end] = {start, name, ShortFunctionName(name.c_str())};
    }
    if (addresses[std::min(next, addresses.size()) - 1] >= end) ranges[limit].start = end;
  }
  return ranges;
}

// Returns the ranges that contain `addresses`, which are sorted, in the file that a module was loaded from; none if
// they cannot be found. Uses the first of these that exists: `.symtab` of the file, `.symtab` of its separate debug
// file (in the folder of distributions), `.dynsym` of the file. If the file at the module's path has another build id
// now, only the debug file is used.
Ranges ReadRanges(const Snapshot::Module& module, const std::vector<uint64_t>& addresses) {
  ElfFile file(module.path);
  const bool is_same = file.get() != nullptr && file.BuildId() == module.build_id;
  Ranges ranges = is_same ? ReadRanges(file, SHT_SYMTAB, addresses) : Ranges();
  if (ranges.empty() && module.build_id.size() > 2) {
    ElfFile debug("/usr/lib/debug/.build-id/" + module.build_id.substr(0, 2) + "/" + module.build_id.substr(2) +
                  ".debug");
    if (debug.get() != nullptr && debug.BuildId() == module.build_id) ranges = ReadRanges(debug, SHT_SYMTAB, addresses);
  }
  if (ranges.empty() && is_same) ranges = ReadRanges(file, SHT_DYNSYM, addresses);
  return ranges;
}

// Returns a key for the contents of a file: its build id, else its path, size and modification time; its path if the
// file does not exist.
std::string CacheKey(const Snapshot::Module& module) {
  if (!module.build_id.empty()) return module.build_id;
  struct stat info;
  if (stat(module.path.c_str(), &info) != 0) return module.path;
  return module.path + "\n" + std::to_string(info.st_size) + "\n" + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

// The ranges that were found so far. They are kept for the life of the process. A file is read again when other
// addresses are asked for. Thread-safe.
class SymbolCache {
 public:
  std::vector<Symbolizer::Name> Symbolize(const std::vector<Snapshot::Module>& modules,
                                          const std::vector<uint64_t>& addresses) {
    struct Segment {
      const Snapshot::Module* module;
      Ranges* ranges;               // of its file
      std::vector<size_t> unknown;  // indexes of `addresses`
    };
    std::vector<Segment> segments;
    for (const Snapshot::Module& module : modules) {
      const std::string key = CacheKey(module);
      const MutexLock lock(mutex_);
      segments.push_back({&module, &ranges_[key], {}});
    }
    std::sort(segments.begin(), segments.end(),
              [](const Segment& a, const Segment& b) { return a.module->start < b.module->start; });

    std::vector<Symbolizer::Name> names(addresses.size());
    for (size_t i = 0; i < addresses.size(); ++i) {
      const auto after =
          std::upper_bound(segments.begin(), segments.end(), addresses[i],
                           [](uint64_t address, const Segment& segment) { return address < segment.module->start; });
      if (after == segments.begin()) continue;
      Segment& segment = *std::prev(after);
      if (addresses[i] >= segment.module->limit) continue;
      const MutexLock lock(mutex_);
      if (!Find(*segment.ranges, addresses[i] - segment.module->bias, &names[i])) segment.unknown.push_back(i);
    }
    for (const Segment& segment : segments) {
      if (segment.unknown.empty()) continue;
      std::vector<uint64_t> unknown;
      for (const size_t i : segment.unknown) unknown.push_back(addresses[i] - segment.module->bias);
      std::sort(unknown.begin(), unknown.end());
      // Reads without the lock: a large file takes up to seconds.
      Ranges found = ReadRanges(*segment.module, unknown);
      const MutexLock lock(mutex_);
      segment.ranges->merge(found);
      for (const size_t i : segment.unknown) Find(*segment.ranges, addresses[i] - segment.module->bias, &names[i]);
    }
    return names;
  }

 private:
  // Returns false if the range of `address`, which is relative to the file, is not known.
  static bool Find(const Ranges& ranges, uint64_t address, Symbolizer::Name* name) {
    const auto range = ranges.upper_bound(address);
    if (range == ranges.end() || address < range->second.start) return false;
    *name = {range->second.system_name, range->second.name};
    return true;
  }

  Mutex mutex_;
  std::unordered_map<std::string, Ranges> ranges_ ABSL_GUARDED_BY(mutex_);
};

class CachedElfSymbolizer final : public Symbolizer {
 public:
  std::vector<Name> Symbolize(const std::vector<Snapshot::Module>& modules,
                              const std::vector<uint64_t>& addresses) override {
    // In a process that is off, the lock of the cache may be held for ever (fork.h).
    return IsOff() ? std::vector<Name>(addresses.size()) : cache_.Get().Symbolize(modules, addresses);
  }

 private:
  Lazy<SymbolCache> cache_;
};

// Not a static variable of a function, because such a variable has a lock, which another thread can hold while the
// process forks.
NeverDestroyed<CachedElfSymbolizer> lasting;

}  // namespace
}  // namespace internal

Symbolizer& ElfSymbolizer() { return *internal::lasting; }

}  // namespace hbmprof
