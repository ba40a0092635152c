// `hbmprof convert`: a profile for viewers that do not read pprof.
#include <map>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "src/base/atomic_file.h"
#include "src/tool/arithmetic.h"
#include "src/tool/command.h"
#include "src/tool/sums_view.h"

namespace hbmprof::tool {
namespace {

struct ConvertOptions {
  std::vector<std::string> files;
  std::string to;
  std::string output;
  std::string type;
  std::vector<std::string> by;
};

// Frames outermost first; the labels of `by` are the outermost of all.
std::vector<ProfileSet::ShownFrame> PathOf(const ProfileSet& profiles, const ProfileSet::Sample& sample,
                                           const std::vector<std::string>& by) {
  std::vector<ProfileSet::ShownFrame> path;
  for (const std::string& key : by) path.push_back({Cat(key, "=", profiles.LabelText(sample.labels, key)), ""});
  const std::vector<ProfileSet::ShownFrame> stack = profiles.ShownStack(sample.stack);
  path.insert(path.end(), stack.rbegin(), stack.rend());
  if (path.empty()) path.push_back({"[no stack]", ""});
  return path;
}

// Brendan Gregg's format: one line per stack, outermost frame first.
std::string Folded(const ProfileSet& profiles, size_t type, const std::vector<std::string>& by) {
  std::map<std::string, int64_t> lines;
  for (const ProfileSet::File& file : profiles.files()) {
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const int64_t value = profiles.Value(file, s, type);
      if (value == 0) continue;
      std::string line;
      for (const ProfileSet::ShownFrame& frame : PathOf(profiles, file.samples[s], by)) {
        line += line.empty() ? "" : ";";
        // What separates frames and lines cannot be part of a name.
        for (const char c : Visible(frame.name)) line += c == ';' ? ':' : c;
      }
      int64_t& sum = lines[line];
      sum = Plus(sum, value);
    }
  }
  std::string text;
  for (const auto& [line, value] : lines) text += Cat(line, " ", value, "\n");
  return text;
}

std::string Speedscope(const ProfileSet& profiles, const std::vector<std::string>& by) {
  Json frames = Json::array();
  std::map<std::pair<std::string, std::string>, size_t> numbers;
  std::vector<std::vector<size_t>> stacks;
  for (const ProfileSet::File& file : profiles.files()) {
    for (const ProfileSet::Sample& sample : file.samples) {
      std::vector<size_t>& stack = stacks.emplace_back();
      for (const ProfileSet::ShownFrame& frame : PathOf(profiles, sample, by)) {
        const auto [entry, is_new] = numbers.try_emplace({frame.name, frame.place}, frames.size());
        if (is_new) {
          Json json = {{"name", frame.name}};
          const size_t colon = frame.place.rfind(':');
          if (!frame.place.empty()) json["file"] = frame.place.substr(0, colon);
          if (colon != std::string::npos) json["line"] = std::atoll(frame.place.c_str() + colon + 1);
          frames.push_back(std::move(json));
        }
        stack.push_back(entry->second);
      }
    }
  }
  Json views = Json::array();
  for (size_t type = 0; type < profiles.types().size(); ++type) {
    Json samples = Json::array();
    Json weights = Json::array();
    int64_t total = 0;
    size_t number = 0;
    for (const ProfileSet::File& file : profiles.files()) {
      for (size_t s = 0; s < file.samples.size(); ++s, ++number) {
        const int64_t value = profiles.Value(file, s, type);
        if (value <= 0) continue;  // has no width
        samples.push_back(stacks[number]);
        weights.push_back(value);
        total = Plus(total, value);
      }
    }
    const SampleType& of = profiles.types()[type];
    views.push_back({{"type", "sampled"},
                     {"name", of.type},
                     {"unit", of.unit == "bytes" ? "bytes" : "none"},
                     {"startValue", 0},
                     {"endValue", total},
                     {"samples", std::move(samples)},
                     {"weights", std::move(weights)}});
  }
  const Json json = {{"$schema", "https://www.speedscope.app/file-format-schema.json"},
                     {"name", profiles.files()[0].path},
                     {"exporter", "hbmprof"},
                     {"shared", {{"frames", std::move(frames)}}},
                     {"profiles", std::move(views)}};
  return ToText(json);
}

std::string AllAsJson(const ProfileSet& profiles) {
  Json json = Json::object();
  Json& types = json["types"] = Json::array();
  for (const SampleType& type : profiles.types()) types.push_back({{"type", type.type}, {"unit", type.unit}});
  Json& files = json["files"] = Json::array();
  for (const ProfileSet::File& file : profiles.files()) {
    Json& entry = files.emplace_back(Json{{"path", file.path}, {"time", FormatTime(file.time_nanos)}});
    entry["comments"] = file.comments;
    Json& samples = entry["samples"] = Json::array();
    for (size_t s = 0; s < file.samples.size(); ++s) {
      Json& sample = samples.emplace_back(Json::object());
      Json& values = sample["values"] = Json::object();
      for (size_t t = 0; t < profiles.types().size(); ++t)
        values[profiles.types()[t].type] = profiles.Value(file, s, t);
      Json& labels = sample["labels"] = Json::object();
      for (const ProfileSet::Label& label : profiles.labels(file.samples[s].labels)) {
        Json& value = labels[profiles.text(label.key)];
        if (label.text != 0) {
          value = profiles.text(label.text);
        } else {
          value = label.number;
        }
      }
      Json& stack = sample["stack"] = Json::array();
      for (const ProfileSet::ShownFrame& frame : profiles.ShownStack(file.samples[s].stack)) {
        stack.push_back({{"name", frame.name}, {"where", frame.place}});
      }
    }
  }
  return ToText(json);
}

absl::StatusOr<int> RunConvert(const ConvertOptions& options) {
  const absl::StatusOr<ProfileSet> profiles = ProfileSet::Read(options.files);
  if (!profiles.ok()) return profiles.status();
  const absl::StatusOr<size_t> type = profiles->TypeNamed(options.type);
  if (!type.ok()) return type.status();
  const std::string text = options.to == "folded"       ? Folded(*profiles, *type, options.by)
                           : options.to == "speedscope" ? Speedscope(*profiles, options.by)
                                                        : AllAsJson(*profiles);
  if (options.output.empty()) {
    Print(text);
  } else if (const absl::Status status = hbmprof::internal::WriteFileAtomically(options.output, text); !status.ok()) {
    return status;
  }
  return kSuccess;
}

}  // namespace

Command AddConvertCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("convert", "Write folded stacks, speedscope's format, or JSON");
  auto options = std::make_shared<ConvertOptions>();
  arguments->add_option("FILE", options->files, "Profiles; those of several ranks are put together")->required();
  arguments->add_option("--to", options->to, "folded, speedscope or json")
      ->required()
      ->check(CLI::IsMember({"folded", "speedscope", "json"}));
  arguments->add_option("-o,--output", options->output, "Where to write (default: standard output)");
  arguments->add_option("-t,--type", options->type, "Sample type, of folded stacks (default: the profile's own)");
  arguments->add_option("-b,--by", options->by, "Labels to put above the stacks: device,kind")
      ->delimiter(',')
      ->allow_extra_args(false);
  return {arguments, [options] { return RunConvert(*options); }};
}

}  // namespace hbmprof::tool
