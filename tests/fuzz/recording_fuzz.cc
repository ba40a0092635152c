// The reader of recordings accepts any bytes: it returns an error, or valid events.
//
// A damaged file rarely passes the checksums. So the input is also read as the contents of blocks, which this program
// puts into a recording: the first four bytes of each part are its type and its length.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "hbmprof/pprof.h"
#include "src/recording/format.h"
#include "src/tool/reader/reader.h"
#include "src/tool/reader/state.h"

namespace {

using namespace hbmprof::internal;

class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("recording", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {}
  void Write(std::string_view bytes) {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  const std::string& path() const { return path_; }

 private:
  const int fd_;
  const std::string path_;
};

void Require(bool holds) {
  if (!holds) std::abort();
}

// Reads everything and checks the guarantees of the reader.
void Read(const std::string& path) {
  auto opened = RecordingReader::Open(path);
  if (!opened.ok()) {
    Require(!opened.status().message().empty());
    return;
  }
  RecordingReader& reader = **opened;
  const RecordingTables& tables = reader.tables();
  RecordingState state(tables);
  RecordedEvent event;
  int64_t time = 0;
  bool is_continued = false;
  while (reader.Next(&event)) {
    Require(event.time >= time && (!is_continued || event.time == time));
    Require(event.site < tables.sites.size() || event.site == kNoRecordedSite);
    Require(event.thread < tables.threads.size());
    Require(event.kind != RecordedKind::kTags || event.id < tables.tag_sets.size());
    Require(event.kind != RecordedKind::kMark || event.id < tables.marks.size());
    time = event.time;
    is_continued = event.is_continued;
    state.Apply(event);
  }
  Require(!is_continued);
  const auto names = NamesOfRecording(tables);
  // The reader has checked every reference that the profile has.
  Require(hbmprof::SerializePprof(state.ToSnapshot(), names.get()).ok());
}

// Returns a recording whose blocks have the parts of `data` as their contents.
std::string AsBlocks(std::string_view data) {
  constexpr size_t kHead = 4;
  std::string file = FileHeaderBytes();
  while (data.size() >= kHead) {
    const auto type = static_cast<BlockType>(data[0] & 7);
    const uint32_t count = static_cast<uint8_t>(data[3]);
    const size_t length = static_cast<uint8_t>(data[1]) | size_t{static_cast<uint8_t>(data[2])} << 8;
    data.remove_prefix(kHead);
    const std::string_view contents = data.substr(0, std::min(length, data.size()));
    data.remove_prefix(contents.size());
    const auto block = MakeBlock(type, contents, count, int64_t{count} * 1000);
    if (block.ok()) file += *block;
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  file.Write(bytes);
  Read(file.path());
  file.Write(AsBlocks(bytes));
  Read(file.path());
  return 0;
}
