// Tables for engines that analyse data (DuckDB, Spark, ClickHouse, pandas), as CSV (RFC 4180) with a line of names: the
// events of a recording, and the samples of profiles, one row each. docs/tables.md describes the columns.

#include <array>

#include "absl/strings/str_cat.h"
#include "src/tool/convert/format.h"
#include "src/tool/source/profile_source.h"

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
  // Letters and digits only, or the text() of another row.
  void Plain(std::string_view value) {
    Begin();
    text_ += value;
  }
  void Missing(int count = 1) {
    for (int i = 0; i < count; ++i) Begin();
  }
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
    RETURN_IF_ERROR(
        WriteColumnNames({"time_ns", "unix_ns", "event", "bytes", "change", "in_use", "id", "thread", "device", "space",
                          "kind", "site", "allocator", "pool", "name", "tags", "host", "process"},
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
      row_.Plain(OfSite(event.site));
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
        for (const auto& [name, number] : kDriverNumbers) {
          RETURN_IF_ERROR(WriteValue(sample->time, name, device.*number, account, ""));
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
    row_.Number(Plus(time, unix_of_zero_));
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
  const int64_t unix_of_zero_ = Minus(tables_.start_unix_nanos, tables_.start_time);
  std::vector<std::string> of_sites_ = std::vector<std::string>(tables_.sites.size());
};

constexpr std::array<std::string_view, 3> kLabelColumns = {"device", "kind", "allocator"};

class SampleTable {
 public:
  explicit SampleTable(FileOutput& output) : output_(output) {}

  absl::Status WriteFile(const ProfileSet& profiles) {
    if (types_.empty()) RETURN_IF_ERROR(WriteHeader(profiles));
    std::vector<std::optional<size_t>> types;
    absl::flat_hash_map<std::string_view, size_t> type_numbers;
    for (size_t i = 0; i < profiles.types().size(); ++i) type_numbers.try_emplace(profiles.types()[i].type, i);
    for (const std::string& type : types_) {
      const auto found = type_numbers.find(type);
      types.push_back(found == type_numbers.end() ? std::nullopt : std::optional(found->second));
    }
    const ProfileSet::File& file = profiles.files()[0];
    if (absl::c_none_of(types, [](const auto& type) { return type.has_value(); })) {
      return InvalidArgument(file.path, ": has none of the sample types of the first profile");
    }
    of_location_.assign(profiles.locations().size(), "");
    const std::string of_file = FileCells(file);
    TableRow row;
    for (size_t s = 0; s < file.samples.size(); ++s) {
      row.Plain(of_file);
      AddSample(profiles, file.samples[s], row);
      for (const std::optional<size_t>& type : types) {
        row.Number(type.has_value() ? std::optional(profiles.Value(file, s, *type)) : std::nullopt);
      }
      RETURN_IF_ERROR(row.End(output_));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteHeader(const ProfileSet& profiles) {
    std::vector<std::string> columns = {"file", "unix_ns", "host", "process"};
    columns.insert(columns.end(), kLabelColumns.begin(), kLabelColumns.end());
    columns.insert(columns.end(), {"name", "where", "stack", "labels"});
    for (const SampleType& type : profiles.types()) types_.push_back(type.type);
    columns.insert(columns.end(), types_.begin(), types_.end());
    return WriteColumnNames(columns, output_);
  }

  static std::string FileCells(const ProfileSet::File& file) {
    TableRow row;
    row.Text(file.path);
    row.Number(file.time_nanos == 0 ? std::nullopt : std::optional(file.time_nanos));
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

  void AddSample(const ProfileSet& profiles, const ProfileSet::Sample& sample, TableRow& row) {
    for (const std::string_view label : kLabelColumns) row.Text(profiles.LabelText(sample.labels, label));
    std::string stack;
    ProfileSet::ShownFrame innermost;
    const std::vector<uint64_t>& locations = profiles.stacks()[sample.stack];
    for (auto l = locations.rbegin(); l != locations.rend(); ++l) stack += LocationText(profiles, *l);
    if (!locations.empty()) innermost = profiles.ShownLocation(locations[0])[0];
    row.Text(innermost.name);
    row.Text(innermost.Position());
    row.Text(std::string_view(stack).substr(locations.empty() ? 0 : 1));
    std::map<std::string, Json> values;
    for (const ProfileSet::Label& label : profiles.labels(sample.labels)) {
      const std::string& key = profiles.text(label.key);
      if (absl::c_linear_search(kLabelColumns, key)) continue;
      values[key] = label.text != 0 ? Json(profiles.text(label.text)) : Json(label.number);
    }
    row.Text(Compact(values));
  }

  // Returns the names of the frames, outermost first, each after a ";". Makes the text of each location only once,
  // although the location can be in many stacks.
  const std::string& LocationText(const ProfileSet& profiles, uint64_t location) {
    std::string& text = of_location_[location];
    if (!text.empty()) return text;
    std::vector<ProfileSet::ShownFrame> frames = profiles.ShownLocation(location);
    absl::c_reverse(frames);
    for (const ProfileSet::ShownFrame& frame : frames) {
      std::string name = Visible(frame.name);
      absl::c_replace(name, ';', ':');
      text += ";" + name;
    }
    return text;
  }

  FileOutput& output_;
  std::vector<std::string> types_;
  std::vector<std::string> of_location_;  // of the profile that is written
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
