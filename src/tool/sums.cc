// See sums.h.
#include "src/tool/sums.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

// Gives frames their rows, and remembers where each row's weight comes from.
class Frames {
 public:
  Frames(const ProfileSet& profiles, Grouping::Frames how) : profiles_(profiles), how_(how) {
    nodes_.resize(profiles.locations().size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const ProfileSet::Location& location = profiles.locations()[i];
      if (location.frames.empty()) nodes_[i].push_back({NodeOf({0, location.object, 0, 0}), 0});
      for (const ProfileSet::Frame& frame : location.frames) {
        const ProfileSet::Function& function = profiles.functions()[frame.function];
        nodes_[i].push_back({NodeOf(KeyOf(function, frame, location)), PlaceOf(function.filename, frame.line)});
      }
    }
  }

  struct Use {
    uint32_t node;
    uint32_t place;  // 0: unknown
  };
  // Of a location, innermost first.
  const std::vector<Use>& of(uint64_t location) const { return nodes_[location]; }
  size_t count() const { return keys_.size(); }

  std::string NameOf(uint32_t node) const {
    const Key& key = keys_[node];
    const std::string& name = profiles_.text(key.name);
    const std::string file = CleanPath(profiles_.text(key.file));
    std::string text = name;
    if (key.line != 0) {
      text += Cat(text.empty() ? "" : " ", file, ":", key.line);
    } else if (!file.empty()) {
      text += Cat(text.empty() ? "" : " ", file);
    }
    return text.empty() ? UnnamedFrame(profiles_.text(key.object)) : text;
  }
  const std::string& ObjectOf(uint32_t node) const { return profiles_.text(objects_[node]); }
  std::string PlaceText(uint32_t place) const {
    const auto& [file, line] = places_[place];
    return line == 0 ? CleanPath(profiles_.text(file)) : Cat(CleanPath(profiles_.text(file)), ":", line);
  }

 private:
  // What rows differ in, as in pprof's graph: code without a function's name by its binary.
  struct Key {
    ProfileSet::String name;
    ProfileSet::String object;
    ProfileSet::String file;
    int64_t line;
    int64_t start_line = 0;
    friend bool operator==(const Key& a, const Key& b) {
      return a.name == b.name && a.object == b.object && a.file == b.file && a.line == b.line &&
             a.start_line == b.start_line;
    }
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      return H::combine(std::move(h), key.name, key.object, key.file, key.line, key.start_line);
    }
  };

  Key KeyOf(const ProfileSet::Function& function, const ProfileSet::Frame& frame,
            const ProfileSet::Location& location) {
    Key key = {0, 0, 0, 0};
    if (how_ != Grouping::Frames::kFiles) key.name = function.name;
    if (how_ != Grouping::Frames::kFunctions) key.file = function.filename;
    if (how_ == Grouping::Frames::kLines) key.line = frame.line;
    if (key.name == 0) {
      key.object = location.object;
      key.start_line = function.start_line;
    }
    current_object_ = location.object;
    return key;
  }

  uint32_t NodeOf(const Key& key) {
    const auto [entry, is_new] = numbers_.try_emplace(key, static_cast<uint32_t>(keys_.size()));
    if (is_new) {
      keys_.push_back(key);
      objects_.push_back(key.object != 0 ? key.object : current_object_);
    }
    return entry->second;
  }

  uint32_t PlaceOf(ProfileSet::String file, int64_t line) {
    if (file == 0) return 0;
    const auto [entry, is_new] = place_numbers_.try_emplace({file, line}, static_cast<uint32_t>(places_.size()));
    if (is_new) places_.push_back({file, line});
    return entry->second;
  }

  const ProfileSet& profiles_;
  const Grouping::Frames how_;
  std::vector<std::vector<Use>> nodes_;  // by location
  absl::flat_hash_map<Key, uint32_t> numbers_;
  std::vector<Key> keys_;
  std::vector<ProfileSet::String> objects_;
  ProfileSet::String current_object_ = 0;
  absl::flat_hash_map<std::pair<ProfileSet::String, int64_t>, uint32_t> place_numbers_;
  std::vector<std::pair<ProfileSet::String, int64_t>> places_{{0, 0}};
};

}  // namespace

absl::StatusOr<Grouping> Grouping::Parse(const std::vector<std::string>& names) {
  Grouping grouping;
  grouping.frames = names.empty() ? Frames::kFunctions : Frames::kNone;
  for (const std::string& name : names) {
    const Frames frames = name == "function" ? Frames::kFunctions
                          : name == "line"   ? Frames::kLines
                          : name == "file"   ? Frames::kFiles
                                             : Frames::kNone;
    if (frames == Frames::kNone) {
      grouping.labels.push_back(name);
    } else if (grouping.frames != Frames::kNone) {
      return absl::InvalidArgumentError("--by takes only one of function, line and file");
    } else {
      grouping.frames = frames;
    }
  }
  return grouping;
}

absl::StatusOr<Conditions> ParseConditions(const std::vector<std::string>& texts) {
  Conditions conditions;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(Cat("--where ", text, ": write a label as KEY=VALUE, such as device=GPU:0"));
    }
    conditions.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return conditions;
}

Sums::Sums(const ProfileSet& profiles, const std::vector<Column>& columns, size_t type, const Grouping& grouping,
           const Conditions& conditions, bool with_edges) {
  const bool has_frames = grouping.frames != Grouping::Frames::kNone;
  const Frames frames(profiles, grouping.frames);

  // Groups of label sets; kOut: not selected.
  constexpr uint32_t kOut = UINT32_MAX;
  std::vector<uint32_t> groups(profiles.label_set_count());
  std::vector<std::vector<std::string>> group_labels;
  absl::flat_hash_map<std::string, uint32_t> group_numbers;
  for (uint32_t set = 0; set < groups.size(); ++set) {
    const bool selected = std::all_of(conditions.begin(), conditions.end(), [&](const auto& condition) {
      return profiles.LabelText(set, condition.first) == condition.second;
    });
    std::vector<std::string> values;
    std::string key;
    for (const std::string& label : grouping.labels) {
      values.push_back(profiles.LabelText(set, label));
      key += Cat(values.back().size(), ":", values.back());
    }
    const auto [entry, is_new] = group_numbers.try_emplace(key, static_cast<uint32_t>(group_labels.size()));
    if (is_new) group_labels.push_back(std::move(values));
    groups[set] = selected ? entry->second : kOut;
  }

  // Samples of one stack and group are one: rows depend on nothing else.
  struct Weight {
    Values value = {0, 0};
  };
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Weight> weights;
  for (size_t c = 0; c < columns.size(); ++c) {
    const size_t column = columns.size() == 1 ? 1 : c;
    for (size_t f = columns[c].begin; f < columns[c].end; ++f) {
      const ProfileSet::File& file = profiles.files()[f];
      for (size_t s = 0; s < file.samples.size(); ++s) {
        const ProfileSet::Sample& sample = file.samples[s];
        const int64_t value = profiles.Value(file, s, type);
        if (groups[sample.labels] == kOut || value == 0) continue;
        total_[column] = Plus(total_[column], Magnitude(value));
        sum_[column] = Plus(sum_[column], value);
        int64_t& sum = weights[{sample.stack, groups[sample.labels]}].value[column];
        sum = Plus(sum, value);
      }
    }
  }

  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> row_numbers;  // (group, node) -> row
  std::vector<uint32_t> row_nodes;
  const auto row_of = [&](uint32_t group, uint32_t node) {
    const auto [entry, is_new] = row_numbers.try_emplace({group, node}, static_cast<uint32_t>(rows_.size()));
    if (is_new) {
      Row& row = rows_.emplace_back();
      row.number = entry->second;
      row.labels = group_labels[group];
      row_nodes.push_back(node);
    }
    return entry->second;
  };
  // Where a row's weight comes from: its own before that of what it calls.
  struct PlaceWeight {
    int64_t flat = 0;
    int64_t cum = 0;
  };
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, PlaceWeight> places;  // (row, place)
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> edge_numbers;
  std::vector<uint64_t> seen;  // by row: the last stack that counted for it
  std::vector<uint64_t> seen_edge;
  uint64_t stack_number = 0;
  const auto add = [](Values& to, const Values& value) {
    for (int i = 0; i < 2; ++i) to[i] = Plus(to[i], value[i]);
  };
  for (const auto& [key, weight] : weights) {
    ++stack_number;
    const auto& [stack, group] = key;
    if (!has_frames) {
      Row& row = rows_[row_of(group, 0)];
      add(row.flat, weight.value);
      add(row.cum, weight.value);
      continue;
    }
    const int64_t magnitude = Plus(Magnitude(weight.value[0]), Magnitude(weight.value[1]));
    std::optional<uint32_t> caller;
    uint32_t last_place = 0;
    const uint64_t* begin = profiles.stacks().begin(stack);
    for (size_t l = profiles.stacks().length(stack); l-- > 0;) {
      const std::vector<Frames::Use>& uses = frames.of(begin[l]);
      for (size_t i = uses.size(); i-- > 0;) {
        const uint32_t row = row_of(group, uses[i].node);
        seen.resize(rows_.size(), 0);
        if (seen[row] != stack_number) {
          seen[row] = stack_number;
          add(rows_[row].cum, weight.value);
        }
        last_place = uses[i].place;
        if (last_place != 0) {
          int64_t& cum = places[{row, last_place}].cum;
          cum = Plus(cum, magnitude);
        }
        if (with_edges && caller.has_value() && *caller != row) {
          const auto [entry, is_new] = edge_numbers.try_emplace({*caller, row}, static_cast<uint32_t>(edges_.size()));
          if (is_new) {
            edges_.push_back({*caller, row, {0, 0}, true});
            seen_edge.push_back(0);
          }
          Edge& edge = edges_[entry->second];
          if (seen_edge[entry->second] != stack_number) {
            seen_edge[entry->second] = stack_number;
            add(edge.cum, weight.value);
            if (i + 1 == uses.size()) edge.inlined = false;
          }
        }
        caller = row;
      }
    }
    if (caller.has_value()) {
      add(rows_[*caller].flat, weight.value);
      if (last_place != 0) {
        int64_t& flat = places[{*caller, last_place}].flat;
        flat = Plus(flat, magnitude);
      }
    }
  }

  struct Best {
    PlaceWeight weight;
    uint32_t place = 0;
  };
  std::vector<Best> best(rows_.size());
  for (const auto& [key, weight] : places) {
    Best& now = best[key.first];
    const auto rank = [](const PlaceWeight& w, uint32_t place) { return std::make_tuple(w.flat, w.cum, ~place); };
    if (now.place == 0 || rank(weight, key.second) > rank(now.weight, now.place)) now = {weight, key.second};
  }
  for (uint32_t i = 0; has_frames && i < rows_.size(); ++i) {
    rows_[i].name = frames.NameOf(row_nodes[i]);
    if (best[i].place != 0) {
      rows_[i].place = frames.PlaceText(best[i].place);
    } else if (const std::string& object = frames.ObjectOf(row_nodes[i]); !object.empty()) {
      rows_[i].place = UnnamedFrame(object);
    }
  }
}

std::vector<Sums::Row> Sums::Rows(bool by_cum) const {
  std::vector<Row> rows;
  for (const Row& row : rows_) {
    if (row.flat_change() != 0 || row.cum_change() != 0) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(), [by_cum](const Row& a, const Row& b) {
    const auto rank = [by_cum](const Row& row) {
      const int64_t flat = Magnitude(row.flat_change());
      const int64_t cum = Magnitude(row.cum_change());
      return by_cum ? std::make_pair(-cum, -flat) : std::make_pair(-flat, -cum);
    };
    return std::make_tuple(rank(a), std::tie(a.labels, a.name)) < std::make_tuple(rank(b), std::tie(b.labels, b.name));
  });
  return rows;
}

}  // namespace hbmprof::tool
