// Tables for engines that analyse data (DuckDB, Spark, ClickHouse, pandas), as CSV (RFC 4180) with a line of names: the
// events of a recording, and the samples of profiles, one row each. docs/tables.md describes the columns.

#include <array>

#include "absl/strings/str_cat.h"
#include "src/tool/convert/format.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

// Rows as text. Their cells must be added in the order of the columns.
class TableRow {
 public:
  void Number(std::optional<int64_t> value) {
    Begin();
    if (value.has_value()) absl::StrAppend(&text_, *value);
  }
  void Text(std::string_view value) {
    const std::string visible = Visible(value);
    const bool is_plain = visible.find_first_of(",\"") == std::string::npos;
    Plain(is_plain ? visible : Cat("\"", absl::StrReplaceAll(visible, {{"\"", "\"\""}}), "\""));
  }
  // Letters, digits and the characters of times only.
  void Plain(std::string_view value) {
    Begin();
    text_ += value;
  }
  void Missing(int count = 1) {
    for (int i = 0; i < count; ++i) Begin();
  }
  // Adds cells: the text() of another row.
  void Cells(std::string_view cells) { Plain(cells); }
  std::string_view text() const { return text_; }
  // Writes the row. After that, the object is an empty row.
  absl::Status End(FileOutput& output) {
    text_ += "\n";
    const absl::Status status = output.Append(text_);
    text_.clear();
    is_empty_ = true;
    return status;
  }

 private:
  void Begin() {
    if (!std::exchange(is_empty_, false)) text_ += ',';
  }

  bool is_empty_ = true;
  std::string text_;
};

const char* NameOf(RecordedKind kind) {
  constexpr const char* kNames[] = {"alloc", "free", "move_from", "move_to", "failed", "tags", "reset_peak", "mark"};
  static_assert(std::size(kNames) == internal::kRecordedKinds);
  return kNames[static_cast<size_t>(kind)];
}

// Times as text with microseconds. The text of a second is made once for all events in it.
class TimeTexts {
 public:
  explicit TimeTexts(int64_t unix_of_zero) : unix_of_zero_(unix_of_zero) {}

  // The text is valid until the next call.
  std::string_view Of(int64_t time) {
    constexpr int64_t kSecond = 1000000000;
    const int64_t nanos = std::max<int64_t>(0, Plus(time, unix_of_zero_));
    if (nanos / kSecond != second_) {
      second_ = nanos / kSecond;
      text_ = FormatTime(second_ * kSecond);
      text_.resize(std::max<size_t>(text_.size(), 1));
      text_.replace(text_.size() - 1, 1, ".000000Z");
    }
    int64_t micros = nanos % kSecond / 1000;
    for (size_t i = 2; i <= 7; ++i, micros /= 10) text_[text_.size() - i] = static_cast<char>('0' + micros % 10);
    return text_;
  }

 private:
  const int64_t unix_of_zero_;
  int64_t second_ = -1;
  std::string text_;
};

std::string TagsAsJson(const std::vector<std::pair<std::string, std::string>>& tags) {
  return Compact(ObjectOf({tags.begin(), tags.end()}));
}

absl::Status WriteColumnNames(const std::vector<std::string>& columns, FileOutput& output) {
  TableRow row;
  for (const std::string& column : columns) row.Text(column);
  return row.End(output);
}

// The events and the samples of a recording. Memory: that of the reader.
class EventTable : RecordingConverter {
 public:
  using RecordingConverter::RecordingConverter;

  absl::Status Write() {
    RETURN_IF_ERROR(WriteColumnNames({"time_ns", "time", "event", "bytes", "change", "in_use", "id", "thread", "device",
                                      "space", "kind", "site", "allocator", "pool", "name", "tags", "host", "process"},
                                     output_));
    RecordedEvent event;
    while (cursor_.Next(&event)) {
      RETURN_IF_ERROR(WriteSamples(Minus(event.time, 1)));
      RETURN_IF_ERROR(WriteEvent(event));
    }
    return WriteSamples(INT64_MAX);
  }

 private:
  absl::Status WriteEvent(const RecordedEvent& event) {
    totals_.Apply(event);
    Start(event.time, NameOf(event.kind));
    const bool has_site = event.site < of_sites_.size();
    const bool is_failed = event.kind == RecordedKind::kFailed;
    std::optional<size_t> account;
    if (has_site) account = totals_.account_of(event.site);
    if (!has_site && (is_failed || event.kind == RecordedKind::kResetPeak)) account = static_cast<size_t>(event.id);
    row_.Number(has_site || is_failed ? std::optional(event.bytes) : std::nullopt);
    row_.Number(has_site ? std::optional(SiteTotals::ChangeOf(event)) : std::nullopt);
    row_.Number(account.has_value() ? std::optional(totals_.account(*account).in_use) : std::nullopt);
    const bool has_id = has_site && !is_failed;
    has_id ? row_.Plain(absl::StrCat("0x", absl::Hex(event.id))) : row_.Missing();
    row_.Number(tables_.threads[event.thread].id);
    if (has_site) {
      row_.Cells(OfSite(event.site));
    } else {
      const bool is_tags = event.kind == RecordedKind::kTags;
      EndRow(account, event.kind == RecordedKind::kMark ? tables_.marks[event.id].name : std::string(),
             is_tags ? TagsAsJson(tables_.tag_sets[event.id]) : "{}");
    }
    return row_.End(output_);
  }

  absl::Status WriteSamples(int64_t until) {
    while (const DriverSample* sample = cursor_.NextSample(until)) {
      for (const DriverSample::Device& device : sample->devices) {
        const size_t account = size_t{device.device} * kMemorySpaceCount;
        for (const auto& [name, value] :
             {std::pair("driver_in_use", device.bytes_in_use), std::pair("driver_free", device.bytes_free),
              std::pair("driver_limit", device.bytes_limit),
              std::pair("driver_largest_free", device.largest_free_block_bytes),
              std::pair("driver_cache", device.cache_bytes)}) {
          RETURN_IF_ERROR(WriteValue(sample->time, name, value, account, ""));
        }
      }
      RETURN_IF_ERROR(WriteValue(sample->time, "host_resident", sample->host_resident_bytes, std::nullopt, ""));
      for (const auto& [name, value] : sample->counters) {
        RETURN_IF_ERROR(WriteValue(sample->time, "counter", value, std::nullopt, name));
      }
    }
    return absl::OkStatus();
  }

  void Start(int64_t time, std::string_view name) {
    row_.Number(Minus(time, tables_.start_time));
    row_.Plain(times_.Of(time));
    row_.Plain(name);
  }

  // The cells from the device on depend on the site only. They are made at its first event.
  const std::string& OfSite(uint32_t number) {
    std::string& cells = of_sites_[number];
    if (!cells.empty()) return cells;
    const Snapshot::Sample& site = tables_.sites[number];
    TableRow row;
    row.Text(tables_.names.devices[site.device].name);
    row.Text(MemorySpaceName(SpaceOf(site.kind)));
    row.Text(MemoryKindName(site.kind));
    row.Number(number);
    row.Text(tables_.names.allocators[site.allocator]);
    tables_.IsOfPool(number) ? row.Text(tables_.names.allocators[tables_.site_pools[number] - 1]) : row.Missing();
    row.Text(stacks_.own_frame(site.stack).name);
    row.Text(TagsAsJson(site.tags));
    row.Text(tables_.names.host);
    row.Number(tables_.names.process_id);
    cells = row.text();
    return cells;
  }

  void EndRow(std::optional<size_t> account, const std::string& name, const std::string& tags) {
    if (account.has_value()) {
      row_.Text(tables_.names.devices[*account / kMemorySpaceCount].name);
      row_.Text(MemorySpaceName(MemorySpace(*account % kMemorySpaceCount)));
    } else {
      row_.Missing(2);
    }
    row_.Missing(4);  // kind, site, allocator, pool
    name.empty() ? row_.Missing() : row_.Text(name);
    row_.Text(tags);
    row_.Text(tables_.names.host);
    row_.Number(tables_.names.process_id);
  }

  absl::Status WriteValue(int64_t time, const char* event, std::optional<int64_t> value, std::optional<size_t> account,
                          const std::string& name) {
    if (!value.has_value()) return absl::OkStatus();
    Start(time, event);
    row_.Number(value);
    row_.Missing(4);  // change, in_use, id, thread
    EndRow(account, name, "{}");
    return row_.End(output_);
  }

  TableRow row_;
  TimeTexts times_{Minus(tables_.start_unix_nanos, tables_.start_time)};
  std::vector<std::string> of_sites_ = std::vector<std::string>(tables_.sites.size());
};

constexpr std::array<std::string_view, 3> kLabelColumns = {"device", "kind", "allocator"};

// Makes the text of each location only once, although the location can be in many stacks.
class LocationTexts {
 public:
  explicit LocationTexts(const ProfileSet& profiles) : profiles_(profiles), texts_(profiles.locations().size()) {}

  // Returns the names of the frames, outermost first, each after a ";".
  std::string OfStack(uint32_t stack) {
    std::string text;
    const uint64_t* const begin = profiles_.stacks().begin(stack);
    for (const uint64_t* location = profiles_.stacks().end(stack); location != begin;) text += Of(*--location);
    return text;
  }

 private:
  const std::string& Of(uint64_t location) {
    std::string& text = texts_[location];
    if (!text.empty()) return text;
    std::vector<ProfileSet::ShownFrame> frames = profiles_.ShownLocation(location);
    absl::c_reverse(frames);
    for (const ProfileSet::ShownFrame& frame : frames) {
      std::string name = Visible(frame.name);
      absl::c_replace(name, ';', ':');
      text += ";" + name;
    }
    return text;
  }

  const ProfileSet& profiles_;
  std::vector<std::string> texts_;  // by location
};

class SampleTable {
 public:
  explicit SampleTable(FileOutput& output) : output_(output) {}

  absl::Status WriteFile(const ProfileSet& profiles) {
    if (types_.empty()) RETURN_IF_ERROR(WriteHeader(profiles));
    absl::flat_hash_map<std::string_view, size_t> type_numbers;
    for (size_t i = 0; i < profiles.types().size(); ++i) type_numbers.try_emplace(profiles.types()[i].type, i);
    std::vector<std::optional<size_t>> types;
    for (const std::string& type : types_) {
      const auto found = type_numbers.find(type);
      types.push_back(found == type_numbers.end() ? std::nullopt : std::optional(found->second));
    }
    const ProfileSet::File& file = profiles.files()[0];
    if (absl::c_none_of(types, [](const auto& type) { return type.has_value(); })) {
      return InvalidArgument(file.path, ": has none of the sample types of the first profile");
    }
    const std::string of_file = FileCells(file);
    LocationTexts frames(profiles);
    TableRow row;
    for (size_t s = 0; s < file.samples.size(); ++s) {
      row.Cells(of_file);
      RETURN_IF_ERROR(WriteSample(profiles, file, s, types, frames, row));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteHeader(const ProfileSet& profiles) {
    std::vector<std::string> columns = {"file", "time", "host", "process"};
    columns.insert(columns.end(), kLabelColumns.begin(), kLabelColumns.end());
    columns.insert(columns.end(), {"name", "where", "stack", "labels"});
    for (const SampleType& type : profiles.types()) types_.push_back(type.type);
    columns.insert(columns.end(), types_.begin(), types_.end());
    return WriteColumnNames(columns, output_);
  }

  static std::string FileCells(const ProfileSet::File& file) {
    TableRow row;
    row.Text(file.path);
    file.time_nanos == 0 ? row.Missing() : row.Text(TimeTexts(0).Of(file.time_nanos));
    std::string host;
    std::optional<int64_t> process;
    for (const Comment& writer : file.info.processes) {
      host = writer.Text("host", host);
      process = writer.Number("pid");
    }
    row.Text(host);
    row.Number(process);
    return std::string(row.text());
  }

  absl::Status WriteSample(const ProfileSet& profiles, const ProfileSet::File& file, size_t number,
                           const std::vector<std::optional<size_t>>& types, LocationTexts& frames, TableRow& row) {
    const ProfileSet::Sample& sample = file.samples[number];
    for (const std::string_view label : kLabelColumns) row.Text(profiles.LabelText(sample.labels, label));
    const std::string stack = frames.OfStack(sample.stack);
    ProfileSet::ShownFrame innermost;
    if (!stack.empty()) innermost = profiles.ShownLocation(*profiles.stacks().begin(sample.stack))[0];
    row.Text(innermost.name);
    row.Text(innermost.Position());
    row.Text(stack.empty() ? "" : std::string_view(stack).substr(1));
    row.Text(LabelsOf(profiles, sample.labels));
    for (const std::optional<size_t>& type : types) {
      row.Number(type.has_value() ? std::optional(profiles.Value(file, number, *type)) : std::nullopt);
    }
    return row.End(output_);
  }

  static std::string LabelsOf(const ProfileSet& profiles, uint32_t labels) {
    std::map<std::string, Json> values;
    for (const ProfileSet::Label& label : profiles.labels(labels)) {
      const std::string& key = profiles.text(label.key);
      if (absl::c_linear_search(kLabelColumns, key)) continue;
      values[key] = label.text != 0 ? Json(profiles.text(label.text)) : Json(label.number);
    }
    return Compact(values);
  }

  FileOutput& output_;
  std::vector<std::string> types_;
};

// Writes the samples of the profiles. Memory: that of one profile. Errors: also kInvalidArgument if a profile has none
// of the sample types of the first one.
absl::Status WriteSampleTable(const std::vector<std::string>& files, const ViewOptions& options, FileOutput& output) {
  SampleTable table(output);
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles({file}));
    RETURN_IF_ERROR(ApplyView("convert", options, profiles));
    RETURN_IF_ERROR(profiles.CheckTextOfStacks());
    RETURN_IF_ERROR(table.WriteFile(profiles));
  }
  return absl::OkStatus();
}

}  // namespace

const Format kCsvFormat = {"csv", &WriteWith<EventTable>, &WriteSampleTable};

}  // namespace hbmprof::tool
