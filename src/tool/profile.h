// Profiles in memory: several files on common tables, so that a stack, a label or a sample type has one number in all
// of them. What two profiles have in common is decided as pprof decides it: addresses relative to their mapping,
// mappings by build id or file name, functions by name. Not here: reading files (profile_reader.h), sums (sums.h).
#ifndef HBMPROF_SRC_TOOL_PROFILE_H_
#define HBMPROF_SRC_TOOL_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/tool/profile_reader.h"

namespace hbmprof::tool {

struct SampleType {
  std::string type;
  std::string unit;
};

// A line that the writer left in the profile: a word, for a device its name, then key=value pairs (docs/profile.md).
struct Comment {
  std::string word;
  std::string name;
  std::map<std::string, std::string> values;

  explicit Comment(std::string_view text);
  // The value of `key` as a number; nothing if there is none or it is none.
  std::optional<int64_t> Number(const std::string& key) const;
};

// Lists of numbers that get small numbers, equal lists the same one.
class ListTable {
 public:
  ListTable() : ends_{0} {}
  // The hash differs from process to process, so that no file can be made to have many lists under one.
  uint32_t Intern(const std::vector<uint64_t>& list);
  size_t size() const { return ends_.size() - 1; }
  const uint64_t* begin(uint32_t number) const { return words_.data() + ends_[number]; }
  const uint64_t* end(uint32_t number) const { return words_.data() + ends_[number + 1]; }
  size_t length(uint32_t number) const { return ends_[number + 1] - ends_[number]; }

 private:
  std::vector<uint64_t> words_;
  std::vector<size_t> ends_;
  static constexpr uint32_t kNone = UINT32_MAX;
  absl::flat_hash_map<size_t, uint32_t> by_hash_;  // the latest list of a hash
  std::vector<uint32_t> earlier_;                  // by list: another one of its hash; kNone
};

class ProfileSet {
 public:
  using String = uint32_t;  // 0 is ""
  struct Function {
    String name;  // short, as pprof shows it
    String system_name;
    String filename;
    int64_t start_line;
  };
  struct Frame {
    uint32_t function;
    int64_t line;
  };
  struct Location {
    String object;              // the mapping's file
    uint64_t address = 0;       // relative to its mapping
    std::vector<Frame> frames;  // innermost inlined function first; empty if nobody knows
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
  };
  struct File {
    std::string path;
    int64_t time_nanos = 0;
    std::vector<std::string> comments;
    std::vector<Sample> samples;
    std::vector<int64_t> values;  // of sample i: from i * types().size()
  };

  ProfileSet(ProfileSet&&) = default;
  ProfileSet& operator=(ProfileSet&&) = default;

  // A frame as people read it: "[libfoo.so]" or "<unknown>" for code without a name, and "file.cc:12", the binary in
  // brackets, or "".
  struct ShownFrame {
    std::string name;
    std::string place;
  };

  // Reads the files and keeps the sample types that all of them have, in the first one's order and in the finest of
  // their units. Frames that the first file's drop_frames and keep_frames hide are taken out, as pprof does. Errors:
  // those of ReadProfile; kInvalidArgument if the files have no sample type in common; kResourceExhausted if its
  // stacks, labels or expressions are many times larger than the file explains.
  static absl::StatusOr<ProfileSet> Read(const std::vector<std::string>& paths);

  const std::vector<SampleType>& types() const { return types_; }
  // The type called `name`, or of that index; "": the one that the profiles want to show first. pprof's rules. Error:
  // kInvalidArgument, with the names there are.
  absl::StatusOr<size_t> TypeNamed(const std::string& name) const;

  const std::vector<File>& files() const { return files_; }
  int64_t Value(const File& file, size_t sample, size_t type) const {
    return file.values[sample * types_.size() + type];
  }

  const std::string& text(String number) const { return strings_[number]; }
  // The number of `text`, if any profile has it.
  std::optional<String> Find(std::string_view text) const;
  const std::vector<Function>& functions() const { return functions_; }
  const std::vector<Location>& locations() const { return locations_; }
  const ListTable& stacks() const { return stacks_; }
  size_t label_set_count() const { return label_sets_.size(); }
  const std::vector<Label>& labels(uint32_t label_set) const { return label_sets_[label_set]; }
  // The value of the label `key` as text; numbers as decimals. "" if there is none.
  std::string LabelText(uint32_t label_set, std::string_view key) const;
  // The location's frames, innermost first; at least one.
  std::vector<ShownFrame> ShownLocation(uint64_t location) const;
  // The stack's frames with those inlined, innermost first.
  std::vector<ShownFrame> ShownStack(uint32_t stack) const;
  // Error: kResourceExhausted if all samples' stacks, as ShownStack has them, are more text than any profile's are. To
  // be asked before every stack is written out: names are stored once and used in many places.
  absl::Status CheckTextOfStacks() const;

 private:
  class Adder;
  ProfileSet() = default;
  String Intern(std::string_view text);
  absl::Status Unify(const std::vector<std::vector<SampleType>>& types);

  std::vector<SampleType> types_;
  std::string default_type_;
  std::vector<File> files_;
  std::deque<std::string> strings_{""};
  absl::flat_hash_map<std::string_view, String> string_numbers_{{"", 0}};
  std::vector<Function> functions_;
  std::vector<Location> locations_;
  ListTable function_keys_;
  ListTable location_keys_;
  ListTable stacks_;
  ListTable label_keys_;
  std::vector<std::vector<Label>> label_sets_;
};

// The name of code without one: its binary in brackets.
std::string UnnamedFrame(const std::string& object);
// Without "." and "..".
std::string CleanPath(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_H_
