// Pages from the kernel, and the arena that uses them.

#include "src/base/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

bool AllZero(const void* memory, size_t bytes) {
  const auto* start = static_cast<const unsigned char*>(memory);
  return std::all_of(start, start + bytes, [](unsigned char byte) { return byte == 0; });
}

int64_t ResidentPages(void* pages, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(bytes / page);
  EXPECT_EQ(mincore(pages, bytes, resident.data()), 0);
  return std::count_if(resident.begin(), resident.end(), [](unsigned char state) { return (state & 1) != 0; });
}

TEST(PagesTest, AreZeroAndResidentOnlyWhenTouched) {
  constexpr size_t kBytes = size_t{64} << 20;
  void* pages = MapPages(kBytes);
  ASSERT_NE(pages, nullptr);
  EXPECT_EQ(ResidentPages(pages, kBytes), 0);
  static_cast<char*>(pages)[0] = 1;
  EXPECT_GE(ResidentPages(pages, kBytes), 1);
  EXPECT_TRUE(AllZero(static_cast<char*>(pages) + 1, size_t{1} << 20));
  UnmapPages(pages, kBytes);
}

TEST(PagesTest, TooManyBytesReturnNull) { EXPECT_EQ(MapPages(size_t{1} << 62), nullptr); }

TEST(PagesTest, UnmapNullDoesNothing) { UnmapPages(nullptr, 4096); }

TEST(PagesTest, DiscardedPagesAreNotResidentAndZero) {
  constexpr size_t kBytes = size_t{1} << 20;
  void* pages = MapPages(kBytes);
  ASSERT_NE(pages, nullptr);
  std::memset(pages, 0xab, kBytes);
  DiscardPages(pages, kBytes);
  EXPECT_EQ(ResidentPages(pages, kBytes), 0);
  EXPECT_TRUE(AllZero(pages, kBytes));
  UnmapPages(pages, kBytes);
}

TEST(PagesTest, DiscardedPagesAreZeroIfMemoryIsLocked) {
  // A server that calls mlockall() locks these pages, too. The kernel does not discard locked pages.
  constexpr size_t kBytes = size_t{16} << 10;
  void* pages = MapPages(kBytes);
  ASSERT_NE(pages, nullptr);
  if (mlock(pages, kBytes) != 0) {
    const int error = errno;
    UnmapPages(pages, kBytes);
    GTEST_SKIP() << "mlock is not allowed here: " << std::strerror(error);
  }
  std::memset(pages, 0xab, kBytes);
  errno = 4711;
  DiscardPages(pages, kBytes);
  EXPECT_EQ(errno, 4711);
  EXPECT_TRUE(AllZero(pages, kBytes));
  RetirePages(pages, kBytes);
  EXPECT_EQ(errno, 4711);
  UnmapRetiredPages(pages, kBytes);
}

TEST(ArenaTest, AllocationsAreZeroAlignedAndDisjoint) {
  Arena arena;
  std::vector<std::pair<unsigned char*, size_t>> given;
  for (size_t i = 0; i < 3000; ++i) {
    const size_t bytes = i % 100 == 99 ? size_t{300} << 10 : 1 + i * 7 % 500;  // some larger than a chunk
    auto* memory = static_cast<unsigned char*>(arena.Allocate(bytes));
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 16, 0u);
    ASSERT_TRUE(AllZero(memory, bytes)) << "allocation " << i;
    std::memset(memory, static_cast<int>(1 + i % 255), bytes);
    given.emplace_back(memory, bytes);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const auto [memory, bytes] = given[i];
    const auto own = static_cast<unsigned char>(1 + i % 255);
    ASSERT_TRUE(std::all_of(memory, memory + bytes, [own](unsigned char byte) { return byte == own; }))
        << "allocation " << i << " was overwritten";
  }
}

TEST(ArenaTest, ReturnsNullWithoutMemory) {
  Arena arena;
  EXPECT_EQ(arena.Allocate(size_t{1} << 62), nullptr);
  EXPECT_NE(arena.Allocate(16), nullptr);
}

}  // namespace
}  // namespace hbmprof::internal
