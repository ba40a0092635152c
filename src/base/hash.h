// Hashes of machine words and bytes, for tables inside one process. Every bit of the input reaches every bit of the
// result: keys are aligned addresses, whose low bits say nothing.
#ifndef HBMPROF_SRC_BASE_HASH_H_
#define HBMPROF_SRC_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hbmprof::internal {

inline uint64_t MultiplyFold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline constexpr uint64_t kHashSeed0 = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
inline constexpr uint64_t kHashSeed1 = 0xd6e8feb86659fd93u;  // an odd number of evenly spread bits

inline uint64_t HashWord(uint64_t word) {
  return MultiplyFold(MultiplyFold(word ^ kHashSeed0, kHashSeed1) ^ kHashSeed0, kHashSeed1);
}

// Of an address or a handle, for its low bits to index a table by: half as dear as HashWord.
inline uint64_t HashAddress(uint64_t address) {
  const uint64_t product = address * kHashSeed0;
  return product ^ (product >> 32);
}

// Of `count` words; two independent lanes, so that the multiplications overlap.
inline uint64_t HashWords(const uint64_t* words, size_t count) {
  uint64_t lane0 = kHashSeed0 ^ count;
  uint64_t lane1 = kHashSeed1;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    lane0 = MultiplyFold(lane0 ^ words[i], kHashSeed1 ^ words[i + 1]);
    lane1 = MultiplyFold(lane1 ^ words[i + 2], kHashSeed0 ^ words[i + 3]);
  }
  for (; i < count; ++i) lane0 = MultiplyFold(lane0 ^ words[i], kHashSeed1);
  return MultiplyFold(lane0 ^ kHashSeed1, lane1 ^ kHashSeed0);
}

inline uint64_t HashBytes(const char* bytes, size_t count, uint64_t seed) {
  uint64_t hash = seed ^ (count * kHashSeed0);
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = MultiplyFold(hash ^ word, kHashSeed1);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, bytes, count);
  return MultiplyFold(hash ^ tail, kHashSeed1 ^ kHashSeed0);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_HASH_H_
