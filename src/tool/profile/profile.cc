#include "src/tool/profile/profile.h"

#include <re2/re2.h>

#include <ctime>
#include <filesystem>
#include <set>
#include <tuple>

#include "absl/strings/strip.h"
#include "src/symbolize/demangle.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// Finds the functions that pprof hides because of drop_frames and keep_frames. An expression must match a whole name.
class FrameFilter {
 public:
  FrameFilter(std::string_view drop, std::string_view keep) : drop_(Compile(drop)), keep_(Compile(keep)) {
    // If one of the two expressions is invalid, pprof ignores both.
    if ((drop_ != nullptr && !drop_->ok()) || (keep_ != nullptr && !keep_->ok())) drop_ = nullptr;
  }

  // Decides for each function whether it is hidden. Can be called again after functions were appended. Error:
  // kResourceExhausted if matching takes too long.
  absl::Status Apply(const std::vector<ProfileSet::Function>& functions, const NumberedTexts& strings) {
    const size_t known = dropped_.size();
    dropped_.resize(functions.size());
    if (drop_ == nullptr) return absl::OkStatus();
    for (size_t i = known; i < functions.size(); ++i) {
      // The name up to its parameters, without a dot at the beginning.
      static const RE2 kPlain(R"(^\.?((?:operator\(\)|\(anonymous namespace\)|[^(])*))", RE2::Latin1);
      const std::string& name = strings[functions[i].name];
      std::string plain;
      const std::clock_t start = std::clock();
      if (!Affordable(kPlain, name)) return TooSlow();
      RE2::PartialMatch(name, kPlain, &plain);
      if (plain.empty()) continue;
      if (!Affordable(*drop_, plain) || (keep_ != nullptr && !Affordable(*keep_, plain))) return TooSlow();
      dropped_[i] = RE2::PartialMatch(plain, *drop_) && (keep_ == nullptr || !RE2::PartialMatch(plain, *keep_));
      used_ += std::clock() - start;
      if (used_ > kMaxSeconds * CLOCKS_PER_SEC) return TooSlow();
    }
    return absl::OkStatus();
  }
  bool drops(uint32_t function) const { return dropped_[function]; }

 private:
  // The limit of processor time for all functions. Real expressions take a thousandth of it.
  static constexpr std::clock_t kMaxSeconds = 4;
  // The limit of steps for one function. A match takes at most as many steps as the length of the name times the size
  // of the expression's program.
  static constexpr size_t kMaxSteps = size_t{1} << 26;

  static std::unique_ptr<RE2> Compile(std::string_view expression) {
    if (expression.empty()) return nullptr;
    RE2::Options options;
    options.set_log_errors(false);
    options.set_never_capture(true);
    options.set_max_mem(int64_t{2} << 20);  // larger ones do not compile
    return std::make_unique<RE2>(Cat("^(", expression, ")$"), options);
  }
  static bool Affordable(const RE2& expression, const std::string& text) {
    return text.size() * static_cast<size_t>(std::max(expression.ProgramSize(), 1)) <= kMaxSteps;
  }
  static absl::Status TooSlow() {
    return ResourceExhausted("its drop_frames or keep_frames takes more than ", kMaxSeconds,
                             " s to match with its functions' names, which is the limit");
  }

  std::unique_ptr<RE2> drop_;
  std::unique_ptr<RE2> keep_;
  std::vector<bool> dropped_;  // by function
  std::clock_t used_ = 0;
};

// Returns `name` without the text between `open` and `close`.
std::string WithoutNested(const std::string& name, char open, char close) {
  std::string rest;
  int depth = 0;
  for (const char c : name) {
    if (c == open) ++depth;
    if (depth == 0) rest += c;
    if (c == close && depth > 0) --depth;
  }
  return depth == 0 ? rest : name;
}

// Returns the name that pprof shows for a function.
std::string ShownName(const std::string& name, const std::string& system_name) {
  if (!name.empty() && name != system_name) return name;
  if (system_name.compare(0, 2, "_Z") == 0 || system_name.compare(0, 2, "_R") == 0) {
    return hbmprof::internal::ShortFunctionName(system_name.c_str());
  }
  const bool is_cpp =
      system_name.find(".<") == std::string::npos &&
      (system_name.find_first_of("<>[]") != std::string::npos || system_name.find("::") != std::string::npos);
  const std::string short_name = is_cpp ? WithoutNested(WithoutNested(system_name, '(', ')'), '<', '>') : "";
  return short_name.empty() ? system_name : short_name;  // "<module>" of Python is a whole name
}

}  // namespace

uint32_t ProfileSet::LabelSetOf(std::vector<Label> labels) {
  absl::c_sort(labels, [](const Label& a, const Label& b) {
    return std::tie(a.key, a.text, a.number, a.unit) < std::tie(b.key, b.text, b.number, b.unit);
  });
  std::vector<uint64_t> key;
  for (const Label& label : labels) {
    key.insert(key.end(), {label.key, label.text, static_cast<uint64_t>(label.number), label.unit});
  }
  const uint32_t number = label_keys_.Number(key);
  if (number == label_sets_.size()) label_sets_.push_back(std::move(labels));
  return number;
}

class ProfileSet::Adder {
 public:
  Adder(ProfileSet& set, const RawProfile& raw, FrameFilter& filter)
      : set_(set), raw_(raw), message_(raw.message()), filter_(filter) {}

  // Error: kResourceExhausted, without the path.
  absl::Status Add(const std::string& path) {
    strings_.assign(static_cast<size_t>(message_.string_table_size()), kNone);
    AddFunctions();
    RETURN_IF_ERROR(filter_.Apply(set_.functions_, set_.strings_));
    AddLocations();
    // Every command visits the frames and labels of every sample. A file stores a location (which can have many lines)
    // and a text once, but many samples can use it. So the size of the file does not limit the work, and these limits
    // are needed. Real profiles are far below them.
    const size_t bytes = message_.ByteSizeLong();
    const size_t max_frames = kMinFrames + 2 * bytes;
    const size_t max_label_bytes = kMinLabelBytes + 4 * bytes;
    size_t frames = 0;
    size_t label_bytes = 0;
    File file;
    file.path = path;
    file.time_nanos = message_.time_nanos();
    for (const int64_t comment : message_.comment()) {
      file.comments.emplace_back(raw_.text(comment));
      file.info.Add(file.comments.back());
    }
    file.is_injected = absl::c_any_of(message_.mapping(), [this](const pprof::Mapping& mapping) {
      return raw_.text(mapping.filename()).find("libhbmprof_gpu.so") != std::string_view::npos;
    });
    for (const pprof::Sample& sample : message_.sample()) {
      file.samples.push_back({StackOf(sample), LabelSetOf(sample), AgesOf(sample)});
      file.values.insert(file.values.end(), sample.value().begin(), sample.value().end());
      for (const uint64_t location : stack_) frames += std::max<size_t>(set_.locations_[location].frames.size(), 1);
      if (frames > max_frames) {
        return ResourceExhausted("its stacks have more than ", max_frames,
                                 " frames in all, which is the limit for a profile of its size");
      }
      for (const Label& label : labels_) {
        label_bytes += set_.text(label.key).size() + set_.text(label.text).size() + set_.text(label.unit).size();
      }
      if (label_bytes > max_label_bytes) {
        return ResourceExhausted("its labels, written out, are more than ", max_label_bytes,
                                 " bytes, which is the limit for a profile of its size");
      }
    }
    set_.files_.push_back(std::move(file));
    return absl::OkStatus();
  }

 private:
  static constexpr String kNone = UINT32_MAX;
  static constexpr size_t kMinFrames = 20'000'000;
  static constexpr size_t kMinLabelBytes = size_t{64} << 20;
  // The frames that drop_frames removes from a stack because of a location: none, the frames below it (its callees), or
  // these and the location itself.
  enum class Cut : uint8_t { kNothing, kBelow, kWithIt };
  struct Mapped {
    uint32_t location;
    Cut cut;
  };

  String Text(int64_t index) {
    String& number = strings_[static_cast<size_t>(index)];
    if (number == kNone) number = set_.strings_.Number(raw_.text(index));
    return number;
  }

  void AddFunctions() {
    for (const pprof::Function& function : message_.function()) {
      const std::string name(raw_.text(function.name()));
      const std::string system_name(raw_.text(function.system_name()));
      const Function own = {set_.strings_.Number(ShownName(name, system_name)), Text(function.filename()),
                            function.start_line()};
      const uint32_t number = set_.function_keys_.Number(
          {own.name, Text(function.system_name()), own.filename, static_cast<uint64_t>(own.start_line)});
      if (number == set_.functions_.size()) set_.functions_.push_back(own);
      functions_.push_back(number);
    }
  }

  void AddLocations() {
    std::vector<uint64_t> key;
    for (const pprof::Location& location : message_.location()) {
      Location own;
      uint64_t address = location.address();
      key = {location.is_folded()};
      if (location.mapping_id() != 0) {
        const pprof::Mapping& m = message_.mapping(static_cast<int>(location.mapping_id()) - 1);
        own.object = Text(m.filename());
        address -= m.memory_start();
        // Segments of the same file differ by at most one page.
        const uint64_t pages = (m.memory_limit() - m.memory_start() + 4095) / 4096;
        key.insert(key.end(), {1, pages, m.file_offset(), Text(m.build_id()), m.build_id() == 0 ? own.object : 0});
      }
      key.push_back(address);
      // Hides the outermost matching function and everything that is inlined into it.
      int cut = location.line_size() - 1;
      while (cut >= 0 && !filter_.drops(functions_[location.line(cut).function_id()])) --cut;
      const bool whole = cut == location.line_size() - 1;
      for (int i = cut < 0 || whole ? 0 : cut + 1; i < location.line_size(); ++i) {
        const uint32_t function = functions_[location.line(i).function_id()];
        own.frames.push_back({function, location.line(i).line()});
        key.push_back(function);
        key.push_back(static_cast<uint64_t>(location.line(i).line()));
      }
      const uint32_t number = set_.location_keys_.Number(key);
      if (number == set_.locations_.size()) set_.locations_.push_back(std::move(own));
      locations_.push_back({number, cut < 0 ? Cut::kNothing : whole ? Cut::kWithIt : Cut::kBelow});
    }
  }

  uint32_t StackOf(const pprof::Sample& sample) {
    stack_.clear();
    int begin = 0;
    bool in_users_code = false;
    for (int i = sample.location_id_size() - 1; i >= 0; --i) {
      const Cut cut = locations_[sample.location_id(i)].cut;
      if (cut == Cut::kNothing) {
        in_users_code = true;
      } else if (in_users_code) {
        begin = cut == Cut::kWithIt ? i + 1 : i;
        break;
      }
    }
    for (int i = begin; i < sample.location_id_size(); ++i) {
      stack_.push_back(locations_[sample.location_id(i)].location);
    }
    return set_.stacks_.Number(stack_);
  }

  uint32_t AgesOf(const pprof::Sample& sample) {
    if (!sample.has_ages()) return 0;
    set_.ages_.emplace_back(sample.ages());
    return static_cast<uint32_t>(set_.ages_.size() - 1);
  }

  uint32_t LabelSetOf(const pprof::Sample& sample) {
    labels_.clear();
    for (const pprof::Label& label : sample.label()) {
      // pprof ignores a numeric label that is 0 and has no unit.
      if (label.str() == 0 && label.num() == 0 && label.num_unit() == 0) continue;
      labels_.push_back({Text(label.key()), Text(label.str()), label.num(), Text(label.num_unit())});
    }
    return set_.LabelSetOf(labels_);
  }

  ProfileSet& set_;
  const RawProfile& raw_;
  const pprof::Profile& message_;
  FrameFilter& filter_;
  std::vector<String> strings_;         // by the string's index in the file
  std::vector<uint32_t> functions_{0};  // by id
  std::vector<Mapped> locations_{{}};   // by id
  std::vector<uint64_t> stack_;
  std::vector<Label> labels_;
};

absl::Status ProfileSet::Unify(const std::vector<std::vector<SampleType>>& types) {
  std::vector<std::vector<size_t>> common;  // by common type: its index in every file
  // By file: the index of each type. If several types have the same name, the index of the first.
  std::vector<absl::flat_hash_map<std::string_view, size_t>> indices(types.size());
  for (size_t f = 0; f < types.size(); ++f) {
    for (size_t i = 0; i < types[f].size(); ++i) indices[f].try_emplace(types[f][i].type, i);
  }
  for (const SampleType& type : types[0]) {
    std::vector<size_t> positions;
    const std::string& first_unit = types[0][indices[0].at(type.type)].unit;
    for (size_t f = 0; f < types.size(); ++f) {
      const auto same = indices[f].find(type.type);
      if (same == indices[f].end()) break;
      if (const std::string& unit = types[f][same->second].unit; unit != first_unit) {
        return InvalidArgument(files_[f].path, ": ", type.type, " is in ", unit, ", but in ", files_[0].path, " in ",
                               first_unit, "; such profiles cannot be compared");
      }
      positions.push_back(same->second);
    }
    if (positions.size() != types.size()) continue;
    types_.push_back(type);
    common.push_back(std::move(positions));
  }
  if (types_.empty()) {
    const std::string names = types.size() < 2 ? std::string("it has no sample types")
                                               : Cat("the files have no sample type in common with ", files_[0].path);
    return InvalidArgument(files_.back().path, ": ", names, "; name profiles of one kind");
  }
  for (size_t f = 0; f < files_.size(); ++f) {
    File& file = files_[f];
    const size_t width = types[f].size();
    std::vector<int64_t> values;
    values.reserve(file.samples.size() * common.size());
    for (size_t s = 0; s < file.samples.size(); ++s) {
      for (const std::vector<size_t>& positions : common) values.push_back(file.values[s * width + positions[f]]);
    }
    file.values = std::move(values);
    file.removed.assign(common.size(), 0);
  }
  return absl::OkStatus();
}

absl::StatusOr<ProfileSet> ProfileSet::ReadEach(size_t count,
                                                const std::function<absl::StatusOr<Named>(size_t)>& read) {
  ProfileSet set;
  std::unique_ptr<FrameFilter> filter;
  std::vector<std::vector<SampleType>> types;
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const Named named, read(i));
    const auto& [name, raw] = named;
    const pprof::Profile& message = raw.message();
    if (filter == nullptr) {
      filter = std::make_unique<FrameFilter>(raw.text(message.drop_frames()), raw.text(message.keep_frames()));
    }
    RETURN_IF_ERROR(In(name, Adder(set, raw, *filter).Add(name)));
    std::vector<SampleType>& own = types.emplace_back();
    for (const pprof::ValueType& type : message.sample_type()) {
      own.push_back({std::string(raw.text(type.type())), std::string(raw.text(type.unit()))});
    }
    if (set.default_type_.empty()) set.default_type_ = raw.text(message.default_sample_type());
  }
  // A profile has the default type peak_space only if nothing is in use. Several profiles are always compared by bytes
  // in use.
  if (types.size() > 1 && set.default_type_ == "peak_space") set.default_type_ = "inuse_space";
  RETURN_IF_ERROR(set.Unify(types));
  return set;
}

absl::StatusOr<size_t> ProfileSet::TypeNamed(const std::string& name) const {
  if (name.empty()) return FindType(default_type_).value_or(types_.size() - 1);
  if (size_t index = 0; absl::SimpleAtoi(name, &index) && index < types_.size()) return index;
  const absl::string_view other = absl::StripPrefix(name, "inuse_");
  std::string names;
  for (size_t i = 0; i < types_.size(); ++i) {
    if (types_[i].type == name || types_[i].type == other) return i;
    names += (i == 0 ? "" : ", ") + types_[i].type;
  }
  return InvalidArgument(files_[0].path, ": has no sample type '", name, "'; use one of: ", names);
}

std::optional<size_t> ProfileSet::FindType(std::string_view name) const {
  for (size_t i = 0; i < types_.size(); ++i) {
    if (types_[i].type == name) return i;
  }
  return std::nullopt;
}

absl::Status ProfileSet::CheckLabelKey(const std::string& option, const std::string& key) const {
  std::set<std::string> known;
  for (const std::vector<Label>& labels : label_sets_) {
    for (const Label& label : labels) known.insert(text(label.key));
  }
  const bool has_samples = absl::c_any_of(files_, [](const File& file) { return !file.samples.empty(); });
  if (!has_samples || known.count(key) > 0) return absl::OkStatus();
  return InvalidArgument(option, " ", key, ": no sample has the label '", key,
                         "'; the labels are: ", known.empty() ? "none" : absl::StrJoin(known, ", "));
}

std::vector<std::string> ProfileSet::PathsFrom(size_t first) const {
  std::vector<std::string> paths;
  for (size_t i = first; i < files_.size(); ++i) paths.push_back(files_[i].path);
  return paths;
}

void ProfileSet::RemoveFiles(const std::vector<size_t>& indices) {
  size_t next = 0;
  EraseIf(files_, [&](const File&) { return absl::c_linear_search(indices, next++); });
}

uint64_t ProfileSet::AddLocation(Location location) {
  locations_.push_back(std::move(location));
  return locations_.size() - 1;
}

uint32_t ProfileSet::AddFunction(std::string_view name) {
  functions_.push_back({strings_.Number(name), 0, 0});
  return static_cast<uint32_t>(functions_.size() - 1);
}

void ProfileSet::MapStacks(const std::function<std::optional<uint32_t>(uint32_t)>& stack_of) {
  absl::flat_hash_map<uint32_t, std::optional<uint32_t>> stacks;
  MapSamples(Removed::kInTotal, [&](const Sample& sample) {
    const auto [entry, is_new] = stacks.try_emplace(sample.stack);
    if (is_new) entry->second = stack_of(sample.stack);
    return entry->second;
  });
}

void ProfileSet::FilterLabels(Removed removed, const std::function<bool(uint32_t)>& keeps) {
  std::vector<std::optional<bool>> kept(label_sets_.size());
  MapSamples(removed, [&](const Sample& sample) {
    std::optional<bool>& keep = kept[sample.labels];
    if (!keep.has_value()) keep = keeps(sample.labels);
    return *keep ? std::optional<uint32_t>(sample.stack) : std::nullopt;
  });
}

void ProfileSet::MapSamples(Removed removed, const std::function<std::optional<uint32_t>(const Sample&)>& stack_of) {
  const size_t width = types_.size();
  for (File& file : files_) {
    size_t kept = 0;
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const std::optional<uint32_t> stack = stack_of(file.samples[s]);
      if (!stack.has_value()) {
        for (size_t t = 0; removed == Removed::kInTotal && t < width; ++t) {
          AddTo(file.removed[t], Magnitude(file.values[s * width + t]));
        }
        continue;
      }
      file.samples[kept] = file.samples[s];
      file.samples[kept].stack = *stack;
      std::copy_n(file.values.begin() + static_cast<std::ptrdiff_t>(s * width), width,
                  file.values.begin() + static_cast<std::ptrdiff_t>(kept * width));
      ++kept;
    }
    file.samples.resize(kept);
    file.values.resize(kept * width);
  }
}

void ProfileSet::AddLabel(std::string_view key,
                          const std::function<std::string_view(const File&, const Sample&)>& text_of) {
  const String key_number = strings_.Number(key);
  absl::flat_hash_map<std::pair<uint32_t, String>, uint32_t> sets;  // by the set before and the text
  for (File& file : files_) {
    for (Sample& sample : file.samples) {
      const auto [entry, is_new] =
          sets.try_emplace({sample.labels, strings_.Number(text_of(file, sample))}, sample.labels);
      if (is_new) {
        std::vector<Label> labels = label_sets_[sample.labels];
        const bool has_key = absl::c_any_of(labels, [&](const Label& label) { return label.key == key_number; });
        labels.push_back({key_number, entry->first.second, 0, 0});
        if (!has_key) entry->second = LabelSetOf(std::move(labels));
      }
      sample.labels = entry->second;
    }
  }
}

absl::Status ProfileSet::LabelBirths(int64_t older) {
  const std::optional<size_t> objects = FindType("inuse_objects");
  const std::optional<size_t> bytes = FindType("inuse_space");
  const String key = strings_.Number(kBirthLabel);
  const String unit = strings_.Number("seconds");
  const size_t width = types_.size();
  for (File& file : files_) {
    if (absl::c_none_of(file.samples, [](const Sample& sample) { return sample.ages != 0; })) {
      return InvalidArgument(file.path, ": has no ages of buffers; they are in profiles of this version or later that ",
                             "no other tool has rewritten");
    }
    if (older != 0 && file.info.processes.size() > 1) {
      return InvalidArgument(file.path, ": is of several processes, so the ages of its buffers are not known; name ",
                             "their own profiles");
    }
    const std::optional<int64_t> uptime = file.info.UptimeSeconds();
    if (older != 0 && !uptime.has_value()) {
      return InvalidArgument(file.path, ": does not state its process's uptime, so the ages of its buffers are not ",
                             "known");
    }
    const int64_t latest = older == 0 ? INT64_MAX : Minus(*uptime, older);
    const size_t samples = objects.has_value() && bytes.has_value() ? file.samples.size() : 0;
    for (size_t s = 0; s < samples; ++s) {
      const Sample sample = file.samples[s];
      const Ages& ages = ages_[sample.ages];
      for (size_t i = 0; i < ages.born_counts.size(); ++i) {
        const int64_t begin = (ages.first_class + static_cast<int64_t>(i)) << ages.class_width_log2;
        const bool is_empty = ages.born_counts[i] == 0 && ages.born_bytes[i] == 0;
        if (is_empty || begin + (int64_t{1} << ages.class_width_log2) > latest) continue;
        std::vector<Label> labels = label_sets_[sample.labels];
        labels.push_back({key, 0, begin, unit});
        file.samples.push_back({sample.stack, LabelSetOf(std::move(labels)), 0});
        file.values.resize(file.values.size() + width);
        for (const auto& [type, born] :
             {std::pair(*objects, ages.born_counts[i]), std::pair(*bytes, ages.born_bytes[i])}) {
          file.values[file.values.size() - width + type] = born;
          AddTo(file.values[s * width + type], Minus(0, born));
        }
      }
      file.samples[s].ages = 0;
    }
  }
  return absl::OkStatus();
}

void ProfileSet::AddSample(size_t file, std::string_view function,
                           const std::vector<std::pair<std::string_view, std::string_view>>& labels, size_t type,
                           int64_t value) {
  const uint32_t number = AddFunction(function);
  std::vector<Label> set;
  for (const auto& [key, text] : labels) set.push_back({strings_.Number(key), strings_.Number(text), 0, 0});
  files_[file].samples.push_back({StackOf({AddLocation({0, {{number, 0}}})}), LabelSetOf(std::move(set)), 0});
  files_[file].values.resize(files_[file].values.size() + types_.size());
  files_[file].values[files_[file].values.size() - types_.size() + type] = value;
}

std::string ProfileSet::ShownFrame::Position() const {
  if (file.empty()) return "";
  if (!has_source) return Cat("[", file, "]");
  return line == 0 ? file : Cat(file, ":", line);
}

std::vector<ProfileSet::ShownFrame> ProfileSet::ShownLocation(uint64_t number) const {
  std::vector<ShownFrame> frames;
  const Location& location = locations_[number];
  const std::string& object = text(location.object);
  if (location.frames.empty()) frames.push_back({UnnamedFrame(object), "", 0, false});
  for (const Frame& frame : location.frames) {
    const Function& function = functions_[frame.function];
    ShownFrame shown = {text(function.name), CleanPath(text(function.filename)), frame.line, true};
    if (shown.name.empty()) shown.name = UnnamedFrame(object);
    if (shown.file.empty()) shown = {std::move(shown.name), object.substr(object.rfind('/') + 1), 0, false};
    frames.push_back(std::move(shown));
  }
  return frames;
}

std::vector<ProfileSet::ShownFrame> ProfileSet::ShownStack(uint32_t stack) const {
  std::vector<ShownFrame> frames;
  for (const uint64_t location : stacks_[stack]) {
    for (ShownFrame& frame : ShownLocation(location)) frames.push_back(std::move(frame));
  }
  if (frames.empty()) frames.push_back({"[no stack]", "", 0, false});
  return frames;
}

absl::Status ProfileSet::CheckTextOfStacks() const {
  constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
  std::vector<uint64_t> bytes(locations_.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t object = text(locations_[i].object).size();
    bytes[i] = object;
    for (const Frame& frame : locations_[i].frames) {
      const Function& function = functions_[frame.function];
      bytes[i] += text(function.name).size() + text(function.filename).size() + object;
    }
  }
  std::vector<uint64_t> of_stack(stacks_.size());
  for (uint32_t stack = 0; stack < of_stack.size(); ++stack) {
    for (const uint64_t location : stacks_[stack]) of_stack[stack] += bytes[location];
  }
  uint64_t sum = 0;
  for (const File& file : files_) {
    for (const Sample& sample : file.samples) {
      sum += of_stack[sample.stack];
      if (sum <= kMaxBytes) continue;
      return ResourceExhausted(file.path, ": its stacks, written out, are more than ",
                               Bytes(static_cast<int64_t>(kMaxBytes)),
                               ", which is the limit; top and diff need not write them out");
    }
  }
  return absl::OkStatus();
}

std::string ProfileSet::LabelText(uint32_t label_set, std::string_view key) const {
  for (const Label& label : label_sets_[label_set]) {
    if (text(label.key) == key) return label.text != 0 ? text(label.text) : std::to_string(label.number);
  }
  return "";
}

ProfileSet::LabelGroups ProfileSet::GroupLabels(const std::vector<std::string>& keys) const {
  LabelGroups groups;
  absl::flat_hash_map<std::vector<std::string>, uint32_t> numbers;
  for (uint32_t set = 0; set < label_sets_.size(); ++set) {
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(key == kMemoryKey ? MemoryOf(set) : LabelText(set, key));
    const auto [entry, is_new] = numbers.try_emplace(values, static_cast<uint32_t>(numbers.size()));
    if (is_new) groups.values.push_back(std::move(values));
    groups.of_set.push_back(entry->second);
  }
  return groups;
}

std::string ProfileSet::MemoryOf(uint32_t label_set) const {
  const std::string kind = LabelText(label_set, "kind");
  return LabelText(label_set, "device") + (kind == "managed" || kind == "pinned_host" ? " " + kind : "");
}

std::string ProcessIn(const ProfileSet::File& file) {
  for (const Comment& process : file.info.processes) {
    if (const std::string pid = process.Text("pid"); !pid.empty()) return Cat(process.Text("host"), " ", pid);
  }
  return "";
}

std::string SymbolizeHint(const ProfileSet& profiles, bool lines) {
  bool has_names = true;
  bool has_lines = !lines || profiles.functions().empty();
  for (const ProfileSet::File& file : profiles.files()) {
    for (const ProfileSet::Sample& sample : file.samples) {
      if (profiles.stacks().length(sample.stack) == 0) continue;
      const auto& frames = profiles.locations()[profiles.stacks()[sample.stack][0]].frames;
      has_names = has_names && !frames.empty();
      has_lines = has_lines || absl::c_any_of(frames, [](const ProfileSet::Frame& frame) { return frame.line > 0; });
    }
  }
  if (has_names && has_lines) return "";
  return Cat(has_names ? "the profile has no lines" : "some code has no name",
             ": `hbmprof symbolize FILE` adds them where the program's binaries are");
}

std::string UnnamedFrame(const std::string& object) {
  if (object.empty()) return "<unknown>";
  return Cat("[", std::string_view(object).substr(object.rfind('/') + 1), "]");
}

std::string CleanPath(const std::string& path) {
  // No file has a longer path. The limit is needed because the time to normalize a path is quadratic in its length.
  constexpr size_t kMaxPath = 4096;
  return path.empty() || path.size() > kMaxPath ? path : std::filesystem::path(path).lexically_normal().string();
}

}  // namespace hbmprof::tool
