// Converts a Snapshot to profile.proto bytes. docs/spec/profile.md describes the result.
//
// Not in this file: names for addresses (src/symbolize), writing files (src/base/atomic_file.h).
#include "hbmprof/pprof.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "hbmprof/version.h"
#include "protozero/pbf_builder.hpp"
#include "src/base/atomic_file.h"
#include "src/base/hash.h"
#include "src/base/saturating.h"
#include "src/base/utc_time.h"
#include "src/export/device_stats.h"
#include "src/export/gzip.h"
#include "src/export/id_table.h"
#include "src/export/module_index.h"
#include "src/export/string_table.h"
#include "src/export/utf8.h"

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
// kAges is not a field of the format: pprof and other readers skip it.
enum class SampleField : Tag { kLocationId = 1, kValue = 2, kLabel = 3, kAges = 1000 };
enum class AgesField : Tag {
  kClassWidthLog2 = 1,
  kFirstClass = 2,
  kBornBytes = 3,
  kBornCounts = 4,
  kFreedByOctave = 5,
};
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
// The pairs are objects and bytes. `inuse` is last, because viewers that ignore default_sample_type show the last type.
constexpr SampleType kSampleTypes[] = {
    {"alloc_objects", "count", &Snapshot::Sample::alloc_objects},
    {"alloc_space", "bytes", &Snapshot::Sample::alloc_bytes},
    {"peak_objects", "count", &Snapshot::Sample::peak_objects},
    {"peak_space", "bytes", &Snapshot::Sample::peak_bytes},
    {"pool_peak_objects", "count", &Snapshot::Sample::pool_peak_objects},
    {"pool_peak_space", "bytes", &Snapshot::Sample::pool_peak_bytes},
    {"reserved_objects", "count", &Snapshot::Sample::reserved_objects},
    {"reserved_space", "bytes", &Snapshot::Sample::reserved_bytes},
    {"inuse_objects", "count", &Snapshot::Sample::inuse_objects},
    {"inuse_space", "bytes", &Snapshot::Sample::inuse_bytes},
};
constexpr size_t kSampleTypeCount = std::size(kSampleTypes);

// A regular expression for the innermost frames that belong to hbmprof. Capture leaves them out of most stacks. Viewers
// remove the others with this expression. TrackingAllocator is not in the list: viewers also hide the frames that a
// matching frame calls, and TrackingAllocator calls the user's upstream allocator.
constexpr std::string_view kDropFrames = "hbmprof::(internal|cuda|Profiler)::.*|hbmprof_record_alloc";

constexpr std::string_view kNoStack = "[no stack]";
constexpr std::string_view kStackTruncated = "[stack truncated]";
constexpr std::string_view kSmallStacks = "[small call stacks]";

constexpr int64_t kNotYet = -1;  // an index of a string that is not interned yet

// Returns `text` as a value of a comment: characters that separate values or lines are percent-encoded.
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
  CommentLine& Add(std::string_view key, std::optional<int64_t> value) {
    return value.has_value() ? Add(key, *value) : Add(key, "n/a");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status Inconsistent(const std::string& problem) {
  return absl::InvalidArgumentError("cannot write the profile: the snapshot is not consistent: " + problem);
}
absl::Status Inconsistent(const char* vector, size_t index, const char* problem) {
  return Inconsistent(std::string(vector) + "[" + std::to_string(index) + "] " + problem);
}

template <typename Elements, typename Less>
bool IsStrictlySorted(const Elements& elements, const Less& less) {
  const auto is_unordered = [&](const auto& a, const auto& b) { return !less(a, b); };
  return std::adjacent_find(elements.begin(), elements.end(), is_unordered) == elements.end();
}

// Whether the ages of the sample's buffers are as snapshot.h describes them.
bool HasRightAges(const Snapshot::Sample& sample) {
  constexpr uint32_t kMaxClasses = 64;
  constexpr size_t kOctaves = 24;
  return sample.freed_by_octave.size() <= kOctaves &&
         IsStrictlySorted(sample.born, [](const auto& a, const auto& b) { return a.birth_class < b.birth_class; }) &&
         (sample.born.empty() || sample.born.back().birth_class < kMaxClasses);
}

// Checks the properties of a snapshot that the writer relies on.
absl::Status CheckSnapshot(const Snapshot& snapshot) {
  constexpr int kMaxWidthLog2 = 40;
  if (snapshot.birth_class_log2 < 0 || snapshot.birth_class_log2 > kMaxWidthLog2) {
    return Inconsistent("birth_class_log2 is " + std::to_string(snapshot.birth_class_log2));
  }
  for (size_t i = 0; i < snapshot.samples.size(); ++i) {
    const Snapshot::Sample& sample = snapshot.samples[i];
    if (sample.stack >= snapshot.stacks.size() || sample.device >= snapshot.devices.size() ||
        sample.allocator >= snapshot.allocators.size() || static_cast<int>(sample.kind) >= kMemoryKindCount) {
      return Inconsistent("samples", i, "has a stack, device, allocator or kind that does not exist");
    }
    if (!IsStrictlySorted(sample.tags, [](const auto& a, const auto& b) { return a.first < b.first; })) {
      return Inconsistent("samples", i, "has tags that are not sorted by key, or a key twice");
    }
    if (!HasRightAges(sample)) {
      return Inconsistent("samples", i,
                          "has more than 64 classes of births or 24 octaves of ages, or unsorted classes");
    }
  }
  for (size_t i = 0; i < snapshot.stacks.size(); ++i) {
    for (const uint64_t frame : snapshot.stacks[i].return_addresses) {
      if (Snapshot::IsNamedFrame(frame) && static_cast<uint32_t>(frame) >= snapshot.named_frames.size()) {
        return Inconsistent("stacks", i, "has a named frame that does not exist");
      }
    }
  }
  for (size_t i = 0; i < snapshot.modules.size(); ++i) {
    if (snapshot.modules[i].limit < snapshot.modules[i].start) {
      return Inconsistent("modules", i, "ends before it begins");
    }
  }
  return absl::OkStatus();
}

// Writes one profile of a snapshot that CheckSnapshot accepts. Ids are 1..N in table order; every table is written in
// order of first use.
class ProfileWriter {
 public:
  // Writes at most `max_samples` samples; 0: all.
  ProfileWriter(const Snapshot& snapshot, Symbolizer* symbolizer, size_t max_samples)
      : snapshot_(snapshot), symbolizer_(symbolizer), max_samples_(max_samples), modules_(snapshot.modules) {}

  absl::StatusOr<std::string> Write() {
    ReadTables();
    CollectRows();
    CollectLocations();
    if (absl::Status status = NameLocations(); !status.ok()) return status;

    ReserveBytes();
    for (const SampleType& type : kSampleTypes) WriteValueType(ProfileField::kSampleType, type.type, type.unit);
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
  // The number of samples that Write has written.
  size_t samples() const { return rows_.size(); }
  // Of the stacks of all samples.
  size_t frames() const { return frames_; }

 private:
  using Tags = std::vector<std::pair<std::string, std::string>>;
  using Born = Snapshot::Sample::Born;
  // One sample of the profile: the values of a Snapshot::Sample that are needed again. `tags` is a pointer because few
  // samples have tags.
  struct Row {
    uint32_t stack;  // id
    MemoryKind kind;
    int64_t device;     // label value; 0: no such label
    int64_t allocator;  // likewise
    const Tags* tags;
    std::array<int64_t, kSampleTypeCount> values;
    const Snapshot::Sample* ages;             // the ages of its buffers; null: none
    Snapshot::Sample* summed_ages = nullptr;  // `ages`, if they are those of several samples
  };
  struct Stack {
    const Snapshot::Stack* frames;
    uint32_t rows_end = 0;        // index in rows_, which is sorted by stack
    size_t location_ids_end = 0;  // index in packed_ids_
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

  void ReadTables() {
    devices_.assign(snapshot_.devices.size(), kNotYet);
    allocators_.assign(snapshot_.allocators.size(), kNotYet);
    IdTable ids;
    for (const Snapshot::Stack& stack : snapshot_.stacks) {
      const uint64_t hash = HashWords(stack.return_addresses.data(), stack.return_addresses.size());
      const uint32_t id = ids.IdOf(stack.truncated ? ~hash : hash, [&](uint32_t candidate) {
        const Snapshot::Stack& other = *stacks_[candidate].frames;
        return other.truncated == stack.truncated && other.return_addresses == stack.return_addresses;
      });
      if (id == stacks_.size()) stacks_.push_back({&stack});
      stack_ids_.push_back(id);
    }
  }

  // Returns the string's index and stores it in `known`. The string is interned at the first use, so a string that no
  // sample uses is not interned.
  int64_t InternOnce(std::string_view text, int64_t& known) {
    if (known == kNotYet) known = strings_.Intern(text);
    return known;
  }

  // Hash of the fields that LookTheSame compares.
  static uint64_t HashOf(const Row& row) {
    const uint64_t words[] = {row.stack, static_cast<uint64_t>(row.device), static_cast<uint64_t>(row.allocator),
                              static_cast<uint64_t>(row.kind)};
    uint64_t hash = HashWords(words, std::size(words));
    for (const auto& [key, value] : *row.tags) {
      hash = HashBytes(value.data(), value.size(), HashBytes(key.data(), key.size(), hash));
    }
    return hash;
  }
  static bool LookTheSame(const Row& a, const Row& b) {
    return a.stack == b.stack && a.device == b.device && a.allocator == b.allocator && a.kind == b.kind &&
           *a.tags == *b.tags;
  }

  // Returns the mean size of the row's allocations, as the heap profiles of other languages have it; 0: it has none.
  int64_t MeanBytes(const Row& row) const {
    const auto [objects, bytes] = std::pair(row.values[0], row.values[1]);
    return row.kind == MemoryKind::kPool || stacks_[row.stack].frames == &small_stacks_ || objects <= 0
               ? 0
               : std::max<int64_t>(bytes / objects, 0);
  }

  void AddValues(const Row& row, Row* sum) {
    for (size_t i = 0; i < kSampleTypeCount; ++i) sum->values[i] = SaturatingSum(sum->values[i], row.values[i]);
    if (row.ages == nullptr) return;
    if (sum->summed_ages == nullptr) {
      sum->summed_ages = &sums_of_ages_.emplace_back();
      if (sum->ages != nullptr) AddAges(*sum->ages, sum->summed_ages);
      sum->ages = sum->summed_ages;
    }
    AddAges(*row.ages, sum->summed_ages);
  }
  static void AddAges(const Snapshot::Sample& sample, Snapshot::Sample* sum) {
    std::vector<Born> born;
    auto other = sum->born.begin();
    for (const Born& one : sample.born) {
      while (other != sum->born.end() && other->birth_class < one.birth_class) born.push_back(*other++);
      born.push_back(one);
      if (other == sum->born.end() || other->birth_class != one.birth_class) continue;
      born.back().objects = SaturatingSum(one.objects, other->objects);
      born.back().bytes = SaturatingSum(one.bytes, other->bytes);
      ++other;
    }
    born.insert(born.end(), other, sum->born.end());
    sum->born = std::move(born);
    std::vector<int64_t>& freed = sum->freed_by_octave;
    freed.resize(std::max(freed.size(), sample.freed_by_octave.size()));
    for (size_t i = 0; i < sample.freed_by_octave.size(); ++i) {
      freed[i] = SaturatingSum(freed[i], sample.freed_by_octave[i]);
    }
  }

  static bool IsLarger(const Row& a, const Row& b) {
    constexpr size_t kAlloc = 1;
    const auto most = [](const Row& row) {
      int64_t bytes = 0;
      for (size_t i = kAlloc + 2; i < kSampleTypeCount; i += 2) bytes = std::max(bytes, row.values[i]);
      return bytes;
    };
    const int64_t a_bytes = most(a);
    const int64_t b_bytes = most(b);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.values[kAlloc] > b.values[kAlloc];
  }

  // Merges the smallest rows, so that max_samples_ rows are left, or one row for each device and kind of memory if
  // these are more rows. See PprofOptions.
  void MergeSmallest(std::vector<Row>* rows) {
    std::map<std::pair<int64_t, MemoryKind>, Row> merged;  // by device and kind
    for (const Row& row : *rows) merged.try_emplace({row.device, row.kind});
    const size_t kept = max_samples_ - std::min(max_samples_, merged.size());
    std::stable_sort(rows->begin(), rows->end(), &IsLarger);
    merged.clear();
    const auto stack = static_cast<uint32_t>(stacks_.size());
    stacks_.push_back({&small_stacks_});
    for (size_t i = kept; i < rows->size(); ++i) {
      const Row& row = (*rows)[i];
      const Row first = {stack, row.kind, row.device, 0, &no_tags_, {}, nullptr};
      AddValues(row, &merged.try_emplace({row.device, row.kind}, first).first->second);
    }
    rows->resize(kept, Row());
    for (const auto& [key, row] : merged) rows->push_back(row);
  }

  bool HasAges(const Snapshot::Sample& sample) const {
    return snapshot_.uptime_seconds.has_value() && !(sample.born.empty() && sample.freed_by_octave.empty());
  }

  // Returns the tags as they are written, sorted, with each key once. Readers drop a label without a value, and cannot
  // show a label without a key.
  const Tags& WrittenTags(const Tags& tags) {
    const auto is_written = [](const std::string& text) {
      return !text.empty() && ValidUtf8Prefix(text) == text.size();
    };
    if (std::all_of(tags.begin(), tags.end(),
                    [&](const auto& tag) { return is_written(tag.first) && is_written(tag.second); })) {
      return tags;
    }
    std::map<std::string, std::string> written;
    for (const auto& [key, value] : tags) {
      if (!key.empty() && !value.empty()) written.try_emplace(ValidUtf8(key), ValidUtf8(value));
    }
    return written_tags_.emplace_back(written.begin(), written.end());
  }

  // Merges samples with equal stacks and labels, because some viewers show only one of them.
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
                       &WrittenTags(sample.tags),
                       values,
                       HasAges(sample) ? &sample : nullptr};
      const uint32_t id = ids.IdOf(HashOf(row), [&](uint32_t candidate) { return LookTheSame(rows[candidate], row); });
      if (id == rows.size()) {
        rows.push_back(row);
      } else {
        AddValues(row, &rows[id]);
      }
    }
    if (max_samples_ != 0 && rows.size() > max_samples_) MergeSmallest(&rows);
    for (const Row& row : rows) ++stacks_[row.stack].rows_end;
    // Sorted by stack: repeated location ids compress well if they follow each other.
    uint32_t before = 0;
    for (Stack& stack : stacks_) before += std::exchange(stack.rows_end, before);
    rows_.resize(rows.size());
    for (const Row& row : rows) rows_[stacks_[row.stack].rows_end++] = row;
  }

  void CollectLocations() {
    constexpr size_t kSampleBytes = 64;  // an estimate, without the locations
    size_t row = 0;
    for (Stack& stack : stacks_) {
      const size_t rows = stack.rows_end - std::exchange(row, stack.rows_end);
      const size_t begin = packed_ids_.size();
      if (rows != 0) PackLocationIds(*stack.frames);
      stack.location_ids_end = packed_ids_.size();
      sample_bytes_ += rows * (kSampleBytes + packed_ids_.size() - begin);
      frames_ += rows * stack.frames->return_addresses.size();
    }
  }

  void PackLocationIds(const Snapshot::Stack& stack) {
    const auto add = [&](uint64_t id) { protozero::add_varint_to_buffer(&packed_ids_, id); };
    for (const uint64_t return_address : stack.return_addresses) {
      if (Snapshot::IsNamedFrame(return_address)) {
        add(NamedFrameId(static_cast<uint32_t>(return_address)));
        continue;
      }
      // The address of the call is used, because the return address can belong to another line or function.
      add(LocationId(return_address == 0 ? 0 : return_address - 1, 0));
    }
    if (stack.return_addresses.empty()) add(LocationId(&stack == &small_stacks_ ? kSmallStacks : kNoStack));
    if (stack.truncated) add(LocationId(kStackTruncated));
  }

  // Returns the id of the location of `address`. `function` is 0, or the function of a location without an address.
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
  // Returns the id of the location of a named frame.
  uint64_t NamedFrameId(uint32_t index) {
    const Snapshot::NamedFrame& frame = snapshot_.named_frames[index];
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

  absl::Status NameLocations() {
    has_names_.assign(snapshot_.modules.size(), false);
    if (symbolizer_ == nullptr) return absl::OkStatus();
    std::vector<uint64_t> addresses;
    std::vector<size_t> indices;
    for (size_t i = 0; i < locations_.size(); ++i) {
      if (locations_[i].function != 0) continue;
      addresses.push_back(locations_[i].address);
      indices.push_back(i);
    }
    const std::vector<Symbolizer::Name> names = symbolizer_->Symbolize(snapshot_.modules, addresses);
    if (names.size() != addresses.size()) {
      return absl::InvalidArgumentError("cannot write the profile: the symbolizer returned " +
                                        std::to_string(names.size()) + " names for " +
                                        std::to_string(addresses.size()) + " addresses");
    }
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
    return absl::OkStatus();
  }

  // Reserves about as many bytes as will be written, so that the buffer does not grow.
  void ReserveBytes() {
    constexpr size_t kHeaderBytes = 1 << 12;
    constexpr size_t kLocationBytes = 24;
    constexpr size_t kFunctionBytes = 12;
    constexpr size_t kStringBytes = 3;  // without the text
    bytes_.reserve(kHeaderBytes + sample_bytes_ + locations_.size() * kLocationBytes +
                   functions_.size() * kFunctionBytes + strings_.size() * kStringBytes + strings_.bytes());
  }

  void WriteValueType(ProfileField field, std::string_view type, std::string_view unit) {
    Message<ValueTypeField> message(profile_, field);
    message.add_int64(ValueTypeField::kType, strings_.Intern(type));
    message.add_int64(ValueTypeField::kUnit, strings_.Intern(unit));
  }

  static void WriteTextLabel(Message<SampleField>& sample, int64_t key, int64_t value) {
    Message<LabelField> label(sample, SampleField::kLabel);
    label.add_int64(LabelField::kKey, key);
    label.add_int64(LabelField::kStr, value);
  }

  void WriteAges(const Snapshot::Sample& ages, Message<SampleField>& sample) {
    Message<AgesField> message(sample, SampleField::kAges);
    message.add_uint32(AgesField::kClassWidthLog2, static_cast<uint32_t>(snapshot_.birth_class_log2));
    if (!ages.born.empty()) {
      const uint32_t first = ages.born.front().birth_class;
      std::vector<int64_t> bytes(ages.born.back().birth_class - first + 1);
      std::vector<int64_t> counts(bytes.size());
      for (const Born& born : ages.born) {
        bytes[born.birth_class - first] = born.bytes;
        counts[born.birth_class - first] = born.objects;
      }
      message.add_uint32(AgesField::kFirstClass, first);
      message.add_packed_int64(AgesField::kBornBytes, bytes.begin(), bytes.end());
      message.add_packed_int64(AgesField::kBornCounts, counts.begin(), counts.end());
    }
    message.add_packed_int64(AgesField::kFreedByOctave, ages.freed_by_octave.begin(), ages.freed_by_octave.end());
  }

  void WriteSamples() {
    int64_t device_key = kNotYet;
    int64_t kind_key = kNotYet;
    int64_t allocator_key = kNotYet;
    const int64_t bytes_key = strings_.Intern("bytes");  // also the unit of a sample type, so it is always in the table
    std::array<int64_t, kMemoryKindCount> kinds;
    kinds.fill(kNotYet);

    const auto write_row = [&](const Row& row, std::string_view location_ids) {
      Message<SampleField> message(profile_, ProfileField::kSample);
      message.add_bytes(SampleField::kLocationId, location_ids.data(), location_ids.size());
      message.add_packed_int64(SampleField::kValue, row.values.begin(), row.values.end());
      if (row.device != 0) WriteTextLabel(message, InternOnce("device", device_key), row.device);
      WriteTextLabel(message, InternOnce("kind", kind_key),
                     InternOnce(MemoryKindName(row.kind), kinds[static_cast<size_t>(row.kind)]));
      if (row.allocator != 0) WriteTextLabel(message, InternOnce("allocator", allocator_key), row.allocator);
      for (const auto& [key, value] : *row.tags) WriteTextLabel(message, strings_.Intern(key), strings_.Intern(value));
      if (const int64_t bytes = MeanBytes(row); bytes != 0) {
        Message<LabelField> label(message, SampleField::kLabel);
        label.add_int64(LabelField::kKey, bytes_key);
        label.add_int64(LabelField::kNum, bytes);
        label.add_int64(LabelField::kNumUnit, bytes_key);
      }
      if (row.ages != nullptr) WriteAges(*row.ages, message);
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
    // The default is the peak if nothing is in use, as at the end of a program, so that viewers do not show an empty
    // profile.
    const bool shows_peak = has_peak_ && !has_inuse_;
    profile_.add_int64(ProfileField::kDefaultSampleType, strings_.Intern(shows_peak ? "peak_space" : "inuse_space"));

    for (const Snapshot::Device& device : snapshot_.devices) {
      for (int i = 0; i < kMemorySpaceCount; ++i) WriteDeviceComment(device, static_cast<MemorySpace>(i));
      for (const PoolStats& pool : device.pools) {
        WriteComment(CommentLine("pool " + CommentValue(pool.name))
                         .Add("device", device.name)
                         .Add("reserved", pool.bytes_reserved)
                         .Add("allocated", pool.bytes_allocated)
                         .Add("idle", pool.idle_bytes)
                         .Add("peak_reserved", pool.peak_bytes_reserved)
                         .Add("peak_allocated", pool.peak_bytes_allocated)
                         .Add("segments", pool.segments));
      }
    }
    const TrackerStats& tracker = snapshot_.tracker;
    CommentLine of_tracker("tracker");
#define HBMPROF_NUMBER(name) of_tracker.Add(#name, tracker.name);
    HBMPROF_TRACKER_STATS(HBMPROF_NUMBER)
#undef HBMPROF_NUMBER
    WriteComment(of_tracker);
    if (!snapshot_.python.version.empty()) WritePythonComment();
    for (const auto& [name, value] : snapshot_.counters) {
      WriteComment(CommentLine("counter " + CommentValue(name)).Add("value", value));
    }
    for (const std::string& warning : snapshot_.warnings) {
      WriteComment(CommentLine("warning").Add("text", warning));
    }
    if (!snapshot_.environment.empty()) {
      CommentLine environment("environment");
      for (const auto& [name, value] : snapshot_.environment) environment.Add(name, value);
      WriteComment(environment);
    }
    CommentLine line("hbmprof");
    line.Add("version", HBMPROF_VERSION_STRING)
        .Add("unwinder", tracker.unwinder)
        .Add("host", snapshot_.host)
        .Add("pid", snapshot_.process_id)
        .Add("time", UtcTime(snapshot_.time_unix_nanos));
    if (snapshot_.uptime_seconds.has_value()) line.Add("uptime", snapshot_.uptime_seconds);
    WriteComment(line);
  }

  void WritePythonComment() {
    const Snapshot::Python& python = snapshot_.python;
    CommentLine line("python");
    line.Add("version", python.version).Add("functions", python.problem.empty() ? "read" : "not_read");
    if (!python.problem.empty()) line.Add("problem", python.problem);
    WriteComment(line);
  }

  // Writes the comment of a memory space that was used, or whose device probe has reported values.
  void WriteDeviceComment(const Snapshot::Device& device, MemorySpace space) {
    const DeviceStats& stats = device.spaces[static_cast<int>(space)];
    const bool probed = stats.bytes_limit.has_value() || stats.driver_bytes_in_use.has_value();
    if (!IsUsed(stats) && !probed) return;
    CommentLine line("device " + CommentValue(device.name));
    line.Add("space", MemorySpaceName(space));
    for (const DeviceStatsField& field : kDeviceStatsFields) {
      const std::optional<int64_t> value = field.value(stats);
      if (field.is_always_shown || (value.has_value() && !field.comment.empty())) line.Add(field.comment, value);
    }
    if (stats.unaccounted.has_value()) line.Add("driver_scope", DriverScopeName(stats.driver_scope));
    WriteComment(line);
  }

  void WriteComment(const CommentLine& line) {
    profile_.add_int64(ProfileField::kComment, strings_.Intern(line.text()));
  }

  const Snapshot& snapshot_;
  Symbolizer* const symbolizer_;
  const size_t max_samples_;
  const ModuleIndex modules_;
  StringTable strings_;
  std::vector<int64_t> devices_;     // label values, by index in the snapshot; kNotYet: no sample uses it
  std::vector<int64_t> allocators_;  // likewise
  std::vector<uint32_t> stack_ids_;  // ids, by index in the snapshot; equal stacks have the same id
  std::vector<Stack> stacks_;        // by id
  const Tags no_tags_;
  std::deque<Tags> written_tags_;       // those that differ from the sample's
  const Snapshot::Stack small_stacks_;  // of the merged rows
  std::vector<Row> rows_;
  std::deque<Snapshot::Sample> sums_of_ages_;  // of merged rows
  std::string packed_ids_;                     // location ids of the stacks, in the encoding of a sample
  std::vector<Location> locations_;            // by id - 1
  IdTable location_ids_;
  std::vector<Function> functions_;  // by id - 1
  IdTable function_ids_;
  std::vector<bool> has_names_;  // by module
  std::string bytes_;
  size_t sample_bytes_ = 0;  // estimate for all samples
  size_t frames_ = 0;        // of the stacks of all samples
  bool has_peak_ = false;    // whether any sample has bytes at the peak
  bool has_inuse_ = false;   // whether any sample has bytes in use
  Message<ProfileField> profile_{bytes_};
};

// The command reads any profile within these limits, however small it is when compressed (profile_reader.cc).
constexpr size_t kMostBytes = size_t{256} << 20;
constexpr size_t kMostFrames = size_t{64} << 20;

// Writes the profile within the limits of `options` and of the command, not compressed.
absl::StatusOr<std::string> WriteWithin(const Snapshot& snapshot, Symbolizer* symbolizer, const PprofOptions& options) {
  const size_t max_bytes = options.max_bytes == 0 ? kMostBytes : std::min(options.max_bytes, kMostBytes);
  size_t max_samples = options.max_samples;
  size_t samples_before = SIZE_MAX;
  while (true) {
    ProfileWriter writer(snapshot, symbolizer, max_samples);
    absl::StatusOr<std::string> profile = writer.Write();
    if (!profile.ok()) return profile;
    const size_t samples = writer.samples();
    if (options.max_samples != 0 && samples > options.max_samples) {
      return absl::InvalidArgumentError("cannot write the profile: PprofOptions::max_samples is " +
                                        std::to_string(options.max_samples) + ", but a sample for each device and " +
                                        "kind of memory makes " + std::to_string(samples));
    }
    const double share =
        std::min(static_cast<double>(max_bytes) / static_cast<double>(profile->size()),
                 static_cast<double>(kMostFrames) / static_cast<double>(std::max<size_t>(writer.frames(), 1)));
    if (share >= 1) return profile;
    if (samples == samples_before || samples <= 1) {
      if (options.max_bytes == 0) return profile;
      return absl::InvalidArgumentError("cannot write the profile: PprofOptions::max_bytes is " +
                                        std::to_string(options.max_bytes) + ", but a profile with the fewest samples " +
                                        "has " + std::to_string(profile->size()) + " bytes");
    }
    samples_before = samples;
    // Some of the bytes do not depend on the number of samples, so this can need several rounds.
    max_samples = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(samples) * 0.9 * share));
  }
}

}  // namespace
}  // namespace internal

absl::StatusOr<std::string> SerializePprof(const Snapshot& snapshot, Symbolizer* symbolizer,
                                           const PprofOptions& options) {
  try {
    if (absl::Status status = internal::CheckSnapshot(snapshot); !status.ok()) return status;
    const absl::StatusOr<std::string> profile = internal::WriteWithin(snapshot, symbolizer, options);
    return profile.ok() ? internal::Gzip(*profile) : profile.status();
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
