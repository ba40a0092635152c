// A budget: how much device memory the functions of a program may hold at its peak. It is a text file in the program's
// repository (docs/budget.md). A later profile is compared with it by the names of functions only.
#ifndef HBMPROF_SRC_TOOL_BUDGET_BUDGET_H_
#define HBMPROF_SRC_TOOL_BUDGET_BUDGET_H_

#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// The functions of a call stack, each once, innermost first; at least one.
using FunctionNames = std::vector<std::string>;

struct Budget {
  // What the innermost function may hold in this call stack.
  struct Entry {
    FunctionNames functions;
    int64_t bytes = 0;
    std::optional<double> percent;  // in place of Budget::percent
  };
  // A function may exceed the sum of its entries by this share, and at least by `least` bytes; the total likewise.
  double percent = 5;
  int64_t least = 64 << 10;
  int64_t new_code = 1 << 20;  // what a function without an entry may hold
  std::optional<int64_t> total;
  std::vector<Entry> entries;
};

// Errors: those of ReadFile; kInvalidArgument, with the line, for anything else than a budget.
absl::StatusOr<Budget> ReadBudget(const std::string& path);
std::string TextOf(const Budget& budget);

struct Held {
  int64_t bytes = 0;
  uint32_t stack = 0;  // a stack of the profiles with these functions, that with the most bytes
};
using HeldStacks = std::map<FunctionNames, Held>;
// Returns what the profiles hold at the peak, where AttributeToOwnCode was applied. Blocks of a pool count at the peak
// of the pool, other memory at that of the device. As in leak checks, idle memory of pools, kernel code, managed and
// pinned host memory do not count. Stacks have the innermost function and up to seven callers that are own code as it
// is. `known`: further known libraries. Errors: kInvalidArgument without peak_space; those of CheckTextOfStacks.
absl::StatusOr<HeldStacks> HeldAtPeak(const ProfileSet& profiles, const std::vector<std::string>& known);

struct Comparison {
  struct Row {
    std::string function;
    int64_t now = 0;
    int64_t budget = 0;  // also what other functions held for it (Compare)
    int64_t limit = INT64_MAX;
    bool is_new = false;  // it has no entry
    uint32_t stack = 0;   // of its stacks, the one that has grown most

    int64_t growth() const { return Minus(now, budget); }
    bool is_over() const { return now > limit; }
    bool has_limit() const { return limit != INT64_MAX; }
  };
  std::vector<Row> rows;  // all functions that hold memory: those over their limits first, then the largest growth
  Row total;
  bool failed = false;  // a function, or the total, is over its limit
};
// Compilers inline different calls. So the growth of a function is at most that of all that it and the functions that
// it calls hold. What it holds in a stack that the budget does not have is growth only as far as its nearest caller
// that the budget has grew, with all that this one calls; and what the next callers do not hold themselves any more may
// have moved there, too. Without entries, only the total has a limit.
Comparison Compare(const Budget& budget, const HeldStacks& held);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_BUDGET_BUDGET_H_
