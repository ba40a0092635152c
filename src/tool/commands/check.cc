// `hbmprof check`: reports whether a profile is well formed and complete.
#include <re2/re2.h>

#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "src/tool/commands/command.h"
#include "src/tool/profile/profile.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

// Collects the problems and remarks of a profile. The reader has already checked every reference.
class Examiner {
 public:
  explicit Examiner(const RawProfile& profile) : profile_(profile), message_(profile.message()) {}

  // `gaps`: what is missing in the recording of which the profile is a moment.
  void Examine(const std::vector<std::string>& gaps) {
    Header();
    Tables();
    Samples();
    Comments();
    for (const std::string& gap : gaps) Problem(gap);
  }

  std::string Summary() const {
    std::string text = Cat(message_.sample_size(), " samples of ");
    for (int i = 0; i < message_.sample_type_size(); ++i) {
      text += Cat(i == 0 ? "" : ", ", profile_.text(message_.sample_type(i).type()));
    }
    return Cat(text, "; ", message_.location_size(), " locations in ", message_.mapping_size(), " mappings, ",
               message_.function_size(), " functions");
  }

  std::vector<std::string> problems;
  std::vector<std::string> notes;

 private:
  void Problem(std::string text) { Add(std::move(text), problems); }
  void Note(std::string text) { Add(std::move(text), notes); }
  // More than kEnough entries are not useful to the user.
  static void Add(std::string text, std::vector<std::string>& to) {
    if (to.size() == kEnough) text = "... and more";
    if (to.size() <= kEnough) to.push_back(std::move(text));
  }

  void Header() {
    if (message_.sample_type().empty()) Problem("it has no sample types: nothing can be shown");
    const std::string_view wanted = profile_.text(message_.default_sample_type());
    bool known = wanted.empty();
    absl::flat_hash_set<std::string_view> types;
    for (const pprof::ValueType& type : message_.sample_type()) {
      known = known || profile_.text(type.type()) == wanted;
      if (!types.insert(profile_.text(type.type())).second) {
        Problem(Cat("sample type ", profile_.text(type.type()), " appears twice: only the first can be selected"));
      }
    }
    if (!known) Problem(Cat("default_sample_type ", wanted, " is not one of its sample types"));
    for (const int64_t expression : {message_.drop_frames(), message_.keep_frames()}) {
      RE2::Options options;
      options.set_log_errors(false);
      options.set_max_mem(int64_t{2} << 20);
      const RE2 compiled(std::string(profile_.text(expression)), options);
      if (!compiled.ok()) {
        Problem(
            Cat("drop_frames or keep_frames is not a regular expression, so it hides no frame: ", compiled.error()));
      }
    }
    if (!message_.has_period_type())
      Note("it has no period type: pprof compares it only with profiles that also have none");
    if (message_.time_nanos() == 0)
      Note("it has no time: give the files to `hbmprof leaks` in the order of their times");
    if (message_.duration_nanos() != 0) Note("it has a duration: some viewers add up profiles with a duration");
    if (absl::c_count(message_.string_table(), "") > 1)
      Problem("its string table begins twice: two profiles were written into one file");
  }

  void Tables() {
    bool dense = true;
    absl::flat_hash_map<uint64_t, const pprof::Mapping*> mappings;
    for (int i = 0; i < message_.mapping_size(); ++i) {
      const pprof::Mapping& mapping = message_.mapping(i);
      mappings[mapping.id()] = &mapping;
      dense = dense && mapping.id() == static_cast<uint64_t>(i) + 1;
    }
    for (int i = 0; i < message_.function_size(); ++i) {
      dense = dense && message_.function(i).id() == static_cast<uint64_t>(i) + 1;
    }
    int without_name = 0;
    int without_line = 0;
    for (int i = 0; i < message_.location_size(); ++i) {
      const pprof::Location& location = message_.location(i);
      dense = dense && location.id() == static_cast<uint64_t>(i) + 1;
      without_name += location.line().empty() ? 1 : 0;
      without_line += absl::c_all_of(location.line(), [](const pprof::Line& line) { return line.line() == 0; }) ? 1 : 0;
      if (location.mapping_id() == 0) continue;
      const auto mapping = mappings.find(location.mapping_id());
      if (mapping == mappings.end()) {
        Problem(Cat("location[", i, "] is in mapping ", location.mapping_id(), ", which does not exist"));
      } else if (location.address() != 0 && mapping->second->memory_limit() != 0 &&
                 (location.address() < mapping->second->memory_start() ||
                  location.address() >= mapping->second->memory_limit())) {
        Problem(Cat("location[", i, "] lies outside its mapping ", profile_.text(mapping->second->filename())));
      }
      if (problems.size() >= kEnough) return;
    }
    if (!dense) Note("its ids do not count from 1: Parca rejects it");
    const bool symbolized = absl::c_any_of(
        message_.comment(), [&](int64_t comment) { return Comment(profile_.text(comment)).word == "symbolized"; });
    const char* const advice =
        symbolized ? ": symbolize found no debug information for them" : ": run hbmprof symbolize";
    if (without_name > 0) Note(Cat(without_name, " locations have no name", advice));
    if (without_line > 0 && without_line != without_name) Note(Cat(without_line, " locations have no line", advice));
    if (message_.doc_url() != 0) Note("it has a doc_url: Perfetto does not recognize it as a profile");
  }

  void Samples() {
    int without_stack = 0;
    int negative = 0;
    for (int i = 0; i < message_.sample_size() && problems.size() < kEnough; ++i) {
      const pprof::Sample& sample = message_.sample(i);
      without_stack += sample.location_id().empty() ? 1 : 0;
      for (const int64_t value : sample.value()) negative += value < 0 ? 1 : 0;
      absl::flat_hash_set<int64_t> keys;
      for (const pprof::Label& label : sample.label()) {
        if (!keys.insert(label.key()).second) {
          Problem(Cat("sample[", i, "] has the label ", profile_.text(label.key()), " twice"));
        }
        if (label.str() != 0 && label.num() != 0) {
          Problem(Cat("sample[", i, "] has the label ", profile_.text(label.key()), " as text and as a number"));
        }
      }
    }
    if (without_stack > 0) Problem(Cat(without_stack, " samples have no stack: they count, but no row shows them"));
    if (negative > 0) Note(Cat(negative, " values are negative: it is a saved difference"));
  }

  // Checks that the comments agree with the samples. Only profiles of hbmprof have these comments.
  void Comments() {
    ProfileInfo info;
    for (const int64_t index : message_.comment()) info.Add(profile_.text(index));
    Devices(info.devices);
    for (const Comment& tracker : info.trackers) {
      const auto value = [&](const char* key) { return tracker.Number(key).value_or(0); };
      if (value("dropped_records") != 0) {
        Problem(Cat("it is incomplete: ", value("dropped_records"), " allocations of ", Bytes(value("dropped_bytes")),
                    " were not recorded because a limit was reached (HBMPROF_MAX_LIVE, HBMPROF_MAX_HOST_BYTES)"));
      }
      for (const auto& [key, text] :
           {std::pair("truncated_stacks",
                      " stacks lost their outermost frames: they are deeper than HBMPROF_STACK_DEPTH, or end at code "
                      "without unwind information"),
            std::pair("replaced_records", " buffers were freed by a call that was not recorded"),
            std::pair("refused_frees", " frees were refused: the memory may still be in use, and is not shown"),
            std::pair("foreign_frees", " frees were of buffers whose allocation was not recorded")}) {
        if (value(key) != 0) Note(Cat(value(key), text));
      }
    }
    for (const int64_t index : message_.comment()) {
      const Comment comment(profile_.text(index));
      const std::string problem = comment.word == "python" ? comment.Text("problem") : "";
      if (!problem.empty()) Note(Cat("Python functions are not in the stacks: ", problem));
    }
    for (const std::string& warning : info.warnings) Note(warning);
  }

  void Devices(const std::vector<ProfileInfo::Device>& devices) {
    if (devices.empty()) return;
    const std::tuple<const char*, const char*, std::optional<SumsByDevice>> totals[] = {
        {"in_use", "inuse_space", SumsOf("inuse_space")},
        {"in_use", "reserved_space", SumsOf("reserved_space")},
        {"peak", "peak_space", SumsOf("peak_space")}};
    for (const ProfileInfo::Device& device : devices) {
      for (const auto& [key, type, sums] : totals) {
        const std::optional<int64_t> stated = device.Number(key);
        if (!stated.has_value() || !sums.has_value()) continue;
        const auto found = sums->find({device.name, device.space});
        const std::optional<int64_t> sum = found == sums->end() ? 0 : found->second;
        if (!sum.has_value() || *stated == *sum) continue;
        Problem(Cat("device ", device.name, " (", device.space, ") states ", key, "=", *stated, ", but the samples' ",
                    type, " sum to ", *sum));
      }
      const int64_t unaccounted = device.Number("unaccounted").value_or(0);
      if (unaccounted == 0) continue;
      Note(Cat("device ", device.name, ": ", FormatChange(unaccounted, "bytes"),
               " are in use outside of tracked allocations"));
    }
  }

  // By device and memory space; nullopt if the sum overflows int64.
  using SumsByDevice = absl::flat_hash_map<std::pair<std::string_view, std::string_view>, std::optional<int64_t>>;
  // Returns the sums of the samples; nullopt if there is no such sample type.
  std::optional<SumsByDevice> SumsOf(std::string_view type) const {
    int index = 0;
    while (index < message_.sample_type_size() && profile_.text(message_.sample_type(index).type()) != type) ++index;
    if (index == message_.sample_type_size()) return std::nullopt;
    SumsByDevice sums;
    for (const pprof::Sample& sample : message_.sample()) {
      std::string_view device;
      std::string_view kind;
      for (const pprof::Label& label : sample.label()) {
        if (profile_.text(label.key()) == "device") device = profile_.text(label.str());
        if (profile_.text(label.key()) == "kind") kind = profile_.text(label.str());
      }
      const std::string_view space = kind == "managed" || kind == "pinned_host" ? kind : "device";
      std::optional<int64_t>& sum = sums.try_emplace({device, space}, 0).first->second;
      int64_t with_this = 0;
      if (sum.has_value()) {
        sum = __builtin_add_overflow(*sum, sample.value(index), &with_this) ? std::nullopt : std::optional(with_this);
      }
    }
    return sums;
  }

  static constexpr size_t kEnough = 20;

  const RawProfile& profile_;
  const pprof::Profile& message_;
};

}  // namespace

Command AddCheckCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("check", "Check whether profiles are well formed and complete");
  auto files = std::make_shared<std::vector<std::string>>();
  arguments->add_option("SOURCE", *files, "Profiles")->required();
  AddProcessOptions(*arguments);
  arguments->footer(
      "Exits with 1 if a profile has problems and with 2 if a profile cannot be read. Notes are not problems.");
  return {arguments,
          [files]() -> absl::StatusOr<int> {
            int code = kSuccess;
            for (const std::string& file : *files) {
              std::vector<std::string> gaps;
              const absl::StatusOr<RawProfile> profile = ReadProfile(file, &gaps);
              if (!profile.ok()) {
                PrintVisible(ErrorLine(MessageOf(profile.status())) + "\n  UNREADABLE\n");
                code = kUnusable;
                continue;
              }
              Examiner examiner(*profile);
              examiner.Examine(gaps);
              const bool good = examiner.problems.empty();
              Print(Cat(Visible(file), good ? ": well formed and complete\n  " : ": HAS PROBLEMS\n  ",
                        Visible(examiner.Summary()), "\n"));
              for (const std::string& problem : examiner.problems) Print(Cat("  problem: ", Visible(problem), "\n"));
              for (const std::string& note : examiner.notes) Print(Cat("  note: ", Visible(note), "\n"));
              if (!good && code == kSuccess) code = kFinding;
            }
            return code;
          },
          true};
}

}  // namespace hbmprof::tool
