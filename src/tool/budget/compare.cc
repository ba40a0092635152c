// What a profile holds at the peak, and its comparison with a budget.
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "src/tool/budget/budget.h"
#include "src/tool/profile/labels.h"

namespace hbmprof::tool {
namespace {

// Returns the name by which a function is found in other builds. Code without a symbol is "libfoo.so+0x1234".
std::string NameOf(const std::string& name) {
  return absl::StrReplaceAll(Visible(name.substr(0, name.rfind("+0x"))), {{" < ", "<"}});
}

// Adds the functions of a location to those of a stack. `rank`: the OwnRank of the innermost one.
void AddFunctions(const ProfileSet& profiles, uint64_t location, KnownLibraries& libraries, int& rank,
                  FunctionNames& functions) {
  const std::vector<internal::FrameOwner> owners = libraries.OwnersOf(profiles, location);
  const std::vector<ProfileSet::ShownFrame> frames = profiles.ShownLocation(location);
  for (size_t i = 0; i < frames.size(); ++i) {
    const int of_frame = internal::OwnRank(owners[i].role);
    if (functions.empty()) rank = of_frame;
    std::string name = NameOf(frames[i].name);
    if (of_frame <= rank && !absl::c_linear_search(functions, name)) functions.push_back(std::move(name));
  }
}

}  // namespace

absl::StatusOr<HeldStacks> HeldAtPeak(const ProfileSet& profiles, const std::vector<std::string>& known) {
  ASSIGN_OR_RETURN(const size_t peak, profiles.TypeNamed("peak_space"));
  const size_t pool_peak = profiles.FindType("pool_peak_space").value_or(peak);
  RETURN_IF_ERROR(profiles.CheckTextOfStacks());
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(known));
  constexpr std::string_view kNotCounted[] = {"pool", "executable", "managed", "pinned_host"};
  const ProfileSet::LabelGroups groups = profiles.GroupLabels({"kind", "device", "allocator"});
  absl::flat_hash_map<uint32_t, int64_t> bytes;  // by stack
  for (const ProfileSet::File& file : profiles.files()) {
    absl::flat_hash_set<uint32_t> pools;  // the groups with blocks of a pool
    for (const bool is_sum : {false, true}) {
      for (size_t s = 0; s < file.samples.size(); ++s) {
        const uint32_t group = groups.of_set[file.samples[s].labels];
        if (!is_sum && profiles.Value(file, s, pool_peak) != 0) pools.insert(group);
        if (!is_sum || absl::c_linear_search(kNotCounted, groups.values[group][0])) continue;
        AddTo(bytes[file.samples[s].stack], profiles.Value(file, s, pools.contains(group) ? pool_peak : peak));
      }
    }
  }
  std::vector<std::pair<int64_t, uint32_t>> largest;
  for (const auto& [stack, of_stack] : bytes) largest.emplace_back(of_stack, stack);
  absl::c_sort(largest, std::greater<>());
  HeldStacks held;
  for (const auto& [of_stack, stack] : largest) {
    if (of_stack <= 0) break;
    constexpr size_t kMost = 8;
    FunctionNames functions;
    int rank = 0;
    for (const uint64_t location : profiles.stacks()[stack]) {
      if (functions.size() < kMost) AddFunctions(profiles, location, libraries, rank, functions);
    }
    functions.resize(std::clamp<size_t>(functions.size(), 1, kMost), "[no stack]");
    AddTo(held.try_emplace(std::move(functions), Held{0, stack}).first->second.bytes, of_stack);
  }
  return held;
}

Comparison Compare(const Budget& budget, const HeldStacks& held) {
  struct Function {
    int64_t now = 0;
    int64_t budget = 0;
    int64_t growth_with_callees = 0;
    int64_t moved = 0;  // what it holds in stacks that the budget does not have, and a caller held before
    double percent = 0;
    bool is_known = false;                                     // the budget has it
    bool is_new = true;                                        // it has no entry
    std::pair<int64_t, uint32_t> grown_most = {INT64_MIN, 0};  // a stack, and its growth
  };
  std::map<std::string_view, Function> functions;
  std::map<FunctionNames, int64_t> entries;  // the bytes of the stacks of the budget
  for (const auto& [names, bytes, percent] : budget.entries) {
    Function& function = functions[names[0]];
    function.percent = std::max(function.percent, percent.value_or(budget.percent));
    function.is_new = false;
    AddTo(function.budget, bytes);
    AddTo(entries[names], bytes);
    if (held.count(names) == 0) AddTo(function.moved, -bytes);
    for (const std::string& name : names) {
      functions[name].is_known = true;
      AddTo(functions[name].growth_with_callees, -bytes);
    }
  }
  Comparison comparison = {{}, {"total", 0, budget.total.value_or(0)}};
  for (const auto& [names, stack] : held) {
    AddTo(comparison.total.now, stack.bytes);
    AddTo(functions[names[0]].now, stack.bytes);
    for (const std::string& name : names) AddTo(functions[name].growth_with_callees, stack.bytes);
  }
  for (const auto& [names, stack] : held) {
    Function& function = functions[names[0]];
    function.grown_most = std::max(function.grown_most, {Minus(stack.bytes, ValueOr(entries, names)), stack.stack});
    if (entries.count(names) > 0) continue;
    int64_t growth = stack.bytes;
    bool is_nearest = true;
    for (const std::string& name : names) {
      const Function& caller = functions[name];
      if (!caller.is_known || &caller == &function) continue;
      const int64_t held_itself = is_nearest ? growth : std::max<int64_t>(Minus(caller.budget, caller.now), 0);
      const int64_t least = std::max<int64_t>(Minus(growth, held_itself), 0);
      growth = std::min(growth, std::max(least, caller.growth_with_callees));
      is_nearest = false;
    }
    AddTo(function.moved, Minus(stack.bytes, growth));
  }
  const auto set_limit = [](double percent, int64_t least, Comparison::Row& row) {
    const double tolerance = std::min(static_cast<double>(row.budget) * percent / 100, 1e18);
    row.limit = Plus(row.budget, std::max(least, static_cast<int64_t>(tolerance)));
  };
  for (const auto& [name, function] : functions) {
    if (function.now == 0) continue;
    const int64_t growth = std::min(Minus(function.now, Plus(function.budget, std::max<int64_t>(function.moved, 0))),
                                    function.growth_with_callees);
    Comparison::Row& row = comparison.rows.emplace_back();
    row = {std::string(name), function.now,    Minus(function.now, growth),
           INT64_MAX,         function.is_new, function.grown_most.second};
    const int64_t least = function.is_new ? budget.new_code : budget.least;
    if (!budget.entries.empty()) set_limit(function.percent, least, row);
    comparison.failed = comparison.failed || row.is_over();
  }
  absl::c_stable_sort(comparison.rows, [](const auto& a, const auto& b) {
    return std::make_tuple(b.is_over(), b.growth()) < std::make_tuple(a.is_over(), a.growth());
  });
  if (budget.total.has_value()) set_limit(budget.percent, budget.least, comparison.total);
  comparison.failed = comparison.failed || comparison.total.is_over();
  return comparison;
}

}  // namespace hbmprof::tool
