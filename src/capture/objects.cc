#include "src/capture/objects.h"

#include <dlfcn.h>
#include <sys/auxv.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "src/base/hash.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

namespace {

bool FindObject(uintptr_t address, dl_find_object* object) {
  return _dl_find_object(reinterpret_cast<void*>(address), object) == 0;
}
uintptr_t StartOf(const dl_find_object& object) { return reinterpret_cast<uintptr_t>(object.dlfo_map_start); }
uintptr_t LimitOf(const dl_find_object& object) { return reinterpret_cast<uintptr_t>(object.dlfo_map_end); }
uintptr_t EhFrameHdrOf(const dl_find_object& object) { return reinterpret_cast<uintptr_t>(object.dlfo_eh_frame); }

std::atomic<ObjectWatcher*> object_watcher{nullptr};

// Calls `visit` for each object loaded at program start. They are first in the dynamic linker's list, which begins with
// the main program; dlopen appends to the list. The list up to the entry of the dynamic linker itself never changes, so
// that part is read without a lock.
template <typename Visit>
void ForEachStartObject(const Visit& visit) {
  dl_find_object object;
  if (!FindObject(getauxval(AT_PHDR), &object)) return;
  const link_map* map = object.dlfo_link_map;
  while (map->l_prev != nullptr) map = map->l_prev;
  visit(map);
  const uintptr_t linker = getauxval(AT_BASE);
  if (linker == 0 || !FindObject(linker, &object)) return;
  const link_map* const last = object.dlfo_link_map;
  while (map != last && map->l_next != nullptr) {
    map = map->l_next;
    visit(map);
  }
}

// Whether the object was loaded at program start, so that it is never unloaded.
bool IsPermanent(const dl_find_object& object) {
  bool is_found = false;
  ForEachStartObject([&](const link_map* map) { is_found = is_found || map == object.dlfo_link_map; });
  return is_found;
}

// The program headers of an object. There are none if they are not directly behind the ELF header at the start of the
// object, where linkers place them.
struct Headers {
  const ElfW(Phdr) * first = nullptr;
  size_t count = 0;
};

Headers HeadersOf(const dl_find_object& object) {
  // In a static program, the C library reports the start of the code as the start of the main program.
  const auto* main_headers = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  dl_find_object main;
  if (FindObject(reinterpret_cast<uintptr_t>(main_headers), &main) && main.dlfo_link_map == object.dlfo_link_map) {
    return {main_headers, getauxval(AT_PHNUM)};
  }
  constexpr size_t kMost = (4096 - sizeof(ElfW(Ehdr))) / sizeof(ElfW(Phdr));  // those in the first page
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(StartOf(object));
  if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_phentsize != sizeof(ElfW(Phdr)) ||
      header->e_phoff != sizeof(*header) || header->e_phnum > kMost) {
    return {};
  }
  return {reinterpret_cast<const ElfW(Phdr)*>(header + 1), header->e_phnum};
}

// Returns the segments of an object that have all of `flags`; the whole object if it has no program headers.
ReadableRanges SegmentsOf(const dl_find_object& object, ElfW(Word) flags) {
  ReadableRanges ranges;
  const Headers headers = HeadersOf(object);
  if (headers.count == 0) ranges.Add(StartOf(object), LimitOf(object));
  for (size_t i = 0; i < headers.count; ++i) {
    const ElfW(Phdr)& segment = headers.first[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & flags) != flags) continue;
    const uintptr_t start = object.dlfo_link_map->l_addr + segment.p_vaddr;
    ranges.Add(start, start + segment.p_memsz);
  }
  return ranges;
}

// Returns a hash of the unwind data of the object, from which all its rules are read. Returns 0 if they are too large,
// or if .eh_frame does not follow its header in the same segment.
uint64_t HashUnwindData(const dl_find_object& object) {
  constexpr uint8_t kRelativeWord = 0x1b;  // DW_EH_PE_pcrel | DW_EH_PE_sdata4, which all linkers use
  constexpr size_t kMostBytes = 256 << 10;
  const uintptr_t header = EhFrameHdrOf(object);
  const uintptr_t limit = SegmentsOf(object, PF_R).LimitAt(header);
  if (limit == 0 || limit - header < 8 || limit - header > kMostBytes) return 0;
  const auto* const bytes = reinterpret_cast<const char*>(header);
  uint32_t distance;
  std::memcpy(&distance, bytes + 4, sizeof(distance));
  if (static_cast<uint8_t>(bytes[1]) != kRelativeWord || distance >= limit - header - 4) return 0;
  return HashBytes(bytes, limit - header, 0) | 1;
}

// The identities of all objects that code was found in, by id. Ids count up from 1 and are never reused. An entry is
// immutable once it is in the list of its bucket, except for `unloads`.
class Objects {
 public:
  // Returns the id of `object`, which cannot be unloaded now, and gives it an id if it has none. Returns
  // kUnidentifiedObject if no id is left.
  uint32_t IdOf(const dl_find_object& object) {
    const uint64_t unloads = UnloadCount();
    std::atomic<uint32_t>& bucket = buckets_[StartOf(object) * kHashSeed0 >> (64 - kBucketBits)];
    const uint32_t head = bucket.load(std::memory_order_acquire);
    for (uint32_t id = head; id != 0; id = entries_[id].next) {
      if (Matches(id, object, unloads)) return id;
    }
    uint32_t id = last_id_.load(std::memory_order_relaxed);
    do {
      if (id + 1 == kUnidentifiedObject) return kUnidentifiedObject;
    } while (!last_id_.compare_exchange_weak(id, id + 1, std::memory_order_relaxed));
    Entry& entry = entries_[++id];
    entry.start = StartOf(object);
    entry.limit = LimitOf(object);
    entry.eh_frame_hdr = EhFrameHdrOf(object);
    entry.unloads.store(unloads, std::memory_order_relaxed);
    const Headers headers = HeadersOf(object);
    const BuildId found = FindBuildId(headers.first, headers.count, object.dlfo_link_map->l_addr);
    if (found.bytes >= sizeof(entry.build_id)) {
      entry.note = found.note;
      entry.note_header = *found.note;
      entry.build_id_at = found.id;
      std::memcpy(&entry.build_id, found.id, sizeof(entry.build_id));
    } else {
      entry.unwind_hash = HashUnwindData(object);
    }
    // Before the id can be found: what the watcher finds must be known to every thread that uses the id.
    ObjectWatcher* const watcher = object_watcher.load(std::memory_order_acquire);
    if (watcher != nullptr) watcher(object.dlfo_link_map, /*is_permanent=*/false);
    entry.next = head;
    while (!bucket.compare_exchange_weak(entry.next, id, std::memory_order_release)) {
    }
    return id;
  }

  // Whether an object of this id was loaded when UnloadCount() was `unloads`.
  bool WasLoaded(uint32_t id, uint64_t unloads) const {
    return entries_[id].unloads.load(std::memory_order_relaxed) == unloads;
  }
  // Whether the object with this id is `object`, which cannot be unloaded now. `unloads`: from UnloadCount().
  bool Matches(uint32_t id, const dl_find_object& object, uint64_t unloads) {
    Entry& entry = entries_[id];
    if (entry.start != StartOf(object) || entry.limit != LimitOf(object) ||
        entry.eh_frame_hdr != EhFrameHdrOf(object)) {
      return false;
    }
    if (WasLoaded(id, unloads)) return true;
    // The note may be anywhere in the object. It can be read if the first page, which has the headers, says so.
    const bool is_same = entry.note == nullptr
                             ? entry.unwind_hash != 0 && HashUnwindData(object) == entry.unwind_hash
                             : std::memcmp(entry.note, &entry.note_header, sizeof(entry.note_header)) == 0 &&
                                   std::memcmp(entry.build_id_at, &entry.build_id, sizeof(entry.build_id)) == 0;
    if (is_same) entry.unloads.store(unloads, std::memory_order_relaxed);
    return is_same;
  }

 private:
  struct Entry {
    uintptr_t start;
    uintptr_t limit;
    uintptr_t eh_frame_hdr;
    const ElfW(Phdr) * note;  // the header of the build id's segment, in the first page; null if there is no build id
    ElfW(Phdr) note_header;
    const unsigned char* build_id_at;  // in the object
    uint64_t build_id;                 // its first bytes
    uint64_t unwind_hash;              // HashUnwindData(), if there is no build id
    std::atomic<uint64_t> unloads;     // UnloadCount() before the last check
    uint32_t next;
  };
  static constexpr int kBucketBits = 10;

  std::atomic<uint32_t> last_id_{0};
  std::atomic<uint32_t> buckets_[1 << kBucketBits] = {};
  Entry entries_[kObjectIds] = {};
};

Objects known_objects;

}  // namespace

BuildId FindBuildId(const ElfW(Phdr) * headers, size_t count, uintptr_t bias) {
  struct Note {
    ElfW(Nhdr) header;
    char name[4];
  };
  for (size_t i = 0; i < count; ++i) {
    if (headers[i].p_type != PT_NOTE) continue;
    uintptr_t at = bias + headers[i].p_vaddr;
    const uintptr_t limit = at + headers[i].p_memsz;
    const uintptr_t alignment = headers[i].p_align == 8 ? 8 : 4;
    const auto padded = [alignment](uintptr_t n) { return (n + alignment - 1) & ~(alignment - 1); };
    while (at < limit && limit - at >= sizeof(Note)) {
      const Note& note = *reinterpret_cast<const Note*>(at);
      const uintptr_t contents = at + sizeof(note.header) + padded(note.header.n_namesz);
      if (note.header.n_type == NT_GNU_BUILD_ID && note.header.n_namesz == sizeof(note.name) &&
          std::memcmp(note.name, "GNU", sizeof(note.name)) == 0 && contents + note.header.n_descsz <= limit) {
        return {reinterpret_cast<const unsigned char*>(contents), note.header.n_descsz, &headers[i]};
      }
      at = contents + padded(note.header.n_descsz);
    }
  }
  return {};
}

size_t BytesOfObjects() { return sizeof(known_objects); }

void WatchObjects(ObjectWatcher* watcher) {
  object_watcher.store(watcher, std::memory_order_release);
  ForEachStartObject([watcher](const link_map* map) { watcher(map, /*is_permanent=*/true); });
}

bool ObjectCheck::Find(uintptr_t address, LoadedObject* object) {
  dl_find_object found;
  if (!FindObject(address, &found)) return false;
  const bool is_permanent = IsPermanent(found);
  if (is_guessed_ && !is_permanent) return false;
  object->id = is_permanent ? 0 : known_objects.IdOf(found);
  object->eh_frame_hdr = found.dlfo_eh_frame;
  object->begins_stacks = StartOf(found) == getauxval(AT_BASE) || StartOf(found) == getauxval(AT_SYSINFO_EHDR);
  object->readable = SegmentsOf(found, PF_R);
  return true;
}

bool IsObjectLoaded(uint32_t object, uintptr_t address, uint64_t unloads) {
  if (known_objects.WasLoaded(object, unloads)) return true;
  dl_find_object found;
  return FindObject(address, &found) && known_objects.Matches(object, found, unloads);
}

bool AreObjectsLoaded(const ObjectOfFrame* objects, size_t count, const uintptr_t* pcs) {
  return std::all_of(objects, objects + count, [pcs, unloads = UnloadCount()](const ObjectOfFrame& object) {
    return IsObjectLoaded(object.id, pcs[object.frame] - 1, unloads);
  });
}

bool IsKnownCode(uintptr_t address) {
  dl_find_object found;
  return FindObject(address, &found);
}

bool ReadCode(uintptr_t address, void* code, size_t bytes) {
  dl_find_object found;
  if (FindObject(address + bytes - 1, &found)) {
    if (!IsPermanent(found)) return false;
    const uintptr_t limit = SegmentsOf(found, PF_R | PF_X).LimitAt(address);
    if (limit == 0 || limit - address < bytes) return false;
  }
  return CopyReadable(address, code, bytes);
}

}  // namespace hbmprof::internal
