// WordBucket: a bucket of a cache that maps keys to words, in one cache line. A cache is an array of zero-filled
// buckets. Any thread may call any function, and no lock is taken.
#ifndef HBMPROF_SRC_BASE_WORD_BUCKET_H_
#define HBMPROF_SRC_BASE_WORD_BUCKET_H_

#include <atomic>
#include <cstdint>

namespace hbmprof::internal {

class alignas(64) WordBucket {
 public:
  // Returns the word of `key`, or 0.
  uint64_t Find(uint64_t key) const {
#pragma GCC unroll 4
    for (const Slot& slot : slots_) {
      const uint64_t word = slot.word.load(std::memory_order_relaxed);
      if ((slot.check.load(std::memory_order_acquire) ^ word) == key) return word;
    }
    return 0;
  }

  // Stores `word`, which is not 0. If the bucket is full, replaces a word in it. A thread that finds the word also sees
  // what this thread has written before the call.
  void Store(uint64_t key, uint64_t word) {
    static std::atomic<uint32_t> next{0};
    Slot* chosen = nullptr;
    for (Slot& slot : slots_) {
      const uint64_t stored = slot.word.load(std::memory_order_relaxed);
      if ((slot.check.load(std::memory_order_relaxed) ^ stored) == key) {
        chosen = &slot;
        break;
      }
      if (stored == 0 && chosen == nullptr) chosen = &slot;
    }
    if (chosen == nullptr) chosen = &slots_[next.fetch_add(1, std::memory_order_relaxed) % kSlots];
    chosen->word.store(word, std::memory_order_relaxed);
    chosen->check.store(key ^ word, std::memory_order_release);
  }

 private:
  static constexpr int kSlots = 4;
  // `check` is the key xor the word. If a slot is read while another thread replaces it, they do not match (except in
  // one of 2^50 such reads).
  struct Slot {
    std::atomic<uint64_t> check;
    std::atomic<uint64_t> word;
  };
  Slot slots_[kSlots];
};
static_assert(sizeof(WordBucket) == 64);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_WORD_BUCKET_H_
