// Hashes of machine words and bytes, for tables inside one process. Keys are often aligned addresses, whose low bits
// are equal. Therefore every bit of the input affects every bit of the hash.
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
inline constexpr uint64_t kHashSeed1 = 0xd6e8feb86659fd93u;  // odd numbers with evenly distributed bits
inline constexpr uint64_t kHashSeed2 = 0xa0b428db8f6c53e5u;
inline constexpr uint64_t kHashSeed3 = 0xe95c3a2f174db66bu;

inline uint64_t HashWord(uint64_t word) {
  return MultiplyFold(MultiplyFold(word ^ kHashSeed0, kHashSeed1) ^ kHashSeed0, kHashSeed1);
}

struct Hash128 {
  uint64_t low;
  uint64_t high;
};

// A hash of a sequence of words. The words are added one at a time, so the processor can compute the hash while it
// waits for the next word.
class WordHash128 {
 public:
  // For a given word, it maps the 128 bits of the state to 128 bits one to one.
  void Add(uint64_t word) {
    const auto product = static_cast<unsigned __int128>(low_ ^ word) * kHashSeed0;
    low_ = high_ ^ static_cast<uint64_t>(product >> 64);
    high_ = static_cast<uint64_t>(product);
  }
  // Adds two more words, so that every bit depends on all words.
  Hash128 value() const {
    WordHash128 end = *this;
    end.Add(kHashSeed1);
    end.Add(kHashSeed2);
    return {end.low_, end.high_};
  }

 private:
  uint64_t low_ = kHashSeed2;
  uint64_t high_ = kHashSeed3;
};
// Returns the hash of `count` words.
inline Hash128 HashWords128(const uint64_t* words, size_t count) {
  WordHash128 hash;
  for (size_t i = 0; i < count; ++i) hash.Add(words[i]);
  return hash.value();
}
inline uint64_t HashWords(const uint64_t* words, size_t count) { return HashWords128(words, count).low; }

// Packs `count` bytes, fewer than 8, into a number. Different texts of one length have different numbers.
inline uint64_t FewBytes(const char* bytes, size_t count) {
  if (count >= 4) {
    uint32_t first;
    uint32_t last;
    std::memcpy(&first, bytes, 4);
    std::memcpy(&last, bytes + count - 4, 4);
    return first | uint64_t{last} << 32;
  }
  if (count == 0) return 0;
  const auto byte = [bytes](size_t i) { return uint64_t{static_cast<unsigned char>(bytes[i])}; };
  return byte(0) | byte(count / 2) << 8 | byte(count - 1) << 16;
}

// Returns a hash of `count` bytes, which also depends on `seed`.
inline uint64_t HashBytes(const char* bytes, size_t count, uint64_t seed) {
  uint64_t hash = seed ^ (count * kHashSeed0);
  uint64_t word;
  for (; count >= 8; bytes += 8, count -= 8) {
    std::memcpy(&word, bytes, 8);
    hash = MultiplyFold(hash ^ word, kHashSeed1);
  }
  return MultiplyFold(hash ^ FewBytes(bytes, count), kHashSeed1 ^ kHashSeed0);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_HASH_H_
