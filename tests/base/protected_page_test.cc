#include "src/base/protected_page.h"

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

// The middle of such a table is in pages of its own.
constexpr size_t kPointers = 3 * 65536 / sizeof(void*);
struct Table {
  void* pointers[kPointers];
};
int target = 0;
// Read-only after relocation.
const Table read_only = {{&target}};
Table writable = {{&target}};

void** MiddleOf(const Table& table) { return const_cast<void**>(&table.pointers[kPointers / 2]); }

// Returns the permissions of the page in /proc/self/maps, such as "r--p".
std::string PermissionsOf(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char permissions[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, permissions) != 3) continue;
    if (reinterpret_cast<uintptr_t>(address) - begin < end - begin) return permissions;
  }
  return "";
}

TEST(ProtectedPageTest, GetsItsProtectionBack) {
  for (const Table* table : {&read_only, const_cast<const Table*>(&writable)}) {
    void** const slot = MiddleOf(*table);
    const std::string before = PermissionsOf(slot);
    EXPECT_EQ(before, table == &read_only ? "r--p" : "rw-p");
    StoreProtected(slot, &target);
    EXPECT_EQ(*static_cast<void* volatile*>(slot), &target);
    EXPECT_EQ(PermissionsOf(slot), before);
  }
}

TEST(ProtectedPageTest, NothingIsStoredOutsideOfObjects) {
  const auto slot = std::make_unique<void*>(nullptr);
  StoreProtected(slot.get(), &target);
  EXPECT_EQ(*slot, nullptr);
}

}  // namespace
}  // namespace hbmprof::internal
