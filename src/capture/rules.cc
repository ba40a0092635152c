#include "src/capture/rules.h"

#include "src/base/pages.h"

namespace hbmprof::internal {

WordBucket rule_table[1 << kRuleBucketBits];

namespace {

// Whether `value` is 8 times a signed number of `bits` bits.
bool Fits(int64_t value, int bits) {
  const int64_t limit = int64_t{8} << (bits - 1);
  return value % 8 == 0 && value >= -limit && value < limit;
}

[[gnu::constructor]] void CountTables() { CountHostBytes(static_cast<int64_t>(sizeof(rule_table) + BytesOfObjects())); }

}  // namespace

PackedRule PackedRule::Of(const FrameRule& rule, uint32_t object) {
  const uint64_t inexpressible = uint64_t{FrameRule::kInexpressible} | uint64_t{object} << 5;
  // If fp is not saved, fp_offset has no other use than as the base of return_offset.
  const int64_t fp_offset = kHasLinkRegister && !rule.fp_saved ? rule.return_offset : rule.fp_offset;
  // The word of a rule that was read is never 0, because 0 is an empty slot of the table.
  if (rule.kind == FrameRule::kNone) return PackedRule(uint64_t{FrameRule::kNone} | kFpSaved | uint64_t{object} << 5);
  // A frame holds at least its return address.
  if (rule.kind == FrameRule::kCfaFromSp && rule.cfa_offset <= 0) return PackedRule(inexpressible);
  if (!Fits(fp_offset, 21) || !Fits(rule.cfa_offset, kHasLinkRegister ? 19 : 24)) return PackedRule(inexpressible);
  uint64_t cfa = static_cast<uint64_t>(rule.cfa_offset / 8);
  if (kHasLinkRegister) {
    const auto distance =
        static_cast<int64_t>(static_cast<uint64_t>(rule.return_offset) - static_cast<uint64_t>(fp_offset));
    if (!Fits(distance, 5)) return PackedRule(inexpressible);
    cfa = cfa << 5 | (static_cast<uint64_t>(distance / 8) & 31);
  }
  const auto fp = static_cast<uint64_t>(fp_offset / 8) << 43 >> 24;
  return PackedRule(uint64_t{rule.kind} | (rule.fp_saved ? kFpSaved : 0) | uint64_t{object} << 5 | fp | cfa << 40);
}

PackedRule LearnRule(uintptr_t address, ObjectCheck* objects) {
  LoadedObject object;
  if (!objects->Find(address, &object)) return PackedRule::Of(FrameRule(), 0);
  FrameRule read = ReadFrameRule(object.eh_frame_hdr, object.readable, address);
  if (read.kind == FrameRule::kNone && object.begins_stacks) read.kind = FrameRule::kOutermost;
  const PackedRule rule = PackedRule::Of(read, object.id);
  if (object.id != kUnidentifiedObject) RuleBucketOf(address).Store(MixAddress(address), rule.word());
  return rule;
}

}  // namespace hbmprof::internal
