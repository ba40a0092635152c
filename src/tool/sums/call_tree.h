// The call tree of profiles: one node for each different path from the outermost frame.
#ifndef HBMPROF_SRC_TOOL_SUMS_CALL_TREE_H_
#define HBMPROF_SRC_TOOL_SUMS_CALL_TREE_H_

#include "src/tool/profile/profile.h"
#include "src/tool/sums/sums.h"

namespace hbmprof::tool {

class CallTree {
 public:
  struct Node {
    size_t parent;
    size_t depth;  // 0 for the root, which has no name
    std::string name;
    std::string position;  // of the first call site; "" for a label
    int64_t flat = 0;
    int64_t cum = 0;
    // The sum of |flat| over the node and all nodes below it. In a difference, cum can be 0 above nodes that are not.
    int64_t size = 0;
    std::vector<size_t> children;  // largest size first; of equal sizes, growth first
  };

  // Sums the sample type `type` over all files, minus the first `base_files` files. The values of the labels of
  // `grouping` are the outermost nodes. Below a node, frames with equal names become one node. With Frames::kLines,
  // their positions must also be equal. With Frames::kFiles, only their positions count.
  CallTree(const ProfileSet& profiles, size_t type, const Grouping& grouping, size_t base_files = 0);

  // The root is node 0. Parents come before their children.
  const std::vector<Node>& nodes() const { return nodes_; }
  // Returns the nodes to show in the order of the tree, without the root. Leaves out nodes that are 0, and all but the
  // `most` largest nodes (0: no limit).
  std::vector<size_t> Shown(size_t most) const;

 private:
  std::vector<Node> nodes_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_CALL_TREE_H_
