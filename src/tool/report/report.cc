// Makes the data of the page, which report.js describes and shows.
#include "src/tool/report/report.h"

#include "absl/strings/escaping.h"
#include "hbmprof/allocation.h"
#include "src/tool/findings/findings.h"
#include "src/tool/profile/labels.h"
#include "src/tool/profile/own_code.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/timeline.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

// Returns the sentence on the change since `base`; "" if that is null. `type`: the shown sample type.
std::string ChangeSentence(const ProfileSet& profiles, const ProfileSet::File& now, const ProfileSet::File* base,
                           size_t type) {
  if (base == nullptr) return "";
  const SampleType& of = profiles.types()[type];
  const int64_t before = SumOf(profiles, *base, type);
  const int64_t after = SumOf(profiles, now, type);
  const std::string what = of.type.rfind("inuse", 0) == 0 ? "Memory in use" : of.type;
  if (before == after) return Cat(what, " did not change: ", FormatValue(after, of.unit), ". ");
  return Cat(what, after > before ? " grew by " : " fell by ", FormatValue(Magnitude(Minus(after, before)), of.unit),
             " to ", FormatValue(after, of.unit), ". ");
}

// JavaScript's numbers are exact up to this limit. No device has more memory.
constexpr int64_t kLargest = int64_t{1} << 53;
int64_t Shown(int64_t value) { return std::min(std::max(value, -kLargest), kLargest); }

Json FileJson(const ProfileSet::File& file) {
  Json json = {{"path", file.path}, {"time", FormatTime(file.time_nanos)}, {"comments", file.comments}};
  Json devices = Json::array();
  for (const ProfileInfo::Device& device : file.info.devices) {
    std::vector<std::pair<std::string, Json>> entries = {{"name", device.name}, {"space", device.space}};
    for (const auto& [key, value] : device.values) {
      if (const auto number = device.Number(key); number.has_value()) entries.emplace_back(key, Shown(*number));
    }
    devices.push_back(ObjectOf(std::move(entries)));
  }
  for (const Comment& tracker : file.info.trackers) {
    for (const char* key : {"dropped_records", "dropped_bytes"}) json[key] = tracker.Number(key).value_or(0);
  }
  json["devices"] = std::move(devices);
  return json;
}

Json UnaccountedJson(const ProfileSet::File& file, const ViewOptions& options) {
  Json list = Json::array();
  for (const UnaccountedMemory& one : UnaccountedOf(file)) {
    const std::string name(one.name);
    if (!WhereKeeps(options, {{kLibraryLabel, name}, {"device", one.device}})) continue;
    list.push_back({one.device, name, Shown(one.bytes)});
  }
  return list;
}

// The tree of all stacks by function. Parents come before their children. The call sites of a function in one caller
// are one node, which keeps the positions of the first few. The tree has at most about kMaxNodes nodes, because the
// stacks of a small profile can have so many that neither this process nor a browser has memory for them.
class StackTree {
 public:
  // Returns the node of a stack, or NodeOfRest if there is no room for it. The arguments `profiles` and `libraries`
  // must be the same in all calls.
  size_t NodeOf(const ProfileSet& profiles, KnownLibraries& libraries, uint32_t stack) {
    const auto [entry, is_new] = nodes_.try_emplace(stack, 0);
    if (!is_new) return entry->second;
    uint32_t node = 0;
    int rank = internal::kOwnRanks;
    size_t length = 0;
    for (const uint64_t* l = profiles.stacks().begin(stack); l != profiles.stacks().end(stack); ++l) {
      for (const KnownFrame& frame : FramesOf(profiles, libraries, *l)) {
        rank = std::min(rank, internal::OwnRank(frame.role));
        ++length;
      }
    }
    if (parents_.size() + length > kMaxNodes) return nodes_[stack] = NodeOfRest();
    for (const uint64_t* l = profiles.stacks().end(stack); l != profiles.stacks().begin(stack);) {
      for (const KnownFrame& frame : FramesOf(profiles, libraries, *--l)) {
        node = ChildOf(node, frame.name, internal::OwnRank(frame.role) == rank ? 0 : 1);
        // Stores one position more than the page shows, so that the page knows that there are more.
        std::vector<std::string>& positions = positions_of_[node];
        if (!frame.position.empty() && positions.size() <= kShownPositions &&
            !absl::c_linear_search(positions, frame.position)) {
          positions.push_back(frame.position);
        }
      }
    }
    if (node == 0) node = ChildOf(0, NumberOf("[no stack]"), 1);
    return nodes_[stack] = node;
  }

  // Returns the node of all stacks that are not listed.
  size_t NodeOfRest() { return ChildOf(0, NumberOf("[other call stacks]"), 0); }

  Json TreeJson() const {
    Json positions = {""};
    Json position_of = Json::array();
    absl::flat_hash_map<std::string, size_t> numbers = {{"", 0}};
    for (const std::vector<std::string>& of_node : positions_of_) {
      std::string text;
      for (size_t i = 0; i < of_node.size() && i < kShownPositions; ++i) text += (i == 0 ? "" : ", ") + of_node[i];
      if (of_node.size() > kShownPositions) text += ", ...";
      const auto [entry, is_new] = numbers.try_emplace(text, positions.size());
      if (is_new) positions.push_back(text);
      position_of.push_back(entry->second);
    }
    return {{"parent", parents_},  {"name", names_of_}, {"position", position_of},
            {"library", library_}, {"names", names_},   {"positions", positions}};
  }

 private:
  static constexpr size_t kMaxNodes = 2'000'000;
  static constexpr size_t kShownPositions = 4;
  struct KnownFrame {
    uint32_t name;
    internal::CodeRole role;
    std::string position;
  };

  // Returns the frames of a location, outermost first.
  const std::vector<KnownFrame>& FramesOf(const ProfileSet& profiles, KnownLibraries& libraries, uint64_t location) {
    const auto [known, is_new] = frames_.try_emplace(location);
    if (!is_new) return known->second;
    const std::vector<ProfileSet::ShownFrame> frames = profiles.ShownLocation(location);
    const std::vector<internal::FrameOwner> owners = libraries.OwnersOf(profiles, location);
    for (size_t f = frames.size(); f-- > 0;) {
      known->second.push_back(
          {NumberOf(internal::OwnName(owners[f], frames[f].name)), owners[f].role, frames[f].Position()});
    }
    return known->second;
  }

  uint32_t NumberOf(const std::string& name) {
    const auto [number, is_new] = name_numbers_.try_emplace(name, static_cast<uint32_t>(names_.size()));
    if (is_new) names_.push_back(name);
    return number->second;
  }

  // Returns the node of a frame below `node`.
  uint32_t ChildOf(uint32_t node, uint32_t name, uint32_t library) {
    const auto next = static_cast<uint32_t>(parents_.size());
    const auto [child, is_new] = children_.try_emplace({node, 2 * name + library}, next);
    if (is_new) {
      parents_.push_back(node);
      names_of_.push_back(name);
      library_.push_back(library);
      positions_of_.emplace_back();
    }
    return child->second;
  }

  absl::flat_hash_map<uint32_t, size_t> nodes_;                    // by stack
  absl::flat_hash_map<uint64_t, std::vector<KnownFrame>> frames_;  // by location
  absl::flat_hash_map<std::string, uint32_t> name_numbers_;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> children_;  // by (parent, 2 * name + library)
  std::vector<uint32_t> parents_{0};
  std::vector<uint32_t> names_of_{0};
  std::vector<uint32_t> library_{1};  // 1: of a known library
  std::vector<std::vector<std::string>> positions_of_{{}};
  std::vector<std::string> names_{"all"};
};

// Adds the stacks of the files to `tree`, those with the largest values first: the tree may have no room for all.
void AddStacks(const ProfileSet& profiles, const std::vector<const ProfileSet::File*>& files, KnownLibraries& libraries,
               StackTree& tree) {
  std::vector<double> shares(profiles.stacks().size());  // the sum of the shares of all sample types
  for (const ProfileSet::File* file : files) {
    for (size_t t = 0; t < profiles.types().size(); ++t) {
      const auto all = static_cast<double>(std::max<int64_t>(Magnitude(SumOf(profiles, *file, t)), 1));
      for (size_t s = 0; s < file->samples.size(); ++s) {
        shares[file->samples[s].stack] += std::abs(static_cast<double>(profiles.Value(*file, s, t))) / all;
      }
    }
  }
  std::vector<uint32_t> order(shares.size());
  absl::c_iota(order, uint32_t{0});
  absl::c_stable_sort(order, [&shares](uint32_t a, uint32_t b) { return shares[a] > shares[b]; });
  for (const uint32_t stack : order) {
    if (shares[stack] > 0) tree.NodeOf(profiles, libraries, stack);
  }
}

// The different sets of labels, without kRecordedSiteLabel.
class LabelSets {
 public:
  // `profiles` must be the same in all calls.
  size_t NumberOf(const ProfileSet& profiles, uint32_t set) {
    const auto [entry, is_new] = numbers_.try_emplace(set, 0);
    if (!is_new) return entry->second;
    std::vector<std::pair<std::string, Json>> labels;
    for (const ProfileSet::Label& label : profiles.labels(set)) {
      const std::string& key = profiles.text(label.key);
      if (key == kRecordedSiteLabel) continue;
      labels.emplace_back(key, label.text != 0 ? Json(profiles.text(label.text)) : Json(Shown(label.number)));
    }
    return entry->second = NumberOf(ObjectOf(std::move(labels)));
  }
  size_t NumberOf(Json labels) {
    const auto [entry, is_new] = by_text_.try_emplace(Compact(labels), sets_.size());
    if (is_new) sets_.push_back(std::move(labels));
    return entry->second;
  }
  Json ToJson() const { return sets_; }

 private:
  absl::flat_hash_map<uint32_t, size_t> numbers_;
  absl::flat_hash_map<std::string, size_t> by_text_;
  Json sets_ = Json::array();
};

// Adds to a finding on a call site the course of its values by dump and, if the profiles have ages, the live bytes of
// the last dump by time of birth, from the start of the process.
void AddCourse(const SiteGrowth& site, bool has_ages, Json& finding) {
  finding["course"] = site.values;
  if (!has_ages) return;
  std::vector<int64_t> births(static_cast<size_t>(site.ages.first_class));
  births.insert(births.end(), site.ages.born_bytes.begin(), site.ages.born_bytes.end());
  finding["births"] = births;
}

// Returns `text` with the only {{mark}} in it replaced.
std::string Fill(std::string text, const std::string& mark, std::string_view with) {
  const std::string position = "{{" + mark + "}}";
  return text.replace(text.find(position), position.size(), with);
}

// Adds to `data` the samples of the last dump and of the base by tree node and label set.
void AddSamples(const ProfileSet& profiles, const ProfileSet::File& now, const ProfileSet::File* base,
                KnownLibraries& libraries, StackTree& tree, LabelSets& labels, Json& data) {
  std::vector<const ProfileSet::File*> files = {&now};
  if (base != nullptr) files.push_back(base);
  AddStacks(profiles, files, libraries, tree);
  const size_t width = profiles.types().size();
  struct Values {
    std::vector<int64_t> now;
    std::vector<int64_t> base;
  };
  absl::flat_hash_map<std::pair<size_t, size_t>, size_t> numbers;
  std::vector<std::pair<std::pair<size_t, size_t>, Values>> samples;
  for (const ProfileSet::File* file : files) {
    for (size_t s = 0; s < file->samples.size(); ++s) {
      const std::pair<size_t, size_t> key = {tree.NodeOf(profiles, libraries, file->samples[s].stack),
                                             labels.NumberOf(profiles, file->samples[s].labels)};
      const auto [entry, is_new] = numbers.try_emplace(key, samples.size());
      if (is_new) samples.emplace_back(key, Values{std::vector<int64_t>(width), {}});
      Values& values = samples[entry->second].second;
      if (file == base) values.base.resize(width);
      std::vector<int64_t>& target = file == base ? values.base : values.now;
      for (size_t t = 0; t < width; ++t) target[t] = Shown(target[t] + Shown(profiles.Value(*file, s, t)));
    }
  }
  Json& list = data["samples"] = Json::array();
  for (auto& [key, values] : samples) {
    Json sample = {key.first, key.second, std::move(values.now)};
    if (!values.base.empty()) sample.push_back(std::move(values.base));
    list.push_back(std::move(sample));
  }
}

// Returns the differences between neighbouring values (the first one: from 0), with commas between them.
template <typename Values>
std::string SeriesText(const Values& values) {
  std::string text;
  int64_t last = 0;
  for (const std::optional<int64_t> value : values) {
    absl::StrAppend(&text, text.empty() ? "" : ",", Minus(value.value_or(0), last));
    last = value.value_or(0);
  }
  return text;
}

Json AccountJson(const RecordingTables& tables, const Timeline::Memory& memory) {
  Json json = {{"name", memory.name},
               {"device", tables.names.devices[memory.account / kMemorySpaceCount].name},
               {"space", std::string(MemorySpaceName(MemorySpace(memory.account % kMemorySpaceCount)))},
               {"peak", memory.peak},
               {"low", SeriesText(memory.low)},
               {"high", SeriesText(memory.high)},
               {"in_use", SeriesText(memory.in_use)}};
  if (memory.limit.value_or(0) > 0) json["limit"] = *memory.limit;
  if (memory.peak_instant.has_value()) json["peak_instant"] = *memory.peak_instant;
  if (absl::c_any_of(memory.idle, [](int64_t bytes) { return bytes != 0; })) json["idle"] = SeriesText(memory.idle);
  if (memory.unaccounted.back().has_value()) json["unaccounted"] = SeriesText(memory.unaccounted);
  return json;
}

// Returns the timeline of the recording. `states` has its states; the last one names all sites.
absl::StatusOr<Json> TimelineOf(RecordingReader& recording, const ProfileSet& states, KnownLibraries& libraries,
                                StackTree& tree, LabelSets& labels) {
  constexpr size_t kInstants = 1000;
  constexpr size_t kMostBands = 600;  // of all devices together
  const RecordingTables& tables = recording.tables();
  std::vector<std::pair<size_t, size_t>> groups;  // node and label set
  std::map<std::pair<size_t, size_t>, size_t> numbers;
  std::vector<std::optional<size_t>> group_of(SiteTotals(tables).row_count());
  for (const ProfileSet::Sample& sample : states.files().back().samples) {
    size_t site = group_of.size();
    if (!absl::SimpleAtoi(states.LabelText(sample.labels, kRecordedSiteLabel), &site) || site >= group_of.size()) {
      continue;
    }
    groups.emplace_back(tree.NodeOf(states, libraries, sample.stack), labels.NumberOf(states, sample.labels));
    group_of[site] = numbers.try_emplace(groups.back(), groups.size() - 1).first->second;
  }
  TimelineOptions options;
  options.intervals = kInstants;
  options.group_of = [&group_of](uint32_t row) { return group_of[row]; };
  options.max_bands = kMostBands / std::max<size_t>(1, tables.names.devices.size());
  ASSIGN_OR_RETURN(const Timeline timeline, MakeTimeline(recording, options));

  Json json = {{"problem", recording.problem()}, {"times", SeriesText(timeline.times)}};
  Json accounts = Json::array();
  Json rows = Json::array();
  for (const Timeline::Memory& memory : timeline.memories) {
    accounts.push_back(AccountJson(tables, memory));
    Json of_rest = {{"device", accounts.back()["device"]}};
    // The kinds of the other two spaces have their names.
    if (memory.account % kMemorySpaceCount != 0) of_rest["kind"] = accounts.back()["space"];
    for (const Timeline::Band& band : memory.bands) {
      const auto [node, label_set] =
          band.group.has_value() ? groups[*band.group] : std::pair(tree.NodeOfRest(), labels.NumberOf(Json(of_rest)));
      rows.push_back({node, label_set, SeriesText(band.values)});
    }
  }
  json["accounts"] = std::move(accounts);
  json["rows"] = std::move(rows);
  if (timeline.host.back().has_value()) json["host"] = SeriesText(timeline.host);
  Json& marks = json["marks"] = Json::array();
  for (const Timeline::Mark& mark : timeline.marks) {
    const bool is_failed = mark.kind == Timeline::MarkKind::kFailed;
    if (!mark.instant.has_value()) continue;
    const std::string text = is_failed ? Cat("an allocation of ", Bytes(mark.bytes), " failed") : mark.name;
    marks.push_back({{"instant", *mark.instant}, {"failed", is_failed}, {"text", text}});
  }
  constexpr size_t kMostLost = 100;
  Json& lost = json["lost"] = Json::array();
  for (const LostEvents& events : recording.lost()) {
    if (lost.size() == kMostLost) break;
    lost.push_back({Minus(events.from, tables.start_time), Minus(events.to, tables.start_time), events.count});
  }
  return json;
}

std::string PageOf(const Json& data) {
  // As a content security policy contains a hash.
  const auto base64 = [](const char* hex) { return absl::Base64Escape(absl::HexStringToBytes(hex)); };
  std::string page = Fill(Fill(kReportHtml, "css", kReportCss), "js", kReportJs);
  page = Fill(Fill(page, "css_hash", base64(kReportCssSha256)), "js_hash", base64(kReportJsSha256));
  // Last, so that no mark in the data is replaced. Nothing in it ends the script element or begins a comment.
  return Fill(page, "data", absl::StrReplaceAll(Compact(data), {{"<", "\\u003c"}}));
}

// Returns what the page says of the profiles: their types and files, and the base of the comparison.
Json HeadJson(const ProfileSet& profiles, const std::vector<size_t>& shown, const ProfileSet::File* base, size_t type,
              bool own) {
  Json data = {{"default_type", type}, {"own", own}};
  Json& types = data["types"] = Json::array();
  for (const SampleType& one : profiles.types()) types.push_back({{"type", one.type}, {"unit", one.unit}});
  Json& files = data["files"] = Json::array();
  for (const size_t f : shown) files.push_back(FileJson(profiles.files()[f]));
  if (base != nullptr) data["base"] = {{"path", base->path}, {"time", FormatTime(base->time_nanos)}};
  return data;
}

}  // namespace

absl::StatusOr<std::string> ReportPage(ProfileSet profiles, RecordingReader* recording, const ViewOptions& options,
                                       const std::string& per) {
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(options.known));
  LabelLibraries(libraries, profiles);
  RETURN_IF_ERROR(ApplyFilters("report", options, profiles));
  RETURN_IF_ERROR(profiles.CheckTextOfStacks());
  ASSIGN_OR_RETURN(const size_t type, profiles.TypeNamed(""));
  std::string counter = per;
  ASSIGN_OR_RETURN(const DumpSeries series, OrderToJudge(profiles, &counter));

  const ProfileSet::File& now = profiles.files()[series.files.back()];
  const ProfileSet::File* const base = series.files.size() < 2 ? nullptr : &profiles.files()[series.files.front()];
  // The states of a recording are one file.
  const std::vector<size_t> shown = recording != nullptr ? std::vector<size_t>{series.files.back()} : series.files;
  Json data = HeadJson(profiles, shown, base, type, options.own);
  data["unaccounted"] = UnaccountedJson(now, options);
  if (base != nullptr) data["base"]["unaccounted"] = UnaccountedJson(*base, options);
  // The page shows the samples with and without frames of known libraries. Growth is judged in only one of these views.
  StackTree tree;
  LabelSets labels;
  AddSamples(profiles, now, base, libraries, tree, labels, data);
  if (recording != nullptr) {
    ASSIGN_OR_RETURN(data["timeline"], TimelineOf(*recording, profiles, libraries, tree, labels));
  }
  data["label_sets"] = labels.ToJson();
  data["tree"] = tree.TreeJson();
  if (options.own) AttributeToOwnCode(libraries, profiles);
  std::vector<std::string> sources;
  for (const size_t f : shown) sources.push_back(profiles.files()[f].path);
  const Findings found = FindingsOf(profiles, series, type, {now.path, SourcesText(sources), counter});
  data["verdict"] = Cat(ChangeSentence(profiles, now, base, type), HeadText(found));
  Json& findings = data["findings"] = Json::array();
  for (const Finding& finding : found.findings) {
    if (finding.is_minor) continue;
    findings.push_back(FindingJson(finding, findings.size() + 1));
    const auto site = absl::c_find_if(found.sites, [&](const SiteGrowth& one) { return finding.stack == one.stack; });
    if (site != found.sites.end()) AddCourse(*site, series.has_ages, findings.back());
  }
  data["trust"] = Cat(findings.empty() ? Cat(NoFindingText(found.not_judged.empty()), ". ") : "", TrustText(found));
  return PageOf(data);
}

}  // namespace hbmprof::tool
