#include "src/capture/rules.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <cstring>

#include "src/base/forked_child.h"
#include "src/base/pages.h"

namespace hbmprof::internal {

RuleLine rule_table[1 << kRuleLineBits];

PackedRule PackedRule::Of(const FrameRule& rule, uint32_t object) {
  constexpr int64_t kCfaLimit = int64_t{1} << 26;
  constexpr int64_t kFpLimit = int64_t{1} << 23;
  FrameRule fitting = rule;
  if (rule.cfa_offset % 8 != 0 || rule.fp_offset % 8 != 0 || rule.cfa_offset < -kCfaLimit ||
      rule.cfa_offset >= kCfaLimit || rule.fp_offset < -kFpLimit || rule.fp_offset >= kFpLimit) {
    fitting = {};
  }
  const auto cfa = static_cast<uint64_t>(fitting.cfa_offset / 8) << 40;
  const auto fp = static_cast<uint64_t>(fitting.fp_offset / 8) << 43 >> 24;
  return PackedRule(uint64_t{fitting.kind} | uint64_t{fitting.fp_saved} << 3 | uint64_t{1} << 4 |
                    uint64_t{object} << 5 | fp | cfa);
}

#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
namespace {

struct Range {
  uintptr_t start;
  uintptr_t limit;
};

bool FindObject(uintptr_t address, dl_find_object* object) {
  return _dl_find_object(reinterpret_cast<void*>(address), object) == 0;
}

// The objects loaded at program start. In the dynamic linker's list these come first, from the main program to the
// dynamic linker itself at least; what dlopen loads is appended. Nothing before the dynamic linker's entry ever
// changes, so that part may be read without a lock.
class StartObjects {
 public:
  // Once.
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
      }
    }
    is_known_.store(true, std::memory_order_release);
  }

  bool Contain(uintptr_t start) const {
    if (!is_known_.load(std::memory_order_acquire)) return false;
    for (int i = 0; i < count_; ++i) {
      if (starts_[i] == start) return true;
    }
    return false;
  }

 private:
  static constexpr int kCapacity = 256;

  void Add(const link_map* map) {
    dl_find_object object;
    if (count_ == kCapacity || !FindObject(reinterpret_cast<uintptr_t>(map->l_ld), &object)) return;
    if (object.dlfo_link_map == map) starts_[count_++] = reinterpret_cast<uintptr_t>(object.dlfo_map_start);
  }

  std::atomic<bool> is_known_{false};
  int count_ = 0;
  uintptr_t starts_[kCapacity] = {};
};

StartObjects start_objects;

// Objects unloaded since the process began. Not for a forked child.
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

// What makes two objects the same for a rule's purpose.
struct Identity {
  static constexpr uint32_t kBuildIdCapacity = 32;
  static constexpr uintptr_t kFirstPage = 4096;

  uintptr_t start;
  uintptr_t limit;
  uintptr_t eh_frame_hdr;
  // The build id in memory, at an address in the object's first page. 0 bytes: none there.
  uint32_t build_id_bytes;
  uint32_t build_id_offset;
  unsigned char build_id[kBuildIdCapacity];
  // Only without a build id.
  unsigned long long unload_count;
};

// The build id, if it lies in the object's first page: that page is known to be mapped for whatever object is found at
// the same address later.
void FindBuildId(Identity* identity) {
  const auto* page = reinterpret_cast<const unsigned char*>(identity->start);
  ElfW(Ehdr) header;
  std::memcpy(&header, page, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr))) return;
  uintptr_t base = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (unsigned i = 0; i < header.e_phnum; ++i) {
      const uintptr_t at = header.e_phoff + i * sizeof(ElfW(Phdr));
      ElfW(Phdr) segment;
      if (at + sizeof(segment) > Identity::kFirstPage) return;
      std::memcpy(&segment, page + at, sizeof(segment));
      if (pass == 0 && segment.p_type == PT_LOAD) {
        if (segment.p_offset != 0 || (segment.p_flags & PF_R) == 0) return;
        base = segment.p_vaddr & ~(Identity::kFirstPage - 1);
        break;
      }
      if (pass == 0 || segment.p_type != PT_NOTE) continue;
      uintptr_t note_at = segment.p_vaddr - base;
      const uintptr_t end = note_at + segment.p_memsz;
      const uintptr_t alignment = segment.p_align == 8 ? 8 : 4;
      const auto padded = [alignment](uintptr_t n) { return (n + alignment - 1) & ~(alignment - 1); };
      while (note_at < end && note_at + sizeof(ElfW(Nhdr)) <= Identity::kFirstPage) {
        ElfW(Nhdr) note;
        std::memcpy(&note, page + note_at, sizeof(note));
        const uintptr_t desc_at = note_at + sizeof(note) + padded(note.n_namesz);
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz <= Identity::kBuildIdCapacity &&
            note.n_descsz >= 8 && desc_at + note.n_descsz <= Identity::kFirstPage) {
          identity->build_id_bytes = note.n_descsz;
          identity->build_id_offset = static_cast<uint32_t>(desc_at);
          std::memcpy(identity->build_id, page + desc_at, note.n_descsz);
          return;
        }
        note_at = desc_at + padded(note.n_descsz);
      }
    }
  }
}

// Identities seen, by id; ids count up from 1 and are never reused. Published by pushing them on the list of their
// start address; immutable from then on.
class Objects {
 public:
  // 0 if the object cannot be told from others, or there are no ids left.
  uint32_t IdOf(const dl_find_object& object) {
    Identity identity = {};
    identity.start = reinterpret_cast<uintptr_t>(object.dlfo_map_start);
    identity.limit = reinterpret_cast<uintptr_t>(object.dlfo_map_end);
    identity.eh_frame_hdr = reinterpret_cast<uintptr_t>(object.dlfo_eh_frame);
    std::atomic<uint32_t>& bucket = buckets_[MixAddress(identity.start) >> (64 - kBucketBits)];
    uint32_t head = bucket.load(std::memory_order_acquire);
    for (uint32_t id = head; id != 0; id = entries_[id].next) {
      if (Matches(entries_[id].identity, object)) return id;
    }
    FindBuildId(&identity);
    if (identity.build_id_bytes == 0) {
      if (IsForkedChild()) return 0;
      identity.unload_count = UnloadCount();
    }
    uint32_t id = last_id_.load(std::memory_order_relaxed);
    do {
      if (id + 1 == PackedRule::kObjectIds) return 0;
    } while (!last_id_.compare_exchange_weak(id, id + 1, std::memory_order_relaxed));
    ++id;
    Entry& entry = entries_[id];
    entry.identity = identity;
    for (uint32_t other = 1; other < id; ++other) {
      // What is not published yet is loaded right now, and so lies elsewhere.
      if (!entries_[other].is_published.load(std::memory_order_acquire)) continue;
      const Identity& old = entries_[other].identity;
      if (old.start >= identity.limit || identity.start >= old.limit || Matches(old, object)) continue;
      entries_[other].shares_addresses.store(true, std::memory_order_relaxed);
      entry.shares_addresses.store(true, std::memory_order_relaxed);
    }
    entry.next = head;
    entry.is_published.store(true, std::memory_order_release);
    while (!bucket.compare_exchange_weak(entry.next, id, std::memory_order_release)) {
    }
    return id;
  }

  bool Matches(uint32_t id, const dl_find_object& object) const { return Matches(entries_[id].identity, object); }
  // Whether something else has been seen at some of its addresses.
  bool SharesAddresses(uint32_t id) const { return entries_[id].shares_addresses.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    Identity identity;
    uint32_t next;
    std::atomic<bool> is_published;
    std::atomic<bool> shares_addresses;
  };
  static constexpr int kBucketBits = 10;

  static bool Matches(const Identity& identity, const dl_find_object& object) {
    if (identity.start != reinterpret_cast<uintptr_t>(object.dlfo_map_start) ||
        identity.limit != reinterpret_cast<uintptr_t>(object.dlfo_map_end) ||
        identity.eh_frame_hdr != reinterpret_cast<uintptr_t>(object.dlfo_eh_frame)) {
      return false;
    }
    if (identity.build_id_bytes == 0) return !IsForkedChild() && identity.unload_count == UnloadCount();
    return std::memcmp(reinterpret_cast<const char*>(identity.start) + identity.build_id_offset, identity.build_id,
                       identity.build_id_bytes) == 0;
  }

  std::atomic<uint32_t> last_id_{0};
  std::atomic<uint32_t> buckets_[1 << kBucketBits] = {};
  Entry entries_[PackedRule::kObjectIds] = {};
};

Objects known_objects;

void Remember(uintptr_t address, PackedRule rule) {
  static std::atomic<uint32_t> victim{0};
  const uint64_t mixed = MixAddress(address);
  RuleLine& line = rule_table[mixed >> (64 - kRuleLineBits)];
  RuleLine::Slot* chosen = nullptr;
  for (RuleLine::Slot& slot : line.slots) {
    const uint64_t word = slot.rule.load(std::memory_order_relaxed);
    const bool is_same_address = (slot.check.load(std::memory_order_relaxed) ^ word) == mixed;
    if (is_same_address) {
      chosen = &slot;
      break;
    }
    if (word == 0 && chosen == nullptr) chosen = &slot;
  }
  if (chosen == nullptr) {
    chosen = &line.slots[victim.fetch_add(1, std::memory_order_relaxed) % RuleLine::kSlots];
  }
  chosen->rule.store(rule.word(), std::memory_order_relaxed);
  chosen->check.store(rule.word() ^ mixed, std::memory_order_release);
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

bool ObjectCheck::IsLoadedSlow(uint32_t object, uintptr_t address) {
  dl_find_object found;
  if (!FindObject(address, &found) || !known_objects.Matches(object, found)) return false;
  if (known_objects.SharesAddresses(object)) saw_shared_addresses_ = true;
  Saw(object);
  return true;
}

PackedRule LearnRule(uintptr_t address, ObjectCheck* objects) {
  dl_find_object found;
  if (!FindObject(address, &found)) return PackedRule();
  uint32_t object = 0;
  bool keep = true;
  if (!start_objects.Contain(reinterpret_cast<uintptr_t>(found.dlfo_map_start))) {
    object = known_objects.IdOf(found);
    keep = object != 0;
    if (keep) {
      if (known_objects.SharesAddresses(object)) objects->set_saw_shared_addresses();
      objects->Saw(object);
    }
  }
  const PackedRule rule = PackedRule::Of(ReadFrameRule(found.dlfo_eh_frame, address), object);
  if (keep) Remember(address, rule);
  return rule;
}

#else

bool PrepareRules() { return false; }
bool IsKnownCode(uintptr_t) { return false; }
bool ObjectCheck::IsLoadedSlow(uint32_t, uintptr_t) { return false; }
PackedRule LearnRule(uintptr_t, ObjectCheck*) { return PackedRule(); }

#endif

}  // namespace hbmprof::internal
