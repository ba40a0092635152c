// The reader of PyTorch's snapshots accepts any bytes: it returns an error with a text, or a whole recording whose
// numbers are consistent.
//
// Every input is read as a pickle: the fuzzer need not find its first bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "src/tool/reader/state.h"
#include "src/tool/torch/torch_snapshot.h"

namespace {

using namespace hbmprof::internal;

void Require(bool holds) {
  if (!holds) std::abort();
}

void Read(const std::string& path) {
  const auto opened = hbmprof::tool::OpenRecordingFile(path);
  if (!opened.ok()) {
    Require(!opened.status().message().empty());
    return;
  }
  RecordingReader& reader = **opened;
  Require(reader.is_complete() && reader.problem().empty() && reader.lost().empty());
  RecordingState state(reader.tables());
  RecordedEvent event;
  const auto check = [&] {
    int64_t sum = 0;
    for (uint32_t site = 0; site < reader.tables().sites.size(); ++site) {
      Require(state.site_bytes(site) >= 0);
      if (!reader.tables().IsOfPool(site)) sum += state.site_bytes(site);
    }
    int64_t in_use = 0;
    for (size_t account = 0; account < reader.tables().names.devices.size() * hbmprof::kMemorySpaceCount; ++account)
      in_use += state.bytes_in_use(account);
    Require(sum == in_use);
  };
  check();
  int64_t count = 0;
  while (reader.Next(&event)) {
    state.Apply(event);
    if (!event.is_continued && ++count < 100) check();
  }
  check();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("snapshot", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.size() >= 2) {
    bytes[0] = '\x80';
    bytes[1] = static_cast<char>(2 + static_cast<uint8_t>(bytes[1]) % 4);
  }
  if (ftruncate(file, 0) != 0 || pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    std::abort();
  }
  Read(path);
  return 0;
}
