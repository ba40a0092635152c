#include "src/tool/attach/target.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Where an object's segments are, and its tables.
struct ElfImage {
  uint64_t bias = 0;
  std::vector<Elf64_Phdr> segments;
};

std::optional<ElfImage> ReadImage(const Target& target, const MappedFile& file) {
  const auto header = target.Get<Elf64_Ehdr>(file.start);
  constexpr unsigned kMostSegments = 64;
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_phnum > kMostSegments ||
      header->e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  ElfImage image;
  image.segments.resize(header->e_phnum);
  if (!target.Read(file.start + header->e_phoff, image.segments.data(), header->e_phnum * sizeof(Elf64_Phdr))) {
    return std::nullopt;
  }
  const auto first = std::find_if(image.segments.begin(), image.segments.end(),
                                  [](const Elf64_Phdr& segment) { return segment.p_type == PT_LOAD; });
  if (first == image.segments.end()) return std::nullopt;
  image.bias = file.start - (first->p_vaddr - first->p_offset);
  return image;
}

uint32_t SysvHash(std::string_view name) {
  uint32_t hash = 0;
  for (const char c : name) {
    hash = (hash << 4) + static_cast<unsigned char>(c);
    hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
  }
  return hash;
}

uint32_t GnuHash(std::string_view name) {
  uint32_t hash = 5381;
  for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
  return hash;
}

}  // namespace

bool IsLibc(std::string_view name) {
  return name.rfind("libc.so", 0) == 0 || name.rfind("libc-2.", 0) == 0 || name.rfind("libpthread", 0) == 0;
}

bool IsLinker(std::string_view name) {
  return name.rfind("ld-linux", 0) == 0 || name.rfind("ld-2.", 0) == 0 || name.rfind("libdl", 0) == 0;
}

std::string StatusOf(pid_t id, std::string_view key) { return StatusIn(Cat("/proc/", id, "/status"), key); }

std::string StatusIn(const std::string& file, std::string_view key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0 || line[key.size()] != ':') continue;
    const size_t start = line.find_first_not_of(" \t", key.size() + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::string WhyNotPermitted(pid_t target, uid_t owner, uid_t user, int scope) {
  const std::string start = Cat("you may not attach to ", target, ": ");
  const std::string root = "run the command as root, or with the capability CAP_SYS_PTRACE (in Kubernetes: SYS_PTRACE)";
  if (scope == 3) {
    return Cat(start, "the system forbids it for everybody (kernel.yama.ptrace_scope is 3) until it is restarted");
  }
  if (owner != user && user != 0) return Cat(start, "it belongs to user ", owner, "; ", root);
  if (scope == 2) return Cat(start, "kernel.yama.ptrace_scope is 2; ", root);
  if (scope == 1 && user != 0) {
    return Cat(start, "the system lets you attach to your own child processes only (kernel.yama.ptrace_scope is 1); ",
               root, ", or set it to 0");
  }
  if (user == 0) return Cat(start, "this root has not the capability CAP_SYS_PTRACE; ", root);
  return Cat(start, "it has more rights than you, or has made itself unreadable (prctl(PR_SET_DUMPABLE)); ", root);
}

absl::StatusOr<std::unique_ptr<Target>> Target::Open(pid_t pid) {
  std::unique_ptr<Target> target(new Target(pid));
  struct stat process;
  if (stat(target->ProcPath("").c_str(), &process) != 0) return absl::NotFoundError(Cat("there is no process ", pid));
  const std::string state = target->Status("State");
  if (state.empty() || state[0] == 'Z' || state[0] == 'X') {
    return absl::NotFoundError(Cat("process ", pid, " has ended"));
  }
  if (target->Status("VmSize").empty()) {
    return absl::NotFoundError(Cat(pid, " is a thread of the kernel, not a program"));
  }
  target->memory_.Reset(open(target->ProcPath("mem").c_str(), O_RDWR | O_CLOEXEC));
  if (target->memory_.get() < 0 && (errno == EACCES || errno == EPERM)) {
    const std::string scope = FirstLine("/proc/sys/kernel/yama/ptrace_scope");
    return absl::PermissionDeniedError(
        WhyNotPermitted(pid, process.st_uid, geteuid(), scope.empty() ? -1 : std::atoi(scope.c_str())));
  }
  if (target->memory_.get() < 0) return absl::UnavailableError(Cat(target->ProcPath("mem"), ": ", strerror(errno)));
  target->ReadMaps();
  if (target->files_.empty()) return absl::NotFoundError(Cat("process ", pid, " has ended"));
  return target;
}

absl::Status Target::CheckIsThere() const {
  if (Get<char>(Program().start).has_value()) return absl::OkStatus();
  return absl::UnavailableError("the process has ended, or runs another program now");
}

std::string Target::ProcPath(std::string_view file) const { return Cat("/proc/", pid_, "/", file); }

std::string Target::OutsidePath(std::string_view path) const {
  return SharesFiles() ? std::string(path) : Cat(ProcPath("root"), path);
}

bool Target::SharesFiles() const {
  std::error_code error;
  struct stat mine;
  struct stat its;
  return fs::read_symlink("/proc/self/ns/mnt", error) == fs::read_symlink(ProcPath("ns/mnt"), error) && !error &&
         stat("/", &mine) == 0 && stat(ProcPath("root/").c_str(), &its) == 0 && mine.st_dev == its.st_dev &&
         mine.st_ino == its.st_ino;
}

pid_t Target::inner_pid() const {
  std::istringstream ids(Status("NSpid"));
  pid_t inner = pid_;
  while (ids >> inner) continue;
  return inner == 0 ? pid_ : inner;
}

std::string Target::Name() const { return FirstLine(ProcPath("comm")); }

std::vector<pid_t> Target::Threads() const {
  std::vector<pid_t> threads;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(ProcPath("task"), error)) {
    threads.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return threads;
}

void Target::ReadMaps() {
  std::error_code error;
  const std::string program = fs::read_symlink(ProcPath("exe"), error);
  std::ifstream maps(ProcPath("maps"));
  for (std::string line; std::getline(maps, line);) {
    unsigned long long start, end, offset;
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %*s %llx %*s %*s %n", &start, &end, &offset, &path_at) < 3) continue;
    std::string path = line.substr(static_cast<size_t>(path_at));
    const bool is_device = path.rfind("/dev/", 0) == 0 && path.rfind("/dev/shm/", 0) != 0;
    if (path.empty() || path[0] != '/' || is_device) continue;
    if (offset != 0 && !files_.empty() && files_.back().path == path) {
      files_.back().end = end;
    } else if (offset == 0) {
      const std::string name = path.substr(path.rfind('/') + 1);
      if (path == program) program_ = files_.size();
      files_.push_back({std::move(path), name, start, end});
    }
  }
}

const MappedFile* Target::FileAt(uint64_t address) const {
  for (const MappedFile& file : files_) {
    if (address >= file.start && address < file.end) return &file;
  }
  return nullptr;
}

const MappedFile* Target::Find(bool (*is)(std::string_view name)) const {
  for (const MappedFile& file : files_) {
    if (is(file.name)) return &file;
  }
  return nullptr;
}

bool Target::Read(uint64_t address, void* to, size_t bytes) const {
  return pread(memory_.get(), to, bytes, static_cast<off_t>(address)) == static_cast<ssize_t>(bytes);
}

bool Target::Write(uint64_t address, const void* from, size_t bytes) const {
  return pwrite(memory_.get(), from, bytes, static_cast<off_t>(address)) == static_cast<ssize_t>(bytes);
}

std::string Target::Text(uint64_t address, size_t most) const {
  std::string text;
  for (char c = 0; text.size() < most && Read(address + text.size(), &c, 1) && c != '\0';) text += c;
  return text;
}

uint64_t Target::Symbol(const MappedFile& file, std::string_view name) const {
  const std::optional<ElfImage> image = ReadImage(*this, file);
  if (!image) return 0;
  uint64_t gnu_hash = 0;
  uint64_t sysv_hash = 0;
  uint64_t symbols = 0;
  uint64_t names = 0;
  for (const Elf64_Phdr& segment : image->segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    std::vector<Elf64_Dyn> entries(std::min<size_t>(segment.p_memsz / sizeof(Elf64_Dyn), 1024));
    if (!Read(image->bias + segment.p_vaddr, entries.data(), entries.size() * sizeof(Elf64_Dyn))) return 0;
    for (const Elf64_Dyn& entry : entries) {
      // The dynamic linker has added the bias, if it could write there.
      const uint64_t address = entry.d_un.d_ptr < file.start ? entry.d_un.d_ptr + image->bias : entry.d_un.d_ptr;
      if (entry.d_tag == DT_GNU_HASH) gnu_hash = address;
      if (entry.d_tag == DT_HASH) sysv_hash = address;
      if (entry.d_tag == DT_SYMTAB) symbols = address;
      if (entry.d_tag == DT_STRTAB) names = address;
    }
  }
  const auto word = [this](uint64_t address, uint32_t index) { return Get<uint32_t>(address + uint64_t{index} * 4); };
  // Returns the address of a symbol if it is the wanted one.
  const auto address_of = [&](uint32_t index) -> uint64_t {
    const auto symbol = Get<Elf64_Sym>(symbols + index * sizeof(Elf64_Sym));
    const bool is_it = symbol && symbol->st_shndx != SHN_UNDEF && Text(names + symbol->st_name) == name;
    return is_it ? image->bias + symbol->st_value : 0;
  };
  const uint64_t table = gnu_hash != 0 ? gnu_hash : sysv_hash;
  const auto head = Get<std::array<uint32_t, 3>>(table);
  if (table == 0 || !head || (*head)[0] == 0) return 0;
  const uint32_t bucket_count = (*head)[0];
  constexpr int kMostSymbols = 1 << 20;  // the process can change its tables meanwhile
  if (gnu_hash == 0) {
    const uint64_t buckets = table + 8;
    const uint64_t chains = buckets + uint64_t{bucket_count} * 4;
    auto index = word(buckets, SysvHash(name) % bucket_count);
    for (int i = 0; i < kMostSymbols && index.value_or(0) != 0; ++i, index = word(chains, *index)) {
      if (const uint64_t address = address_of(*index); address != 0) return address;
    }
    return 0;
  }
  const uint32_t first_symbol = (*head)[1];
  const uint64_t buckets = table + 16 + uint64_t{(*head)[2]} * 8;
  const uint64_t chains = buckets + uint64_t{bucket_count} * 4;
  const uint32_t hash = GnuHash(name);
  uint32_t index = word(buckets, hash % bucket_count).value_or(0);
  for (int i = 0; i < kMostSymbols && index >= first_symbol && index != 0; ++i, ++index) {
    const auto link = word(chains, index - first_symbol);
    if (!link) return 0;
    if ((*link | 1) == (hash | 1)) {
      if (const uint64_t address = address_of(index); address != 0) return address;
    }
    if ((*link & 1) != 0) return 0;
  }
  return 0;
}

uint64_t Target::PlaceFor(std::string_view code) const {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::string there(code.size(), '\0');
  for (const MappedFile& file : files_) {
    // The C++ library is never unloaded, because it has unique symbols.
    const bool stays =
        &file == &Program() || IsLibc(file.name) || IsLinker(file.name) || file.name.rfind("libstdc++.so", 0) == 0;
    const std::optional<ElfImage> image = stays ? ReadImage(*this, file) : std::nullopt;
    if (!image) continue;
    for (const Elf64_Phdr& segment : image->segments) {
      if (segment.p_type != PT_LOAD || (segment.p_flags & (PF_X | PF_W)) != PF_X) continue;
      const uint64_t end = image->bias + segment.p_vaddr + segment.p_filesz;
      const uint64_t page_end = (end + page - 1) & ~(page - 1);
      const uint64_t place = (end + 15) & ~uint64_t{15};
      const bool is_shared = std::any_of(image->segments.begin(), image->segments.end(), [&](const Elf64_Phdr& other) {
        const uint64_t start = image->bias + other.p_vaddr;
        return other.p_type == PT_LOAD && start >= end && start < page_end;
      });
      if (is_shared || place + code.size() > page_end || !Read(place, there.data(), there.size())) continue;
      if (there == code) return place;
      // Behind the end of the file there are zeros.
      std::string in_file(code.size(), '\0');
      std::ifstream stream(OutsidePath(file.path), std::ios::binary);
      stream.seekg(static_cast<std::streamoff>(segment.p_offset + (place - image->bias - segment.p_vaddr)));
      stream.read(in_file.data(), static_cast<std::streamsize>(in_file.size()));
      if (there == in_file) return place;
    }
  }
  return 0;
}

}  // namespace hbmprof::tool
