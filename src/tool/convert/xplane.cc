// XProf's XSpace (HOST.xplane.pb), for its tool Memory Profile.
//
// XProf reads the events MemoryAllocation and MemoryDeallocation of the plane /host:CPU. It pairs them by address, and
// calls the difference between the bytes in use and the live buffers "unused preallocated device memory". So segments
// of pools have no buffer of their own here: their idle bytes become this row.
#include <protozero/pbf_builder.hpp>

#include "src/export/utf8.h"
#include "src/tool/convert/format.h"

namespace hbmprof::tool {
namespace {

// Field numbers of xplane.proto.
using Field = protozero::pbf_tag_type;
enum class SpaceField : Field { kPlane = 1, kHostname = 4 };
enum class PlaneField : Field { kName = 2, kLine = 3, kEventMetadata = 4, kStatMetadata = 5 };
enum class LineField : Field { kName = 2, kEvent = 4 };
enum class EventField : Field { kMetadataId = 1, kOffsetPs = 2, kStat = 4 };
enum class StatField : Field { kMetadataId = 1, kDouble = 2, kInt = 4, kReference = 7 };
enum class EntryField : Field { kKey = 1, kValue = 2 };
enum class MetadataField : Field { kId = 1, kName = 2 };

template <typename F>
using Message = protozero::pbf_builder<F>;

enum EventName : uint64_t { kAllocation = 1, kDeallocation = 2 };
constexpr const char* kEventNames[] = {"MemoryAllocation", "MemoryDeallocation"};

// The names of the stats have the first numbers; texts that stats refer to follow.
enum StatName : uint64_t {
  kBytesAllocated = 1,
  kAllocationBytes,
  kRequestedBytes,
  kAddress,
  kAllocator,
  kPeakBytes,
  kBytesAvailable,
  kFragmentation,
  kOp,
  kShape,
  kRegion,
};
constexpr const char* kStatNames[] = {
    "bytes_allocated", "allocation_bytes", "requested_bytes", "addr",  "allocator_name", "peak_bytes_in_use",
    "bytes_available", "fragmentation",    "tf_op",           "shape", "region_type"};

// The length of a message is written before the message, when it is not known yet. A varint of five bytes can hold any
// length below 2 GiB, and readers of protobuf accept no longer message.
constexpr size_t kLengthBytes = 5;
constexpr int64_t kMaxBytes = INT32_MAX - (int64_t{1} << 20);

std::string FixedLength(int64_t length) {
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i, length >>= 7) {
    bytes += static_cast<char>((length & 0x7F) | (i + 1 < kLengthBytes ? 0x80 : 0));
  }
  return bytes;
}

class XplaneWriter : RecordingConverter {
 public:
  using RecordingConverter::RecordingConverter;

  absl::Status Write() {
    if (Minus(recording_.end_time(), tables_.start_time) > INT64_MAX / 1000) {
      return ResourceExhausted(
          "the recording is longer than the 106 days that XProf's times can express. Convert it "
          "to Perfetto's format");
    }
    for (const char* name : kStatNames) Intern(name);
    for (size_t i = 0; i < accounts_.size(); ++i) {
      if (totals_.account(i).is_used) accounts_[i].name = Intern(AccountName(tables_, i));
      const auto& space = tables_.names.devices[i / kMemorySpaceCount].spaces[i % kMemorySpaceCount];
      accounts_[i].limit = space.bytes_limit;
      accounts_[i].lifetime_peak = space.peak_bytes_in_use;
    }
    RETURN_IF_ERROR(OpenPlane());
    RETURN_IF_ERROR(WriteLiveBuffers());
    RETURN_IF_ERROR(WriteEvents());
    return ClosePlane();
  }

 private:
  struct Site {
    uint64_t op = 0;
    uint64_t shape = 0;  // 0: none
    uint64_t region = 0;
  };
  struct Account {
    uint64_t name = 0;
    std::optional<int64_t> limit;
    int64_t lifetime_peak = 0;
    std::optional<double> fragmentation;
  };

  uint64_t Intern(const std::string& text) { return texts_.Number(internal::ValidUtf8(text)); }

  const Site& SiteOf(uint32_t number) {
    if (sites_[number].has_value()) return *sites_[number];
    Site& site = sites_[number].emplace();
    const Snapshot::Sample& sample = tables_.sites[number];
    const RecordedStacks::Frame& frame = stacks_.own_frame(sample.stack);
    const std::string position = frame.Position();
    site.op = Intern(position.empty() ? frame.name : Cat(frame.name, " ", position));
    site.region = Intern(std::string(MemoryKindName(sample.kind)));
    for (const auto& [key, value] : sample.tags) {
      if (key == "shape") site.shape = Intern(value);
    }
    return site;
  }

  // Appends the start of the message `field`, whose length is not known yet. Sets `*position` to that of its length.
  absl::Status Open(Field field, int64_t* position) {
    RETURN_IF_ERROR(output_.Append(std::string(1, static_cast<char>(field << 3 | 2))));
    *position = output_.size();
    return output_.Append(FixedLength(0));
  }
  absl::Status Close(int64_t position) {
    const int64_t begin = position + static_cast<int64_t>(kLengthBytes);
    return output_.Overwrite(position, FixedLength(output_.size() - begin));
  }

  absl::Status OpenPlane() {
    RETURN_IF_ERROR(Open(static_cast<Field>(SpaceField::kPlane), &plane_));
    std::string name;
    Message<PlaneField>(name).add_string(PlaneField::kName, "/host:CPU");
    RETURN_IF_ERROR(output_.Append(name));
    RETURN_IF_ERROR(Open(static_cast<Field>(PlaneField::kLine), &line_));
    name.clear();
    Message<LineField>(name).add_string(LineField::kName, "hbmprof");
    return output_.Append(name);
  }

  absl::Status ClosePlane() {
    RETURN_IF_ERROR(Close(line_));
    std::string names;
    Message<PlaneField> plane(names);
    const auto add = [&plane](PlaneField field, uint64_t id, std::string_view name) {
      Message<EntryField> entry(plane, field);
      entry.add_uint64(EntryField::kKey, id);
      Message<MetadataField> metadata(entry, EntryField::kValue);
      metadata.add_uint64(MetadataField::kId, id);
      metadata.add_string(MetadataField::kName, name.data(), name.size());
    };
    for (uint64_t i = 0; i < std::size(kEventNames); ++i) add(PlaneField::kEventMetadata, i + 1, kEventNames[i]);
    for (uint32_t i = 1; i < texts_.size(); ++i) add(PlaneField::kStatMetadata, i, texts_[i]);
    RETURN_IF_ERROR(output_.Append(names));
    RETURN_IF_ERROR(Close(plane_));
    std::string host;
    Message<SpaceField>(host).add_string(SpaceField::kHostname, internal::ValidUtf8(tables_.names.host));
    RETURN_IF_ERROR(output_.Append(host));
    if (output_.size() <= kMaxBytes) return absl::OkStatus();
    return TooLarge();
  }

  absl::Status TooLarge() const {
    return ResourceExhausted(
        "the recording has ", recording_.event_count(),
        " events; XProf reads files of at most 2 GiB, and theirs would be larger. Convert it to Perfetto's format");
  }

  // The buffers that are live at the start are allocations at that instant.
  absl::Status WriteLiveBuffers() {
    std::vector<int64_t> in_use(accounts_.size());
    std::vector<size_t> left(accounts_.size());
    const auto is_buffer = [this](const RecordingTables::Live& live) { return !tables_.IsSegment(live.site); };
    for (const RecordingTables::Live& live : tables_.live)
      left[totals_.account_of(live.site)] += is_buffer(live) ? 1 : 0;
    for (const RecordingTables::Live& live : tables_.live) {
      if (!is_buffer(live)) continue;
      const size_t account = totals_.account_of(live.site);
      AddTo(in_use[account], live.bytes);
      // The last one has all bytes in use, including those of segments.
      const bool is_last = --left[account] == 0;
      const RecordedEvent event = {tables_.start_time, live.id, live.bytes, live.site, 0, RecordedKind::kAlloc};
      RETURN_IF_ERROR(Append(kAllocation, event, is_last ? totals_.account(account).in_use : in_use[account]));
    }
    return absl::OkStatus();
  }

  absl::Status WriteEvents() {
    cursor_.Rewind();
    RecordedEvent event;
    while (cursor_.Next(&event)) {
      change_.push_back(event);
      if (!totals_.Apply(event)) continue;
      ReadSamples(event.time);
      RETURN_IF_ERROR(WriteChange());
      change_.clear();
      if (output_.size() > kMaxBytes) return TooLarge();
    }
    return absl::OkStatus();
  }

  // Takes the limits and the fragmentation of the samples up to `time`.
  void ReadSamples(int64_t time) {
    while (const DriverSample* sample = cursor_.NextSample(time)) {
      for (const DriverSample::Device& device : sample->devices) {
        Account& account = accounts_[device.device * kMemorySpaceCount];
        if (device.bytes_limit.has_value()) account.limit = device.bytes_limit;
        if (!device.largest_free_block_bytes.has_value() || device.bytes_free.value_or(0) <= 0) continue;
        account.fragmentation =
            1 - static_cast<double>(*device.largest_free_block_bytes) / static_cast<double>(*device.bytes_free);
      }
    }
  }

  // Writes the events of change_, whose values after the change are in totals_.
  absl::Status WriteChange() {
    for (const RecordedEvent& event : change_) {
      if (event.site >= sites_.size() || event.kind == RecordedKind::kFailed) continue;
      const size_t account = totals_.account_of(event.site);
      const int64_t in_use = totals_.account(account).in_use;
      const bool is_segment = tables_.IsSegment(event.site);
      const bool begins = internal::Begins(event.kind);
      const bool ends = !begins || is_segment;
      // A segment that begins gets both events, so that XProf sees the new bytes in use but no live buffer.
      if (begins) RETURN_IF_ERROR(Append(kAllocation, event, in_use, is_segment));
      if (ends) RETURN_IF_ERROR(Append(kDeallocation, event, in_use, is_segment));
    }
    return absl::OkStatus();
  }

  absl::Status Append(EventName name, const RecordedEvent& event, int64_t in_use, bool is_segment = false) {
    Account& account = accounts_[totals_.account_of(event.site)];
    account.lifetime_peak = std::max(account.lifetime_peak, in_use);
    // XProf sorts the events by time; the order of events with equal times is undefined. So each event is at least a
    // picosecond later than the one before.
    offset_ps_ = std::max(offset_ps_ + 1, static_cast<uint64_t>(Minus(event.time, tables_.start_time)) * 1000);
    bytes_.clear();
    {
      Message<LineField> line(bytes_);
      Message<EventField> message(line, LineField::kEvent);
      message.add_uint64(EventField::kMetadataId, name);
      message.add_uint64(EventField::kOffsetPs, offset_ps_);
      const int64_t size = is_segment ? 0 : event.bytes;
      AddStat(message, kAllocator, StatField::kReference, account.name);
      AddStat(message, kBytesAllocated, StatField::kInt, static_cast<uint64_t>(in_use));
      AddStat(message, kAllocationBytes, StatField::kInt, static_cast<uint64_t>(size));
      AddStat(message, kRequestedBytes, StatField::kInt, static_cast<uint64_t>(size));
      // A segment and its first block have one address.
      AddStat(message, kAddress, StatField::kInt, is_segment ? ~event.id : event.id);
      AddStat(message, kPeakBytes, StatField::kInt, static_cast<uint64_t>(account.lifetime_peak));
      if (account.limit.has_value()) {
        AddStat(message, kBytesAvailable, StatField::kInt,
                static_cast<uint64_t>(std::max<int64_t>(0, Minus(*account.limit, in_use))));
      }
      if (account.fragmentation.has_value()) {
        Message<StatField> stat(message, EventField::kStat);
        stat.add_uint64(StatField::kMetadataId, kFragmentation);
        stat.add_double(StatField::kDouble, *account.fragmentation);
      }
      if (name == kAllocation) {
        const Site& site = SiteOf(event.site);
        AddStat(message, kOp, StatField::kReference, site.op);
        AddStat(message, kRegion, StatField::kReference, site.region);
        if (site.shape != 0) AddStat(message, kShape, StatField::kReference, site.shape);
      }
    }
    return output_.Append(bytes_);
  }

  void AddStat(Message<EventField>& message, StatName name, StatField field, uint64_t value) {
    stat_ = {static_cast<char>(static_cast<Field>(StatField::kMetadataId) << 3), static_cast<char>(name),
             static_cast<char>(static_cast<Field>(field) << 3)};
    protozero::add_varint_to_buffer(&stat_, value);
    message.add_bytes(EventField::kStat, stat_.data(), stat_.size());
  }

  std::vector<std::optional<Site>> sites_ = std::vector<std::optional<Site>>(tables_.sites.size());
  std::vector<Account> accounts_ = std::vector<Account>(totals_.account_count());
  NumberedTexts texts_;
  int64_t plane_ = 0;  // positions of the lengths
  int64_t line_ = 0;
  uint64_t offset_ps_ = 0;  // of the last event
  std::vector<RecordedEvent> change_;
  std::string bytes_;  // one event
  std::string stat_;   // one stat
};

}  // namespace

const Format kXplaneFormat = {"xplane", &WriteWith<XplaneWriter>, nullptr, ".xplane.pb", true};

}  // namespace hbmprof::tool
