// Frame rules by code address. All threads share one table, which is lock-free and has a fixed size. A rule that is not
// in the table is computed from its object.
//
// A rule names the object that it was read from, and a walk uses it only while this object is loaded (objects.h).
#ifndef HBMPROF_SRC_CAPTURE_RULES_H_
#define HBMPROF_SRC_CAPTURE_RULES_H_

#include <cstddef>
#include <cstdint>

#include "src/base/word_bucket.h"
#include "src/capture/cfi.h"
#include "src/capture/objects.h"

namespace hbmprof::internal {

// A FrameRule and the id of the object that it was read from, in one word. 0 means that no rule was read.
class PackedRule {
 public:
  static constexpr uint64_t kFpSaved = 16;

  PackedRule() = default;
  explicit PackedRule(uint64_t word) : word_(word) {}
  // Returns a rule of kind kInexpressible if a number of `rule` has too many bits.
  static PackedRule Of(const FrameRule& rule, uint32_t object);

  uint64_t word() const { return word_; }
  FrameRule::Kind kind() const { return static_cast<FrameRule::Kind>(word_ & 15); }
  bool fp_saved() const { return (word_ & kFpSaved) != 0; }
  // The id of the object; 0 for objects that are never unloaded.
  uint32_t object() const { return static_cast<uint32_t>(word_ >> 5) & (kObjectIds - 1); }
  int64_t fp_offset() const { return (static_cast<int64_t>(word_ << 24) >> 43) * 8; }
  int64_t cfa_offset() const { return (static_cast<int64_t>(word_) >> (kHasLinkRegister ? 45 : 40)) * 8; }
  int64_t return_offset() const {
    return kHasLinkRegister ? fp_offset() + (static_cast<int64_t>(word_ << 19) >> 59) * 8 : -8;
  }

 private:
  // Fields and their numbers of bits, from the lowest bit: kind 4, fp_saved 1, object 14, fp_offset / 8 21. Then:
  // - with a link register: (return_offset - fp_offset) / 8 5, cfa_offset / 8 19
  // - otherwise: cfa_offset / 8 24
  uint64_t word_ = 0;
};

inline constexpr int kRuleBucketBits = 14;
// The keys are the hashes of addresses.
extern WordBucket rule_table[1 << kRuleBucketBits] __attribute__((visibility("hidden")));

// Returns the bucket of the rule for `address`. A walk waits for this computation in each frame. Therefore it only
// takes bits of the pc that the walk has loaded. The instructions of a function of up to 16 KiB have different buckets.
inline WordBucket& RuleBucketOf(uintptr_t address) {
  return rule_table[(address + 1) / kInstructionAlignment & ((uintptr_t{1} << kRuleBucketBits) - 1)];
}

// Returns a hash of `address` whose high bits depend on all its bits. Different addresses have different hashes.
inline uint64_t MixAddress(uintptr_t address) { return address * 0x9e3779b97f4a7c15u; }

// Reads the rule of the instruction at `address` from its object. Adds it to the table, unless the object cannot be
// identified or the address is in no loaded object.
PackedRule LearnRule(uintptr_t address, ObjectCheck* objects);

// Returns the rule of the instruction that contains the byte at `address`; kNone if no loaded object has one.
inline PackedRule FindRule(uintptr_t address, ObjectCheck* objects) {
  const PackedRule stored(RuleBucketOf(address).Find(MixAddress(address)));
  const bool is_valid = stored.word() != 0 && (stored.object() == 0 || objects->IsLoaded(stored.object(), address));
  return is_valid ? stored : LearnRule(address, objects);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_RULES_H_
