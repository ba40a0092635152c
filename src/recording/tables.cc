#include "src/recording/tables.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "src/recording/fields.h"
#include "src/recording/format.h"

namespace hbmprof::internal {
namespace {

constexpr size_t kTablesBlockBytes = 1 << 20;

// Writes the fields of fields.h.
class Writer {
 public:
  explicit Writer(std::string* bytes) : bytes_(bytes) {}
  template <typename... Values>
  void operator()(const Values&... values) {
    (Put(values), ...);
  }

 private:
  template <typename Value>
  void Put(const Value& value);
  void Put(const std::string& text) { bytes_.Text(text); }
  template <typename T>
  void Put(const std::vector<T>& list) {
    bytes_.Varint(list.size());
    for (const T& one : list) Put(one);
  }
  template <typename A, typename B>
  void Put(const std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value.has_value()) Put(*value);
  }

  ByteWriter bytes_;
};

template <typename Value>
void Writer::Put(const Value& value) {
  if constexpr (std::is_same_v<Value, int64_t>) {
    bytes_.Signed(value);
  } else if constexpr (std::is_integral_v<Value> || std::is_enum_v<Value>) {
    bytes_.Varint(static_cast<uint64_t>(value));
  } else {
    Fields(*this, value);
  }
}

// Returns the number of outermost frames that are the same in both stacks.
size_t SharedFrames(const Snapshot::Stack& a, const Snapshot::Stack& b) {
  const auto mismatch = std::mismatch(a.return_addresses.rbegin(), a.return_addresses.rend(),
                                      b.return_addresses.rbegin(), b.return_addresses.rend());
  return static_cast<size_t>(mismatch.first - a.return_addresses.rbegin());
}

void PutStack(const Snapshot::Stack& stack, const Snapshot::Stack& before, std::string* out) {
  const size_t shared = SharedFrames(stack, before);
  ByteWriter bytes(out);
  bytes.Varint(stack.truncated ? 1 : 0);
  bytes.Varint(shared);
  bytes.Varint(stack.return_addresses.size() - shared);
  uint64_t last = 0;
  for (size_t i = 0; i < stack.return_addresses.size() - shared; ++i) {
    bytes.Signed(static_cast<int64_t>(stack.return_addresses[i] - last));
    last = stack.return_addresses[i];
  }
}

template <typename T>
std::string BytesOf(const T& value) {
  std::string bytes;
  Writer{&bytes}(value);
  return bytes;
}

}  // namespace

std::vector<std::string> TablesWriter::NewElements(const RecordingTables& tables) {
  std::vector<std::string> blocks(1);
  const auto add_section = [&](TablesSection section, size_t first, size_t count, const std::string& elements) {
    ByteWriter writer(&blocks.back());
    writer.Varint(static_cast<uint64_t>(section));
    writer.Varint(first);
    writer.Varint(count);
    writer.Text(elements);
    if (blocks.back().size() >= kTablesBlockBytes) blocks.emplace_back();
  };
  // Adds the new elements of a table, in as many sections as needed.
  using Put = std::function<void(size_t i, std::string * out)>;
  const auto put = [&](TablesSection section, size_t size, const Put& put_element) {
    constexpr size_t kAtOnce = 4096;
    size_t& counted = counts_[static_cast<size_t>(section)];
    while (counted < size) {
      const size_t count = std::min(size - counted, kAtOnce);
      std::string elements;
      for (size_t i = counted; i < counted + count; ++i) put_element(i, &elements);
      add_section(section, counted, count, elements);
      counted += count;
    }
  };
  const auto put_list = [&](TablesSection section, const auto& list) {
    put(section, list.size(), [&](size_t i, std::string* out) { Writer{out}(list[i]); });
  };

  std::string header;
  Writer header_writer(&header);
  HeaderFields(header_writer, tables);
  if (header != header_) add_section(TablesSection::kHeader, 0, 1, header);
  header_ = std::move(header);
  const Snapshot& names = tables.names;
  put_list(TablesSection::kNamedFrames, names.named_frames);
  const Snapshot::Stack empty;
  put(TablesSection::kStacks, names.stacks.size(), [&](size_t i, std::string* out) {
    const bool is_first = i == counts_[static_cast<size_t>(TablesSection::kStacks)];  // of the section
    PutStack(names.stacks[i], is_first ? empty : names.stacks[i - 1], out);
  });
  put_list(TablesSection::kDevices, names.devices);
  put_list(TablesSection::kAllocators, names.allocators);
  put_list(TablesSection::kModules, names.modules);
  put(TablesSection::kSites, tables.sites.size(), [&](size_t i, std::string* out) {
    const uint32_t pool = i < tables.site_pools.size() ? tables.site_pools[i] : 0;
    Writer{out}(SiteEntry{tables.sites[i], pool});
    sites_.push_back(pool);
  });
  put_list(TablesSection::kTagSets, tables.tag_sets);
  put_list(TablesSection::kThreads, tables.threads);
  put_list(TablesSection::kMarks, tables.marks);
  put_list(TablesSection::kLive, tables.live);
  if (functions_.size() != tables.functions.size()) {
    for (const auto& [address, name] : tables.functions) {
      if (!functions_.insert(address).second) continue;
      add_section(TablesSection::kFunctions, 0, 1, BytesOf(FunctionEntry{address, name}));
    }
  }
  if (blocks.back().empty()) blocks.pop_back();
  return blocks;
}

std::string SampleBytes(const DriverSample& sample) { return BytesOf(sample); }
std::string LostBytes(const LostEvents& lost) { return BytesOf(lost); }

}  // namespace hbmprof::internal
