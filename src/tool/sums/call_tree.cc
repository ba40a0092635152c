// The call tree of profiles: one node for each different path from the outermost frame.
#include <queue>

#include "src/tool/sums/sums_view.h"

namespace hbmprof::tool {
namespace {

std::string NodeName(const ProfileSet::ShownFrame& frame, Grouping::Frames how) {
  if (how == Grouping::Frames::kFiles) return frame.Position();
  if (how == Grouping::Frames::kLines) return Cat(frame.name, frame.file.empty() ? "" : " ", frame.Position());
  return frame.name;
}

class CallTree {
 public:
  struct Node {
    size_t parent;
    size_t depth;  // 0 for the root, which has no name
    std::string name;
    std::string position;  // of the call site; without a line if there are several; "" for a label
    int64_t flat = 0;
    int64_t cum = 0;
    // The sum of |flat| over the node and all nodes below it. In a difference, cum can be 0 above nodes that are not.
    int64_t size = 0;
    std::vector<size_t> children;  // largest size first; of equal sizes, growth first
  };

  // Sums the sample type `type` over all files, minus the first `base_files` files. The values of the labels of
  // `grouping` are the outermost nodes. Below a node, frames with equal names become one node. With Frames::kLines,
  // their positions must also be equal. With Frames::kFiles, only their positions count. If there are more than
  // kMaxNodes nodes, the samples with the largest values have nodes, and the others are "[other call stacks]": the
  // stacks of a small profile can have more nodes than there is memory for.
  CallTree(const ProfileSet& profiles, size_t type, const Grouping& grouping, size_t base_files) {
    nodes_.push_back({0, 0, "", "", 0, 0, 0, {}});
    absl::flat_hash_map<std::string, uint32_t> names;
    absl::flat_hash_map<std::pair<size_t, uint32_t>, size_t> numbers;  // by (parent, name)
    const auto child_of = [&](size_t parent, const std::string& name, const std::string& position) {
      const auto text = names.try_emplace(name, static_cast<uint32_t>(names.size())).first;
      const auto [entry, is_new] = numbers.try_emplace({parent, text->second}, nodes_.size());
      if (is_new) {
        nodes_.push_back({parent, nodes_[parent].depth + 1, name, position, 0, 0, 0, {}});
        nodes_[parent].children.push_back(entry->second);
      } else {
        JoinPosition(position, nodes_[entry->second].position);
      }
      return entry->second;
    };
    // The text of each location's frames is made only once.
    std::vector<std::vector<std::pair<std::string, std::string>>> frames(profiles.locations().size());
    absl::flat_hash_map<std::pair<uint32_t, uint32_t>, size_t> leaves;  // by (stack, label set)
    const auto leaf_of = [&](const ProfileSet::Sample& sample) {
      size_t node = 0;
      for (const std::string& key : grouping.labels) {
        node = child_of(node, Cat(key, "=", profiles.LabelText(sample.labels, key)), "");
      }
      std::vector<uint64_t> locations;  // outermost first
      if (grouping.frames != Grouping::Frames::kNone) locations = profiles.stacks()[sample.stack];
      absl::c_reverse(locations);
      size_t length = 0;
      for (const uint64_t l : locations) {
        if (frames[l].empty()) {
          for (const ProfileSet::ShownFrame& frame : profiles.ShownLocation(l)) {
            frames[l].emplace_back(NodeName(frame, grouping.frames), frame.Position());
          }
          absl::c_reverse(frames[l]);
        }
        length += frames[l].size();
      }
      if (nodes_.size() + length > kMaxNodes) return child_of(node, "[other call stacks]", "");
      for (const uint64_t l : locations) {
        for (const auto& [name, position] : frames[l]) node = child_of(node, name, position);
      }
      return node == 0 ? child_of(0, "[no stack]", "") : node;
    };
    struct Value {
      const ProfileSet::Sample* sample;
      int64_t value;
      bool is_base;
    };
    std::vector<Value> values;
    size_t locations = 0;
    for (size_t f = 0; f < profiles.files().size(); ++f) {
      const ProfileSet::File& file = profiles.files()[f];
      for (size_t s = 0; s < file.samples.size(); ++s) {
        const int64_t value = profiles.Value(file, s, type);
        if (value == 0) continue;
        values.push_back({&file.samples[s], value, f < base_files});
        locations += profiles.stacks().length(file.samples[s].stack);
      }
    }
    // If there may be too many nodes, the largest values come first. The order of the files needs less time.
    if (locations > kMaxNodes / 2) {
      absl::c_stable_sort(values,
                          [](const Value& a, const Value& b) { return Magnitude(a.value) > Magnitude(b.value); });
    }
    for (const Value& one : values) {
      const auto [leaf, is_new] = leaves.try_emplace({one.sample->stack, one.sample->labels}, 0);
      if (is_new) leaf->second = leaf_of(*one.sample);
      Node& node = nodes_[leaf->second];
      node.flat = one.is_base ? Minus(node.flat, one.value) : Plus(node.flat, one.value);
    }
    for (size_t i = nodes_.size(); i-- > 0;) {
      Node& node = nodes_[i];
      AddTo(node.cum, node.flat);
      AddTo(node.size, Magnitude(node.flat));
      if (i == 0) break;
      Node& parent = nodes_[node.parent];
      AddTo(parent.cum, node.cum);
      AddTo(parent.size, node.size);
    }
    for (Node& node : nodes_) {
      absl::c_stable_sort(node.children, [this](size_t a, size_t b) {
        return std::make_pair(nodes_[a].size, nodes_[a].cum) > std::make_pair(nodes_[b].size, nodes_[b].cum);
      });
    }
  }

  // The root is node 0. Parents come before their children.
  const std::vector<Node>& nodes() const { return nodes_; }
  // Returns the nodes to show in the order of the tree, without the root. Leaves out nodes that are 0, and all but the
  // `most` largest nodes (0: no limit).
  std::vector<size_t> Shown(size_t most) const {
    // The largest nodes whose parent is shown. A parent comes before its children.
    std::vector<bool> shown(nodes_.size());
    std::priority_queue<std::pair<int64_t, size_t>> next;
    const auto push_children = [&](size_t node) {
      for (const size_t child : nodes_[node].children) {
        if (nodes_[child].size != 0) next.push({nodes_[child].size, ~child});
      }
    };
    push_children(0);
    for (size_t count = 0; !next.empty() && (most == 0 || count < most); ++count) {
      const size_t node = ~next.top().second;
      next.pop();
      shown[node] = true;
      push_children(node);
    }
    std::vector<size_t> order;
    std::vector<size_t> stack = {0};
    while (!stack.empty()) {
      const size_t node = stack.back();
      stack.pop_back();
      if (node != 0) order.push_back(node);
      for (size_t i = nodes_[node].children.size(); i-- > 0;) {
        if (shown[nodes_[node].children[i]]) stack.push_back(nodes_[node].children[i]);
      }
    }
    return order;
  }

 private:
  static constexpr size_t kMaxNodes = 1'000'000;

  std::vector<Node> nodes_;
};

}  // namespace

void AddTree(const SumsQuery& query, size_t base_files, size_t shown, int64_t total, Answer& answer) {
  const bool is_change = base_files != 0;
  const CallTree tree(query.profiles, query.type, query.grouping, base_files);
  using Number = size_t;
  const auto node = [&tree](Number number) -> const CallTree::Node& { return tree.nodes()[number]; };
  const auto value = [&](int64_t of) { return is_change ? query.Change(of) : query.Text(of); };
  const auto json_of = [node](auto CallTree::Node::*member) { return [=](Number n) { return Json(node(n).*member); }; };
  const RowFields<Number> columns = {
      {"", 'l', nullptr, "depth", json_of(&CallTree::Node::depth)},
      {"cum", 'r', [&](Number n) { return value(node(n).cum); }, "cum", json_of(&CallTree::Node::cum)},
      {"cum%", 'r', [&](Number n) { return FormatPercent(node(n).cum, total); }, "", nullptr},
      {"flat", 'r', [&](Number n) { return node(n).flat == 0 ? "" : value(node(n).flat); }, "flat",
       json_of(&CallTree::Node::flat)},
      {"call tree", 'l', [&](Number n) { return std::string(node(n).depth - 1, ' ') + node(n).name; }, "function",
       json_of(&CallTree::Node::name)},
      {"where", 'l', [&](Number n) { return node(n).position == node(n).name ? "" : node(n).position; }, "where",
       json_of(&CallTree::Node::position)}};
  const std::vector<Number> numbers = tree.Shown(shown);
  const size_t all = tree.Shown(0).size();
  answer.Add("nodes", numbers, columns, 0, [&](Number n) { return is_change ? ToneOf(node(n).cum) : Tone::kPlain; });
  if (numbers.size() < all) answer.json["left_out"] = all - numbers.size();
  answer.text += MoreRows(numbers.size(), all);
}

}  // namespace hbmprof::tool
