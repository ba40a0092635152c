// ElfSymbolizer: function names from the symbol tables of the modules' files.
//
// Not in this file: source lines (`hbmprof symbolize` reads DWARF), the list of modules (part of the snapshot).
#include <fcntl.h>
#include <gelf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
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

  // Returns the section of this type (SHT_SYMTAB or SHT_DYNSYM), null if there is none or it is empty.
  Elf_Scn* SymbolSection(unsigned type) const {
    for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf_, section)) != nullptr;) {
      GElf_Shdr header;
      if (gelf_getshdr(section, &header) != nullptr && header.sh_type == type && header.sh_size != 0) return section;
    }
    return nullptr;
  }

 private:
  const FileDescriptor file_;
  Elf* elf_ = nullptr;
};

// The functions of one file, by address, and the short names that were needed so far. Not thread-safe.
class SymbolTable {
 public:
  // Reads the functions of `section`, a symbol table of `file`.
  SymbolTable(const ElfFile& file, Elf_Scn* section) {
    GElf_Shdr header;
    Elf_Data* data = elf_getdata(section, nullptr);
    if (data == nullptr || gelf_getshdr(section, &header) == nullptr || header.sh_entsize == 0) return;
    std::vector<Candidate> candidates;
    const size_t count = header.sh_size / header.sh_entsize;
    for (size_t i = 0; i < count; ++i) {
      GElf_Sym symbol;
      if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr) break;
      const int type = GELF_ST_TYPE(symbol.st_info);
      if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF || symbol.st_value == 0) continue;
      const char* name = elf_strptr(file.get(), header.sh_link, symbol.st_name);
      if (name == nullptr || *name == '\0') continue;
      candidates.push_back({symbol.st_value, symbol.st_size, GELF_ST_BIND(symbol.st_info) == STB_LOCAL, name});
    }
    std::sort(candidates.begin(), candidates.end());
    for (const Candidate& candidate : candidates) {
      if (!addresses_.empty() && addresses_.back() == candidate.address) continue;  // an alias
      addresses_.push_back(candidate.address);
      // Linkers append the version of a symbol to its name ("f@@V1").
      const size_t length = std::strcspn(candidate.name, "@");
      functions_.push_back({candidate.size, names_.size(), length, nullptr});
      names_.append(candidate.name, length).push_back('\0');
    }
    names_.shrink_to_fit();
    addresses_.shrink_to_fit();
    functions_.shrink_to_fit();
  }

  bool empty() const { return functions_.empty(); }

  // Returns the name of the function at `address`, which is relative to the file; empty if there is none. The result is
  // valid as long as the table.
  Symbolizer::Name Find(uint64_t address) {
    const auto after = std::upper_bound(addresses_.begin(), addresses_.end(), address);
    if (after == addresses_.begin()) return {};
    Function& function = functions_[static_cast<size_t>(after - addresses_.begin()) - 1];
    // A function in assembly can have the size 0. Then it ends at the next function.
    if (function.size != 0 && address - *std::prev(after) >= function.size) return {};
    if (function.size == 0 && after == addresses_.end()) return {};
    if (function.found == nullptr) {
      const char* name = names_.data() + function.name;
      function.found = &found_.emplace_back(name + ShortFunctionName(name));
    }
    const std::string_view both = *function.found;
    return {both.substr(0, function.name_length), both.substr(function.name_length)};
  }

 private:
  struct Function {
    uint64_t size;
    size_t name;  // offset in names_
    size_t name_length;
    const std::string* found;  // the name and the short name, concatenated; null until it is needed
  };
  // Orders by address. Names of one address are ordered so that the name to show comes first: exported names before
  // local ones, names with a size before names without, names without a leading underscore before the others (malloc,
  // not __libc_malloc), and then in alphabetical order. So every process shows the same name.
  struct Candidate {
    uint64_t address;
    uint64_t size;
    bool is_local;
    const char* name;

    bool operator<(const Candidate& other) const {
      if (address != other.address) return address < other.address;
      if (is_local != other.is_local) return other.is_local;
      if ((size == 0) != (other.size == 0)) return other.size == 0;
      const bool is_reserved = IsReservedC();
      if (is_reserved != other.IsReservedC()) return other.IsReservedC();
      return std::strcmp(name, other.name) < 0;
    }
    bool IsReservedC() const { return name[0] == '_' && name[1] != 'Z'; }
  };

  std::vector<uint64_t> addresses_;  // sorted, unique; a separate vector, so that a search uses few cache lines
  std::vector<Function> functions_;  // of addresses_
  std::string names_;                // NUL-terminated, concatenated
  std::deque<std::string> found_;    // in the order of first use, which is close to that of later uses; never moved
};

// Returns the functions of the file that a module was loaded from; null if none are found. Uses the first of these that
// exists: `.symtab` of the file, `.symtab` of its separate debug file (in the folder of distributions), `.dynsym` of
// the file. If the file at the module's path has another build id now, only the debug file is used.
std::unique_ptr<SymbolTable> ReadSymbols(const Snapshot::Module& module) {
  const ElfFile file(module.path);
  const bool is_same = file.get() != nullptr && file.BuildId() == module.build_id;
  const auto read = [](const ElfFile& from, unsigned type) -> std::unique_ptr<SymbolTable> {
    Elf_Scn* section = from.SymbolSection(type);
    if (section == nullptr) return nullptr;
    auto table = std::make_unique<SymbolTable>(from, section);
    return table->empty() ? nullptr : std::move(table);
  };
  std::unique_ptr<SymbolTable> table;
  if (is_same) table = read(file, SHT_SYMTAB);
  if (table == nullptr && module.build_id.size() > 2) {
    const ElfFile debug("/usr/lib/debug/.build-id/" + module.build_id.substr(0, 2) + "/" + module.build_id.substr(2) +
                        ".debug");
    if (debug.get() != nullptr && debug.BuildId() == module.build_id) table = read(debug, SHT_SYMTAB);
  }
  if (table == nullptr && is_same) table = read(file, SHT_DYNSYM);
  return table;
}

// Returns a key for the contents of a file: its build id, else its path, size and modification time; "" if the file
// does not exist.
std::string CacheKey(const Snapshot::Module& module) {
  if (!module.build_id.empty()) return module.build_id;
  struct stat info;
  if (stat(module.path.c_str(), &info) != 0) return "";
  return module.path + "\n" + std::to_string(info.st_size) + "\n" + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

// The symbol tables that were read so far. They are kept for the life of the process. A file without symbols is read
// again at the next use, because that is cheap and the file can be restored. Thread-safe.
class SymbolCache {
 public:
  std::vector<Symbolizer::Name> Symbolize(const std::vector<Snapshot::Module>& modules,
                                          const std::vector<uint64_t>& addresses) {
    struct Segment {
      const Snapshot::Module* module;
      SymbolTable* table;
      bool is_known;  // the table
    };
    std::vector<Segment> segments;
    for (const Snapshot::Module& module : modules) segments.push_back({&module, nullptr, false});
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
      if (!segment.is_known) segment = {segment.module, TableOf(*segment.module), true};
      if (segment.table == nullptr) continue;
      const MutexLock lock(mutex_);
      names[i] = segment.table->Find(addresses[i] - segment.module->bias);
    }
    return names;
  }

 private:
  SymbolTable* TableOf(const Snapshot::Module& module) {
    const std::string key = CacheKey(module);
    if (key.empty()) return nullptr;
    {
      const MutexLock lock(mutex_);
      if (const auto found = tables_.find(key); found != tables_.end()) return found->second.get();
    }
    // Reads without the lock: a large file takes up to seconds.
    std::unique_ptr<SymbolTable> table = ReadSymbols(module);
    if (table == nullptr) return nullptr;
    const MutexLock lock(mutex_);
    return tables_.try_emplace(key, std::move(table)).first->second.get();
  }

  Mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<SymbolTable>> tables_ ABSL_GUARDED_BY(mutex_);
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
