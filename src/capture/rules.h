// Frame rules by code address. Each rule is computed once per process. All threads share one table, which is lock-free
// and has a fixed size.
//
// A library can be unloaded and another one loaded at the same addresses. Therefore each rule names the object that it
// was read from, and a walk uses a rule only after it has checked that this object is loaded there now (ObjectCheck,
// once per object and walk). This is correct without any report of unloaded libraries: the objects that a walk
// passes through cannot be unloaded during the walk, because the stack returns to their functions. The check:
// - Objects loaded at program start are never unloaded. They need no check.
// - Other objects with a build id in their first page: the check compares the stored addresses (of the object and
//   of its .eh_frame_hdr) and the stored build id with those of the object that is loaded now. Equal build ids mean
//   equal code, so a rule stays valid when its library is loaded again.
// - Other objects: the addresses are equal, and dl_iterate_phdr reports that no object was unloaded since the last
//   check. It takes a lock, but one that the dynamic linker never holds while it runs other code. If an object was
//   unloaded, a hash of the unwind data must be equal (data above 256 KiB are not hashed and count as different). In a
//   forked child the lock may be held for ever; there the rules of these objects are read again in each walk.
//
// A frame that was guessed (RuleWalk::Guess) is an exception: its return address may be an old word of the stack, so
// another thread may unload its object during the walk. From there on, a walk reads objects other than those loaded at
// program start through the kernel (CopyMapped).
//
// Not in this file: how rules are read (cfi.h) and used (walk.h).
#ifndef HBMPROF_SRC_CAPTURE_RULES_H_
#define HBMPROF_SRC_CAPTURE_RULES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/capture/cfi.h"

namespace hbmprof::internal {

// Returns whether this system supports the rules (x86-64 or aarch64, with _dl_find_object of glibc 2.35). Must be
// called before the first walk: it finds the objects that were loaded at program start. Takes no lock that dlopen
// holds.
bool PrepareRules();

// A FrameRule and the id of the object that it was read from, in one word. 0 means that no rule was read.
class PackedRule {
 public:
  static constexpr uint32_t kObjectIds = 1 << 14;
  static constexpr uint64_t kFpSaved = 16;
  // The id of all objects that cannot be identified. No result that depends on their rules may be cached.
  static constexpr uint32_t kUnidentified = kObjectIds - 1;

  PackedRule() = default;
  explicit PackedRule(uint64_t word) : word_(word) {}
  // Returns a rule of kind kInexpressible if a number of `rule` has too many bits.
  static PackedRule Of(const FrameRule& rule, uint32_t object);

  uint64_t word() const { return word_; }
  FrameRule::Kind kind() const { return static_cast<FrameRule::Kind>(word_ & 15); }
  // Whether the kind is `kind`, and the object of the rule is never unloaded.
  bool is_permanent(FrameRule::Kind kind) const { return (word_ & (15 | uint64_t{kObjectIds - 1} << 5)) == kind; }
  bool fp_saved() const { return (word_ & kFpSaved) != 0; }
  // The id of the object; 0 for objects that are never unloaded.
  uint32_t object() const { return static_cast<uint32_t>(word_ >> 5) & (kObjectIds - 1); }
  int64_t fp_offset() const { return (static_cast<int64_t>(word_ << 24) >> 43) * 8; }
  // For all kinds except the three for which short_cfa_offset is used.
  int64_t cfa_offset() const { return kHasLinkRegister ? short_cfa_offset() : (static_cast<int64_t>(word_) >> 40) * 8; }
  int64_t return_offset() const {
    return kHasLinkRegister ? fp_offset() + (static_cast<int64_t>(word_ << 19) >> 59) * 8 : -8;
  }
  // For kCfaInSpSlot, kCfaFromRegister and kReturnInRegister.
  int64_t short_cfa_offset() const { return (static_cast<int64_t>(word_) >> 45) * 8; }
  int64_t cfa_addend() const { return static_cast<int64_t>(word_ >> 40 & 31) * 8; }
  uint32_t cfa_register() const { return static_cast<uint32_t>(word_ >> 40) & (kDwarfRegisters - 1); }
  bool fp_found_by_fp() const { return (word_ >> 44 & 1) != 0; }

 private:
  // Fields and their numbers of bits, from the lowest bit: kind 4, fp_saved 1, object 14, fp_offset / 8 21. The
  // remaining 24 bits depend on the kind:
  // - kCfaInSpSlot: cfa_addend / 8 5, cfa_offset / 8 19
  // - kCfaFromRegister: cfa_register 4, fp_found_by_fp 1, cfa_offset / 8 19
  // - kReturnInRegister: cfa_register 5, cfa_offset / 8 19
  // - others, with a link register: (return_offset - fp_offset) / 8 5, cfa_offset / 8 19
  // - others: cfa_offset / 8 24
  uint64_t word_ = 0;
};

// The checked objects of one walk.
class ObjectCheck {
 public:
  // Returns whether `object`, an id that is not 0, is now loaded around `address`.
  bool IsLoaded(uint32_t object, uintptr_t address) {
    for (const uint32_t loaded : loaded_) {
      if (loaded == object) return true;
    }
    return IsLoadedSlow(object, address);
  }
  // Stores that `object` is loaded. Only the last kLoaded objects are stored; IsLoaded checks the others again.
  void SetLoaded(uint32_t object) { loaded_[next_++ % kLoaded] = object; }

  // Whether the walk has guessed a frame.
  bool is_guessed() const { return is_guessed_; }
  void set_is_guessed() { is_guessed_ = true; }
  // Returns whether the walk passed an address at which several objects were loaded, one after the other.
  bool passed_reused_addresses() const { return passed_reused_addresses_; }
  void set_passed_reused_addresses() { passed_reused_addresses_ = true; }

 private:
  static constexpr uint32_t kLoaded = 4;

  bool IsLoadedSlow(uint32_t object, uintptr_t address);

  uint32_t loaded_[kLoaded] = {};
  uint32_t next_ = 0;
  bool passed_reused_addresses_ = false;
  bool is_guessed_ = false;
};

// A bucket of the table, in one cache line. A slot holds a rule and a check word: the rule xor MixAddress(address). If
// a slot is read while another thread replaces it, the check word does not match (except in one of 2^50 such reads), so
// slots need no lock. The check word is stored last, with release order, so that a reader also sees the object of the
// rule.
struct alignas(64) RuleBucket {
  static constexpr int kSlots = 4;
  struct Slot {
    std::atomic<uint64_t> check;
    std::atomic<uint64_t> rule;
  };
  Slot slots[kSlots];
};
inline constexpr int kRuleBucketBits = 14;
extern RuleBucket rule_table[1 << kRuleBucketBits] __attribute__((visibility("hidden")));

// Returns the bucket of the rule for `address`. A walk waits for this computation in each frame. Therefore it only
// takes bits of the pc that the walk has loaded. The instructions of a function of up to 16 KiB have different buckets.
inline RuleBucket& RuleBucketOf(uintptr_t address) {
  return rule_table[(address + 1) / kInstructionAlignment & ((uintptr_t{1} << kRuleBucketBits) - 1)];
}

// Returns a hash of `address` whose high bits depend on all its bits. Different addresses have different hashes.
inline uint64_t MixAddress(uintptr_t address) { return address * 0x9e3779b97f4a7c15u; }

// Whether `address` is in a loaded object.
bool IsKnownCode(uintptr_t address);
// Copies `bytes` bytes of code. `address` may be any number. Returns false if it cannot be read, or is in a loaded
// object but not in its readable code.
bool ReadCode(uintptr_t address, void* code, size_t bytes);

// Reads the rule of the instruction at `address` from its object, and adds it to the table.
PackedRule LearnRule(uintptr_t address, ObjectCheck* objects);

// Returns the rule that the table has for `address`, or PackedRule(). The object of the rule may not be loaded any
// more.
inline PackedRule StoredRule(uintptr_t address) {
  const uint64_t mixed = MixAddress(address);
#pragma GCC unroll 4
  for (RuleBucket::Slot& slot : RuleBucketOf(address).slots) {
    const uint64_t word = slot.rule.load(std::memory_order_relaxed);
    if ((slot.check.load(std::memory_order_acquire) ^ word) == mixed) return PackedRule(word);
  }
  return PackedRule();
}

// Returns the rule of the instruction that contains the byte at `address`; kNone if no loaded object has one. `stored`
// is StoredRule(address).
inline PackedRule CheckedRule(PackedRule stored, uintptr_t address, ObjectCheck* objects) {
  if (stored.word() != 0) {
    if (stored.object() == 0 || objects->IsLoaded(stored.object(), address)) return stored;
    objects->set_passed_reused_addresses();
  }
  return LearnRule(address, objects);
}
inline PackedRule FindRule(uintptr_t address, ObjectCheck* objects) {
  return CheckedRule(StoredRule(address), address, objects);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_RULES_H_
