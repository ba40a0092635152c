#include "src/tool/sums/sums.h"

#include <set>
#include <tuple>

namespace hbmprof::tool {
namespace {

// Maps each frame of a location to a node and to its position in the source. Rows with different labels can have the
// same node.
class Frames {
 public:
  Frames(const ProfileSet& profiles, const std::vector<Column>& columns, Grouping::Frames how)
      : profiles_(profiles), how_(how) {
    nodes_.resize(profiles.locations().size());
    for (const Column& column : columns) FindNamesakes(column);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const ProfileSet::Location& location = profiles.locations()[i];
      if (location.frames.empty()) nodes_[i].push_back({NodeOf({0, location.object, 0, 0, 0}, location), 0});
      for (const ProfileSet::Frame& frame : location.frames) {
        const ProfileSet::Function& function = profiles.functions()[frame.function];
        nodes_[i].push_back(
            {NodeOf(KeyOf(function, frame, location), location), PositionOf(function.filename, frame.line)});
      }
    }
  }

  struct Use {
    uint32_t node;
    uint32_t position;  // 0: unknown
  };
  // Returns the frames of a location, innermost first.
  const std::vector<Use>& of(uint64_t location) const { return nodes_[location]; }

  std::string NameOf(uint32_t node) const {
    const auto& [name, object, file_name, line, start_line] = keys_[node];
    const std::string file = CleanPath(profiles_.text(file_name));
    const std::string position = line != 0 ? Cat(file, ":", line) : file;
    const std::string& text = profiles_.text(name);
    if (text.empty() && position.empty()) return UnnamedFrame(profiles_.text(object));
    return Cat(text, text.empty() || position.empty() ? "" : " ", position);
  }
  const std::string& ObjectOf(uint32_t node) const { return profiles_.text(objects_[node]); }
  std::string FileOf(uint32_t position) const { return CleanPath(profiles_.text(positions_[position].first)); }
  std::string PositionText(uint32_t position) const {
    const int64_t line = positions_[position].second;
    return line == 0 ? FileOf(position) : Cat(FileOf(position), ":", line);
  }

 private:
  // The properties that distinguish nodes, as in pprof's graph: the name, the binary, the source file, the line, and
  // the first line of functions with the same name in one file. Code without a function name is distinguished by its
  // binary.
  using Key = std::tuple<ProfileSet::String, ProfileSet::String, ProfileSet::String, int64_t, int64_t>;

  Key KeyOf(const ProfileSet::Function& function, const ProfileSet::Frame& frame,
            const ProfileSet::Location& location) const {
    const ProfileSet::String name = how_ != Grouping::Frames::kFiles ? function.name : 0;
    const bool is_first_line_needed = name == 0 || namesakes_.count({function.name, function.filename}) > 0;
    return {name, name == 0 ? location.object : 0, how_ != Grouping::Frames::kFunctions ? function.filename : 0,
            how_ == Grouping::Frames::kLines ? frame.line : 0, is_first_line_needed ? function.start_line : 0};
  }

  // Finds the functions of Python that share their name with others of the same file, in the profiles of one column:
  // JAX's own profiles name methods without their classes. Another version of the program has other lines.
  void FindNamesakes(const Column& column) {
    std::vector<bool> seen_stacks(profiles_.stacks().size());
    std::vector<bool> seen(profiles_.locations().size());
    std::map<std::pair<ProfileSet::String, ProfileSet::String>, int64_t> first_lines;
    for (size_t f = column.begin; f < column.end; ++f) {
      for (const ProfileSet::Sample& sample : profiles_.files()[f].samples) {
        if (seen_stacks[sample.stack]) continue;
        seen_stacks[sample.stack] = true;
        for (const uint64_t location : profiles_.stacks()[sample.stack]) {
          if (seen[location]) continue;
          seen[location] = true;
          for (const ProfileSet::Frame& frame : profiles_.locations()[location].frames) {
            const ProfileSet::Function& function = profiles_.functions()[frame.function];
            if (!absl::EndsWith(profiles_.text(function.filename), ".py")) continue;
            const std::pair key(function.name, function.filename);
            const auto [entry, is_new] = first_lines.try_emplace(key, function.start_line);
            if (!is_new && entry->second != function.start_line) namesakes_.insert(key);
          }
        }
      }
    }
  }

  // `location`: where a frame with this key is.
  uint32_t NodeOf(const Key& key, const ProfileSet::Location& location) {
    const auto [entry, is_new] = numbers_.try_emplace(key, static_cast<uint32_t>(keys_.size()));
    if (is_new) {
      keys_.push_back(key);
      objects_.push_back(location.object);
    }
    return entry->second;
  }

  uint32_t PositionOf(ProfileSet::String file, int64_t line) {
    if (file == 0) return 0;
    const auto [entry, is_new] = position_numbers_.try_emplace({file, line}, static_cast<uint32_t>(positions_.size()));
    if (is_new) positions_.push_back({file, line});
    return entry->second;
  }

  const ProfileSet& profiles_;
  const Grouping::Frames how_;
  std::set<std::pair<ProfileSet::String, ProfileSet::String>> namesakes_;  // name and file
  std::vector<std::vector<Use>> nodes_;                                    // by location
  absl::flat_hash_map<Key, uint32_t> numbers_;
  std::vector<Key> keys_;
  std::vector<ProfileSet::String> objects_;  // by node: of its first location
  absl::flat_hash_map<std::pair<ProfileSet::String, int64_t>, uint32_t> position_numbers_;
  std::vector<std::pair<ProfileSet::String, int64_t>> positions_{{0, 0}};
};

}  // namespace

void JoinPosition(const std::string& position, std::string& known) {
  if (position == known) return;
  const std::string file = position.substr(0, position.rfind(':'));
  known = file == known.substr(0, known.rfind(':')) ? file : kSeveralFiles;
}

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
      return InvalidArgument("--by takes only one of function, line and file");
    } else {
      grouping.frames = frames;
    }
  }
  return grouping;
}

class Sums::Builder {
 public:
  Builder(const ProfileSet& profiles, const std::vector<Column>& columns, const Grouping& grouping, bool with_edges,
          Sums& sums)
      : profiles_(profiles),
        frames_(profiles, columns, grouping.frames),
        has_frames_(grouping.frames != Grouping::Frames::kNone),
        with_edges_(with_edges),
        sums_(sums),
        groups_(profiles.GroupLabels(grouping.labels)) {
    for (uint32_t set = 0; grouping.marks_code && set < groups_.of_set.size(); ++set) {
      if (profiles.LabelText(set, "kind") == "executable") groups_.of_set[set] += kCode;
    }
  }

  void Build(const std::vector<Column>& columns, size_t type) {
    AddSamples(columns, type);
    for (const auto& [key, value] : weights_) {
      ++stack_number_;
      if (has_frames_) {
        AddStack(key.first, key.second, value);
      } else {
        Row& row = sums_.rows_[RowOf(key.second, 0)];
        Add(value, row.flat);
        Add(value, row.cum);
      }
    }
    if (has_frames_) NameRows();
  }

 private:
  static void Add(const Values& weight, Values& to) {
    for (int i = 0; i < 2; ++i) AddTo(to[i], weight[i]);
  }

  // Sums the samples with the same stack and group, because the rows depend only on these two.
  void AddSamples(const std::vector<Column>& columns, size_t type) {
    for (size_t c = 0; c < columns.size(); ++c) {
      const size_t column = columns.size() == 1 ? 1 : c;
      for (size_t f = columns[c].begin; f < columns[c].end; ++f) {
        const ProfileSet::File& file = profiles_.files()[f];
        AddTo(sums_.total_[column], file.removed[type]);
        for (size_t s = 0; s < file.samples.size(); ++s) {
          const ProfileSet::Sample& sample = file.samples[s];
          const int64_t value = profiles_.Value(file, s, type);
          if (value == 0) continue;
          AddTo(sums_.total_[column], Magnitude(value));
          AddTo(sums_.sum_[column], value);
          const auto key = std::make_pair(sample.stack, groups_.of_set[sample.labels]);
          const auto [entry, is_new] = weight_numbers_.try_emplace(key, weights_.size());
          if (is_new) weights_.push_back({key, {}});
          AddTo(weights_[entry->second].second[column], value);
        }
      }
    }
  }

  uint32_t RowOf(uint32_t group, uint32_t node) {
    std::vector<Row>& rows = sums_.rows_;
    const auto [entry, is_new] = row_numbers_.try_emplace({group, node}, static_cast<uint32_t>(rows.size()));
    if (is_new) {
      Row& row = rows.emplace_back();
      row.number = entry->second;
      row.labels = groups_.values[group & ~kCode];
      row.is_code = (group & kCode) != 0;
      row_nodes_.push_back(node);
    }
    return entry->second;
  }

  void AddStack(uint32_t stack, uint32_t group, const Values& weight) {
    const bool has_change = weight[0] != weight[1];
    std::optional<uint32_t> caller;
    uint32_t last_position = 0;
    const std::vector<uint64_t>& locations = profiles_.stacks()[stack];
    for (size_t l = locations.size(); l-- > 0;) {
      const std::vector<Frames::Use>& uses = frames_.of(locations[l]);
      for (size_t i = uses.size(); i-- > 0;) {
        const uint32_t row = RowOf(l == 0 && i == 0 ? group : group & ~kCode, uses[i].node);
        seen_.resize(sums_.rows_.size(), 0);
        if (seen_[row] != stack_number_) {
          seen_[row] = stack_number_;
          Add(weight, sums_.rows_[row].cum);
        }
        last_position = uses[i].position;
        if (last_position != 0 && has_change) AddPosition(row, last_position, weight[1] != 0 ? 1 : 0);
        if (with_edges_ && caller.has_value() && *caller != row) AddEdge(*caller, row, weight, i + 1 < uses.size());
        caller = row;
      }
    }
    if (!caller.has_value()) return;
    Add(weight, sums_.rows_[*caller].flat);
    if (last_position != 0 && has_change) AddPosition(*caller, last_position, weight[1] != 0 ? 3 : 2);
  }

  void AddPosition(uint32_t row, uint32_t position, int rank) {
    int& known = positions_[{row, position}];
    known = std::max(known, rank);
  }

  void AddEdge(uint32_t caller, uint32_t callee, const Values& weight, bool inlined) {
    std::vector<Edge>& edges = sums_.edges_;
    const auto [entry, is_new] = edge_numbers_.try_emplace({caller, callee}, static_cast<uint32_t>(edges.size()));
    if (is_new) {
      edges.push_back({caller, callee, {0, 0}, true});
      seen_edge_.push_back(0);
    }
    if (seen_edge_[entry->second] == stack_number_) return;
    seen_edge_[entry->second] = stack_number_;
    Edge& edge = edges[entry->second];
    Add(weight, edge.cum);
    if (!inlined) edge.inlined = false;
  }

  void NameRows() {
    // Those of the highest rank count.
    struct Where {
      int rank = 0;
      uint32_t position = 0;  // one of them
      bool is_one_line = true;
      bool is_one_file = true;
    };
    std::vector<Where> where(sums_.rows_.size());
    for (const auto& [key, rank] : positions_) {
      Where& now = where[key.first];
      if (now.position == 0 || rank > now.rank) {
        now = {rank, key.second};
      } else if (rank == now.rank) {
        now.is_one_line = false;
        now.is_one_file = now.is_one_file && frames_.FileOf(now.position) == frames_.FileOf(key.second);
      }
    }
    for (uint32_t i = 0; i < where.size(); ++i) {
      Row& row = sums_.rows_[i];
      row.name = frames_.NameOf(row_nodes_[i]) + (row.is_code ? " (kernel code)" : "");
      if (!where[i].is_one_file) {
        row.position = kSeveralFiles;
      } else if (const uint32_t position = where[i].position; position != 0) {
        row.position = where[i].is_one_line ? frames_.PositionText(position) : frames_.FileOf(position);
      } else if (const std::string& object = frames_.ObjectOf(row_nodes_[i]); !object.empty()) {
        row.position = UnnamedFrame(object);
      }
    }
  }

  const ProfileSet& profiles_;
  const Frames frames_;
  const bool has_frames_;
  const bool with_edges_;
  Sums& sums_;
  static constexpr uint32_t kCode = uint32_t{1} << 31;  // of the number of a group: of code of the device
  ProfileSet::LabelGroups groups_;
  // By (stack, group), in the order of the samples: their stacks then lie one after the other in memory.
  std::vector<std::pair<std::pair<uint32_t, uint32_t>, Values>> weights_;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, size_t> weight_numbers_;  // index in `weights_`
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> row_numbers_;   // by (group, node)
  std::vector<uint32_t> row_nodes_;                                            // by row
  // By (row, position), for positions whose value differs between the columns, a rank: first flat bytes, then bytes of
  // the second column, where the code is now.
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, int> positions_;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> edge_numbers_;  // by (caller, callee)
  uint64_t stack_number_ = 0;
  std::vector<uint64_t> seen_;       // by row: the last stack that was added to it
  std::vector<uint64_t> seen_edge_;  // by edge: the last stack that was added to it
};

Sums::Sums(const ProfileSet& profiles, const std::vector<Column>& columns, size_t type, const Grouping& grouping,
           bool with_edges) {
  Builder(profiles, columns, grouping, with_edges, *this).Build(columns, type);
}

std::vector<Sums::Row> Sums::Rows(bool by_cum) const {
  std::vector<Row> rows;
  for (const Row& row : rows_) {
    if (row.flat_change() != 0 || row.cum_change() != 0) rows.push_back(row);
  }
  absl::c_sort(rows, [by_cum](const Row& a, const Row& b) {
    // Of equal changes, growth comes first: a new block takes as many bytes from the idle memory of its pool.
    const auto rank = [by_cum](const Row& row) {
      const auto flat = std::make_pair(-Magnitude(row.flat_change()), row.flat_change() < 0);
      const auto cum = std::make_pair(-Magnitude(row.cum_change()), row.cum_change() < 0);
      return by_cum ? std::make_pair(cum, flat) : std::make_pair(flat, cum);
    };
    return std::make_tuple(rank(a), std::tie(a.labels, a.name)) < std::make_tuple(rank(b), std::tie(b.labels, b.name));
  });
  return rows;
}

}  // namespace hbmprof::tool
