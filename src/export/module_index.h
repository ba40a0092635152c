// The modules of a snapshot by address, and names for addresses without a symbol.
#ifndef HBMPROF_SRC_EXPORT_MODULE_INDEX_H_
#define HBMPROF_SRC_EXPORT_MODULE_INDEX_H_

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

inline constexpr size_t kNoModule = SIZE_MAX;
inline constexpr std::string_view kUnknownCode = "[unknown]";

// Finds the module of an address.
class ModuleIndex {
 public:
  explicit ModuleIndex(const std::vector<Snapshot::Module>& modules) : modules_(modules), order_(modules.size()) {
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return modules[a].start < modules[b].start; });
  }

  size_t Find(uint64_t address) const {
    auto after = std::upper_bound(order_.begin(), order_.end(), address,
                                  [&](uint64_t value, size_t i) { return value < modules_[i].start; });
    if (after == order_.begin()) return kNoModule;
    const size_t module = *std::prev(after);
    return address < modules_[module].limit ? module : kNoModule;
  }

 private:
  const std::vector<Snapshot::Module>& modules_;
  std::vector<size_t> order_;  // by start
};

// Returns the number as "0x...".
inline std::string HexNumber(uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof(text), "0x%" PRIx64, value);
  return text;
}

// Returns the name of an address without a symbol: file name and address in the file. It is the same in every process
// that runs the file, and addr2line accepts it.
inline std::string NameInModule(const Snapshot::Module& module, uint64_t address) {
  const std::string base = module.path.substr(module.path.rfind('/') + 1);
  return (base.empty() ? std::string(kUnknownCode) : base) + "+" + HexNumber(address - module.bias);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_MODULE_INDEX_H_
