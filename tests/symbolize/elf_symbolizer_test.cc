// ElfSymbolizer against this program and libraries built for it.
#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hbmprof/pprof.h"
#include "src/base/fork.h"
#include "src/capture/modules.h"
#include "tests/support/temporary_directory.h"

namespace named_here {

// Each of these functions returns an address of its own code.
[[gnu::noinline]] uint64_t Here() {
  asm volatile("");
  return reinterpret_cast<uint64_t>(__builtin_extract_return_addr(__builtin_return_address(0)));
}
[[gnu::noinline]] uint64_t Free() { return Here() - 1; }
[[gnu::noinline]] static uint64_t Static(int) { return Here() - 1; }
template <typename T>
[[gnu::noinline]] uint64_t Template(T) {
  return Here() - 1;
}
struct Class {
  [[gnu::noinline]] uint64_t Method() const { return Here() - 1; }
};

}  // namespace named_here

namespace hbmprof_test {
namespace {

using hbmprof::ElfSymbolizer;
using hbmprof::Snapshot;
using hbmprof::Symbolizer;
using hbmprof::internal::LoadedModules;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Symbolizer::Name NameOf(uint64_t address, const std::vector<Snapshot::Module>& modules = LoadedModules()) {
  const std::vector<Symbolizer::Name> names = ElfSymbolizer().Symbolize(modules, {address});
  EXPECT_EQ(names.size(), 1u);
  return names.at(0);
}

// Loads a library that is built from named_library.cc.
class NamedLibrary {
 public:
  explicit NamedLibrary(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << dlerror();
  }
  ~NamedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }

  uint64_t Address(const char* function) const {
    auto* get = reinterpret_cast<uint64_t (*)()>(dlsym(handle_, function));
    EXPECT_NE(get, nullptr) << dlerror();
    return get == nullptr ? 0 : get();
  }
  uint64_t exported() const { return Address("named_exported_address"); }
  uint64_t hidden() const { return Address("named_hidden_address"); }

 private:
  void* const handle_;
};

std::vector<Snapshot::Module> ModulesWith(const std::string& path,
                                          const std::function<void(Snapshot::Module*)>& change) {
  std::vector<Snapshot::Module> modules = LoadedModules();
  int changed = 0;
  for (Snapshot::Module& module : modules) {
    if (module.path.find(path) == std::string::npos) continue;
    change(&module);
    ++changed;
  }
  EXPECT_GT(changed, 0);
  return modules;
}

// Copies `from` to a new folder and returns the path. With its own path, a test does not find the table of another test
// in the cache.
std::string Copy(const std::string& from, const std::string& name) {
  const std::string to = hbmprof_test::NewDirectory() + "/" + name;
  std::ofstream(to, std::ios::binary) << std::ifstream(from, std::ios::binary).rdbuf();
  return to;
}

struct Function {
  uint64_t address;
  uint64_t size;
  std::string name;
};

// Writes an ELF file that has nothing but a symbol table with these functions.
void WriteElf(const std::string& path, const std::vector<Function>& functions) {
  std::vector<Elf64_Sym> symbols(1);
  std::string names(1, '\0');
  for (const Function& function : functions) {
    Elf64_Sym& symbol = symbols.emplace_back();
    symbol = {static_cast<Elf64_Word>(names.size()),
              ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
              0,
              1,
              function.address,
              function.size};
    names += function.name + '\0';
  }
  Elf64_Ehdr header = {{ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT}};
  header.e_type = ET_DYN;
  header.e_version = EV_CURRENT;
  header.e_shoff = header.e_ehsize = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_type = SHT_SYMTAB;
  sections[1].sh_link = 2;
  sections[1].sh_offset = sizeof(header) + sizeof(sections);
  sections[1].sh_size = symbols.size() * sizeof(Elf64_Sym);
  sections[1].sh_entsize = sizeof(Elf64_Sym);
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = sections[1].sh_offset + sections[1].sh_size;
  sections[2].sh_size = names.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(reinterpret_cast<const char*>(sections), sizeof(sections));
  file.write(reinterpret_cast<const char*>(symbols.data()), static_cast<std::streamsize>(sections[1].sh_size));
  file << names;
}

// Returns a field of /proc/self/status in KiB.
int64_t StatusKib(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1));
  }
  return -1;
}

TEST(ElfSymbolizer, NamesFunctionsOfTheProgram) {
  EXPECT_EQ(NameOf(named_here::Free()).name, "named_here::Free");
  EXPECT_EQ(NameOf(named_here::Free()).system_name, "_ZN10named_here4FreeEv");
}

TEST(ElfSymbolizer, NamesStaticFunctions) { EXPECT_EQ(NameOf(named_here::Static(1)).name, "named_here::Static"); }

TEST(ElfSymbolizer, NamesMethodsAndTemplatesWithoutArguments) {
  EXPECT_EQ(NameOf(named_here::Class().Method()).name, "named_here::Class::Method");
  EXPECT_EQ(NameOf(named_here::Template(std::vector<int>())).name, "named_here::Template");
}

TEST(ElfSymbolizer, NamesLambdas) {
  const auto lambda = [](int) __attribute__((noinline)) { return named_here::Here() - 1; };
  const std::string_view name = NameOf(lambda(1)).name;
  EXPECT_THAT(name, HasSubstr("TestBody"));
  EXPECT_THAT(name, HasSubstr("{lambda#1}::operator()"));
}

TEST(ElfSymbolizer, NamesExactlyTheFunctionsBytes) {
  const NamedLibrary library(HBMPROF_NAMED_LIBRARY);
  const uint64_t begin = library.exported();
  Dl_info info;
  const Elf64_Sym* symbol = nullptr;
  ASSERT_NE(dladdr1(reinterpret_cast<void*>(begin), &info, reinterpret_cast<void**>(const_cast<Elf64_Sym**>(&symbol)),
                    RTLD_DL_SYMENT),
            0);
  ASSERT_NE(symbol, nullptr);
  EXPECT_NE(NameOf(begin - 1).name, "named::Exported");
  EXPECT_EQ(NameOf(begin).name, "named::Exported");
  EXPECT_EQ(NameOf(begin + symbol->st_size - 1).name, "named::Exported");
  EXPECT_NE(NameOf(begin + symbol->st_size).name, "named::Exported");
}

// The same names, whether all addresses are asked for at once or one after the other.
TEST(ElfSymbolizer, NamesAllAddressesOfATable) {
  const std::string path = hbmprof_test::NewDirectory() + "/table";
  WriteElf(path, {{0x500, 0, "last"},
                  {0x300, 0, "assembly"},
                  {0x100, 0x20, "__first"},
                  {0x400, 0x300, "overlapping@@V2"},
                  {0x480, 0x10, std::string(9000, 'n')},
                  {0x100, 0x10, "first@V1"},
                  {0x100, 0, "alias"},
                  {0x110, 0x10, "second"},
                  {0x600, 0, "no_end"}});
  const std::vector<std::pair<uint64_t, std::string>> expected = {{0x0ff, ""},
                                                                  {0x100, "first"},
                                                                  {0x10f, "first"},
                                                                  {0x110, "second"},
                                                                  {0x11f, "second"},
                                                                  {0x120, ""},
                                                                  {0x2ff, ""},
                                                                  {0x300, "assembly"},
                                                                  {0x3ff, "assembly"},
                                                                  {0x400, "overlapping"},
                                                                  {0x47f, "overlapping"},
                                                                  {0x480, std::string(9000, 'n')},
                                                                  {0x490, ""},
                                                                  {0x4ff, ""},
                                                                  {0x500, "last"},
                                                                  {0x5ff, "last"},
                                                                  {0x600, ""},
                                                                  {0xfff, ""}};
  std::vector<uint64_t> addresses;
  for (auto each = expected.rbegin(); each != expected.rend(); ++each) addresses.push_back(0x10000 + each->first);
  Snapshot::Module module;
  module.start = module.bias = 0x10000;
  module.limit = 0x20000;
  module.path = path;
  for (const uint64_t address : addresses) NameOf(address, {module});
  const std::vector<Symbolizer::Name> one_by_one = ElfSymbolizer().Symbolize({module}, addresses);
  std::ofstream(path, std::ios::app) << "another file";
  const std::vector<Symbolizer::Name> at_once = ElfSymbolizer().Symbolize({module}, addresses);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(one_by_one.rbegin()[i].system_name, expected[i].second) << std::hex << expected[i].first;
    EXPECT_EQ(at_once.rbegin()[i].system_name, expected[i].second) << std::hex << expected[i].first;
  }
}

// The tables of frameworks have more than 100 MiB.
TEST(ElfSymbolizer, KeepsNoLargeTable) {
  const std::string path = hbmprof_test::NewDirectory() + "/large";
  constexpr uint64_t kFunctions = 200000;
  {
    std::vector<Function> functions;
    const std::string end(100, 'x');
    for (uint64_t i = 1; i <= kFunctions; ++i) functions.push_back({i * 16, 16, "f" + std::to_string(i) + end});
    WriteElf(path, functions);
  }
  const std::vector<Snapshot::Module> modules = {{0, 16 * kFunctions + 16, 0, 0, path, ""}};
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM, the highest resident memory, begins anew
  const int64_t memory = StatusKib("RssAnon");
  const int64_t highest = StatusKib("VmHWM");
  EXPECT_THAT(NameOf(16 * kFunctions, modules).name, StartsWith("f200000x"));
  EXPECT_THAT(NameOf(16, modules).name, StartsWith("f1x"));
  EXPECT_LT(StatusKib("RssAnon") - memory, 4096);
  EXPECT_LT(StatusKib("VmHWM") - highest, 4096);
  unlink(path.c_str());
}

TEST(ElfSymbolizer, NamesStayValid) {
  const Symbolizer::Name first = NameOf(named_here::Static(1));
  const std::vector<Snapshot::Module> modules = LoadedModules();
  std::vector<uint64_t> others;
  for (const Snapshot::Module& module : modules) {
    for (uint64_t address = module.start; address < module.limit; address += 64) others.push_back(address);
  }
  ElfSymbolizer().Symbolize(modules, others);
  EXPECT_EQ(first.name, "named_here::Static");
  EXPECT_EQ(NameOf(named_here::Static(1)).system_name.data(), first.system_name.data());
}

TEST(ElfSymbolizer, NamesHaveNoSymbolVersions) {
  const NamedLibrary library(HBMPROF_NAMED_LIBRARY);
  const Symbolizer::Name name = NameOf(library.Address("named_versioned_address"));
  EXPECT_EQ(name.system_name, "named_versioned");
  EXPECT_EQ(name.name, "named_versioned");
}

TEST(ElfSymbolizer, NamesLocalFunctionsOfLibrary) {
  const NamedLibrary library(HBMPROF_NAMED_LIBRARY);
  EXPECT_EQ(NameOf(library.hidden()).name, "named::(anonymous namespace)::Hidden");
}

TEST(ElfSymbolizer, NamesFunctionsOfTheSystem) {
  EXPECT_EQ(NameOf(reinterpret_cast<uint64_t>(dlsym(RTLD_DEFAULT, "malloc"))).name, "malloc");
}

TEST(ElfSymbolizer, StrippedLibraryUsesDynamicSymbols) {
  const NamedLibrary library(HBMPROF_NAMED_LIBRARY_STRIPPED);
  EXPECT_EQ(NameOf(library.exported()).name, "named::Exported");
  EXPECT_EQ(NameOf(library.hidden()).name, "");
}

TEST(ElfSymbolizer, NamesALibraryWithoutBuildId) {
  const NamedLibrary library(HBMPROF_NAMED_LIBRARY_WITHOUT_ID);
  EXPECT_EQ(NameOf(library.exported()).name, "named::Exported");
  EXPECT_EQ(NameOf(library.hidden()).name, "named::(anonymous namespace)::Hidden");
}

TEST(ElfSymbolizer, AddressesOutsideModulesHaveNoNames) {
  EXPECT_EQ(NameOf(0).name, "");
  EXPECT_EQ(NameOf(1).system_name, "");
  EXPECT_EQ(NameOf(UINT64_MAX).name, "");
  EXPECT_EQ(NameOf(named_here::Free(), {}).name, "");
}

TEST(ElfSymbolizer, VdsoHasNoNames) {
  for (const Snapshot::Module& module : LoadedModules()) {
    if (module.path != "[vdso]") continue;
    EXPECT_EQ(NameOf(module.start + 0x700).name, "");
  }
}

TEST(ElfSymbolizer, IgnoresAFileWithAnotherBuildId) {
  const std::string copy = Copy(HBMPROF_NAMED_LIBRARY, "other_id.so");
  {
    const NamedLibrary library(copy);
    const auto other = ModulesWith(copy, [](Snapshot::Module* module) { module->build_id = "00112233"; });
    EXPECT_EQ(NameOf(library.exported(), other).name, "");
    const auto none = ModulesWith(copy, [](Snapshot::Module* module) { module->build_id = ""; });
    EXPECT_EQ(NameOf(library.exported(), none).name, "");
    EXPECT_EQ(NameOf(library.exported()).name, "named::Exported");
  }
  unlink(copy.c_str());
}

TEST(ElfSymbolizer, UnreadableFilesHaveNoNames) {
  const std::string text = hbmprof_test::NewDirectory() + "/not_elf";
  std::ofstream(text) << "not an ELF file";
  const std::string pipe = text + "_pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path :
       {text, pipe, std::string("/nonexistent"), std::string(""), std::string("relative"), std::string("./relative"),
        std::string("/"), std::string("/dev/zero"), text + " (deleted)"}) {
    const std::vector<Snapshot::Module> modules = {{0x1000, 0x2000, 0, 0, path, ""}};
    EXPECT_EQ(NameOf(0x1500, modules).name, "") << path;
  }
}

// The file is cut at many positions. Then each byte of the header, every fifth byte of the section table and some other
// bytes are damaged in turn. Names may be missing, but nothing crashes.
TEST(ElfSymbolizer, SurvivesDamagedFiles) {
  std::ifstream file(HBMPROF_NAMED_LIBRARY_WITHOUT_ID, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_GT(good.size(), sizeof(Elf64_Ehdr));
  const std::string path = hbmprof_test::NewDirectory() + "/damaged";
  const auto name_all = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    std::vector<uint64_t> addresses;
    for (uint64_t address = 0; address < 0x3000; address += 16) addresses.push_back(address);
    return ElfSymbolizer().Symbolize({{0, 0x3000, 0, 0, path, ""}}, addresses).size();
  };
  for (size_t size = 0; size < good.size(); size += good.size() / 20) EXPECT_EQ(name_all(good.substr(0, size)), 0x300u);
  const uint64_t sections = reinterpret_cast<const Elf64_Ehdr*>(good.data())->e_shoff;
  for (size_t i = 0; i < good.size(); i += i < sizeof(Elf64_Ehdr) ? 1 : i > sections ? 5 : 97) {
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ 0xFF);
    EXPECT_EQ(name_all(bytes), 0x300u);
  }
}

TEST(ElfSymbolizer, DeletedFileStaysCached) {
  const std::string copy = Copy(HBMPROF_NAMED_LIBRARY, "gone.so");
  const NamedLibrary library(copy);
  const std::vector<Snapshot::Module> modules = LoadedModules();
  EXPECT_EQ(NameOf(library.hidden(), modules).name, "named::(anonymous namespace)::Hidden");
  unlink(copy.c_str());
  EXPECT_EQ(NameOf(library.hidden(), modules).name, "named::(anonymous namespace)::Hidden");
}

TEST(ElfSymbolizer, ReadsAReplacedFileWithoutBuildIdAgain) {
  const std::string path = Copy(HBMPROF_NAMED_LIBRARY_WITHOUT_ID, "replaced.so");
  const NamedLibrary library(path);
  const std::vector<Snapshot::Module> modules = LoadedModules();
  EXPECT_EQ(NameOf(library.exported(), modules).name, "named::Exported");
  // Another file, not other bytes in the mapped one.
  unlink(path.c_str());
  std::ofstream(path) << "not an ELF file";
  EXPECT_EQ(NameOf(library.exported(), modules).name, "");
  unlink(path.c_str());
}

TEST(ElfSymbolizer, NamesFromSeveralThreads) {
  const std::vector<Snapshot::Module> modules = LoadedModules();
  const uint64_t address = named_here::Free();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) EXPECT_EQ(NameOf(address, modules).name, "named_here::Free");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The lock of the cache may be held for ever in the child, which then is off and finds no name.
TEST(ElfSymbolizer, ReturnsInForkedChildOfThreads) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not survive a fork while another thread allocates host memory";
#endif
  std::atomic<bool> stop{false};
  const std::vector<Snapshot::Module> modules = LoadedModules();
  const uint64_t address = named_here::Free();
  std::thread busy([&] {
    while (!stop) ElfSymbolizer().Symbolize(modules, std::vector<uint64_t>(1000, address));
  });
  int failed = 0;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends a child that waits for a lock
      const std::string name(ElfSymbolizer().Symbolize(modules, {address})[0].name);
      _exit(name == (hbmprof::internal::IsOff() ? "" : "named_here::Free") ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) ++failed;
  }
  stop = true;
  busy.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace hbmprof_test
