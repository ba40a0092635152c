// Makes the data of the page, which report.js describes and shows.
#include "src/tool/report/report.h"

#include <tuple>

#include "absl/strings/escaping.h"
#include "hbmprof/allocation.h"
#include "src/tool/profile/labels.h"
#include "src/tool/recording/instant.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/timeline.h"

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

// Returns nothing if labels select the samples: this memory has none.
Json UnaccountedJson(const ProfileSet::File& file, const ViewOptions& options) {
  Json list = Json::array();
  if (!options.where.empty()) return list;
  for (const UnaccountedMemory& one : UnaccountedOf(file)) {
    list.push_back({one.device, std::string(one.name), Shown(one.bytes)});
  }
  return list;
}

// The call stacks of the page: lists of frames, outermost first. They have at most kMostFrames frames together, because
// the stacks of a small profile can have so many that neither this process nor a browser has memory for them.
class PageStacks {
 public:
  PageStacks(const ProfileSet& profiles, KnownLibraries& libraries) : profiles_(profiles), libraries_(libraries) {}

  // Returns the number of a stack of the profiles, or NumberOfRest if there is no room for it.
  size_t NumberOf(uint32_t stack) {
    const auto [entry, is_new] = numbers_.try_emplace(stack, 0);
    if (!is_new) return entry->second;
    std::vector<uint64_t> frames;
    const std::vector<uint64_t>& locations = profiles_.stacks()[stack];
    for (auto l = locations.rbegin(); l != locations.rend(); ++l) {
      const std::vector<uint64_t>& of_location = FramesOf(*l);
      frames.insert(frames.end(), of_location.begin(), of_location.end());
    }
    if (frames.empty()) frames = {NumberOfFrame("[no stack]", "", 0)};
    if (frame_count_ + frames.size() > kMostFrames) return entry->second = NumberOfRest();
    frame_count_ += frames.size();
    return entry->second = stacks_.Number(frames);
  }

  // Returns the number of the stack for all that are not listed.
  size_t NumberOfRest() { return stacks_.Number({NumberOfFrame("[other call stacks]", "", 0)}); }

  Json FramesJson() const { return frames_; }
  Json StacksJson() const {
    Json json = Json::array();
    for (uint32_t i = 0; i < stacks_.size(); ++i) json.push_back(stacks_[i]);
    return json;
  }

 private:
  static constexpr size_t kMostFrames = 2'000'000;

  // Returns the frames of a location, outermost first.
  const std::vector<uint64_t>& FramesOf(uint64_t location) {
    const auto [known, is_new] = of_location_.try_emplace(location);
    if (!is_new) return known->second;
    const std::vector<ProfileSet::ShownFrame> frames = profiles_.ShownLocation(location);
    const std::vector<internal::FrameOwner> owners = libraries_.OwnersOf(profiles_, location);
    for (size_t f = frames.size(); f-- > 0;) {
      known->second.push_back(NumberOfFrame(internal::OwnName(owners[f], frames[f].name), frames[f].Position(),
                                            internal::OwnRank(owners[f].role)));
    }
    return known->second;
  }
  uint64_t NumberOfFrame(const std::string& name, const std::string& position, int rank) {
    const auto [number, is_new] = frame_numbers_.try_emplace({name, position, rank}, frames_.size());
    if (is_new) frames_.push_back({name, position, rank});
    return number->second;
  }

  const ProfileSet& profiles_;
  KnownLibraries& libraries_;
  absl::flat_hash_map<uint32_t, size_t> numbers_;                     // by stack of the profiles
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> of_location_;  // numbers of frames
  absl::flat_hash_map<std::tuple<std::string, std::string, int>, uint64_t> frame_numbers_;
  Json frames_ = Json::array();
  NumberedLists<uint64_t> stacks_;
  size_t frame_count_ = 0;
};

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

// Adds to `data` the samples of the last dump and of the base by stack and label set. `type`: the stacks with the most
// of it come first, because there may be no room for all.
void AddSamples(const ProfileSet& profiles, const ProfileSet::File& now, const ProfileSet::File* base, size_t type,
                PageStacks& stacks, LabelSets& labels, Json& data) {
  std::vector<const ProfileSet::File*> files = {&now};
  if (base != nullptr) files.push_back(base);
  std::vector<std::pair<int64_t, uint32_t>> order;
  for (const ProfileSet::File* file : files) {
    for (size_t s = 0; s < file->samples.size(); ++s) {
      order.emplace_back(-Magnitude(profiles.Value(*file, s, type)), file->samples[s].stack);
    }
  }
  absl::c_sort(order);
  for (const auto& [value, stack] : order) stacks.NumberOf(stack);
  const size_t width = profiles.types().size();
  struct Values {
    std::vector<int64_t> now;
    std::vector<int64_t> base;
  };
  absl::flat_hash_map<std::pair<size_t, size_t>, size_t> numbers;
  std::vector<std::pair<std::pair<size_t, size_t>, Values>> samples;
  for (const ProfileSet::File* file : files) {
    for (size_t s = 0; s < file->samples.size(); ++s) {
      const std::pair<size_t, size_t> key = {stacks.NumberOf(file->samples[s].stack),
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
absl::StatusOr<Json> TimelineOf(RecordingReader& recording, const ProfileSet& states, PageStacks& stacks,
                                LabelSets& labels) {
  constexpr size_t kInstants = 1000;
  constexpr size_t kMostBands = 600;  // of all devices together
  const RecordingTables& tables = recording.tables();
  std::vector<std::pair<size_t, size_t>> groups;  // stack and label set
  std::map<std::pair<size_t, size_t>, size_t> numbers;
  std::vector<std::optional<size_t>> group_of(SiteTotals(tables).row_count());
  for (const ProfileSet::Sample& sample : states.files().back().samples) {
    size_t site = group_of.size();
    if (!absl::SimpleAtoi(states.LabelText(sample.labels, kRecordedSiteLabel), &site) || site >= group_of.size()) {
      continue;
    }
    groups.emplace_back(stacks.NumberOf(sample.stack), labels.NumberOf(states, sample.labels));
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
      const auto [stack, label_set] = band.group.has_value()
                                          ? groups[*band.group]
                                          : std::pair(stacks.NumberOfRest(), labels.NumberOf(Json(of_rest)));
      rows.push_back({stack, label_set, SeriesText(band.values)});
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

absl::StatusOr<std::string> ReportPage(ProfileSet profiles, Subject subject, RecordingReader* recording,
                                       const ViewOptions& options, const std::string& per) {
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(options.known));
  LabelLibraries(libraries, profiles);
  RETURN_IF_ERROR(ApplyFilters("report", options, profiles));
  RETURN_IF_ERROR(profiles.CheckTextOfStacks());
  ASSIGN_OR_RETURN(const size_t type, profiles.TypeNamed(""));
  subject.counter = per;
  ASSIGN_OR_RETURN(const DumpSeries series, OrderToJudge(profiles, &subject.counter));

  const ProfileSet::File& now = profiles.files()[series.files.back()];
  const ProfileSet::File* const base = series.files.size() < 2 ? nullptr : &profiles.files()[series.files.front()];
  // The states of a recording are one file.
  const std::vector<size_t> shown = recording != nullptr ? std::vector<size_t>{series.files.back()} : series.files;
  Json data = HeadJson(profiles, shown, base, type, options.own);
  data["unaccounted"] = UnaccountedJson(now, options);
  if (base != nullptr) data["base"]["unaccounted"] = UnaccountedJson(*base, options);
  // The page shows the samples with and without frames of known libraries. Growth is judged in only one of these views.
  PageStacks stacks(profiles, libraries);
  LabelSets labels;
  AddSamples(profiles, now, base, type, stacks, labels, data);
  if (recording != nullptr) {
    ASSIGN_OR_RETURN(data["timeline"], TimelineOf(*recording, profiles, stacks, labels));
  }
  data["label_sets"] = labels.ToJson();
  data["frames"] = stacks.FramesJson();
  data["stacks"] = stacks.StacksJson();
  if (options.own) AttributeToOwnCode(libraries, profiles);
  ApplyViewAtFailure("report", options, subject);
  // The page of a program that has freed all shows its peak.
  const Findings found = FindingsOf(profiles, series, profiles.FindType("inuse_space").value_or(type), subject);
  data["verdict"] = Cat(ChangeSentence(profiles, now, base, type), HeadText(found));
  data.update(PageJson(found));
  size_t number = 0;
  for (const Finding& finding : found.findings) {
    if (finding.is_minor) continue;
    Json& shown = data["findings"][number++];
    const auto site = absl::c_find_if(found.sites, [&](const SiteGrowth& one) {
      return finding.stack == one.stack && (finding.memory.empty() || finding.memory == one.memory);
    });
    if (site != found.sites.end()) AddCourse(*site, series.has_ages, shown);
  }
  return PageOf(data);
}

}  // namespace hbmprof::tool
