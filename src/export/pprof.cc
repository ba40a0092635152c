// Snapshot -> profile.proto bytes. docs/profile.md describes the result for its readers.
// Not here: names for addresses (src/symbolize), how a file is replaced (src/base/atomic_file.h).
#include "hbmprof/pprof.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <new>
#include <utility>

#include "absl/time/civil_time.h"
#include "hbmprof/version.h"
#include "protozero/pbf_builder.hpp"
#include "src/base/atomic_file.h"
#include "src/base/hash.h"
#include "src/export/gzip.h"
#include "src/export/id_table.h"
#include "src/export/string_table.h"

namespace hbmprof {
namespace internal {
namespace {

// Field numbers of the format.
using Tag = protozero::pbf_tag_type;
enum class ProfileField : Tag {
  kSampleType = 1,
  kSample = 2,
  kMapping = 3,
  kLocation = 4,
  kFunction = 5,
  kStringTable = 6,
  kDropFrames = 7,
  kTimeNanos = 9,
  kPeriodType = 11,
  kPeriod = 12,
  kComment = 13,
  kDefaultSampleType = 14,
};
enum class ValueTypeField : Tag { kType = 1, kUnit = 2 };
enum class SampleField : Tag { kLocationId = 1, kValue = 2, kLabel = 3 };
enum class LabelField : Tag { kKey = 1, kStr = 2, kNum = 3, kNumUnit = 4 };
enum class MappingField : Tag {
  kId = 1,
  kMemoryStart = 2,
  kMemoryLimit = 3,
  kFileOffset = 4,
  kFilename = 5,
  kBuildId = 6,
  kHasFunctions = 7,
};
enum class LocationField : Tag { kId = 1, kMappingId = 2, kAddress = 3, kLine = 4 };
enum class LineField : Tag { kFunctionId = 1, kLine = 2 };
enum class FunctionField : Tag { kId = 1, kName = 2, kSystemName = 3, kFilename = 4, kStartLine = 5 };

template <typename Field>
using Message = protozero::pbf_builder<Field>;

struct SampleType {
  std::string_view type;
  std::string_view unit;
  int64_t Snapshot::Sample::*value;
};
// `inuse` stands last, where viewers look that do not know of a default.
constexpr SampleType kSampleTypes[] = {
    {"alloc_objects", "count", &Snapshot::Sample::alloc_objects},
    {"alloc_space", "bytes", &Snapshot::Sample::alloc_bytes},
    {"peak_objects", "count", &Snapshot::Sample::peak_objects},
    {"peak_space", "bytes", &Snapshot::Sample::peak_bytes},
    {"inuse_objects", "count", &Snapshot::Sample::inuse_objects},
    {"inuse_space", "bytes", &Snapshot::Sample::inuse_bytes},
};
constexpr size_t kSampleTypeCount = std::size(kSampleTypes);

// Frames of ours that can only be innermost. Capture leaves them out already; this is for a stack that begins too
// early. TrackingAllocator is not among them: viewers hide what a matching frame calls as well, and it calls an
// upstream allocator of the user's.
constexpr std::string_view kDropFrames = "hbmprof::(internal|cuda|Profiler)::.*|hbmprof_record_alloc";

constexpr std::string_view kNoStack = "[no stack]";
constexpr std::string_view kStackTruncated = "[stack truncated]";
constexpr std::string_view kUnknownCode = "[unknown]";

constexpr size_t kNoModule = SIZE_MAX;
constexpr int64_t kNotYet = -1;  // of a string's index

// Finds the module of an address.
class ModuleIndex {
 public:
  explicit ModuleIndex(const std::vector<Snapshot::Module>& modules) : modules_(modules), order_(modules.size()) {
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return modules[a].start < modules[b].start; });
  }

  size_t Find(uint64_t address) const {
    auto after = std::upper_bound(order_.begin(), order_.end(), address,
                                  [&](uint64_t value, size_t i) { return value < modules_[i].start; });
    if (after == order_.begin()) return kNoModule;
    const size_t module = *std::prev(after);
    return address < modules_[module].limit ? module : kNoModule;
  }

 private:
  const std::vector<Snapshot::Module>& modules_;
  std::vector<size_t> order_;  // by start
};

std::string Hex(uint64_t value) {
  char text[17];
  snprintf(text, sizeof(text), "%llx", static_cast<unsigned long long>(value));
  return text;
}

// The name shown for an address that has none: file name and the file's own address, so that it is the same in every
// process that runs the same file, and can be looked up with addr2line.
std::string NameInModule(const Snapshot::Module& module, uint64_t address) {
  const size_t slash = module.path.rfind('/');
  const std::string base = slash == std::string::npos ? module.path : module.path.substr(slash + 1);
  return (base.empty() ? std::string(kUnknownCode) : base) + "+0x" + Hex(address - module.bias);
}

// A value of a comment: without what separates values and lines.
std::string CommentValue(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7F || c == '=' || c == '%') {
      encoded += '%';
      encoded += "0123456789ABCDEF"[byte >> 4];
      encoded += "0123456789ABCDEF"[byte & 15];
    } else {
      encoded += c;
    }
  }
  return encoded.empty() ? "n/a" : encoded;
}

class CommentLine {
 public:
  explicit CommentLine(std::string start) : text_(std::move(start)) {}
  CommentLine& Add(std::string_view key, std::string_view value) {
    text_.append(" ").append(key).append("=").append(CommentValue(value));
    return *this;
  }
  CommentLine& Add(std::string_view key, int64_t value) { return Add(key, std::to_string(value)); }
  CommentLine& AddIfKnown(std::string_view key, int64_t value, bool known) {
    return known ? Add(key, value) : Add(key, "n/a");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Not by gmtime_r or strftime: they take a lock, which in a forked child never comes free if another thread held it.
std::string UtcTime(int64_t unix_nanos) {
  const absl::CivilSecond time = absl::CivilSecond(1970, 1, 1) + unix_nanos / 1000000000;
  char text[64];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02dZ", static_cast<int>(time.year()), time.month(),
                time.day(), time.hour(), time.minute(), time.second());
  return text;
}

// Writes one profile. Ids are 1..N in table order; every table is written in order of first use.
class ProfileWriter {
 public:
  ProfileWriter(const Snapshot& snapshot, Symbolizer* symbolizer)
      : snapshot_(snapshot), symbolizer_(symbolizer), modules_(snapshot.modules) {}

  std::string Write() {
    ReadTables();
    CollectRows();
    CollectLocations();
    NameLocations();

    ReserveBytes();
    WriteSampleTypes();
    WriteSamples();
    WriteMappings();
    WriteLocations();
    WriteFunctions();
    WriteHeader();
    for (size_t i = 0; i < strings_.size(); ++i) {
      const std::string_view text = strings_.At(i);
      profile_.add_string(ProfileField::kStringTable, text.data(), text.size());
    }
    return std::move(bytes_);
  }

 private:
  using Tags = std::vector<std::pair<std::string, std::string>>;
  // One sample to be. It has all of its Snapshot::Sample that is read again, but for tags: few have any.
  struct Row {
    uint32_t stack;  // id
    MemoryKind kind;
    int64_t device;       // these three: label values; 0: no such label
    int64_t allocator;    //
    int64_t block_bytes;  //
    const Tags* tags;
    std::array<int64_t, kSampleTypeCount> values;
  };
  struct Stack {
    const Snapshot::Stack* frames;
    uint32_t rows_end = 0;        // in rows_, which are sorted by stack
    size_t location_ids_end = 0;  // in packed_ids_
  };
  struct Location {
    uint64_t address;
    size_t module;
    uint64_t function;  // id; 0: no name
    int64_t line;       // 0: not known
  };
  struct Function {
    int64_t name;
    int64_t system_name;
    int64_t file;
    int64_t start_line;  // 0: not known
  };

  static bool SameStack(const Snapshot::Stack& a, const Snapshot::Stack& b) {
    return a.truncated == b.truncated && a.return_addresses == b.return_addresses;
  }

  void ReadTables() {
    devices_.assign(snapshot_.devices.size(), kNotYet);
    allocators_.assign(snapshot_.allocators.size(), kNotYet);
    IdTable ids;
    for (const Snapshot::Stack& stack : snapshot_.stacks) {
      const uint64_t hash = HashWords(stack.return_addresses.data(), stack.return_addresses.size());
      const uint32_t id = ids.IdOf(stack.truncated ? ~hash : hash,
                                   [&](uint32_t candidate) { return SameStack(*stacks_[candidate].frames, stack); });
      if (id == stacks_.size()) stacks_.push_back({&stack});
      stack_ids_.push_back(id);
    }
  }

  // The string's index, which is kept in `known`. Only what a sample has gets into the table.
  int64_t InternOnce(std::string_view text, int64_t& known) {
    if (known == kNotYet) known = strings_.Intern(text);
    return known;
  }

  // What tells two samples apart in the profile.
  static uint64_t HashOf(const Row& row) {
    const uint64_t words[] = {row.stack, static_cast<uint64_t>(row.device), static_cast<uint64_t>(row.allocator),
                              static_cast<uint64_t>(row.kind), static_cast<uint64_t>(row.block_bytes)};
    uint64_t hash = HashWords(words, std::size(words));
    for (const auto& [key, value] : *row.tags) {
      hash = HashBytes(value.data(), value.size(), HashBytes(key.data(), key.size(), hash));
    }
    return hash;
  }
  static bool LookTheSame(const Row& a, const Row& b) {
    return a.stack == b.stack && a.device == b.device && a.allocator == b.allocator && a.kind == b.kind &&
           a.block_bytes == b.block_bytes && *a.tags == *b.tags;
  }

  // Samples that would look the same become one: viewers may lose all but one of them.
  void CollectRows() {
    IdTable ids;
    std::vector<Row> rows;
    rows.reserve(snapshot_.samples.size());
    for (const Snapshot::Sample& sample : snapshot_.samples) {
      std::array<int64_t, kSampleTypeCount> values;
      bool all_zero = true;
      for (size_t i = 0; i < kSampleTypeCount; ++i) {
        values[i] = sample.*kSampleTypes[i].value;
        all_zero = all_zero && values[i] == 0;
      }
      if (all_zero) continue;
      has_peak_ = has_peak_ || sample.peak_bytes != 0;
      has_inuse_ = has_inuse_ || sample.inuse_bytes != 0;
      const Row row = {stack_ids_[sample.stack],
                       sample.kind,
                       InternOnce(snapshot_.devices[sample.device].name, devices_[sample.device]),
                       InternOnce(snapshot_.allocators[sample.allocator], allocators_[sample.allocator]),
                       sample.kind == MemoryKind::kPool ? 0 : sample.block_bytes,
                       sample.tags.empty() ? &no_tags_ : &sample.tags,
                       values};
      const uint32_t id = ids.IdOf(HashOf(row), [&](uint32_t candidate) { return LookTheSame(rows[candidate], row); });
      if (id == rows.size()) {
        rows.push_back(row);
        ++stacks_[row.stack].rows_end;
      } else {
        for (size_t i = 0; i < kSampleTypeCount; ++i) rows[id].values[i] += row.values[i];
      }
    }
    // Stack by stack: the repeated location ids compress to next to nothing where they follow each other.
    uint32_t before = 0;
    for (Stack& stack : stacks_) before += std::exchange(stack.rows_end, before);
    rows_.resize(rows.size());
    for (const Row& row : rows) rows_[stacks_[row.stack].rows_end++] = row;
  }

  void CollectLocations() {
    constexpr size_t kSampleBytes = 64;  // about, but for the locations
    size_t row = 0;
    for (Stack& stack : stacks_) {
      const size_t rows = stack.rows_end - std::exchange(row, stack.rows_end);
      const size_t begin = packed_ids_.size();
      if (rows != 0) PackLocationIds(*stack.frames);
      stack.location_ids_end = packed_ids_.size();
      sample_bytes_ += rows * (kSampleBytes + packed_ids_.size() - begin);
    }
  }

  void PackLocationIds(const Snapshot::Stack& stack) {
    const auto add = [&](uint64_t id) { protozero::add_varint_to_buffer(&packed_ids_, id); };
    for (const uint64_t return_address : stack.return_addresses) {
      if (return_address >> 32 == Snapshot::kNamedFrame >> 32) {
        add(NamedFrameId(static_cast<uint32_t>(return_address)));
        continue;
      }
      // The call, not what follows it: that can be another line or another function.
      add(LocationId(return_address == 0 ? 0 : return_address - 1, 0));
    }
    if (stack.return_addresses.empty()) add(LocationId(kNoStack));
    if (stack.truncated) add(LocationId(kStackTruncated));
  }

  // The id of the location of an address in the program or, with a function, of one that stands for no address.
  uint64_t LocationId(uint64_t address, uint64_t function, int64_t line = 0) {
    const uint64_t words[] = {address, function, static_cast<uint64_t>(line)};
    const uint32_t index = location_ids_.IdOf(HashWords(words, std::size(words)), [&](uint32_t candidate) {
      const Location& other = locations_[candidate];
      return other.address == address && other.function == function && other.line == line;
    });
    if (index == locations_.size()) {
      locations_.push_back({address, function == 0 ? modules_.Find(address) : kNoModule, function, line});
    }
    return index + uint64_t{1};
  }
  uint64_t LocationId(std::string_view name) { return LocationId(0, FunctionId({strings_.Intern(name), 0, 0, 0})); }
  // The id of the location of a named frame.
  uint64_t NamedFrameId(size_t number) {
    if (number >= snapshot_.named_frames.size()) return LocationId(kUnknownCode);
    const Snapshot::NamedFrame& frame = snapshot_.named_frames[number];
    if (frame.function.empty()) return LocationId(kUnknownCode);
    return LocationId(
        0, FunctionId({strings_.Intern(frame.function), 0, strings_.Intern(frame.file), frame.start_line}), frame.line);
  }

  uint64_t FunctionId(const Function& function) {
    const uint64_t words[] = {static_cast<uint64_t>(function.name), static_cast<uint64_t>(function.system_name),
                              static_cast<uint64_t>(function.file), static_cast<uint64_t>(function.start_line)};
    const uint32_t index = function_ids_.IdOf(HashWords(words, std::size(words)), [&](uint32_t candidate) {
      const Function& other = functions_[candidate];
      return other.name == function.name && other.system_name == function.system_name && other.file == function.file &&
             other.start_line == function.start_line;
    });
    if (index == functions_.size()) functions_.push_back(function);
    return index + uint64_t{1};
  }

  void NameLocations() {
    has_names_.assign(snapshot_.modules.size(), false);
    if (symbolizer_ == nullptr) return;
    std::vector<uint64_t> addresses;
    std::vector<size_t> indices;
    for (size_t i = 0; i < locations_.size(); ++i) {
      if (locations_[i].function != 0) continue;
      addresses.push_back(locations_[i].address);
      indices.push_back(i);
    }
    const std::vector<Symbolizer::Name> names = symbolizer_->Symbolize(snapshot_.modules, addresses);
    for (size_t i = 0; i < indices.size(); ++i) {
      Location& location = locations_[indices[i]];
      const bool in_module = location.module != kNoModule;
      Function function = {};
      if (!names[i].system_name.empty()) {
        function = {strings_.Intern(names[i].name), strings_.Intern(names[i].system_name), 0, 0};
        if (in_module) has_names_[location.module] = true;
      } else if (in_module) {
        function.name = strings_.Intern(NameInModule(snapshot_.modules[location.module], location.address));
      } else {
        function.name = strings_.Intern(kUnknownCode);
      }
      location.function = FunctionId(function);
    }
  }

  // Room for about all that will be written: growing would write it twice.
  void ReserveBytes() {
    constexpr size_t kHeaderBytes = 1 << 12;
    constexpr size_t kLocationBytes = 24;
    constexpr size_t kFunctionBytes = 12;
    constexpr size_t kStringBytes = 3;  // but for the text
    bytes_.reserve(kHeaderBytes + sample_bytes_ + locations_.size() * kLocationBytes +
                   functions_.size() * kFunctionBytes + strings_.size() * kStringBytes + strings_.bytes());
  }

  void WriteValueType(ProfileField field, std::string_view type, std::string_view unit) {
    Message<ValueTypeField> message(profile_, field);
    message.add_int64(ValueTypeField::kType, strings_.Intern(type));
    message.add_int64(ValueTypeField::kUnit, strings_.Intern(unit));
  }

  void WriteSampleTypes() {
    for (const SampleType& type : kSampleTypes) WriteValueType(ProfileField::kSampleType, type.type, type.unit);
  }

  static void WriteTextLabel(Message<SampleField>& sample, int64_t key, int64_t value) {
    Message<LabelField> label(sample, SampleField::kLabel);
    label.add_int64(LabelField::kKey, key);
    label.add_int64(LabelField::kStr, value);
  }

  void WriteSamples() {
    int64_t device_key = kNotYet;
    int64_t kind_key = kNotYet;
    int64_t allocator_key = kNotYet;
    const int64_t bytes_key = strings_.Intern("bytes");  // a sample type's unit
    std::array<int64_t, kMemoryKindCount> kinds;
    kinds.fill(kNotYet);

    const auto write_row = [&](const Row& row, std::string_view location_ids) {
      Message<SampleField> message(profile_, ProfileField::kSample);
      message.add_bytes(SampleField::kLocationId, location_ids.data(), location_ids.size());
      message.add_packed_int64(SampleField::kValue, row.values.begin(), row.values.end());
      // Readers drop a label without a value, and cannot tell one without a key.
      if (row.device != 0) WriteTextLabel(message, InternOnce("device", device_key), row.device);
      WriteTextLabel(message, InternOnce("kind", kind_key),
                     InternOnce(MemoryKindName(row.kind), kinds[static_cast<size_t>(row.kind)]));
      if (row.allocator != 0) WriteTextLabel(message, InternOnce("allocator", allocator_key), row.allocator);
      for (const auto& [key, value] : *row.tags) {
        if (!key.empty() && !value.empty()) WriteTextLabel(message, strings_.Intern(key), strings_.Intern(value));
      }
      if (row.block_bytes != 0) {
        Message<LabelField> label(message, SampleField::kLabel);
        label.add_int64(LabelField::kKey, bytes_key);
        label.add_int64(LabelField::kNum, row.block_bytes);
        label.add_int64(LabelField::kNumUnit, bytes_key);
      }
    };
    size_t row = 0;
    size_t ids_begin = 0;
    for (const Stack& stack : stacks_) {
      const auto location_ids = std::string_view(packed_ids_).substr(ids_begin, stack.location_ids_end - ids_begin);
      for (; row < stack.rows_end; ++row) write_row(rows_[row], location_ids);
      ids_begin = stack.location_ids_end;
    }
  }

  void WriteMappings() {
    for (size_t i = 0; i < snapshot_.modules.size(); ++i) {
      const Snapshot::Module& module = snapshot_.modules[i];
      Message<MappingField> message(profile_, ProfileField::kMapping);
      message.add_uint64(MappingField::kId, i + 1);
      message.add_uint64(MappingField::kMemoryStart, module.start);
      message.add_uint64(MappingField::kMemoryLimit, module.limit);
      message.add_uint64(MappingField::kFileOffset, module.offset);
      message.add_int64(MappingField::kFilename, strings_.Intern(module.path));
      message.add_int64(MappingField::kBuildId, strings_.Intern(module.build_id));
      if (has_names_[i]) message.add_bool(MappingField::kHasFunctions, true);
    }
  }

  void WriteLocations() {
    for (size_t i = 0; i < locations_.size(); ++i) {
      const Location& location = locations_[i];
      Message<LocationField> message(profile_, ProfileField::kLocation);
      message.add_uint64(LocationField::kId, i + 1);
      if (location.module != kNoModule) message.add_uint64(LocationField::kMappingId, location.module + 1);
      message.add_uint64(LocationField::kAddress, location.address);
      if (location.function != 0) {
        Message<LineField> line(message, LocationField::kLine);
        line.add_uint64(LineField::kFunctionId, location.function);
        if (location.line != 0) line.add_int64(LineField::kLine, location.line);
      }
    }
  }

  void WriteFunctions() {
    for (size_t i = 0; i < functions_.size(); ++i) {
      Message<FunctionField> message(profile_, ProfileField::kFunction);
      message.add_uint64(FunctionField::kId, i + 1);
      message.add_int64(FunctionField::kName, functions_[i].name);
      if (functions_[i].system_name != 0) message.add_int64(FunctionField::kSystemName, functions_[i].system_name);
      if (functions_[i].file != 0) message.add_int64(FunctionField::kFilename, functions_[i].file);
      if (functions_[i].start_line != 0) message.add_int64(FunctionField::kStartLine, functions_[i].start_line);
    }
  }

  void WriteHeader() {
    profile_.add_int64(ProfileField::kDropFrames, strings_.Intern(kDropFrames));
    profile_.add_int64(ProfileField::kTimeNanos, snapshot_.time_unix_nanos);
    WriteValueType(ProfileField::kPeriodType, "space", "bytes");
    profile_.add_int64(ProfileField::kPeriod, 1);
    // What viewers show first is not empty: after all was freed, as at a program's end, it is the peak.
    const bool shows_peak = has_peak_ && !has_inuse_;
    profile_.add_int64(ProfileField::kDefaultSampleType, strings_.Intern(shows_peak ? "peak_space" : "inuse_space"));

    for (const Snapshot::Device& device : snapshot_.devices) {
      for (int i = 0; i < kMemorySpaceCount; ++i) WriteDeviceComment(device, static_cast<MemorySpace>(i));
    }
    const TrackerStats& tracker = snapshot_.tracker;
    WriteComment(CommentLine("tracker")
                     .Add("live_records", tracker.live_records)
                     .Add("sites", tracker.sites)
                     .Add("dropped_records", tracker.dropped_records)
                     .Add("dropped_bytes", tracker.dropped_bytes)
                     .Add("foreign_frees", tracker.foreign_frees)
                     .Add("replaced_records", tracker.replaced_records)
                     .Add("reentrant_events", tracker.reentrant_events)
                     .Add("truncated_stacks", tracker.truncated_stacks)
                     .Add("dropped_tag_values", tracker.dropped_tag_values)
                     .Add("host_bytes", tracker.host_bytes)
                     .Add("max_host_bytes", tracker.max_host_bytes));
    if (!snapshot_.python.version.empty()) WritePythonComment();
    for (const auto& [name, value] : snapshot_.counters) {
      WriteComment(CommentLine("counter " + CommentValue(name)).Add("value", value));
    }
    WriteComment(CommentLine("hbmprof")
                     .Add("version", HBMPROF_VERSION_STRING)
                     .Add("unwinder", tracker.unwinder)
                     .Add("host", snapshot_.host)
                     .Add("pid", snapshot_.process_id)
                     .Add("time", UtcTime(snapshot_.time_unix_nanos)));
  }

  void WritePythonComment() {
    const Snapshot::Python& python = snapshot_.python;
    CommentLine line("python");
    line.Add("version", python.version).Add("functions", python.problem.empty() ? "read" : "not_read");
    if (!python.problem.empty()) line.Add("problem", python.problem);
    WriteComment(line);
  }

  // For a memory space that was ever used, or whose device told of itself.
  void WriteDeviceComment(const Snapshot::Device& device, MemorySpace space) {
    const DeviceStats& stats = device.spaces[static_cast<int>(space)];
    const bool probed = stats.bytes_limit >= 0 || stats.driver_bytes_in_use >= 0;
    if (stats.num_allocs == 0 && stats.bytes_in_use == 0 && stats.peak_bytes_in_use == 0 && !probed) return;
    CommentLine line("device " + CommentValue(device.name));
    line.Add("space", MemorySpaceName(space))
        .Add("in_use", stats.bytes_in_use)
        .Add("peak", stats.peak_bytes_in_use)
        .AddIfKnown("limit", stats.bytes_limit, stats.bytes_limit >= 0)
        .Add("pool", stats.pool_bytes)
        .Add("reserved", stats.bytes_reserved)
        .AddIfKnown("driver_in_use", stats.driver_bytes_in_use, stats.driver_bytes_in_use >= 0)
        .AddIfKnown("unaccounted", stats.unaccounted, stats.unaccounted_known)
        .AddIfKnown("largest_free_block", stats.largest_free_block_bytes, stats.largest_free_block_bytes >= 0)
        .Add("num_allocs", stats.num_allocs)
        .Add("num_live", stats.num_live)
        .Add("largest_alloc", stats.largest_alloc_size);
    if (stats.unaccounted_known) {
      line.Add("driver_scope", stats.driver_scope == DriverScope::kProcess ? "process" : "device");
    }
    if (stats.driver_cache_bytes >= 0) line.Add("driver_cache", stats.driver_cache_bytes);
    if (stats.baseline.has_value()) line.Add("baseline", *stats.baseline);
    // Few drivers keep it.
    if (stats.driver_peak_bytes_in_use >= 0) line.Add("driver_peak", stats.driver_peak_bytes_in_use);
    WriteComment(line);
  }

  void WriteComment(const CommentLine& line) {
    profile_.add_int64(ProfileField::kComment, strings_.Intern(line.text()));
  }

  const Snapshot& snapshot_;
  Symbolizer* const symbolizer_;
  const ModuleIndex modules_;
  StringTable strings_;
  std::vector<int64_t> devices_;     // label values, by the snapshot's index; kNotYet: no sample has it
  std::vector<int64_t> allocators_;  // likewise
  std::vector<uint32_t> stack_ids_;  // likewise; equal stacks have one
  std::vector<Stack> stacks_;        // by id
  const Tags no_tags_;
  std::vector<Row> rows_;
  std::string packed_ids_;           // of the stacks' locations, as samples have them
  std::vector<Location> locations_;  // by id - 1
  IdTable location_ids_;
  std::vector<Function> functions_;  // by id - 1
  IdTable function_ids_;
  std::vector<bool> has_names_;  // by module
  std::string bytes_;
  size_t sample_bytes_ = 0;  // of all samples, about
  bool has_peak_ = false;    // whether any sample has bytes at the peak
  bool has_inuse_ = false;   // and in use
  Message<ProfileField> profile_{bytes_};
};

}  // namespace
}  // namespace internal

absl::StatusOr<std::string> SerializePprof(const Snapshot& snapshot, Symbolizer* symbolizer) {
  try {
    return internal::Gzip(internal::ProfileWriter(snapshot, symbolizer).Write());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("cannot write the profile: the host has no memory");
  }
}

absl::Status WritePprof(const Snapshot& snapshot, Symbolizer* symbolizer, std::string_view path) {
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, symbolizer);
  if (!bytes.ok()) return bytes.status();
  return internal::WriteFileAtomically(path, *bytes);
}

}  // namespace hbmprof
