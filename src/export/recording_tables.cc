#include "src/export/recording_tables.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "src/export/recording_format.h"

namespace hbmprof::internal {
namespace {

// A block of tables is a sequence of sections: the number of the section, the index of its first element (0 for kHeader
// and kFunctions), the number of its elements, the length of their bytes, and the bytes. A reader skips sections whose
// number it does not know.
enum class Section : uint8_t {
  kHeader = 1,  // one element, which replaces the one before
  kNamedFrames = 2,
  kStacks = 3,
  kDevices = 4,
  kAllocators = 5,
  kModules = 6,
  kSites = 7,
  kFunctions = 8,
  kTagSets = 9,
  kThreads = 10,
  kMarks = 11,
  kLive = 12,
};

constexpr size_t kTablesBlockBytes = 1 << 20;

// Fields() lists the fields of each type once. Writer and Reader both use it.
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

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <typename... Values>
  void operator()(Values&... values) {
    (Get(values), ...);
  }
  ByteReader& bytes() { return bytes_; }

 private:
  template <typename Value>
  void Get(Value& value);
  void Get(std::string& text) { text.assign(bytes_.Text()); }
  template <typename T>
  void Get(std::vector<T>& list) {
    list.clear();
    const size_t count = bytes_.Count();
    for (size_t i = 0; i < count && bytes_.ok(); ++i) Get(list.emplace_back());
  }
  template <typename A, typename B>
  void Get(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void Get(std::optional<T>& value) {
    bool has_value = false;
    Get(has_value);
    value.reset();
    if (has_value) Get(value.emplace());
  }

  ByteReader bytes_;
};

// A site and its pool, which are elements of two vectors.
struct SiteEntry {
  Snapshot::Sample sample;
  uint32_t pool = 0;
};
struct FunctionEntry {
  uint64_t address = 0;
  RecordingTables::FunctionName name;
};

// The lists of fields below are those of the file format (docs/recording.md). They stay as they are within a version,
// also if the structs get more fields.
template <typename Visit, typename Stats>
void StatsFields(Visit& visit, Stats& stats) {
  visit(stats.bytes_in_use, stats.peak_bytes_in_use, stats.num_allocs, stats.num_live, stats.largest_alloc_size,
        stats.pool_bytes, stats.idle_bytes, stats.bytes_limit, stats.bytes_free, stats.largest_free_block_bytes,
        stats.driver_bytes_in_use, stats.driver_peak_bytes_in_use, stats.driver_scope, stats.driver_cache_bytes,
        stats.unaccounted, stats.baseline);
}

// The element of kHeader.
template <typename Visit, typename Tables>
void HeaderFields(Visit& visit, Tables& tables) {
  visit(tables.start_time, tables.start_unix_nanos, tables.live_is_complete, tables.names.process_id, tables.names.host,
        tables.names.tracker.unwinder, tables.names.python.version, tables.names.python.problem, tables.names.warnings);
}

template <typename Visit, typename T>
void Fields(Visit& visit, T& value) {
  using Type = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Type, DeviceStats>) {
    StatsFields(visit, value);
  } else if constexpr (std::is_same_v<Type, SiteEntry>) {
    auto& sample = value.sample;
    visit(value.pool, sample.stack, sample.device, sample.kind, sample.allocator, sample.tags, sample.alloc_objects,
          sample.alloc_bytes, sample.peak_objects, sample.peak_bytes, sample.inuse_objects, sample.inuse_bytes,
          sample.pool_peak_objects, sample.pool_peak_bytes);
  } else if constexpr (std::is_same_v<Type, Snapshot::NamedFrame>) {
    visit(value.function, value.file, value.line, value.start_line);
  } else if constexpr (std::is_same_v<Type, Snapshot::Module>) {
    visit(value.start, value.limit, value.offset, value.bias, value.path, value.build_id);
  } else if constexpr (std::is_same_v<Type, Snapshot::Device>) {
    visit(value.name);
    for (auto& space : value.spaces) visit(space);
    visit(value.uuid, value.pools);
  } else if constexpr (std::is_same_v<Type, PoolStats>) {
    visit(value.name, value.bytes_reserved, value.bytes_allocated, value.idle_bytes, value.peak_bytes_reserved,
          value.peak_bytes_allocated, value.segments);
  } else if constexpr (std::is_same_v<Type, FunctionEntry>) {
    visit(value.address, value.name.system_name, value.name.name);
  } else if constexpr (std::is_same_v<Type, RecordingTables::Thread>) {
    visit(value.id, value.name);
  } else if constexpr (std::is_same_v<Type, RecordingTables::Mark>) {
    visit(value.name);
  } else if constexpr (std::is_same_v<Type, RecordingTables::Live>) {
    visit(value.id, value.site, value.bytes);
  } else if constexpr (std::is_same_v<Type, DriverSample::Device>) {
    visit(value.device, value.bytes_in_use, value.bytes_free, value.bytes_limit, value.largest_free_block_bytes,
          value.cache_bytes);
  } else if constexpr (std::is_same_v<Type, DriverSample>) {
    visit(value.time, value.devices, value.host_resident_bytes, value.counters);
  } else {
    static_assert(std::is_same_v<Type, LostEvents>);
    visit(value.from, value.to, value.count);
  }
}

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

// If the number is out of the range of `Value`, the block is damaged.
template <typename Value>
void Reader::Get(Value& value) {
  if constexpr (std::is_same_v<Value, int64_t>) {
    value = bytes_.Signed();
  } else if constexpr (std::is_integral_v<Value> || std::is_enum_v<Value>) {
    const uint64_t number = bytes_.Varint();
    value = static_cast<Value>(number);
    if (static_cast<uint64_t>(value) != number) bytes_.Fail();
  } else {
    Fields(*this, value);
  }
}

// Appends a section with the elements [first, first + count), each written by `put(i, &bytes)`.
template <typename Put>
void PutSection(Section section, size_t first, size_t count, const Put& put, std::string* out) {
  std::string elements;
  for (size_t i = first; i < first + count; ++i) put(i, &elements);
  ByteWriter writer(out);
  writer.Varint(static_cast<uint64_t>(section));
  writer.Varint(first);
  writer.Varint(count);
  writer.Text(elements);
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

bool GetStack(ByteReader& bytes, const Snapshot::Stack& before, size_t named_frames, Snapshot::Stack* stack) {
  const uint64_t truncated = bytes.Varint();
  const uint64_t shared = bytes.Varint();
  const size_t own = bytes.Count();
  if (truncated > 1 || shared > before.return_addresses.size()) return false;
  stack->truncated = truncated == 1;
  uint64_t last = 0;
  for (size_t i = 0; i < own; ++i) {
    last += static_cast<uint64_t>(bytes.Signed());
    if (last >> 32 == Snapshot::kNamedFrame >> 32 && static_cast<uint32_t>(last) >= named_frames) return false;
    stack->return_addresses.push_back(last);
  }
  stack->return_addresses.insert(stack->return_addresses.end(),
                                 before.return_addresses.end() - static_cast<ptrdiff_t>(shared),
                                 before.return_addresses.end());
  return bytes.ok();
}

using Tags = std::vector<std::pair<std::string, std::string>>;
bool AreSorted(const Tags& tags) {
  return std::adjacent_find(tags.begin(), tags.end(),
                            [](const auto& a, const auto& b) { return a.first >= b.first; }) == tags.end();
}

bool IsValidSite(const SiteEntry& site, const Snapshot& names) {
  return site.sample.stack < names.stacks.size() && site.sample.device < names.devices.size() &&
         site.sample.allocator < std::max<size_t>(1, names.allocators.size()) &&
         static_cast<int>(site.sample.kind) < kMemoryKindCount && site.pool <= names.allocators.size() &&
         AreSorted(site.sample.tags);
}

bool IsValidModule(const Snapshot::Module& module) { return module.start <= module.limit; }
bool IsValidDevice(const Snapshot::Device& device) {
  return std::all_of(std::begin(device.spaces), std::end(device.spaces),
                     [](const DeviceStats& stats) { return stats.driver_scope <= DriverScope::kProcess; });
}

constexpr auto kAnyElement = [](const auto&) { return true; };

// Adds the elements of a section up to the first one that is not valid. The first element must be the next one of
// `list`.
template <typename T, typename IsValid>
bool GetList(Reader& reader, uint64_t first, uint64_t count, std::vector<T>* list, const IsValid& is_valid) {
  if (first != list->size()) return false;
  for (uint64_t i = 0; i < count; ++i) {
    T element;
    reader(element);
    if (!reader.bytes().ok() || !is_valid(element)) return false;
    list->push_back(std::move(element));
  }
  return true;
}

bool GetStacks(Reader& reader, uint64_t first, uint64_t count, Snapshot* names) {
  if (first != names->stacks.size()) return false;
  for (uint64_t i = 0; i < count; ++i) {
    Snapshot::Stack stack;
    // Stacks share frames only within a section: for its first stack, the stack before it is empty.
    if (!GetStack(reader.bytes(), i == 0 ? Snapshot::Stack() : names->stacks.back(), names->named_frames.size(),
                  &stack)) {
      return false;
    }
    names->stacks.push_back(std::move(stack));
  }
  return true;
}

bool GetSites(Reader& reader, uint64_t first, uint64_t count, RecordingTables* tables) {
  if (first != tables->sites.size()) return false;
  for (uint64_t i = 0; i < count; ++i) {
    SiteEntry site;
    reader(site);
    if (!reader.bytes().ok() || !IsValidSite(site, tables->names)) return false;
    tables->sites.push_back(std::move(site.sample));
    tables->site_pools.push_back(site.pool);
  }
  return true;
}

bool GetFunctions(Reader& reader, uint64_t count, RecordingTables* tables) {
  for (uint64_t i = 0; i < count && reader.bytes().ok(); ++i) {
    FunctionEntry function;
    reader(function);
    tables->functions[function.address] = std::move(function.name);
  }
  return reader.bytes().ok();
}

bool GetSection(Section section, uint64_t first, uint64_t count, std::string_view elements, RecordingTables* tables) {
  Reader reader(elements);
  switch (section) {
    case Section::kHeader:
      HeaderFields(reader, *tables);
      return reader.bytes().ok();
    case Section::kNamedFrames:
      return GetList(reader, first, count, &tables->names.named_frames, kAnyElement);
    case Section::kStacks:
      return GetStacks(reader, first, count, &tables->names);
    case Section::kDevices:
      return GetList(reader, first, count, &tables->names.devices, &IsValidDevice);
    case Section::kAllocators:
      return GetList(reader, first, count, &tables->names.allocators, kAnyElement);
    case Section::kModules:
      return GetList(reader, first, count, &tables->names.modules, &IsValidModule);
    case Section::kSites:
      return GetSites(reader, first, count, tables);
    case Section::kFunctions:
      return GetFunctions(reader, count, tables);
    case Section::kTagSets:
      return GetList(reader, first, count, &tables->tag_sets, &AreSorted);
    case Section::kThreads:
      return GetList(reader, first, count, &tables->threads, kAnyElement);
    case Section::kMarks:
      return GetList(reader, first, count, &tables->marks, kAnyElement);
    case Section::kLive:
      return GetList(reader, first, count, &tables->live,
                     [tables](const RecordingTables::Live& live) { return live.site < tables->sites.size(); });
  }
  return true;
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
  const auto end_block_if_full = [&] {
    if (blocks.back().size() >= kTablesBlockBytes) blocks.emplace_back();
  };
  // Adds the new elements of a table, in as many sections as needed.
  const auto put = [&](Section section, size_t size, size_t* counted, const auto& put_element) {
    constexpr size_t kAtOnce = 4096;
    while (*counted < size) {
      const size_t count = std::min(size - *counted, kAtOnce);
      PutSection(section, *counted, count, put_element, &blocks.back());
      *counted += count;
      end_block_if_full();
    }
  };
  const auto put_list = [&](Section section, const auto& list, size_t* counted) {
    put(section, list.size(), counted, [&](size_t i, std::string* out) { Writer{out}(list[i]); });
  };

  std::string header;
  Writer header_writer(&header);
  HeaderFields(header_writer, tables);
  if (header != header_) {
    PutSection(
        Section::kHeader, 0, 1, [&](size_t, std::string* out) { out->append(header); }, &blocks.back());
    header_ = std::move(header);
  }
  const Snapshot& names = tables.names;
  put_list(Section::kNamedFrames, names.named_frames, &counts_.named_frames);
  const Snapshot::Stack empty;
  put(Section::kStacks, names.stacks.size(), &counts_.stacks, [&](size_t i, std::string* out) {
    // counts_ is the index of the first stack of the section.
    PutStack(names.stacks[i], i == counts_.stacks ? empty : names.stacks[i - 1], out);
  });
  put_list(Section::kDevices, names.devices, &counts_.devices);
  put_list(Section::kAllocators, names.allocators, &counts_.allocators);
  put_list(Section::kModules, names.modules, &counts_.modules);
  put(Section::kSites, tables.sites.size(), &counts_.sites, [&](size_t i, std::string* out) {
    const uint32_t pool = i < tables.site_pools.size() ? tables.site_pools[i] : 0;
    Writer{out}(SiteEntry{tables.sites[i], pool});
    sites_.push_back(pool);
  });
  put_list(Section::kTagSets, tables.tag_sets, &counts_.tag_sets);
  put_list(Section::kThreads, tables.threads, &counts_.threads);
  put_list(Section::kMarks, tables.marks, &counts_.marks);
  put_list(Section::kLive, tables.live, &counts_.live);
  if (functions_.size() != tables.functions.size()) {
    for (const auto& [address, name] : tables.functions) {
      if (!functions_.insert(address).second) continue;
      PutSection(
          Section::kFunctions, 0, 1,
          [&, one = FunctionEntry{address, name}](size_t, std::string* out) { Writer{out}(one); }, &blocks.back());
      end_block_if_full();
    }
  }
  if (blocks.back().empty()) blocks.pop_back();
  limits_ = LimitsOf(tables);
  return blocks;
}

bool AddTablesBlock(std::string_view contents, RecordingTables* tables) {
  ByteReader bytes(contents);
  while (bytes.left() != 0) {
    const uint64_t section = bytes.Varint();
    const uint64_t first = bytes.Varint();
    const uint64_t count = bytes.Varint();
    const std::string_view elements = bytes.Text();
    if (!bytes.ok() || count > elements.size()) return false;
    if (section <= static_cast<uint64_t>(Section::kLive) &&
        !GetSection(static_cast<Section>(section), first, count, elements, tables)) {
      return false;
    }
  }
  return bytes.ok();
}

EventLimits LimitsOf(const RecordingTables& tables) {
  return {tables.names.devices.size() * kMemorySpaceCount, tables.sites.size(), tables.threads.size(),
          tables.tag_sets.size(), tables.marks.size()};
}

std::string SampleBytes(const DriverSample& sample) { return BytesOf(sample); }

bool AddSamplesBlock(std::string_view contents, size_t devices, std::vector<DriverSample>* samples) {
  Reader reader(contents);
  const size_t before = samples->size();
  while (reader.bytes().left() != 0) {
    DriverSample& sample = samples->emplace_back();
    reader(sample);
    const bool is_valid = std::all_of(sample.devices.begin(), sample.devices.end(),
                                      [&](const DriverSample::Device& device) { return device.device < devices; });
    if (!reader.bytes().ok() || !is_valid) {
      samples->resize(before);
      return false;
    }
  }
  return true;
}

std::string LostBytes(const LostEvents& lost) { return BytesOf(lost); }

bool AddLostBlock(std::string_view contents, std::vector<LostEvents>* lost) {
  Reader reader(contents);
  LostEvents one;
  reader(one);
  if (!reader.bytes().ok()) return false;
  lost->push_back(one);
  return true;
}

}  // namespace hbmprof::internal
