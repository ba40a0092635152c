#include "src/capture/rules.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <cstring>

#include "src/base/forked_child.h"
#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/capture/python/interpreter.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

RuleBucket rule_table[1 << kRuleBucketBits];

namespace {

// Whether `value` is 8 times a signed number of `bits` bits.
bool Fits(int64_t value, int bits) {
  const int64_t limit = int64_t{8} << (bits - 1);
  return value % 8 == 0 && value >= -limit && value < limit;
}

}  // namespace

PackedRule PackedRule::Of(const FrameRule& rule, uint32_t object) {
  const uint64_t inexpressible = uint64_t{FrameRule::kInexpressible} | uint64_t{object} << 5;
  const bool has_register = rule.kind == FrameRule::kCfaFromRegister || rule.kind == FrameRule::kReturnInRegister;
  const bool is_short = kHasLinkRegister || rule.kind == FrameRule::kCfaInSpSlot || has_register;
  const bool has_return_offset = rule.kind == FrameRule::kCfaFromSp || rule.kind == FrameRule::kCfaFromFp;
  // If fp is not saved, fp_offset has no other use than as the base of return_offset.
  const int64_t fp_offset =
      kHasLinkRegister && has_return_offset && !rule.fp_saved ? rule.return_offset : rule.fp_offset;
  // The word of a rule that was read is never 0, because 0 is an empty slot of the table.
  if (rule.kind == FrameRule::kNone) return PackedRule(uint64_t{FrameRule::kNone} | kFpSaved | uint64_t{object} << 5);
  // A frame holds at least its return address.
  if (rule.kind == FrameRule::kCfaFromSp && rule.cfa_offset <= 0) return PackedRule(inexpressible);
  if (!Fits(fp_offset, 21) || !Fits(rule.cfa_offset, is_short ? 19 : 24)) return PackedRule(inexpressible);
  uint64_t cfa = static_cast<uint64_t>(rule.cfa_offset / 8);
  if (rule.kind == FrameRule::kCfaInSpSlot) {
    if (rule.cfa_addend % 8 != 0 || rule.cfa_addend < 0 || rule.cfa_addend >= 8 * 32) return PackedRule(inexpressible);
    cfa = cfa << 5 | static_cast<uint64_t>(rule.cfa_addend / 8);
  } else if (has_register) {
    cfa = cfa << 5 | uint64_t{rule.fp_found_by_fp} << 4 | rule.cfa_register;
  } else if (kHasLinkRegister) {
    const auto distance =
        static_cast<int64_t>(static_cast<uint64_t>(rule.return_offset) - static_cast<uint64_t>(fp_offset));
    if (has_return_offset && !Fits(distance, 5)) return PackedRule(inexpressible);
    cfa = cfa << 5 | (static_cast<uint64_t>(distance / 8) & 31);
  }
  const auto fp = static_cast<uint64_t>(fp_offset / 8) << 43 >> 24;
  return PackedRule(uint64_t{rule.kind} | (rule.fp_saved ? kFpSaved : 0) | uint64_t{object} << 5 | fp | cfa << 40);
}

#if defined(HBMPROF_HAS_FRAME_RULES)
namespace {

bool FindObject(uintptr_t address, dl_find_object* object) {
  return _dl_find_object(reinterpret_cast<void*>(address), object) == 0;
}

// The objects loaded at program start. They are first in the dynamic linker's list, which begins with the main program;
// dlopen appends to the list. The list up to the entry of the dynamic linker itself never changes, so that part is read
// without a lock.
class StartObjects {
 public:
  // To be called once.
  void Find() {
    dl_find_object object;
    const uintptr_t main_headers = getauxval(AT_PHDR);
    const uintptr_t linker = getauxval(AT_BASE);
    if (FindObject(main_headers, &object)) {
      const link_map* map = object.dlfo_link_map;
      while (map->l_prev != nullptr) map = map->l_prev;
      Add(map);
      if (linker != 0 && FindObject(linker, &object)) {
        const link_map* last = object.dlfo_link_map;
        while (map != last && map->l_next != nullptr) {
          map = map->l_next;
          Add(map);
        }
        if (reinterpret_cast<uintptr_t>(object.dlfo_map_start) == linker) {
          linker_entry_ = linker + reinterpret_cast<const ElfW(Ehdr)*>(linker)->e_entry;
        }
      }
    }
    is_known_.store(true, std::memory_order_release);
  }

  bool Contain(const dl_find_object& object) const {
    if (!is_known_.load(std::memory_order_acquire)) return false;
    const auto start = reinterpret_cast<uintptr_t>(object.dlfo_map_start);
    for (int i = 0; i < count_; ++i) {
      if (starts_[i] == start) return true;
    }
    return false;
  }

  // The address at which the kernel starts the process: the entry point of the dynamic linker. 0 if it is not known.
  uintptr_t linker_entry() const { return is_known_.load(std::memory_order_acquire) ? linker_entry_ : 0; }

 private:
  static constexpr int kCapacity = 256;

  void Add(const link_map* map) {
    dl_find_object object;
    LookForPython(map, /*is_permanent=*/true);
    if (count_ == kCapacity || !FindObject(reinterpret_cast<uintptr_t>(map->l_ld), &object)) return;
    if (object.dlfo_link_map == map) starts_[count_++] = reinterpret_cast<uintptr_t>(object.dlfo_map_start);
  }

  std::atomic<bool> is_known_{false};
  int count_ = 0;
  uintptr_t starts_[kCapacity] = {};
  uintptr_t linker_entry_ = 0;
};

StartObjects start_objects;

// Returns how many objects were unloaded since the process began. Must not be called in a forked child.
unsigned long long UnloadCount() {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        *static_cast<unsigned long long*>(result) = info->dlpi_subs;
        return 1;
      },
      &count);
  return count;
}

// Identifies an object. Objects with equal identities have equal rules.
struct Identity {
  static constexpr uint32_t kBuildIdCapacity = 32;

  uintptr_t start;
  uintptr_t limit;
  uintptr_t eh_frame_hdr;
  // The build id, and its position in the object's first page. The size is 0 if there is none in that page.
  uint32_t build_id_bytes;
  uint32_t build_id_offset;
  unsigned char build_id[kBuildIdCapacity];
  // Used only if there is no build id: a hash of the unwind data; 0 if they are not hashed.
  uint64_t unwind_hash;
};

// Copies bytes of an object. `may_be_unmapped`: another thread may be unloading it. Returns false, with zeros in `*to`,
// if it cannot be read.
template <typename T>
bool Read(uintptr_t from, bool may_be_unmapped, T* to) {
  if (!may_be_unmapped) {
    std::memcpy(to, reinterpret_cast<const void*>(from), sizeof(*to));
    return true;
  }
  if (CopyMapped(from, to, sizeof(*to))) return true;
  std::memset(to, 0, sizeof(*to));
  return false;
}

// The program headers of the object that is loaded at `start`. They are read from its first page, which is mapped,
// unless another thread is unloading the object.
class Headers {
 public:
  Headers(uintptr_t start, bool may_be_unmapped) : start_(start), may_be_unmapped_(may_be_unmapped) {
    ElfW(Ehdr) header;
    if (!Read(start, may_be_unmapped, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_phentsize != sizeof(ElfW(Phdr)) || header.e_phoff > kPageBytes ||
        header.e_phnum > (kPageBytes - header.e_phoff) / sizeof(ElfW(Phdr))) {
      return;
    }
    at_ = header.e_phoff;
    for (count_ = header.e_phnum; first_ < count_; ++first_) {
      const ElfW(Phdr) segment = Get(first_);
      if (segment.p_type != PT_LOAD) continue;
      if (segment.p_offset != 0 || (segment.p_flags & PF_R) == 0) break;
      bias_ = start - (segment.p_vaddr & ~(kPageBytes - 1));
      return;
    }
    count_ = 0;  // these bytes are not the headers of the object
  }

  static constexpr uintptr_t kPageBytes = 4096;

  // 0 if the headers are not in the first page.
  unsigned count() const { return count_; }
  ElfW(Phdr) Get(unsigned i) const {
    ElfW(Phdr) segment;
    Read(start_ + at_ + i * sizeof(segment), may_be_unmapped_, &segment);
    return segment;
  }
  // An address in memory minus the address in the headers.
  uintptr_t bias() const { return bias_; }

 private:
  const uintptr_t start_;
  const bool may_be_unmapped_;
  uintptr_t at_ = 0;
  uintptr_t bias_ = 0;
  unsigned first_ = 0;
  unsigned count_ = 0;
};

// Copies the build id of the object that is loaded at the identity's addresses now.
bool ReadBuildId(const Identity& identity, uint32_t bytes, bool may_be_unmapped, unsigned char* id) {
  const uintptr_t from = identity.start + identity.build_id_offset;
  if (may_be_unmapped) return CopyMapped(from, id, bytes);
  std::memcpy(id, reinterpret_cast<const void*>(from), bytes);
  return true;
}

// Sets the build id if it is in the object's first page. If another object is found at the same address later, only its
// first page is certain to be mapped.
void FindBuildId(Identity* identity, bool may_be_unmapped) {
  constexpr uintptr_t kPageBytes = Headers::kPageBytes;
  const Headers headers(identity->start, may_be_unmapped);
  for (unsigned i = 0; i < headers.count(); ++i) {
    const ElfW(Phdr) segment = headers.Get(i);
    if (segment.p_type != PT_NOTE) continue;
    uintptr_t note_at = headers.bias() + segment.p_vaddr - identity->start;
    if (note_at > kPageBytes || segment.p_memsz > kPageBytes) continue;
    const uintptr_t end = note_at + segment.p_memsz;
    const uintptr_t alignment = segment.p_align == 8 ? 8 : 4;
    const auto padded = [alignment](uintptr_t n) { return (n + alignment - 1) & ~(alignment - 1); };
    while (note_at < end && note_at + sizeof(ElfW(Nhdr)) <= kPageBytes) {
      ElfW(Nhdr) note;
      if (!Read(identity->start + note_at, may_be_unmapped, &note)) return;
      const uintptr_t desc_at = note_at + sizeof(note) + padded(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz <= Identity::kBuildIdCapacity &&
          note.n_descsz >= 8 && desc_at + note.n_descsz <= kPageBytes) {
        identity->build_id_offset = static_cast<uint32_t>(desc_at);
        if (ReadBuildId(*identity, note.n_descsz, may_be_unmapped, identity->build_id)) {
          identity->build_id_bytes = note.n_descsz;
        }
        return;
      }
      note_at = desc_at + padded(note.n_descsz);
    }
  }
}

// Returns the segments of an object that have all of `flags`. Returns the whole object if its program headers cannot be
// found.
ReadableRanges SegmentsOf(const dl_find_object& object, ElfW(Word) flags, bool may_be_unmapped) {
  const auto start = reinterpret_cast<uintptr_t>(object.dlfo_map_start);
  ReadableRanges ranges(may_be_unmapped);
  const auto add = [&](const ElfW(Phdr) & segment, uintptr_t bias) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & flags) != flags) return;
    ranges.Add(bias + segment.p_vaddr, bias + segment.p_vaddr + segment.p_memsz);
  };
  const Headers headers(start, may_be_unmapped);
  for (unsigned i = 0; i < headers.count(); ++i) add(headers.Get(i), headers.bias());
  if (headers.count() != 0) return ranges;
  // In a static program, the C library reports the start of the code as the start of the main program.
  const auto* main_headers = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  dl_find_object main;
  if (FindObject(reinterpret_cast<uintptr_t>(main_headers), &main) && main.dlfo_link_map == object.dlfo_link_map) {
    const unsigned long count = getauxval(AT_PHNUM);
    for (unsigned long i = 0; i < count; ++i) add(main_headers[i], main.dlfo_link_map->l_addr);
  } else {
    ranges.Add(start, reinterpret_cast<uintptr_t>(object.dlfo_map_end));
  }
  return ranges;
}

// Returns a hash of the object's unwind data, from which all its rules are read. Returns 0 if the data are too large,
// or if it is not certain where they are. The object must not be unloaded during the call.
uint64_t HashUnwindData(const dl_find_object& object) {
  constexpr uint8_t kRelativeWord = 0x1b;  // DW_EH_PE_pcrel | DW_EH_PE_sdata4, which all linkers use
  constexpr size_t kMostBytes = 256 << 10;
  const auto header = reinterpret_cast<uintptr_t>(object.dlfo_eh_frame);
  const uintptr_t limit = SegmentsOf(object, PF_R, /*may_be_unmapped=*/false).LimitAt(header);
  if (limit == 0 || limit - header < 8 || limit - header > kMostBytes) return 0;
  const auto* const bytes = reinterpret_cast<const char*>(header);
  int32_t frames_at;
  std::memcpy(&frames_at, bytes + 4, sizeof(frames_at));
  // .eh_frame follows its header in the same segment, whose end is not known more exactly.
  if (static_cast<uint8_t>(bytes[1]) != kRelativeWord || frames_at < 0 ||
      static_cast<uint64_t>(frames_at) + 4 >= limit - header) {
    return 0;
  }
  return HashBytes(bytes, limit - header, 0) | 1;
}

// The identities of all objects that rules were read from, by id. Ids count up from 1 and are never reused. The
// identity of an entry is immutable once `is_published` is set, and `next` once the entry is in the list of its bucket.
// `has_reused_addresses` may change at any time.
class Objects {
 public:
  // Returns the id of `object`, and gives it an id if it has none. Returns kUnidentified if the object cannot be
  // identified, or if no id is left.
  uint32_t IdOf(const dl_find_object& object, bool may_be_unmapped) {
    const uint32_t id = FindOrAdd(object, may_be_unmapped);
    if (id != PackedRule::kUnidentified && !may_be_unmapped && !entries_[id].is_searched.exchange(true)) {
      LookForPython(object.dlfo_link_map, /*is_permanent=*/false);
    }
    return id;
  }

  bool Matches(uint32_t id, const dl_find_object& object, bool may_be_unmapped) {
    return Matches(entries_[id], object, may_be_unmapped);
  }
  // Whether another object was loaded at some of its addresses.
  bool HasReusedAddresses(uint32_t id) const {
    return entries_[id].has_reused_addresses.load(std::memory_order_relaxed);
  }

 private:
  struct Entry {
    Identity identity;
    uint32_t next;
    std::atomic<bool> is_published;
    std::atomic<bool> has_reused_addresses;
    std::atomic<bool> is_searched;  // by LookForPython
    // Used only if there is no build id: UnloadCount() when the object was found last.
    std::atomic<unsigned long long> unload_count;
  };
  static constexpr int kBucketBits = 10;

  uint32_t FindOrAdd(const dl_find_object& object, bool may_be_unmapped) {
    Identity identity = {};
    identity.start = reinterpret_cast<uintptr_t>(object.dlfo_map_start);
    identity.limit = reinterpret_cast<uintptr_t>(object.dlfo_map_end);
    identity.eh_frame_hdr = reinterpret_cast<uintptr_t>(object.dlfo_eh_frame);
    std::atomic<uint32_t>& bucket = buckets_[MixAddress(identity.start) >> (64 - kBucketBits)];
    uint32_t head = bucket.load(std::memory_order_acquire);
    for (uint32_t id = head; id != 0; id = entries_[id].next) {
      if (Matches(entries_[id], object, may_be_unmapped)) return id;
    }
    FindBuildId(&identity, may_be_unmapped);
    unsigned long long unload_count = 0;
    if (identity.build_id_bytes == 0) {
      if (may_be_unmapped || IsForkedChild()) return PackedRule::kUnidentified;
      unload_count = UnloadCount();
      identity.unwind_hash = HashUnwindData(object);
    }
    uint32_t id = last_id_.load(std::memory_order_relaxed);
    do {
      if (id + 1 == PackedRule::kUnidentified) return PackedRule::kUnidentified;
    } while (!last_id_.compare_exchange_weak(id, id + 1, std::memory_order_relaxed));
    ++id;
    Entry& entry = entries_[id];
    entry.identity = identity;
    entry.unload_count.store(unload_count, std::memory_order_relaxed);
    for (uint32_t other = 1; other < id; ++other) {
      // If an entry is not published yet, its object is loaded now. `object` is loaded now, too, so the two have
      // different addresses.
      if (!entries_[other].is_published.load(std::memory_order_acquire)) continue;
      const Identity& old = entries_[other].identity;
      if (old.start >= identity.limit || identity.start >= old.limit ||
          Matches(entries_[other], object, may_be_unmapped)) {
        continue;
      }
      entries_[other].has_reused_addresses.store(true, std::memory_order_relaxed);
      entry.has_reused_addresses.store(true, std::memory_order_relaxed);
    }
    entry.next = head;
    entry.is_published.store(true, std::memory_order_release);
    while (!bucket.compare_exchange_weak(entry.next, id, std::memory_order_release)) {
    }
    return id;
  }

  static bool Matches(Entry& entry, const dl_find_object& object, bool may_be_unmapped) {
    const Identity& identity = entry.identity;
    if (identity.start != reinterpret_cast<uintptr_t>(object.dlfo_map_start) ||
        identity.limit != reinterpret_cast<uintptr_t>(object.dlfo_map_end) ||
        identity.eh_frame_hdr != reinterpret_cast<uintptr_t>(object.dlfo_eh_frame)) {
      return false;
    }
    if (identity.build_id_bytes == 0) {
      if (IsForkedChild()) return false;
      const unsigned long long count = UnloadCount();
      if (entry.unload_count.load(std::memory_order_relaxed) == count) return true;
      if (may_be_unmapped || identity.unwind_hash == 0 || HashUnwindData(object) != identity.unwind_hash) return false;
      entry.unload_count.store(count, std::memory_order_relaxed);
      return true;
    }
    unsigned char loaded[Identity::kBuildIdCapacity];
    return ReadBuildId(identity, identity.build_id_bytes, may_be_unmapped, loaded) &&
           std::memcmp(loaded, identity.build_id, identity.build_id_bytes) == 0;
  }

  std::atomic<uint32_t> last_id_{0};
  std::atomic<uint32_t> buckets_[1 << kBucketBits] = {};
  Entry entries_[PackedRule::kObjectIds] = {};
};

Objects known_objects;

// Adds a rule to the table. If its bucket is full, it replaces one of the rules there.
void StoreRule(uintptr_t address, PackedRule rule) {
  static std::atomic<uint32_t> victim{0};
  const uint64_t mixed = MixAddress(address);
  RuleBucket& bucket = RuleBucketOf(address);
  RuleBucket::Slot* chosen = nullptr;
  for (RuleBucket::Slot& slot : bucket.slots) {
    const uint64_t word = slot.rule.load(std::memory_order_relaxed);
    const bool is_same_address = (slot.check.load(std::memory_order_relaxed) ^ word) == mixed;
    if (is_same_address) {
      chosen = &slot;
      break;
    }
    if (word == 0 && chosen == nullptr) chosen = &slot;
  }
  if (chosen == nullptr) {
    chosen = &bucket.slots[victim.fetch_add(1, std::memory_order_relaxed) % RuleBucket::kSlots];
  }
  chosen->rule.store(rule.word(), std::memory_order_relaxed);
  chosen->check.store(rule.word() ^ mixed, std::memory_order_release);
}

// Returns whether the code at `address`, which has no rule, is the start of the process: the dynamic linker's code
// without unwind information that begins at its entry point. It calls the constructors of the libraries that are loaded
// at program start, and nothing has called it.
bool IsProcessStart(uintptr_t address, const dl_find_object& object, const ReadableRanges& readable) {
  constexpr uintptr_t kMostBytes = 256;  // glibc's has 61 bytes on x86-64
  const uintptr_t entry = start_objects.linker_entry();
  if (entry == 0 || address - entry >= kMostBytes) return false;
  for (uintptr_t at = entry; at < address; ++at) {
    if (ReadFrameRule(object.dlfo_eh_frame, readable, at).kind != FrameRule::kNone) return false;
  }
  return true;
}

}  // namespace

bool PrepareRules() {
  static std::atomic<bool> is_first{true};
  if (is_first.exchange(false)) {
    start_objects.Find();
    CountHostBytes(sizeof(rule_table) + sizeof(known_objects));
  }
  return true;
}

bool IsKnownCode(uintptr_t address) {
  dl_find_object found;
  return FindObject(address, &found);
}

bool ReadCode(uintptr_t address, void* code, size_t bytes) {
  dl_find_object found;
  if (FindObject(address + bytes - 1, &found)) {
    const bool is_permanent = start_objects.Contain(found);
    const uintptr_t limit = SegmentsOf(found, PF_R | PF_X, !is_permanent).LimitAt(address);
    if (limit == 0 || limit - address < bytes) return false;
  }
  return CopyMapped(address, code, bytes);
}

bool ObjectCheck::IsLoadedSlow(uint32_t object, uintptr_t address) {
  dl_find_object found;
  if (!FindObject(address, &found) || !known_objects.Matches(object, found, is_guessed_)) return false;
  if (known_objects.HasReusedAddresses(object)) passed_reused_addresses_ = true;
  SetLoaded(object);
  return true;
}

PackedRule LearnRule(uintptr_t address, ObjectCheck* objects) {
  dl_find_object found;
  // Before the object is found and identified, so that an equal count means that it is the object whose rule is read.
  const bool can_count = objects->is_guessed() && !IsForkedChild();
  const unsigned long long unloaded = can_count ? UnloadCount() : 0;
  if (!FindObject(address, &found)) return PackedRule::Of(SignalTrampolineRule(address + 1), 0);
  uint32_t object = 0;
  const bool is_permanent = start_objects.Contain(found);
  const bool may_be_unmapped = !is_permanent && objects->is_guessed();
  if (!is_permanent) {
    object = known_objects.IdOf(found, may_be_unmapped);
    if (object != PackedRule::kUnidentified) {
      if (known_objects.HasReusedAddresses(object)) objects->set_passed_reused_addresses();
      objects->SetLoaded(object);
    }
  }
  const ReadableRanges readable = SegmentsOf(found, PF_R, may_be_unmapped);
  FrameRule read = ReadFrameRule(found.dlfo_eh_frame, readable, address);
  if (read.kind == FrameRule::kNone && IsProcessStart(address, found, readable)) read.kind = FrameRule::kOutermost;
  if (read.kind == FrameRule::kNone || read.kind == FrameRule::kInexpressible) {
    const FrameRule trampoline = SignalTrampolineRule(address + 1);
    if (trampoline.kind == FrameRule::kSignal) read = trampoline;
  }
  const PackedRule rule = PackedRule::Of(read, object);
  // While an object is unloaded, its rules cannot be read.
  const bool is_certain =
      !may_be_unmapped || (rule.kind() != FrameRule::kNone && can_count && UnloadCount() == unloaded);
  if (object != PackedRule::kUnidentified && is_certain) StoreRule(address, rule);
  return rule;
}

#else

bool PrepareRules() { return false; }
bool IsKnownCode(uintptr_t) { return false; }
bool ReadCode(uintptr_t, void*, size_t) { return false; }
bool ObjectCheck::IsLoadedSlow(uint32_t, uintptr_t) { return false; }
PackedRule LearnRule(uintptr_t, ObjectCheck*) { return PackedRule(); }

#endif

}  // namespace hbmprof::internal
