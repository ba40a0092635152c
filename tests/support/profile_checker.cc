// See profile_checker.h.
#include "tests/support/profile_checker.h"

#include <regex.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "absl/status/status.h"

namespace hbmprof_test {
namespace {

using hbmprof::pprof::Function;
using hbmprof::pprof::Label;
using hbmprof::pprof::Location;
using hbmprof::pprof::Mapping;
using hbmprof::pprof::ValueType;

absl::StatusOr<std::string> Gunzip(std::string_view bytes) {
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return absl::ResourceExhaustedError("zlib has no memory");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  int result = Z_OK;
  while (result == Z_OK) {
    char buffer[1 << 16];
    stream.next_out = reinterpret_cast<Bytef*>(buffer);
    stream.avail_out = sizeof(buffer);
    result = inflate(&stream, Z_NO_FLUSH);
    out.append(buffer, sizeof(buffer) - stream.avail_out);
  }
  const bool is_whole = result == Z_STREAM_END && stream.avail_in == 0;
  inflateEnd(&stream);
  if (!is_whole) return absl::InvalidArgumentError("not one whole gzip stream");
  return out;
}

// Appends its parts to one string.
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Each function below returns the first problem as a sentence, or "".
class Checker {
 public:
  explicit Checker(const Profile& profile) : p_(profile) {}

  std::string Check() const {
    for (const auto check : {&Checker::Strings, &Checker::Header, &Checker::Comments, &Checker::Mappings,
                             &Checker::Functions, &Checker::Locations, &Checker::Samples, &Checker::Names,
                             &Checker::DefaultSampleType, &Checker::UsedStrings}) {
      if (std::string problem = (this->*check)(); !problem.empty()) return problem;
    }
    return "";
  }

 private:
  bool IsString(int64_t index) const { return index >= 0 && index < p_.string_table_size(); }
  // Returns "" for an invalid index.
  std::string String(int64_t index) const { return IsString(index) ? p_.string_table(static_cast<int>(index)) : ""; }

  std::string Strings() const {
    if (p_.string_table_size() == 0 || !p_.string_table(0).empty()) return "string_table[0] is not \"\"";
    std::set<std::string> seen;
    for (const std::string& text : p_.string_table()) {
      if (!seen.insert(text).second) return Text("string_table has \"", text, "\" twice");
    }
    return "";
  }

  // Some of the sample types.
  static constexpr int kPeakSpace = 3, kInuseObjects = 8, kInuseSpace = 9;

  std::string Header() const {
    static const std::vector<std::pair<std::string, std::string>> kTypes = {
        {"alloc_objects", "count"},    {"alloc_space", "bytes"},       {"peak_objects", "count"},
        {"peak_space", "bytes"},       {"pool_peak_objects", "count"}, {"pool_peak_space", "bytes"},
        {"reserved_objects", "count"}, {"reserved_space", "bytes"},    {"inuse_objects", "count"},
        {"inuse_space", "bytes"}};
    if (p_.sample_type_size() != static_cast<int>(kTypes.size())) return "there are not ten sample types";
    for (int i = 0; i < p_.sample_type_size(); ++i) {
      if (String(p_.sample_type(i).type()) != kTypes[i].first || String(p_.sample_type(i).unit()) != kTypes[i].second) {
        return Text("sample type ", i, " is not ", kTypes[i].first, "/", kTypes[i].second);
      }
    }
    if (String(p_.period_type().type()) != "space" || String(p_.period_type().unit()) != "bytes") {
      return "period_type is not space/bytes";
    }
    if (p_.period() != 1) return "period is not 1";
    if (p_.time_nanos() <= 0) return "time_nanos is not set";
    if (p_.duration_nanos() != 0) return "duration_nanos is set, but the profile is a state";
    if (p_.doc_url() != 0) return "doc_url is set, which some readers reject";
    if (!IsString(p_.drop_frames()) || !IsString(p_.keep_frames())) return "drop_frames or keep_frames is no string";
    regex_t drop_frames;
    if (regcomp(&drop_frames, String(p_.drop_frames()).c_str(), REG_EXTENDED | REG_NOSUB) != 0) {
      return "drop_frames is not a regular expression";
    }
    regfree(&drop_frames);
    return "";
  }

  // REQUIRES: the samples are valid.
  std::string DefaultSampleType() const {
    const auto has = [&](int type) {
      return std::any_of(p_.sample().begin(), p_.sample().end(),
                         [&](const auto& sample) { return sample.value(type) != 0; });
    };
    // The default sample type must have values.
    const std::string expected = has(kPeakSpace) && !has(kInuseSpace) ? "peak_space" : "inuse_space";
    return String(p_.default_sample_type()) == expected ? "" : "default_sample_type is not " + expected;
  }

  // REQUIRES: the mappings, functions and locations are valid.
  std::string Names() const {
    std::set<uint64_t> named;
    for (const Location& l : p_.location()) {
      for (const auto& line : l.line()) {
        if (p_.function(static_cast<int>(line.function_id()) - 1).system_name() != 0) named.insert(l.mapping_id());
      }
    }
    for (const Mapping& m : p_.mapping()) {
      const bool is_named = named.count(m.id()) != 0;
      if (is_named && !m.has_functions()) return Text("mapping ", m.id(), " lacks has_functions, but has names");
      if (!is_named && m.has_functions()) return Text("mapping ", m.id(), " has_functions, but no address has a name");
    }
    return "";
  }

  // REQUIRES: all indices are valid.
  std::string UsedStrings() const {
    std::set<int64_t> used = {0, p_.drop_frames(), p_.keep_frames(), p_.default_sample_type()};
    const auto use_type = [&](const ValueType& type) { used.insert({type.type(), type.unit()}); };
    for (const ValueType& type : p_.sample_type()) use_type(type);
    use_type(p_.period_type());
    for (const auto& sample : p_.sample()) {
      for (const Label& label : sample.label()) used.insert({label.key(), label.str(), label.num_unit()});
    }
    for (const Mapping& m : p_.mapping()) used.insert({m.filename(), m.build_id()});
    for (const Function& f : p_.function()) used.insert({f.name(), f.system_name(), f.filename()});
    used.insert(p_.comment().begin(), p_.comment().end());
    for (int i = 0; i < p_.string_table_size(); ++i) {
      if (used.count(i) == 0) return Text("string ", i, " is used by nobody: \"", p_.string_table(i), "\"");
    }
    return "";
  }

  std::string Comments() const {
    for (const int64_t index : p_.comment()) {
      if (!IsString(index) || index == 0) return Text("comment ", index, " is no string or empty");
      const std::string text = String(index);
      if (text.find_first_of("\r\n") != std::string::npos) return Text("comment has several lines: ", text);
    }
    return "";
  }

  std::string Mappings() const {
    for (int i = 0; i < p_.mapping_size(); ++i) {
      const Mapping& m = p_.mapping(i);
      if (m.id() != static_cast<uint64_t>(i) + 1) return Text("mapping ", i, " has id ", m.id());
      if (m.memory_start() >= m.memory_limit()) return Text("mapping ", m.id(), " is empty or inverted");
      if (!IsString(m.filename()) || !IsString(m.build_id())) return Text("mapping ", m.id(), " has a bad string");
      if (String(m.filename()).empty()) return Text("mapping ", m.id(), " has no filename");
      const std::string build_id = String(m.build_id());
      if (build_id.size() % 2 != 0 || build_id.find_first_not_of("0123456789abcdef") != std::string::npos) {
        return Text("mapping ", m.id(), " has a build id that is not lower-case hex");
      }
      // The main program's come first, wherever they are.
      if (i > 0 && p_.mapping(i - 1).filename() != p_.mapping(0).filename() &&
          m.memory_start() < p_.mapping(i - 1).memory_start()) {
        return Text("mapping ", m.id(), " is out of order");
      }
      for (int j = 0; j < i; ++j) {
        const Mapping& other = p_.mapping(j);
        if (m.memory_start() < other.memory_limit() && other.memory_start() < m.memory_limit()) {
          return Text("mapping ", m.id(), " overlaps mapping ", other.id());
        }
      }
    }
    return "";
  }

  std::string Functions() const {
    std::set<std::array<int64_t, 4>> seen;
    for (int i = 0; i < p_.function_size(); ++i) {
      const Function& f = p_.function(i);
      if (f.id() != static_cast<uint64_t>(i) + 1) return Text("function ", i, " has id ", f.id());
      if (!IsString(f.name()) || !IsString(f.system_name()) || !IsString(f.filename())) {
        return Text("function ", f.id(), " has a bad string");
      }
      if (String(f.name()).empty()) return Text("function ", f.id(), " has no name");
      if (!seen.insert({f.name(), f.system_name(), f.filename(), f.start_line()}).second)
        return Text("function ", f.id(), " is there twice");
    }
    return "";
  }

  std::string Locations() const {
    std::set<std::string> seen;
    for (int i = 0; i < p_.location_size(); ++i) {
      const Location& l = p_.location(i);
      if (l.id() != static_cast<uint64_t>(i) + 1) return Text("location ", i, " has id ", l.id());
      if (l.mapping_id() > static_cast<uint64_t>(p_.mapping_size()))
        return Text("location ", l.id(), " has no mapping");
      if (l.mapping_id() != 0) {
        const Mapping& m = p_.mapping(static_cast<int>(l.mapping_id()) - 1);
        if (l.address() < m.memory_start() || l.address() >= m.memory_limit()) {
          return Text("location ", l.id(), " lies outside of its mapping");
        }
        if (m.has_functions() && l.line_size() == 0) {
          return Text("location ", l.id(), " has no function, but its mapping says that all have one");
        }
      }
      for (const auto& line : l.line()) {
        if (line.function_id() == 0 || line.function_id() > static_cast<uint64_t>(p_.function_size())) {
          return Text("location ", l.id(), " has a line without a function");
        }
      }
      if (l.address() == 0 && l.line_size() == 0) return Text("location ", l.id(), " has neither address nor name");
      Location anonymous = l;
      anonymous.clear_id();
      if (!seen.insert(anonymous.SerializeAsString()).second) return Text("location ", l.id(), " is there twice");
    }
    return "";
  }

  std::string Samples() const {
    std::set<std::string> seen;
    for (int i = 0; i < p_.sample_size(); ++i) {
      const auto& s = p_.sample(i);
      if (s.value_size() != p_.sample_type_size()) return Text("sample ", i, " has ", s.value_size(), " values");
      if (std::all_of(s.value().begin(), s.value().end(), [](int64_t value) { return value == 0; })) {
        return Text("sample ", i, " has only zeros");
      }
      if (s.location_id_size() == 0) return Text("sample ", i, " has no location");
      for (const uint64_t id : s.location_id()) {
        if (id == 0 || id > static_cast<uint64_t>(p_.location_size())) {
          return Text("sample ", i, " has location ", id, ", which does not exist");
        }
      }
      std::set<int64_t> keys;
      for (const Label& label : s.label()) {
        const std::string key = String(label.key());
        if (key.empty()) return Text("sample ", i, " has a label without a key");
        if (key.rfind("pprof::", 0) == 0) return Text("sample ", i, " has a label with a reserved key: ", key);
        if (!keys.insert(label.key()).second) return Text("sample ", i, " has the label ", key, " twice");
        if (!IsString(label.str()) || !IsString(label.num_unit())) {
          return Text("sample ", i, " has a bad string in its label ", key);
        }
        if (label.str() != 0 && (label.num() != 0 || label.num_unit() != 0)) {
          return Text("sample ", i, " has a label that is text and number: ", key);
        }
        if (label.str() == 0 && label.num_unit() == 0) {
          return Text("sample ", i, " has a label without text and without unit: ", key);
        }
      }
      for (const std::string required : {"device", "kind"}) {
        if (std::none_of(keys.begin(), keys.end(), [&](int64_t key) { return String(key) == required; })) {
          return Text("sample ", i, " has no label ", required);
        }
      }
      if (std::string problem = AgesOf(s); !problem.empty()) return Text("sample ", i, " ", problem);
      hbmprof::pprof::Sample identity = s;
      identity.clear_value();
      identity.clear_ages();
      if (!seen.insert(identity.SerializeAsString()).second) {
        return Text("sample ", i, " has the stack and labels of an earlier one");
      }
    }
    return "";
  }

  // If the profile has ages, the classes of births add up to the values of each sample.
  std::string AgesOf(const hbmprof::pprof::Sample& s) const {
    const hbmprof::pprof::Ages& ages = s.ages();
    const bool has_ages = std::any_of(p_.comment().begin(), p_.comment().end(), [&](int64_t comment) {
      return String(comment).rfind("hbmprof ", 0) == 0 && String(comment).find(" uptime=") != std::string::npos;
    });
    if (!has_ages) return s.has_ages() ? "has ages, but the profile has no uptime" : "";
    if (s.has_ages() && ages.born_counts().empty() && ages.freed_by_octave().empty()) return "has empty ages";
    if (ages.born_counts_size() != ages.born_bytes_size()) return "has births with different numbers of classes";
    if (ages.first_class() + static_cast<uint32_t>(ages.born_counts_size()) > 64) return "has more than 64 classes";
    const auto sum = [](const auto& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); };
    const auto is_negative = [](int64_t value) { return value < 0; };
    for (const auto& values : {ages.born_counts(), ages.born_bytes(), ages.freed_by_octave()}) {
      if (std::any_of(values.begin(), values.end(), is_negative)) return "has ages of a negative number of buffers";
    }
    const bool is_pool = std::any_of(s.label().begin(), s.label().end(), [&](const auto& label) {
      return String(label.key()) == "kind" && String(label.str()) == "pool";
    });
    if (is_pool) return s.has_ages() ? "is of a pool and has ages" : "";
    if (sum(ages.born_counts()) != s.value(kInuseObjects)) return "has births that do not add up to inuse_objects";
    if (sum(ages.born_bytes()) != s.value(kInuseSpace)) return "has births that do not add up to inuse_space";
    if (ages.freed_by_octave_size() > 24 || sum(ages.freed_by_octave()) > s.value(0) - s.value(kInuseObjects)) {
      return "has more ages of freed buffers than freed buffers";
    }
    return "";
  }

  const Profile& p_;
};

}  // namespace

absl::StatusOr<Profile> ParseProfile(std::string_view gzip_bytes) {
  const absl::StatusOr<std::string> bytes = Gunzip(gzip_bytes);
  if (!bytes.ok()) return bytes.status();
  Profile profile;
  if (!profile.ParseFromString(*bytes)) return absl::InvalidArgumentError("not a Profile message");
  return profile;
}

absl::StatusOr<Profile> ReadProfile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("cannot open " + path);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return ParseProfile(bytes);
}

std::string CheckProfile(const Profile& profile) { return Checker(profile).Check(); }

bool ProfileView::Sample::Has(std::string_view function) const {
  return std::find(functions.begin(), functions.end(), function) != functions.end();
}

bool ProfileView::Sample::HasModule(std::string_view start) const {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return module.rfind(start, 0) == 0; });
}

ProfileView::ProfileView(const Profile& p) {
  const auto text = [&](int64_t index) { return p.string_table(static_cast<int>(index)); };
  for (const auto& s : p.sample()) {
    Sample& sample = samples.emplace_back();
    for (const uint64_t id : s.location_id()) {
      const Location& location = p.location(static_cast<int>(id) - 1);
      std::string module;
      if (location.mapping_id() != 0) module = text(p.mapping(static_cast<int>(location.mapping_id()) - 1).filename());
      module.erase(0, module.rfind('/') + 1);
      if (location.line_size() == 0) sample.functions.emplace_back();
      for (const auto& line : location.line()) {
        sample.functions.push_back(text(p.function(static_cast<int>(line.function_id()) - 1).name()));
      }
      sample.modules.resize(sample.functions.size(), module);
    }
    for (const Label& label : s.label()) {
      sample.labels[text(label.key())] = label.str() != 0 ? text(label.str()) : std::to_string(label.num());
    }
    for (int i = 0; i < p.sample_type_size(); ++i) sample.values[text(p.sample_type(i).type())] = s.value(i);
  }
  for (const int64_t index : p.comment()) comments.push_back(text(index));
}

int64_t ProfileView::Sum(const std::string& type) const {
  return Sum(type, [](const Sample&) { return true; });
}

int64_t ProfileView::Sum(const std::string& type, const std::function<bool(const Sample&)>& selects) const {
  int64_t sum = 0;
  for (const Sample& sample : samples) {
    if (selects(sample)) sum += sample.values.at(type);
  }
  return sum;
}

int64_t ProfileView::SumWhere(const std::string& type, const std::string& label, const std::string& value) const {
  return Sum(type, [&](const Sample& sample) {
    const auto found = sample.labels.find(label);
    return found != sample.labels.end() && found->second == value;
  });
}

int64_t ProfileView::SumUnder(const std::string& type, std::string_view function) const {
  return Sum(type, [&](const Sample& sample) { return sample.Has(function); });
}

std::string ProfileView::Comment(std::string_view start, std::string_view key) const {
  for (const std::string& comment : comments) {
    if (comment.rfind(start, 0) != 0) continue;
    std::istringstream words(comment);
    for (std::string word; words >> word;) {
      if (word.rfind(std::string(key) + "=", 0) == 0) return word.substr(key.size() + 1);
    }
    return "";
  }
  return "";
}

std::string DescribeProfile(const Profile& p) {
  const auto text = [&](int64_t index) { return p.string_table(static_cast<int>(index)); };
  const auto type = [&](const ValueType& value) { return text(value.type()) + "/" + text(value.unit()); };
  std::ostringstream out;
  out << "sample types:";
  for (const ValueType& value : p.sample_type()) out << " " << type(value);
  out << "\ndefault " << text(p.default_sample_type()) << ", period " << p.period() << " " << type(p.period_type())
      << ", time " << p.time_nanos() << ", duration " << p.duration_nanos() << "\n";
  out << "drop frames: " << text(p.drop_frames()) << "\n";
  for (const int64_t comment : p.comment()) out << "comment: " << text(comment) << "\n";
  for (const Mapping& m : p.mapping()) {
    out << "mapping " << m.id() << ": " << std::hex << m.memory_start() << "-" << m.memory_limit() << " +"
        << m.file_offset() << std::dec << " " << text(m.filename()) << " [" << text(m.build_id()) << "]"
        << (m.has_functions() ? " functions" : "") << (m.has_filenames() ? " filenames" : "")
        << (m.has_line_numbers() ? " lines" : "") << (m.has_inline_frames() ? " inlines" : "") << "\n";
  }
  for (const Function& f : p.function()) {
    out << "function " << f.id() << ": " << text(f.name()) << " (" << text(f.system_name()) << ")\n";
  }
  for (const Location& l : p.location()) {
    out << "location " << l.id() << ": " << std::hex << l.address() << std::dec << " in mapping " << l.mapping_id();
    for (const auto& line : l.line()) out << " function " << line.function_id();
    out << "\n";
  }
  for (const auto& s : p.sample()) {
    out << "sample:";
    for (const int64_t value : s.value()) out << " " << value;
    out << " at";
    for (const uint64_t id : s.location_id()) out << " " << id;
    for (const Label& label : s.label()) {
      out << " " << text(label.key()) << "=";
      if (label.str() != 0) {
        out << text(label.str());
      } else {
        out << label.num() << " " << text(label.num_unit());
      }
    }
    if (s.has_ages()) {
      const auto& ages = s.ages();
      const auto first = int64_t{ages.first_class()};
      for (int i = 0; i < ages.born_counts_size(); ++i) {
        out << " born " << ((first + i) << ages.class_width_log2()) << "s: " << ages.born_counts(i) << "/"
            << ages.born_bytes(i);
      }
      for (int i = 0; i < ages.freed_by_octave_size(); ++i) {
        out << " freed " << (int64_t{1} << i) << "s: " << ages.freed_by_octave(i);
      }
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace hbmprof_test
