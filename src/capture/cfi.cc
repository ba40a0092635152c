#include "src/capture/cfi.h"

#include <cstring>

namespace hbmprof::internal {
namespace {

// Pointer encodings (DW_EH_PE_*).
constexpr uint8_t kPePcRelative = 0x10;

// Reads forward through an object's unwind information. A read fails if it goes beyond `end` or finds an unknown
// encoding. After a failure, ok() returns false for ever, and all reads return 0. Numbers, also negative ones, are
// unsigned words here, because they may have any value: their arithmetic wraps around.
class Cursor {
 public:
  Cursor() : Cursor(nullptr, nullptr) {}  // ok() is false from the start, also if `end` is null
  Cursor(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  bool ok() const { return end_ != nullptr; }
  bool AtEnd() const { return !ok() || at_ >= end_; }
  const uint8_t* at() const { return at_; }
  void Skip(uint64_t bytes) {
    if (!ok() || bytes > static_cast<uint64_t>(end_ - at_)) {
      end_ = nullptr;
      return;
    }
    at_ += bytes;
  }
  // Reads a block: its length, then its contents. Returns a cursor for the contents.
  Cursor Block() { return Take(Uleb()); }
  // Skips `bytes` bytes and returns a cursor for them.
  Cursor Take(uint64_t bytes) {
    const uint8_t* begin = at_;
    Skip(bytes);
    return ok() ? Cursor(begin, at_) : Cursor();
  }

  uint8_t Byte() { return static_cast<uint8_t>(Integer(1)); }

  // Reads an integer of `bytes` bytes, at most 8.
  uint64_t Integer(size_t bytes, bool is_signed = false) {
    uint64_t value = 0;
    const uint8_t* const from = at_;
    Skip(bytes);
    if (!ok()) return 0;
    std::memcpy(&value, from, bytes);
    const size_t unused_bits = 64 - 8 * bytes;
    return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(value << unused_bits) >> unused_bits) : value;
  }

  uint64_t Uleb() { return Leb(/*is_signed=*/false); }
  uint64_t Sleb() { return Leb(/*is_signed=*/true); }

  // Reads a pointer in one of the DW_EH_PE encodings: a number, or a distance from the place where it is stored.
  uint64_t Encoded(uint8_t encoding) {
    const auto here = reinterpret_cast<uintptr_t>(at_);
    const uint64_t value = EncodedValue(encoding);
    const uint8_t base = encoding & 0xf0;
    if (base != 0 && base != kPePcRelative) end_ = nullptr;
    return base == kPePcRelative ? value + here : value;
  }

  // Reads the stored number of a pointer, without adding a base.
  uint64_t EncodedValue(uint8_t encoding) {
    const bool is_signed = (encoding & 8) != 0;
    const unsigned format = encoding & 7;
    if (format >= 2 && format <= 4) return Integer(size_t{1} << (format - 1), is_signed);
    if (format == 0 && !is_signed) return Integer(8);  // absolute
    end_ = nullptr;
    return 0;
  }

 private:
  uint64_t Leb(bool is_signed) {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte;
    do {
      byte = Byte();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      shift += 7;
    } while ((byte & 0x80) != 0 && ok());
    return is_signed && shift < 64 && (byte & 0x40) != 0 ? value | ~uint64_t{0} << shift : value;
  }

  const uint8_t* at_;
  const uint8_t* end_;  // null after a failure
};

// Returns a cursor for the contents of the CIE or FDE at `at`, after the length field. Returns a failed cursor if they
// are not in `readable`.
Cursor Entry(const uint8_t* at, const ReadableRanges& readable) {
  Cursor in(at, reinterpret_cast<const uint8_t*>(readable.LimitAt(reinterpret_cast<uintptr_t>(at))));
  return in.Take(in.Integer(4));
}

struct Cie {
  uint64_t code_alignment = 0;
  uint64_t data_alignment = 0;
  uint8_t pointer_encoding = 0;
  bool is_signal_frame = false;
  Cursor program;
};

// Returns false if the bytes at `at` are not a CIE, are damaged, or have an augmentation that is not supported.
bool ReadCie(const uint8_t* at, const ReadableRanges& readable, Cie* cie) {
  Cursor in = Entry(at, readable);
  if (in.Integer(4) != 0) return false;  // not a CIE
  const auto version = in.Byte();
  if (version != 1 && version != 3) return false;
  Cursor augmentation = in;
  while (in.Byte() != 0) {
  }
  cie->code_alignment = in.Uleb();
  cie->data_alignment = in.Sleb();
  const uint64_t return_column = version == 1 ? in.Byte() : in.Uleb();
  if (!in.ok() || return_column != kReturnAddressRegister) return false;
  if (augmentation.Byte() != 'z') return false;
  Cursor data = in.Block();
  while (const uint8_t letter = augmentation.Byte()) {
    if (letter == 'R') {
      cie->pointer_encoding = data.Byte();
    } else if (letter == 'P') {
      data.EncodedValue(data.Byte());
    } else if (letter == 'L') {
      data.Byte();
    } else if (letter == 'S') {
      cie->is_signal_frame = true;
    } else if (letter != 'B' || !kHasLinkRegister) {  // B: return addresses are signed with key B
      return false;
    }
  }
  cie->program = in;
  return in.ok() && data.ok();
}

// An address: reg + offset or, if it is stored there, the word in memory at reg + offset.
struct Place {
  uint64_t reg = 0;
  uint64_t offset = 0;
  bool is_stored = false;
};

// Reads a DWARF expression of the form that compilers use for frames: a register plus a number, and optionally the word
// in memory there. Returns false if it has another form.
bool ReadExpression(Cursor in, Place* place) {
  constexpr uint8_t kOpDeref = 0x06;  // DW_OP_*
  constexpr uint8_t kOpBreg0 = 0x70;
  constexpr uint8_t kOpBreg31 = 0x8f;
  const uint8_t op = in.Byte();
  if (op < kOpBreg0 || op > kOpBreg31) return false;
  place->reg = op - uint64_t{kOpBreg0};
  place->offset = in.Sleb();
  place->is_stored = !in.AtEnd();
  if (place->is_stored && in.Byte() != kOpDeref) return false;
  return in.ok() && in.AtEnd();
}

// How one register of the caller is restored.
struct RegisterRule {
  enum Kind : uint8_t { kSame, kUndefined, kAtCfa, kAtExpression, kOther };
  Kind kind = kSame;
  uint64_t offset = 0;  // kAtCfa: the register is the word at CFA + offset
  Cursor expression;    // kAtExpression: the register is the word at the address that it computes
};

// One row of the unwind table.
struct Row {
  uint64_t cfa_register = 0;
  uint64_t cfa_offset = 0;
  Cursor cfa_expression;  // if it is ok(), it replaces the two members above
  RegisterRule fp, sp, ra;
};

// Returns the rule of register `reg`; null if no FrameRule needs this register.
RegisterRule* Column(Row* row, uint64_t reg) {
  return reg == kFpRegister              ? &row->fp
         : reg == kSpRegister            ? &row->sp
         : reg == kReturnAddressRegister ? &row->ra
                                         : nullptr;
}

// Operations of CFA programs (DW_CFA_*).
enum CfaOp : uint8_t {
  // In the two highest bits. The other bits are an operand.
  kCfaAdvanceLoc = 0x40,
  kCfaOffset = 0x80,
  kCfaRestore = 0xc0,
  // In all bits.
  kCfaNop = 0x00,
  kCfaAdvanceLoc1 = 0x02,
  kCfaAdvanceLoc2,
  kCfaAdvanceLoc4,
  kCfaOffsetExtended,
  kCfaRestoreExtended,
  kCfaUndefined,
  kCfaSameValue,
  kCfaRegister,
  kCfaRememberState,
  kCfaRestoreState,
  kCfaDefCfa,
  kCfaDefCfaRegister,
  kCfaDefCfaOffset,
  kCfaDefCfaExpression,
  kCfaExpression,
  kCfaOffsetExtendedSf,
  kCfaDefCfaSf,
  kCfaDefCfaOffsetSf,
  kCfaValOffset,
  kCfaValOffsetSf,
  kCfaValExpression,
  kCfaAarch64NegateRaState = 0x2d,  // switches between signed and unsigned return addresses
  kCfaGnuArgsSize = 0x2e,
};
constexpr uint8_t kCfaHighBits = 0xc0;

// Executes CFA programs, which compute the row of an address.
class CfaProgram {
 public:
  // `location` is the address at which the program begins. The program stops before the first row whose location is
  // above `address`. `initial` is the row that the program of the CIE computed. It is null while the program of the CIE
  // itself runs. Run changes `*row`.
  CfaProgram(const Cie& cie, uintptr_t location, uintptr_t address, const Row* initial, Row* row)
      : cie_(cie), address_(address), initial_(initial), location_(location), row_(row) {}

  // Returns false if the program is damaged or not supported.
  bool Run(Cursor in) {
    while (!in.AtEnd() && location_ <= address_) {
      if (!Execute(&in)) return false;
    }
    return in.ok();
  }

 private:
  // Executes one operation. Returns false if it is not supported, also if the stack of remembered rows is full or
  // empty.
  bool Execute(Cursor* in) {
    const uint8_t byte = in->Byte();
    const uint8_t high_bits = byte & kCfaHighBits;
    const uint64_t low_bits = byte & ~uint64_t{kCfaHighBits};
    const uint8_t op = high_bits != 0 ? high_bits : byte;
    const auto offset = [&](bool is_factored_signed) {
      return is_factored_signed ? in->Sleb() * cie_.data_alignment : in->Uleb();
    };
    switch (op) {
      case kCfaAdvanceLoc:
        location_ += low_bits * cie_.code_alignment;
        break;
      case kCfaAdvanceLoc1:
      case kCfaAdvanceLoc2:
      case kCfaAdvanceLoc4:
        location_ += in->Integer(size_t{1} << (op - kCfaAdvanceLoc1)) * cie_.code_alignment;
        break;
      case kCfaDefCfa:
      case kCfaDefCfaSf:
      case kCfaDefCfaRegister:
        row_->cfa_register = in->Uleb();
        if (op != kCfaDefCfaRegister) row_->cfa_offset = offset(op == kCfaDefCfaSf);
        row_->cfa_expression = {};
        break;
      case kCfaDefCfaOffset:
      case kCfaDefCfaOffsetSf:
        row_->cfa_offset = offset(op == kCfaDefCfaOffsetSf);
        break;
      case kCfaDefCfaExpression:
        row_->cfa_expression = in->Block();
        break;
      case kCfaOffset:
      case kCfaOffsetExtended:
      case kCfaOffsetExtendedSf: {
        const uint64_t reg = op == kCfaOffset ? low_bits : in->Uleb();
        const uint64_t at = op == kCfaOffsetExtendedSf ? in->Sleb() : in->Uleb();
        SetRule(reg, RegisterRule::kAtCfa, at * cie_.data_alignment);
        break;
      }
      case kCfaRestore:
      case kCfaRestoreExtended:
        RestoreRule(op == kCfaRestore ? low_bits : in->Uleb());
        break;
      case kCfaUndefined:
      case kCfaSameValue:
        SetRule(in->Uleb(), op == kCfaUndefined ? RegisterRule::kUndefined : RegisterRule::kSame);
        break;
      case kCfaExpression:
      case kCfaValExpression: {
        const uint64_t reg = in->Uleb();
        SetRule(reg, op == kCfaExpression ? RegisterRule::kAtExpression : RegisterRule::kOther, 0, in->Block());
        break;
      }
      case kCfaRegister:
      case kCfaValOffset:
      case kCfaValOffsetSf:
        SetRule(in->Uleb(), RegisterRule::kOther);
        in->Uleb();
        break;
      case kCfaRememberState:
        if (depth_ == kMaxRemembered) return false;
        remembered_[depth_++] = *row_;
        break;
      case kCfaRestoreState:
        if (depth_ == 0) return false;
        *row_ = remembered_[--depth_];
        break;
      case kCfaNop:
        break;
      case kCfaAarch64NegateRaState:  // signatures are always removed
        return kHasLinkRegister;
      case kCfaGnuArgsSize:
        in->Uleb();
        break;
      default:
        return false;
    }
    return true;
  }

  void SetRule(uint64_t reg, RegisterRule::Kind kind, uint64_t offset = 0, const Cursor& expression = {}) {
    if (RegisterRule* column = Column(row_, reg)) *column = {kind, offset, expression};
  }
  // Sets the rule of `reg` to that of the initial row.
  void RestoreRule(uint64_t reg) {
    Row from = initial_ != nullptr ? *initial_ : Row();
    if (RegisterRule* column = Column(row_, reg)) *column = *Column(&from, reg);
  }

  static constexpr int kMaxRemembered = 6;  // the rows are on the stack; compilers remember one or two at a time

  const Cie& cie_;
  const uintptr_t address_;
  const Row* const initial_;
  uintptr_t location_;
  Row* const row_;
  Row remembered_[kMaxRemembered];
  int depth_ = 0;
};

// Sets `*at` to the place where a register is saved, in a frame with this CFA. Returns false if it is not saved at a
// register plus a number.
bool FindSaved(const RegisterRule& rule, const Place& cfa, Place* at) {
  if (rule.kind == RegisterRule::kAtCfa) {
    *at = {cfa.reg, cfa.offset + rule.offset};
    return !cfa.is_stored;
  }
  return rule.kind == RegisterRule::kAtExpression && ReadExpression(rule.expression, at) && !at->is_stored;
}

FrameRule Inexpressible() { return {FrameRule::kInexpressible}; }

// Converts a row to a FrameRule. The kind is kInexpressible if that is not possible. That is so for each row in which a
// function cannot have called another one, because then the caller's frame is found by a register that calls change.
FrameRule Reduce(const Row& row) {
  constexpr uint64_t kDirectlyBelowCfa = uint64_t{0} - 8;
  if (row.ra.kind == RegisterRule::kUndefined) return {FrameRule::kOutermost};
  FrameRule rule;
  Place cfa = {row.cfa_register, row.cfa_offset};
  if (row.cfa_expression.ok() && !ReadExpression(row.cfa_expression, &cfa)) return Inexpressible();
  if (cfa.is_stored ? cfa.reg != kFpRegister : cfa.reg != kSpRegister && cfa.reg != kFpRegister) return Inexpressible();
  if (row.sp.kind != RegisterRule::kSame || row.ra.kind == RegisterRule::kSame) return Inexpressible();
  rule.cfa_offset = static_cast<int64_t>(cfa.offset);
  rule.fp_saved = row.fp.kind != RegisterRule::kSame && row.fp.kind != RegisterRule::kUndefined;
  Place fp_at;
  if (rule.fp_saved && (!FindSaved(row.fp, cfa, &fp_at) || fp_at.reg != cfa.reg)) return Inexpressible();
  if (cfa.is_stored) {
    if (kHasLinkRegister || !rule.fp_saved) return Inexpressible();
    if (row.ra.kind != RegisterRule::kAtCfa || row.ra.offset != kDirectlyBelowCfa) return Inexpressible();
    rule.fp_offset = static_cast<int64_t>(fp_at.offset);
    rule.kind = FrameRule::kCfaInSlot;
    return rule;
  }
  Place ra_at;
  if (!FindSaved(row.ra, cfa, &ra_at) || ra_at.reg != cfa.reg) return Inexpressible();
  if (!kHasLinkRegister && ra_at.offset != cfa.offset + kDirectlyBelowCfa) return Inexpressible();
  rule.return_offset = static_cast<int64_t>(ra_at.offset - cfa.offset);
  if (rule.fp_saved) rule.fp_offset = static_cast<int64_t>(fp_at.offset - cfa.offset);
  rule.kind = cfa.reg == kSpRegister ? FrameRule::kCfaFromSp : FrameRule::kCfaFromFp;
  return rule;
}

// Returns the FDE with the greatest start that is not above `address`, from the sorted table of the object. Returns
// null if there is none, or if the table is damaged or has another format.
const uint8_t* FindFde(const uint8_t* header, const ReadableRanges& readable, uintptr_t address) {
  // The first four bytes, as all linkers write them: version 1; the address of .eh_frame and the number of entries have
  // 4 bytes each; the entries are pairs of signed offsets from the header, 4 bytes each.
  constexpr uint64_t kFormat = 0x3b031b01;
  constexpr size_t kPairBytes = 8;
  const auto base = reinterpret_cast<uintptr_t>(header);
  const uintptr_t limit = readable.LimitAt(base);
  Cursor in(header, reinterpret_cast<const uint8_t*>(limit));
  const uint64_t format = in.Integer(4);
  in.Skip(4);
  const uint64_t count = in.Integer(4);
  if (!in.ok() || format != kFormat || count == 0) return nullptr;
  if (count > (limit - reinterpret_cast<uintptr_t>(in.at())) / kPairBytes) return nullptr;
  const auto entry = [&in](uint64_t i, int field) {
    Cursor at = in;
    at.Skip(i * kPairBytes + static_cast<uint64_t>(field) * 4);
    return static_cast<int64_t>(at.Integer(4, /*is_signed=*/true));
  };
  const auto target = static_cast<int64_t>(address - base);
  uint64_t first = 0;
  uint64_t last = count;  // the last entry that is not above the target is in [first, last), if there is one
  while (last - first > 1) {
    const uint64_t mid = first + (last - first) / 2;
    (entry(mid, 0) <= target ? first : last) = mid;
  }
  if (entry(first, 0) > target) return nullptr;
  return reinterpret_cast<const uint8_t*>(base + static_cast<uintptr_t>(entry(first, 1)));
}

// An FDE with its CIE.
struct Fde {
  uintptr_t start = 0;
  Cie cie;
  Cursor program;
};

// Reads the FDE that covers `address`. Returns false if there is none, or if it is damaged.
bool ReadFde(const uint8_t* header, const ReadableRanges& readable, uintptr_t address, Fde* fde) {
  const uint8_t* at = FindFde(header, readable, address);
  if (at == nullptr) return false;
  Cursor in = Entry(at, readable);
  const auto cie_field = reinterpret_cast<uintptr_t>(in.at());
  const auto cie_distance = in.Integer(4);
  if (!in.ok() || cie_distance == 0 ||
      !ReadCie(reinterpret_cast<const uint8_t*>(cie_field - cie_distance), readable, &fde->cie)) {
    return false;
  }
  fde->start = in.Encoded(fde->cie.pointer_encoding);
  const uint64_t bytes = in.EncodedValue(fde->cie.pointer_encoding);
  in.Skip(in.Uleb());  // the augmentation data
  fde->program = in;
  return in.ok() && address - fde->start < bytes;
}

}  // namespace

FrameRule ReadFrameRule(const void* eh_frame_hdr, const ReadableRanges& readable, uintptr_t address) {
  if (eh_frame_hdr == nullptr) return {};
  const auto* header = static_cast<const uint8_t*>(eh_frame_hdr);
  Fde fde;
  if (!ReadFde(header, readable, address, &fde)) {
    // makecontext stores the address of a function as the outermost return address of a stack. That address does not
    // follow a call.
    const bool is_start = ReadFde(header, readable, address + 1, &fde) && fde.start == address + 1;
    return {is_start ? FrameRule::kOutermost : FrameRule::kNone};
  }
  Row initial;
  if (!CfaProgram(fde.cie, fde.start, UINTPTR_MAX, nullptr, &initial).Run(fde.cie.program)) return Inexpressible();
  Row row = initial;
  if (!CfaProgram(fde.cie, fde.start, address, &initial, &row).Run(fde.program)) return Inexpressible();
  return fde.cie.is_signal_frame ? FrameRule{FrameRule::kOutermost} : Reduce(row);
}

}  // namespace hbmprof::internal
