// The readers of build ids, symbols and DWARF return and stay within bounds, whatever an ELF file contains.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/tool/symbols/debug_info.h"
// The library's reader of symbol tables, without its cache. The cache would return the names of an earlier input with
// the same build id.
#include "src/symbolize/elf_symbolizer.cc"

namespace {

// A file in memory with a path by which it can be opened.
std::string FileOf(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("elf", 0);
  if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  return "/proc/self/fd/" + std::to_string(fd);
}

// Addresses distributed over a file of this size.
constexpr uint64_t kStep = 61;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = FileOf(data, size);
  const uint64_t end = size + 4096;

  hbmprof::tool::BuildIdOf(path);
  const auto symbolizer = hbmprof::tool::DwarfSymbolizer::Open(path);
  if (symbolizer.ok()) {
    std::vector<uint64_t> addresses = {0, UINT64_MAX};
    for (uint64_t offset = 0; offset < end; offset += kStep) {
      addresses.push_back((*symbolizer)->AddressOf(offset, offset & ~uint64_t{4095}));
      addresses.push_back(offset);
    }
    if ((*symbolizer)->Symbolize(addresses).size() != addresses.size()) std::abort();
  } else if (symbolizer.status().message().empty()) {
    std::abort();
  }

  hbmprof::Snapshot::Module module;
  module.path = path;
  if (const hbmprof::internal::ElfFile file(path); file.get() != nullptr) module.build_id = file.BuildId();
  std::vector<uint64_t> offsets;
  for (uint64_t offset = 0; offset < end; offset += kStep) offsets.push_back(offset);
  for (const auto& [limit, range] : hbmprof::internal::ReadRanges(module, offsets)) {
    if (limit < range.start || range.name.size() + range.system_name.size() > (size_t{64} << 20)) std::abort();
  }
  return 0;
}
