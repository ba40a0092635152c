#include "src/capture/cfi.h"

#include <cstring>

namespace hbmprof::internal {
namespace {

// Pointer encodings.
constexpr uint8_t kPeOmit = 0xff;
constexpr uint8_t kPeIndirect = 0x80;
constexpr uint8_t kPePcRelative = 0x10;
constexpr uint8_t kPeDataRelative = 0x30;

// DWARF numbers of the registers that matter here.
constexpr uint64_t kFp = 6;
constexpr uint64_t kSp = 7;
constexpr uint64_t kReturnAddress = 16;

// Reads forward through an object's unwind information. Past `end`, or at something that is not understood, it fails
// and stays failed; values read then are 0.
class Cursor {
 public:
  // Fails from the start if `end` is null.
  Cursor(const uint8_t* at, const uint8_t* end) : at_(at), end_(end), ok_(end != nullptr) {}

  bool ok() const { return ok_; }
  bool AtEnd() const { return !ok_ || at_ >= end_; }
  const uint8_t* at() const { return at_; }
  void Skip(uint64_t bytes) {
    if (!ok_ || bytes > static_cast<uint64_t>(end_ - at_)) {
      ok_ = false;
      return;
    }
    at_ += bytes;
  }
  // The next `bytes` bytes, as a cursor of their own; passes over them.
  Cursor Take(uint64_t bytes) {
    const uint8_t* begin = at_;
    Skip(bytes);
    return ok_ ? Cursor(begin, at_) : Cursor(nullptr, nullptr);
  }

  template <typename T>
  T Fixed() {
    T value{};
    if (!ok_ || static_cast<size_t>(end_ - at_) < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  uint64_t Uleb() {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = Fixed<uint8_t>();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0 || !ok_) return value;
    }
  }

  int64_t Sleb() {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte;
    do {
      byte = Fixed<uint8_t>();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      shift += 7;
    } while ((byte & 0x80) != 0 && ok_);
    if (shift < 64 && (byte & 0x40) != 0) value |= ~uint64_t{0} << shift;
    return static_cast<int64_t>(value);
  }

  // A pointer in one of the DW_EH_PE encodings; `data_base` is what data-relative ones count from, 0 if nothing. The
  // target of an indirect one is not followed.
  uint64_t Encoded(uint8_t encoding, uintptr_t data_base) {
    const auto here = reinterpret_cast<uintptr_t>(at_);
    uint64_t value = EncodedValue(encoding);
    switch (encoding & 0x70) {
      case 0:
        break;
      case kPePcRelative:
        value += here;
        break;
      case kPeDataRelative:
        if (data_base == 0) ok_ = false;
        value += data_base;
        break;
      default:
        ok_ = false;
    }
    return value;
  }

  // The stored number alone.
  uint64_t EncodedValue(uint8_t encoding) {
    switch (encoding & 0x0f) {
      case 0x00:  // absolute
      case 0x04:
      case 0x0c:
        return Fixed<uint64_t>();
      case 0x01:
        return Uleb();
      case 0x02:
        return Fixed<uint16_t>();
      case 0x03:
        return Fixed<uint32_t>();
      case 0x09:
        return static_cast<uint64_t>(Sleb());
      case 0x0a:
        return static_cast<uint64_t>(int64_t{Fixed<int16_t>()});
      case 0x0b:
        return static_cast<uint64_t>(int64_t{Fixed<int32_t>()});
      default:
        ok_ = false;
        return 0;
    }
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  bool ok_;
};

// Sums of numbers that anything may stand for: they wrap.
int64_t Sum(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
int64_t Difference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
int64_t Product(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// What follows the length field of the CIE or FDE at `at`; a failed cursor if that does not lie in `readable`.
Cursor Entry(const uint8_t* at, const ReadableRanges& readable) {
  Cursor in(at, reinterpret_cast<const uint8_t*>(readable.LimitAt(reinterpret_cast<uintptr_t>(at))));
  const auto bytes32 = in.Fixed<uint32_t>();
  const uint64_t bytes = bytes32 == 0xffffffff ? in.Fixed<uint64_t>() : bytes32;
  return in.Take(bytes);
}

struct Cie {
  uint64_t code_alignment = 0;
  int64_t data_alignment = 0;
  uint8_t pointer_encoding = 0;
  bool has_augmentation_data = false;
  bool is_signal_frame = false;
  Cursor program{nullptr, nullptr};
};

bool ReadCie(const uint8_t* at, const ReadableRanges& readable, Cie* cie) {
  Cursor in = Entry(at, readable);
  if (in.Fixed<uint32_t>() != 0) return false;  // not a CIE
  const auto version = in.Fixed<uint8_t>();
  if (version != 1 && version != 3) return false;
  const char* augmentation = reinterpret_cast<const char*>(in.at());
  while (in.Fixed<uint8_t>() != 0) {
  }
  cie->code_alignment = in.Uleb();
  cie->data_alignment = in.Sleb();
  const uint64_t return_column = version == 1 ? in.Fixed<uint8_t>() : in.Uleb();
  if (!in.ok() || return_column != kReturnAddress) return false;
  if (*augmentation == 'z') {
    cie->has_augmentation_data = true;
    Cursor data = in.Take(in.Uleb());
    for (const char* letter = augmentation + 1; *letter != 0; ++letter) {
      switch (*letter) {
        case 'R':
          cie->pointer_encoding = data.Fixed<uint8_t>();
          break;
        case 'P':
          data.EncodedValue(data.Fixed<uint8_t>());
          break;
        case 'L':
          data.Fixed<uint8_t>();
          break;
        case 'S':
          cie->is_signal_frame = true;
          break;
        case 'B':  // pointer authentication of other architectures
        default:
          return false;
      }
    }
    if (!data.ok()) return false;
  } else if (*augmentation != 0) {
    return false;
  }
  cie->program = in;
  return in.ok();
}

// A value on the expression evaluator's stack: a number, a register plus a number, or the word in memory at a register
// plus a number, plus another number.
struct Term {
  enum Base : uint8_t { kNumber, kRegister, kWordAt };
  Base base = kNumber;
  uint64_t reg = 0;
  int64_t offset = 0;
  int64_t addend = 0;  // kWordAt only

  void Add(int64_t number) {
    int64_t& summand = base == kWordAt ? addend : offset;
    summand = Sum(summand, number);
  }
};

// Evaluates a DWARF expression as far as it has the form of a Term. `pc` stands for the program counter's register;
// `cfa` is pushed first where it is given.
bool Evaluate(Cursor in, uintptr_t pc, const Term* cfa, Term* result) {
  constexpr int kDepth = 16;
  Term stack[kDepth];
  int depth = 0;
  if (cfa != nullptr) stack[depth++] = *cfa;
  while (!in.AtEnd()) {
    const auto op = in.Fixed<uint8_t>();
    Term pushed;
    bool push = true;
    if (op >= 0x30 && op <= 0x4f) {  // lit0..lit31
      pushed.offset = op - 0x30;
    } else if ((op >= 0x70 && op <= 0x8f) || op == 0x92) {  // breg0..breg31, bregx
      const uint64_t reg = op == 0x92 ? in.Uleb() : op - 0x70u;
      pushed.offset = in.Sleb();
      if (reg == kReturnAddress) {
        pushed.Add(static_cast<int64_t>(pc));
      } else {
        pushed.base = Term::kRegister;
        pushed.reg = reg;
      }
    } else {
      switch (op) {
        case 0x08:
          pushed.offset = in.Fixed<uint8_t>();
          break;
        case 0x09:
          pushed.offset = in.Fixed<int8_t>();
          break;
        case 0x0a:
          pushed.offset = in.Fixed<uint16_t>();
          break;
        case 0x0b:
          pushed.offset = in.Fixed<int16_t>();
          break;
        case 0x0c:
          pushed.offset = in.Fixed<uint32_t>();
          break;
        case 0x0d:
          pushed.offset = in.Fixed<int32_t>();
          break;
        case 0x0e:
        case 0x0f:
          pushed.offset = in.Fixed<int64_t>();
          break;
        case 0x10:
          pushed.offset = static_cast<int64_t>(in.Uleb());
          break;
        case 0x11:
          pushed.offset = in.Sleb();
          break;
        default:
          push = false;
      }
    }
    if (push) {
      if (depth == kDepth) return false;
      stack[depth++] = pushed;
      continue;
    }
    if (depth == 0) return false;
    Term& top = stack[depth - 1];
    if (op == 0x06) {  // deref
      if (top.base != Term::kRegister) return false;
      top.base = Term::kWordAt;
      continue;
    }
    if (op == 0x23) {  // plus_uconst
      top.Add(static_cast<int64_t>(in.Uleb()));
      continue;
    }
    if (op == 0x96) continue;  // nop
    if (depth < 2) return false;
    const Term right = top;
    Term& left = stack[depth - 2];
    --depth;
    if (op == 0x22) {  // plus
      if (left.base != Term::kNumber && right.base != Term::kNumber) return false;
      const Term number = left.base == Term::kNumber ? left : right;
      if (left.base == Term::kNumber) left = right;
      left.Add(number.offset);
      continue;
    }
    if (op == 0x1c && right.base == Term::kNumber) {  // minus
      left.Add(Difference(0, right.offset));
      continue;
    }
    if (left.base != Term::kNumber || right.base != Term::kNumber) return false;
    const int64_t a = left.offset;
    const int64_t b = right.offset;
    switch (op) {
      case 0x1a:
        left.offset = a & b;
        break;
      case 0x21:
        left.offset = a | b;
        break;
      case 0x24:
        left.offset = b >= 0 && b < 64 ? static_cast<int64_t>(static_cast<uint64_t>(a) << b) : 0;
        break;
      case 0x25:
        left.offset = b >= 0 && b < 64 ? static_cast<int64_t>(static_cast<uint64_t>(a) >> b) : 0;
        break;
      case 0x29:
        left.offset = a == b;
        break;
      case 0x2a:
        left.offset = a >= b;
        break;
      case 0x2b:
        left.offset = a > b;
        break;
      case 0x2c:
        left.offset = a <= b;
        break;
      case 0x2d:
        left.offset = a < b;
        break;
      case 0x2e:
        left.offset = a != b;
        break;
      default:
        return false;
    }
  }
  if (!in.ok() || depth == 0) return false;
  *result = stack[depth - 1];
  return true;
}

// The operations of a DWARF expression; null: there is none.
struct Expression {
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;
};

// How one register of the caller is found.
struct RegisterRule {
  enum Kind : uint8_t { kSame, kUndefined, kAtCfa, kAtExpression, kOther };
  Kind kind = kSame;
  int64_t offset = 0;     // kAtCfa: it is the word at CFA + offset
  Expression expression;  // kAtExpression: it is the word at this address
};

struct Row {
  uint64_t cfa_register = 0;
  int64_t cfa_offset = 0;
  Expression cfa_expression;  // if there is one, instead of the two above
  RegisterRule fp, sp, ra;
};

// Null for a register that no FrameRule needs.
RegisterRule* Column(Row* row, uint64_t reg) {
  return reg == kFp ? &row->fp : reg == kSp ? &row->sp : reg == kReturnAddress ? &row->ra : nullptr;
}

// Reads an expression: its length, then operations.
Expression TakeExpression(Cursor* in) {
  const Cursor operations = in->Take(in->Uleb());
  return {operations.at(), in->at()};
}

// Runs a CFA program from `location` on for as long as its rows are at or before `address`. `initial` is the row that
// the CIE's program left; null while that program itself runs.
bool Run(Cursor in, const Cie& cie, uintptr_t location, uintptr_t address, const Row* initial, Row* row) {
  constexpr int kRemembered = 8;
  Row remembered[kRemembered];
  int depth = 0;
  const auto set = [&](uint64_t reg, RegisterRule::Kind kind, int64_t offset = 0, const Expression& expression = {}) {
    if (RegisterRule* column = Column(row, reg)) *column = {kind, offset, expression};
  };
  const auto restore = [&](uint64_t reg) {
    Row from = initial != nullptr ? *initial : Row();
    if (RegisterRule* column = Column(row, reg)) *column = *Column(&from, reg);
  };
  const auto factored = [&](int64_t offset) { return Product(offset, cie.data_alignment); };
  while (!in.AtEnd()) {
    const auto op = in.Fixed<uint8_t>();
    const uint64_t low = op & 0x3f;
    uint64_t advance = 0;
    if ((op & 0xc0) == 0x40) {  // advance_loc
      advance = low;
    } else if ((op & 0xc0) == 0x80) {  // offset
      set(low, RegisterRule::kAtCfa, factored(static_cast<int64_t>(in.Uleb())));
    } else if ((op & 0xc0) == 0xc0) {  // restore
      restore(low);
    } else {
      switch (op) {
        case 0x00:  // nop
          break;
        case 0x01:  // set_loc
          location = in.Encoded(cie.pointer_encoding, 0);
          if (location > address) return in.ok();
          break;
        case 0x02:  // advance_loc1
          advance = in.Fixed<uint8_t>();
          break;
        case 0x03:  // advance_loc2
          advance = in.Fixed<uint16_t>();
          break;
        case 0x04:  // advance_loc4
          advance = in.Fixed<uint32_t>();
          break;
        case 0x05: {  // offset_extended
          const uint64_t reg = in.Uleb();
          set(reg, RegisterRule::kAtCfa, factored(static_cast<int64_t>(in.Uleb())));
          break;
        }
        case 0x06:  // restore_extended
          restore(in.Uleb());
          break;
        case 0x07:  // undefined
          set(in.Uleb(), RegisterRule::kUndefined);
          break;
        case 0x08:  // same_value
          set(in.Uleb(), RegisterRule::kSame);
          break;
        case 0x09: {  // register
          const uint64_t reg = in.Uleb();
          in.Uleb();
          set(reg, RegisterRule::kOther);
          break;
        }
        case 0x0a:  // remember_state
          if (depth == kRemembered) return false;
          remembered[depth++] = *row;
          break;
        case 0x0b:  // restore_state
          if (depth == 0) return false;
          *row = remembered[--depth];
          break;
        case 0x0c:  // def_cfa
          row->cfa_register = in.Uleb();
          row->cfa_offset = static_cast<int64_t>(in.Uleb());
          row->cfa_expression = {};
          break;
        case 0x0d:  // def_cfa_register
          row->cfa_register = in.Uleb();
          row->cfa_expression = {};
          break;
        case 0x0e:  // def_cfa_offset
          row->cfa_offset = static_cast<int64_t>(in.Uleb());
          break;
        case 0x0f:  // def_cfa_expression
          row->cfa_expression = TakeExpression(&in);
          break;
        case 0x10: {  // expression
          const uint64_t reg = in.Uleb();
          set(reg, RegisterRule::kAtExpression, 0, TakeExpression(&in));
          break;
        }
        case 0x11: {  // offset_extended_sf
          const uint64_t reg = in.Uleb();
          set(reg, RegisterRule::kAtCfa, factored(in.Sleb()));
          break;
        }
        case 0x12:  // def_cfa_sf
          row->cfa_register = in.Uleb();
          row->cfa_offset = factored(in.Sleb());
          row->cfa_expression = {};
          break;
        case 0x13:  // def_cfa_offset_sf
          row->cfa_offset = factored(in.Sleb());
          break;
        case 0x14:    // val_offset
        case 0x15: {  // val_offset_sf
          const uint64_t reg = in.Uleb();
          in.Uleb();
          set(reg, RegisterRule::kOther);
          break;
        }
        case 0x16: {  // val_expression
          const uint64_t reg = in.Uleb();
          TakeExpression(&in);
          set(reg, RegisterRule::kOther);
          break;
        }
        case 0x2e:  // GNU_args_size
          in.Uleb();
          break;
        case 0x2f: {  // GNU_negative_offset_extended
          const uint64_t reg = in.Uleb();
          set(reg, RegisterRule::kAtCfa, Difference(0, factored(static_cast<int64_t>(in.Uleb()))));
          break;
        }
        default:
          return false;
      }
    }
    if (advance != 0) {
      location += advance * cie.code_alignment;
      if (location > address) return in.ok();
    }
  }
  return in.ok();
}

// The address a register was saved at; false if it was not saved in memory.
bool SavedAt(const RegisterRule& rule, const Term& cfa, uintptr_t address, Term* at) {
  if (rule.kind == RegisterRule::kAtCfa) {
    *at = cfa;
    at->Add(rule.offset);
    return true;
  }
  return rule.kind == RegisterRule::kAtExpression &&
         Evaluate(Cursor(rule.expression.begin, rule.expression.end), address, &cfa, at);
}

bool IsRegister(const Term& term, uint64_t reg) { return term.base == Term::kRegister && term.reg == reg; }

FrameRule Inexpressible() {
  FrameRule rule;
  rule.kind = FrameRule::kInexpressible;
  return rule;
}

// What of a row a FrameRule can express.
FrameRule Reduce(const Row& row, uintptr_t address) {
  FrameRule rule;
  if (row.ra.kind == RegisterRule::kUndefined) {
    rule.kind = FrameRule::kOutermost;
    return rule;
  }
  Term cfa{Term::kRegister, row.cfa_register, row.cfa_offset};
  if (row.cfa_expression.begin != nullptr &&
      !Evaluate(Cursor(row.cfa_expression.begin, row.cfa_expression.end), address, nullptr, &cfa)) {
    return Inexpressible();
  }
  rule.cfa_offset = cfa.offset;
  rule.fp_saved = row.fp.kind != RegisterRule::kSame && row.fp.kind != RegisterRule::kUndefined;
  Term fp_at;
  if (rule.fp_saved && !SavedAt(row.fp, cfa, address, &fp_at)) return Inexpressible();
  const bool is_called =
      row.sp.kind == RegisterRule::kSame && row.ra.kind == RegisterRule::kAtCfa && row.ra.offset == -8;
  if (cfa.base == Term::kRegister && is_called && cfa.reg < 16) {
    rule.kind = cfa.reg == kSp   ? FrameRule::kCfaFromSp
                : cfa.reg == kFp ? FrameRule::kCfaFromFp
                                 : FrameRule::kCfaFromRegister;
    if (rule.kind == FrameRule::kCfaFromRegister) rule.cfa_register = static_cast<uint8_t>(cfa.reg);
    if (!rule.fp_saved) return rule;
    rule.fp_found_by_fp = rule.kind == FrameRule::kCfaFromRegister && IsRegister(fp_at, kFp);
    rule.fp_offset = rule.fp_found_by_fp ? fp_at.offset : Difference(fp_at.offset, cfa.offset);
    return rule.fp_found_by_fp || IsRegister(fp_at, cfa.reg) ? rule : Inexpressible();
  }
  if (cfa.base != Term::kWordAt) return Inexpressible();
  if (cfa.reg == kFp && is_called) {
    if (cfa.addend != 0 || !rule.fp_saved || !IsRegister(fp_at, kFp)) return Inexpressible();
    rule.fp_offset = fp_at.offset;
    rule.kind = FrameRule::kCfaInSlot;
    return rule;
  }
  if (cfa.reg == kSp && is_called) {
    if (rule.fp_saved && (fp_at.base != Term::kWordAt || fp_at.reg != kSp || fp_at.offset != cfa.offset)) {
      return Inexpressible();
    }
    rule.cfa_addend = cfa.addend;
    rule.fp_offset = Difference(fp_at.addend, cfa.addend);
    rule.kind = FrameRule::kCfaInSpSlot;
    return rule;
  }
  if (cfa.reg == kSp) {
    // A signal trampoline: all registers are in the context that the kernel pushed, sp and pc side by side.
    Term sp_at;
    Term ra_at;
    if (cfa.addend != 0 || !SavedAt(row.ra, cfa, address, &ra_at) || !IsRegister(ra_at, kSp) ||
        ra_at.offset != Sum(cfa.offset, 8)) {
      return Inexpressible();
    }
    if (row.sp.kind != RegisterRule::kSame &&
        (!SavedAt(row.sp, cfa, address, &sp_at) || !IsRegister(sp_at, kSp) || sp_at.offset != cfa.offset)) {
      return Inexpressible();
    }
    if (!rule.fp_saved || !IsRegister(fp_at, kSp)) return Inexpressible();
    rule.fp_offset = fp_at.offset;
    rule.kind = FrameRule::kSignal;
    return rule;
  }
  return Inexpressible();
}

// The FDE that may cover `address`, through the sorted table of the object; null if there is none.
const uint8_t* FindFde(const uint8_t* header, const ReadableRanges& readable, uintptr_t address) {
  constexpr uint8_t kSortedTable = 0x3b;  // pairs of 4-byte signed offsets from the header
  constexpr size_t kPairBytes = 8;
  const auto base = reinterpret_cast<uintptr_t>(header);
  const uintptr_t limit = readable.LimitAt(base);
  Cursor in(header, reinterpret_cast<const uint8_t*>(limit));
  const auto version = in.Fixed<uint8_t>();
  const auto eh_frame_encoding = in.Fixed<uint8_t>();
  const auto count_encoding = in.Fixed<uint8_t>();
  const auto table_encoding = in.Fixed<uint8_t>();
  if (version != 1 || count_encoding == kPeOmit || table_encoding != kSortedTable) return nullptr;
  in.EncodedValue(eh_frame_encoding);
  const uint64_t count = in.Encoded(count_encoding, base);
  if (!in.ok() || count == 0) return nullptr;
  const uint8_t* table = in.at();
  if (count > (limit - reinterpret_cast<uintptr_t>(table)) / kPairBytes) return nullptr;
  const auto entry = [table](uint64_t i, int field) {
    int32_t offset;
    std::memcpy(&offset, table + i * kPairBytes + field * 4, sizeof(offset));
    return int64_t{offset};
  };
  const auto target = static_cast<int64_t>(address - base);
  uint64_t first = 0;
  uint64_t last = count;  // the entry wanted is in [first, last), if any starts at or before the target
  while (last - first > 1) {
    const uint64_t middle = first + (last - first) / 2;
    if (entry(middle, 0) <= target) {
      first = middle;
    } else {
      last = middle;
    }
  }
  if (entry(first, 0) > target) return nullptr;
  return reinterpret_cast<const uint8_t*>(base + static_cast<uintptr_t>(entry(first, 1)));
}

// One FDE with its CIE, ready to run.
struct Fde {
  uintptr_t start = 0;
  Cie cie;
  Cursor program{nullptr, nullptr};
};

// False if no FDE that can be read covers `address`.
bool ReadFde(const uint8_t* header, const ReadableRanges& readable, uintptr_t address, Fde* fde) {
  const uint8_t* at = FindFde(header, readable, address);
  if (at == nullptr) return false;
  Cursor in = Entry(at, readable);
  const auto cie_field = reinterpret_cast<uintptr_t>(in.at());
  const auto cie_distance = in.Fixed<uint32_t>();
  if (!in.ok() || cie_distance == 0 ||
      !ReadCie(reinterpret_cast<const uint8_t*>(cie_field - cie_distance), readable, &fde->cie)) {
    return false;
  }
  if ((fde->cie.pointer_encoding & kPeIndirect) != 0) return false;
  fde->start = in.Encoded(fde->cie.pointer_encoding, 0);
  const uint64_t bytes = in.EncodedValue(fde->cie.pointer_encoding);
  if (fde->cie.has_augmentation_data) in.Skip(in.Uleb());
  fde->program = in;
  return in.ok() && address - fde->start < bytes;
}

}  // namespace

FrameRule ReadFrameRule(const void* eh_frame_hdr, const ReadableRanges& readable, uintptr_t address) {
  if (eh_frame_hdr == nullptr) return {};
  const auto* header = static_cast<const uint8_t*>(eh_frame_hdr);
  Fde fde;
  if (!ReadFde(header, readable, address, &fde)) {
    // A return to the first instruction of a function, after no call: what makecontext puts at a stack's outer end.
    FrameRule rule;
    if (ReadFde(header, readable, address + 1, &fde) && fde.start == address + 1) rule.kind = FrameRule::kOutermost;
    return rule;
  }
  Row initial;
  if (!Run(fde.cie.program, fde.cie, fde.start, UINTPTR_MAX, nullptr, &initial)) return Inexpressible();
  Row row = initial;
  if (!Run(fde.program, fde.cie, fde.start, address, &initial, &row)) return Inexpressible();
  const FrameRule rule = Reduce(row, address);
  // A signal frame alone is left at the interrupted instruction itself, not after a call.
  const bool mismatch =
      fde.cie.is_signal_frame != (rule.kind == FrameRule::kSignal) && rule.kind != FrameRule::kOutermost;
  return mismatch ? Inexpressible() : rule;
}

}  // namespace hbmprof::internal
