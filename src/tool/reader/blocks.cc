#include "src/tool/reader/blocks.h"

#include <libdeflate.h>

#include <new>

#include "src/recording/fields.h"

namespace hbmprof::internal {
namespace {

// Reads the fields of fields.h.
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

// Adds the elements of a section up to the first one for which `get` returns false. The first element must be the next
// one of `list`.
template <typename T, typename Get>
bool GetList(uint64_t first, uint64_t count, std::vector<T>* list, const Get& get) {
  if (first != list->size()) return false;
  for (uint64_t i = 0; i < count; ++i) {
    T element;
    if (!get(element)) return false;
    list->push_back(std::move(element));
  }
  return true;
}

bool GetSection(TablesSection section, uint64_t first, uint64_t count, std::string_view elements,
                RecordingTables* tables) {
  Reader reader(elements);
  Snapshot& names = tables->names;
  const auto get = [&](auto& element) {
    reader(element);
    return reader.bytes().ok();
  };
  const auto get_valid = [&](auto is_valid) {
    return [&get, is_valid](auto& element) { return get(element) && is_valid(element); };
  };
  switch (section) {
    case TablesSection::kHeader:
      HeaderFields(reader, *tables);
      return reader.bytes().ok();
    case TablesSection::kNamedFrames:
      return GetList(first, count, &names.named_frames, get);
    case TablesSection::kStacks:
      return GetList(first, count, &names.stacks, [&](Snapshot::Stack& stack) {
        // Stacks share frames only within a section: for its first stack, the stack before it is empty.
        static const Snapshot::Stack kEmpty;
        const Snapshot::Stack& before = names.stacks.size() == first ? kEmpty : names.stacks.back();
        return GetStack(reader.bytes(), before, names.named_frames.size(), &stack);
      });
    case TablesSection::kDevices:
      return GetList(first, count, &names.devices, get_valid([](const Snapshot::Device& device) {
                       return absl::c_all_of(device.spaces, [](const DeviceStats& stats) {
                         return stats.driver_scope <= DriverScope::kProcess;
                       });
                     }));
    case TablesSection::kAllocators:
      return GetList(first, count, &names.allocators, get);
    case TablesSection::kModules:
      return GetList(first, count, &names.modules,
                     get_valid([](const Snapshot::Module& module) { return module.start <= module.limit; }));
    case TablesSection::kSites:
      return GetList(first, count, &tables->sites, [&](Snapshot::Sample& sample) {
        SiteEntry site;
        if (!get(site) || !IsValidSite(site, names)) return false;
        sample = std::move(site.sample);
        tables->site_pools.push_back(site.pool);
        return true;
      });
    case TablesSection::kFunctions:
      for (uint64_t i = 0; i < count; ++i) {
        FunctionEntry function;
        if (!get(function)) return false;
        tables->functions[function.address] = std::move(function.name);
      }
      return true;
    case TablesSection::kTagSets:
      return GetList(first, count, &tables->tag_sets, get_valid(&AreSorted));
    case TablesSection::kThreads:
      return GetList(first, count, &tables->threads, get);
    case TablesSection::kMarks:
      return GetList(first, count, &tables->marks, get);
    case TablesSection::kLive:
      return GetList(first, count, &tables->live, get_valid([tables](const RecordingTables::Live& live) {
                       return live.site < tables->sites.size();
                     }));
  }
  return true;
}

}  // namespace

bool ParseBlockHeader(std::string_view bytes, BlockHeader* header) {
  ByteReader reader(bytes.substr(0, kBlockHeaderBytes));
  if (reader.Fixed(4) != kBlockMarker) return false;
  const uint64_t type = reader.Fixed(1);
  const uint64_t method = reader.Fixed(1);
  reader.Fixed(2);
  header->type = static_cast<BlockType>(type);
  header->is_compressed = method == 1;
  header->count = static_cast<uint32_t>(reader.Fixed(4));
  header->plain_bytes = static_cast<uint32_t>(reader.Fixed(4));
  header->stored_bytes = static_cast<uint32_t>(reader.Fixed(4));
  header->time = static_cast<int64_t>(reader.Fixed(8));
  header->checksum = static_cast<uint32_t>(reader.Fixed(4));
  // Deflate compresses by a factor of at most 1032.
  constexpr uint32_t kMaxFactor = 1040;
  return reader.ok() && method <= 1 && header->plain_bytes <= kMaxBlockBytes &&
         header->stored_bytes <= kMaxBlockBytes && header->plain_bytes / kMaxFactor <= header->stored_bytes;
}

bool ExpandBlock(const BlockHeader& header, std::string_view stored, std::string* contents) {
  if (!header.is_compressed) {
    contents->assign(stored);
    return stored.size() == header.plain_bytes;
  }
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(
      libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (decompressor == nullptr) throw std::bad_alloc();  // the block is not damaged
  contents->resize(header.plain_bytes);
  // Without a pointer for the size, the function succeeds only if the contents have exactly the expected size.
  return libdeflate_deflate_decompress(decompressor.get(), stored.data(), stored.size(), contents->data(),
                                       contents->size(), nullptr) == LIBDEFLATE_SUCCESS;
}

EventLimits LimitsOf(const RecordingTables& tables) {
  return {tables.names.devices.size() * kMemorySpaceCount, tables.sites.size(), tables.threads.size(),
          tables.tag_sets.size(), tables.marks.size()};
}

bool IsValidEvent(const RecordedEvent& event, const EventLimits& limits) {
  if (event.thread >= limits.threads || event.time < 0) return false;
  if (event.bytes > kMaxEventBytes || event.bytes < 0) return false;
  switch (event.kind) {
    case RecordedKind::kFailed:
      return event.id < limits.accounts && (event.site < limits.sites || event.site == kNoRecordedSite);
    case RecordedKind::kTags:
      return event.id < limits.tag_sets;
    case RecordedKind::kResetPeak:
      return event.id < limits.accounts;
    case RecordedKind::kMark:
      return event.id < limits.marks;
    default:
      return event.site < limits.sites;
  }
}

RunReader::RunReader(ByteReader* block, const std::vector<uint32_t>& sites, const EventLimits& limits)
    : prediction_(sites), limits_(&limits) {
  left_ = block->Varint();
  time_ = block->Signed();
  const uint64_t shift = block->Varint();
  if (shift > 63) block->Fail();
  id_shift_ = static_cast<int>(shift & 63);
  uint64_t sizes[5];
  for (uint64_t& size : sizes) size = block->Varint();
  flags_ = ByteReader(block->Bytes(left_));
  ByteReader* const columns[] = {&times_, &site_numbers_, &ids_, &bytes_, &threads_};
  for (int i = 0; i < 5; ++i) *columns[i] = ByteReader(block->Bytes(sizes[i]));
  if (time_ < 0) block->Fail();
  if (block->ok()) return;
  left_ = 0;
  is_damaged_ = true;
}

bool RunReader::Next(RecordedEvent* event) {
  if (left_ == 0 || is_damaged_) return false;
  --left_;
  is_damaged_ = !Read(event);
  return !is_damaged_;
}

bool RunReader::Read(RecordedEvent* event) {
  const auto flags = static_cast<uint8_t>(flags_.Fixed(1));
  const int kind = flags & kKindBits;
  if (kind >= kRecordedKinds) return false;
  event->kind = static_cast<RecordedKind>(kind);
  if ((flags & kLater) != 0) {
    if (prediction_.last().is_continued) return false;
    const uint64_t difference = times_.Varint();
    if (difference > static_cast<uint64_t>(INT64_MAX - time_)) return false;
    time_ += static_cast<int64_t>(difference);
  }
  event->time = time_;
  event->site = HasSite(event->kind) ? static_cast<uint32_t>(site_numbers_.Varint()) - 1 : kNoRecordedSite;
  if (HasBuffer(event->kind)) {
    uint64_t& last = prediction_.IdOf(event->site);
    last += static_cast<uint64_t>(ids_.Signed()) << id_shift_;
    event->id = last;
  } else {
    event->id = ids_.Varint();
  }
  event->bytes = (flags & kOtherBytes) != 0 ? bytes_.Signed() : prediction_.BytesOf(event->kind, event->site);
  if ((flags & kOtherThread) != 0) thread_ = static_cast<uint16_t>(std::min<uint64_t>(threads_.Varint(), UINT16_MAX));
  event->thread = thread_;
  event->is_continued = (flags & kContinued) != 0 && left_ != 0;
  prediction_.SetLast(*event);
  const bool is_whole = times_.ok() && site_numbers_.ok() && ids_.ok() && bytes_.ok() && threads_.ok();
  return is_whole && IsValidEvent(*event, *limits_);
}

bool AddTablesBlock(std::string_view contents, RecordingTables* tables) {
  ByteReader bytes(contents);
  while (bytes.left() != 0) {
    const uint64_t section = bytes.Varint();
    const uint64_t first = bytes.Varint();
    const uint64_t count = bytes.Varint();
    const std::string_view elements = bytes.Text();
    if (!bytes.ok() || count > elements.size()) return false;
    if (section <= static_cast<uint64_t>(TablesSection::kLive) &&
        !GetSection(static_cast<TablesSection>(section), first, count, elements, tables)) {
      return false;
    }
  }
  return bytes.ok();
}

bool AddSamplesBlock(std::string_view contents, size_t devices, std::vector<DriverSample>* samples) {
  Reader reader(contents);
  const size_t before = samples->size();
  while (reader.bytes().left() != 0) {
    DriverSample& sample = samples->emplace_back();
    reader(sample);
    const bool is_valid =
        absl::c_all_of(sample.devices, [&](const DriverSample::Device& device) { return device.device < devices; });
    if (!reader.bytes().ok() || !is_valid) {
      samples->resize(before);
      return false;
    }
  }
  return true;
}

bool AddLostBlock(std::string_view contents, std::vector<LostEvents>* lost) {
  Reader reader(contents);
  LostEvents one;
  reader(one);
  if (!reader.bytes().ok()) return false;
  lost->push_back(one);
  return true;
}

}  // namespace hbmprof::internal
