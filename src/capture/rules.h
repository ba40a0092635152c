// Frame rules by code address, each worked out once per process: one table shared by all threads, lock-free, of fixed
// size.
//
// An address can come to mean something else: a library is unloaded and another is loaded in its place. Each rule
// therefore names the object it was read from, and a walk believes a rule only after it has seen that this object is
// what is loaded there now (ObjectCheck, once per object and walk). That is sound without any notice of unloading,
// because the objects that a walk passes through cannot be unloaded meanwhile: their functions are about to be returned
// to. What "this object" means:
// - Objects loaded at program start are never unloaded: no check.
// - Other objects: same addresses, same .eh_frame_hdr, same build id, compared in memory. Equal build ids mean equal
//   code, so that a rule also survives its library's reloading.
// - Other objects without a build id in their first page: same addresses, and no object at all has been unloaded since.
//   (dl_iterate_phdr says; it takes a lock, but one that the dynamic linker never holds while it runs code of others.)
//   In a forked child that lock may never come free: there their rules are read anew each time.
//
// Not here: how rules are read (cfi.h) and used (walk.h).
#ifndef HBMPROF_SRC_CAPTURE_RULES_H_
#define HBMPROF_SRC_CAPTURE_RULES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/capture/cfi.h"

namespace hbmprof::internal {

// Whether this system has what the rules need (_dl_find_object of glibc 2.35, x86-64). Learns what was loaded at
// program start; call it before the first walk. Takes no lock that dlopen holds.
bool PrepareRules();

// A FrameRule in one word, with the object it comes from. 0 is no rule.
class PackedRule {
 public:
  static constexpr uint32_t kObjectIds = 1 << 14;
  // The id of an object that cannot be told from others: nothing that follows from its rules may be kept.
  static constexpr uint32_t kUnidentified = kObjectIds - 1;

  PackedRule() = default;
  explicit PackedRule(uint64_t word) : word_(word) {}
  // Numbers that do not fit make it kInexpressible.
  static PackedRule Of(const FrameRule& rule, uint32_t object);

  uint64_t word() const { return word_; }
  FrameRule::Kind kind() const { return static_cast<FrameRule::Kind>(word_ & 15); }
  bool fp_saved() const { return (word_ & 16) != 0; }
  // 0: an object that is never unloaded.
  uint32_t object() const { return static_cast<uint32_t>(word_ >> 5) & (kObjectIds - 1); }
  int64_t fp_offset() const { return (static_cast<int64_t>(word_ << 24) >> 43) * 8; }
  // Of all kinds but the two below.
  int64_t cfa_offset() const { return (static_cast<int64_t>(word_) >> 40) * 8; }
  // kCfaInSpSlot and kCfaFromRegister.
  int64_t short_cfa_offset() const { return (static_cast<int64_t>(word_) >> 45) * 8; }
  int64_t cfa_addend() const { return static_cast<int64_t>(word_ >> 40 & 31) * 8; }
  uint32_t cfa_register() const { return static_cast<uint32_t>(word_ >> 40) & 15; }
  bool fp_found_by_fp() const { return (word_ >> 44 & 1) != 0; }

 private:
  // From the lowest bit: kind 4, fp_saved 1, object 14, fp_offset / 8 21, and 24 of
  // - cfa_offset / 8
  // - kCfaInSpSlot: cfa_addend / 8 5, cfa_offset / 8 19
  // - kCfaFromRegister: cfa_register 4, fp_found_by_fp 1, cfa_offset / 8 19
  uint64_t word_ = 0;
};

// What one walk has found out about the objects it passes through.
class ObjectCheck {
 public:
  // True if `object` is the one loaded around `address` now, for a non-zero id.
  bool IsLoaded(uint32_t object, uintptr_t address) {
    for (const uint32_t seen : seen_) {
      if (seen == object) return true;
    }
    return IsLoadedSlow(object, address);
  }
  void Saw(uint32_t object) { seen_[next_++ % kSeen] = object; }

  // An address was passed at which the code of different objects has been seen over time.
  bool saw_shared_addresses() const { return saw_shared_addresses_; }
  void set_saw_shared_addresses() { saw_shared_addresses_ = true; }

 private:
  static constexpr uint32_t kSeen = 4;

  bool IsLoadedSlow(uint32_t object, uintptr_t address);

  uint32_t seen_[kSeen] = {};
  uint32_t next_ = 0;
  bool saw_shared_addresses_ = false;
};

// The table: lines of a cache line each. A slot holds a rule and, beside it, the rule xor the mixed address, so that a
// slot read while another thread replaces it does not match (but for one in 2^50 of such reads); no slot is ever
// locked. The check is stored last and releases what the rule's object id stands for.
struct alignas(64) RuleLine {
  static constexpr int kSlots = 4;
  struct Slot {
    std::atomic<uint64_t> check;
    std::atomic<uint64_t> rule;
  };
  Slot slots[kSlots];
};
inline constexpr int kRuleLineBits = 14;
extern RuleLine rule_table[1 << kRuleLineBits];

// A bijection. Its high bits depend on all bits of the address.
inline uint64_t MixAddress(uintptr_t address) { return address * 0x9e3779b97f4a7c15u; }

// Whether a loaded object covers `address`.
bool IsKnownCode(uintptr_t address);
// Whether that object has the `bytes` bytes there in a segment of code that can be read.
bool IsReadableCode(uintptr_t address, size_t bytes);

PackedRule LearnRule(uintptr_t address, ObjectCheck* objects);

// The rule of the instruction that covers `address`; kNone where no loaded object has one.
inline PackedRule FindRule(uintptr_t address, ObjectCheck* objects) {
  const uint64_t mixed = MixAddress(address);
  RuleLine& line = rule_table[mixed >> (64 - kRuleLineBits)];
  for (RuleLine::Slot& slot : line.slots) {
    const uint64_t word = slot.rule.load(std::memory_order_relaxed);
    if ((slot.check.load(std::memory_order_acquire) ^ word) != mixed) continue;
    const PackedRule rule(word);
    if (rule.object() == 0 || objects->IsLoaded(rule.object(), address)) return rule;
    objects->set_saw_shared_addresses();
    break;
  }
  return LearnRule(address, objects);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_RULES_H_
