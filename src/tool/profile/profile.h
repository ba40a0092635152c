// Profiles in memory. Several files share common tables, so that equal stacks, labels and sample types have the same
// number in all files. Equality follows pprof's rules: addresses are relative to their mapping, mappings are identified
// by build id or file name, functions by name. See profile_reader.h for reading files and sums.h for sums.
#ifndef HBMPROF_SRC_TOOL_PROFILE_PROFILE_H_
#define HBMPROF_SRC_TOOL_PROFILE_PROFILE_H_

#include "src/tool/profile/ages.h"
#include "src/tool/profile/info.h"
#include "src/tool/profile/profile_reader.h"

namespace hbmprof::tool {

// The bytes of a profile, and its name in messages.
struct ProfileBytes {
  std::string name;
  std::string bytes;
};

struct SampleType {
  std::string type;
  std::string unit;
};

class ProfileSet {
 public:
  using String = uint32_t;  // 0 is ""
  struct Function {
    String name;  // short, as pprof shows it
    String filename;
    int64_t start_line;
  };
  struct Frame {
    uint32_t function;
    int64_t line;
  };
  struct Location {
    String object = 0;          // the mapping's file
    std::vector<Frame> frames;  // innermost inlined function first; empty if unknown
  };
  struct Label {
    String key;
    String text;     // "" if it is a number
    int64_t number;  // of this unit
    String unit;
  };
  struct Sample {
    uint32_t stack;   // of stacks(): locations, innermost first
    uint32_t labels;  // of label_sets()
    uint32_t ages;    // of ages(); 0: not known
  };
  struct File {
    std::string path;
    int64_t time_nanos = 0;
    std::vector<std::string> comments;
    ProfileInfo info;          // from the comments
    bool is_injected = false;  // of a process with the injected library: hbmprof run or attach
    std::vector<Sample> samples;
    std::vector<int64_t> values;  // of sample i: from i * types().size()
    // By type: the sum of the absolute values of the removed samples that count in the totals.
    std::vector<int64_t> removed;
  };

  ProfileSet(ProfileSet&&) = default;
  ProfileSet& operator=(ProfileSet&&) = default;

  struct ShownFrame {
    std::string name;         // never empty: "[libfoo.so]" or "<unknown>" for code without a function name
    std::string file;         // the source file, or the binary if the source file is not known; may be empty
    int64_t line = 0;         // 0: not known
    bool has_source = false;  // `file` is a source file
    // Returns "file.cc:12", else the binary in brackets, else "".
    std::string Position() const;
  };

  // A profile with its name in messages.
  struct Named {
    std::string name;
    RawProfile profile;
  };
  // Combines the profiles that `read` returns for the numbers below `count`, which is at least 1. Keeps the sample
  // types that all of them have, in the order of the first one. Removes the frames that drop_frames and keep_frames of
  // the first one hide, as pprof does. Calls `read` again only after the previous profile was added and freed. Errors:
  // those of `read`; kInvalidArgument if the profiles have no sample type in common, or one in different units;
  // kResourceExhausted if a profile's stacks, labels or expressions are much larger than is usual for its size.
  static absl::StatusOr<ProfileSet> ReadEach(size_t count,
                                             const std::function<absl::StatusOr<Named>(size_t number)>& read);

  const std::vector<SampleType>& types() const { return types_; }
  // Returns the index of the sample type `name`, which can also be an index; for "" the default type of the profiles.
  // Follows pprof's rules. Error: kInvalidArgument, with the names that exist.
  absl::StatusOr<size_t> TypeNamed(const std::string& name) const;

  // Returns the index of the sample type with exactly this name; nullopt if there is none.
  std::optional<size_t> FindType(std::string_view name) const;

  const std::vector<File>& files() const { return files_; }
  std::vector<std::string> PathsFrom(size_t first) const;
  int64_t Value(const File& file, size_t sample, size_t type) const {
    return file.values[sample * types_.size() + type];
  }

  const std::string& text(String number) const { return strings_[number]; }
  const std::vector<Function>& functions() const { return functions_; }
  const std::vector<Location>& locations() const { return locations_; }
  const NumberedLists<uint64_t>& stacks() const { return stacks_; }
  const std::vector<Label>& labels(uint32_t label_set) const { return label_sets_[label_set]; }
  const Ages& ages(const Sample& sample) const { return ages_[sample.ages]; }
  // Returns the value of the label `key` as text, numbers in decimal. "" if the label is missing.
  std::string LabelText(uint32_t label_set, std::string_view key) const;
  // Checks the argument of the option `option`. Error: kInvalidArgument if there are samples and none has the label
  // `key`, with the labels that exist.
  absl::Status CheckLabelKey(const std::string& option, const std::string& key) const;
  // Label sets with equal values of some labels have the same group.
  struct LabelGroups {
    std::vector<uint32_t> of_set;                  // by label set
    std::vector<std::vector<std::string>> values;  // by group: one for each label, "" if it is missing
  };
  // kMemoryKey as a key stands for MemoryOf.
  LabelGroups GroupLabels(const std::vector<std::string>& keys) const;
  // Returns the name of the memory that samples with these labels are in, as ProfileInfo::Device::memory; the label
  // `kind` says which one of its device.
  std::string MemoryOf(uint32_t label_set) const;

  // Edits of the samples, for view.h and labels.h. They do not change the files on disk.
  void RemoveFiles(const std::vector<size_t>& indices);
  uint64_t AddLocation(Location location);
  // Returns the number of a new function without a source file.
  uint32_t AddFunction(std::string_view name);
  // Returns the number of the stack of these locations, innermost first.
  uint32_t StackOf(const std::vector<uint64_t>& locations) { return stacks_.Number(locations); }
  // Gives the samples of each stack the stack that `stack_of` returns, or removes them if `stack_of` returns nullopt.
  // Removed samples still count in the totals.
  void MapStacks(const std::function<std::optional<uint32_t>(uint32_t stack)>& stack_of);
  // Whether removed samples still count in the totals. Percentages are relative to these totals.
  enum class Removed { kInTotal, kNotInTotal };
  // Removes the samples of the label sets for which `keeps` returns false.
  void FilterLabels(Removed removed, const std::function<bool(uint32_t label_set)>& keeps);

  // Gives each sample the label `key` with the text that `text_of` returns, if it has no label with this key.
  void AddLabel(std::string_view key,
                const std::function<std::string_view(const File& file, const Sample& sample)>& text_of);
  // Replaces the ages of the samples by the label kBirthLabel: splits each sample by the birth classes of its live
  // buffers. The label is the begin of the class in seconds after the start of the process. Sums stay the same. If
  // `older` is not 0, only classes all of whose buffers are older than this number of seconds get a label; the rest of
  // a sample stays in one. Errors: kInvalidArgument if a file has no ages, or if `older` is not 0 and it is of several
  // processes or does not state the uptime.
  absl::Status LabelBirths(int64_t older);
  // Adds a sample to the file with this index: a stack of the function `function`, labels with texts, and a value of
  // the sample type `type`. Its other values are 0.
  void AddSample(size_t file, std::string_view function,
                 const std::vector<std::pair<std::string_view, std::string_view>>& labels, size_t type, int64_t value);

  // Returns the frames of a location, innermost first; at least one.
  std::vector<ShownFrame> ShownLocation(uint64_t location) const;
  // Returns the frames of a stack with the inlined ones, innermost first; at least one.
  std::vector<ShownFrame> ShownStack(uint32_t stack) const;
  // Must be called before ShownStack is called for every sample: a long name is stored once, but can be in many stacks.
  // Error: kResourceExhausted if the text of all samples' stacks is larger than 4 GiB.
  absl::Status CheckTextOfStacks() const;

 private:
  class Adder;
  ProfileSet() = default;
  // Returns the number of the set of these labels, in any order.
  uint32_t LabelSetOf(std::vector<Label> labels);
  // Replaces the stacks of all samples. Removes a sample if `stack_of` returns nullopt.
  void MapSamples(Removed removed, const std::function<std::optional<uint32_t>(const Sample&)>& stack_of);
  absl::Status Unify(const std::vector<std::vector<SampleType>>& types);

  std::vector<SampleType> types_;
  std::string default_type_;
  std::vector<File> files_;
  NumberedTexts strings_;
  std::vector<Function> functions_;
  std::vector<Location> locations_;
  NumberedLists<uint64_t> function_keys_;
  NumberedLists<uint64_t> location_keys_;
  NumberedLists<uint64_t> stacks_;
  NumberedLists<uint64_t> label_keys_;
  std::vector<std::vector<Label>> label_sets_;
  std::vector<Ages> ages_{{}};  // the first one is empty
};

inline constexpr char kBirthLabel[] = "birth";
inline constexpr char kMemoryKey[] = "\x01memory";  // no label has this key

// Returns a text that identifies the process that wrote the file: its host and process id; "" if it is unknown.
std::string ProcessIn(const ProfileSet::File& file);
// Returns what to do about innermost frames without a name or, if `lines` is true, about a profile without lines; "" if
// there is nothing to do.
std::string SymbolizeHint(const ProfileSet& profiles, bool lines = false);
// Returns the name for code without a function name: its binary in brackets.
std::string UnnamedFrame(const std::string& object);
// Returns `path` without "." and "..".
std::string CleanPath(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_PROFILE_H_
