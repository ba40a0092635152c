#include "src/capture/objects.h"

#include <dlfcn.h>
#include <sys/auxv.h>

#include <algorithm>
#include <atomic>

#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/capture/architecture.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

namespace {

constexpr uintptr_t kFirstPageBytes = 4096;

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

// Returns the segments of an object that have all of `flags`. Returns the whole object if its program headers cannot be
// found. Not inlined, because of its large frame.
[[gnu::noinline]] ReadableRanges SegmentsOf(const dl_find_object& object, ElfW(Word) flags, bool may_be_unmapped) {
  ReadableRanges ranges(may_be_unmapped);
  const auto add = [&](const ElfW(Phdr) & segment, uintptr_t bias) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & flags) != flags) return;
    ranges.Add(bias + segment.p_vaddr, bias + segment.p_vaddr + segment.p_memsz);
  };
  const Headers headers(StartOf(object), may_be_unmapped);
  for (const ElfW(Phdr) & segment : headers) add(segment, headers.bias());
  if (!headers.empty()) return ranges;
  // In a static program, the C library reports the start of the code as the start of the main program.
  const auto* main_headers = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  dl_find_object main;
  if (FindObject(reinterpret_cast<uintptr_t>(main_headers), &main) && main.dlfo_link_map == object.dlfo_link_map) {
    const unsigned long count = getauxval(AT_PHNUM);
    for (unsigned long i = 0; i < count; ++i) add(main_headers[i], main.dlfo_link_map->l_addr);
  } else {
    ranges.Add(StartOf(object), LimitOf(object));
  }
  return ranges;
}

// Returns a hash of the object's unwind data, from which all its rules are read. Returns 0 if the data are too large,
// or if it is not certain where they are. The object must not be unloaded during the call.
uint64_t HashUnwindData(const dl_find_object& object) {
  constexpr uint8_t kRelativeWord = 0x1b;  // DW_EH_PE_pcrel | DW_EH_PE_sdata4, which all linkers use
  constexpr size_t kMostBytes = 256 << 10;
  const uintptr_t header = EhFrameHdrOf(object);
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

// The identities of all objects that code was found in, by id. Ids count up from 1 and are never reused. The members
// above `next` are immutable once the entry is in the list of its bucket.
class Objects {
 public:
  // Returns the id of `object`, and gives it an id if it has none. Returns kUnidentifiedObject if the object cannot be
  // identified, or if no id is left.
  uint32_t IdOf(const dl_find_object& object, bool may_be_unmapped) {
    std::atomic<uint32_t>& bucket = buckets_[StartOf(object) * kHashSeed0 >> (64 - kBucketBits)];
    const uint32_t head = bucket.load(std::memory_order_acquire);
    for (uint32_t id = head; id != 0; id = entries_[id].next) {
      if (Matches(id, object, may_be_unmapped)) return id;
    }
    const StoredBuildId build_id = BuildIdOf(StartOf(object), may_be_unmapped);
    unsigned long long unload_count = 0;
    uint64_t unwind_hash = 0;
    if (build_id.bytes == 0) {
      if (may_be_unmapped) return kUnidentifiedObject;
      unload_count = UnloadCount();
      unwind_hash = HashUnwindData(object);
    }
    uint32_t id = last_id_.load(std::memory_order_relaxed);
    do {
      if (id + 1 == kUnidentifiedObject) return kUnidentifiedObject;
    } while (!last_id_.compare_exchange_weak(id, id + 1, std::memory_order_relaxed));
    Entry& entry = entries_[++id];
    entry.start = StartOf(object);
    entry.limit = LimitOf(object);
    entry.eh_frame_hdr = EhFrameHdrOf(object);
    entry.build_id = build_id;
    entry.unwind_hash = unwind_hash;
    entry.unload_count.store(unload_count, std::memory_order_relaxed);
    entry.next = head;
    while (!bucket.compare_exchange_weak(entry.next, id, std::memory_order_release)) {
    }
    return id;
  }

  // Calls the watcher with `object`, which has this id and cannot be unloaded now, unless that was done before.
  void Watch(uint32_t id, const dl_find_object& object) {
    ObjectWatcher* const watcher = object_watcher.load(std::memory_order_acquire);
    if (watcher == nullptr || entries_[id].is_watched.load(std::memory_order_acquire)) return;
    watcher(object.dlfo_link_map, /*is_permanent=*/false);
    // Not before: what the watcher finds must be known to every thread that uses this id.
    entries_[id].is_watched.store(true, std::memory_order_release);
  }

  // Whether the object with this id is `object`, which is loaded now.
  bool Matches(uint32_t id, const dl_find_object& object, bool may_be_unmapped) {
    Entry& entry = entries_[id];
    if (entry.start != StartOf(object) || entry.limit != LimitOf(object) ||
        entry.eh_frame_hdr != EhFrameHdrOf(object)) {
      return false;
    }
    if (entry.build_id.bytes == 0) {
      const unsigned long long count = UnloadCount();
      if (entry.unload_count.load(std::memory_order_relaxed) == count) return true;
      if (may_be_unmapped || entry.unwind_hash == 0 || HashUnwindData(object) != entry.unwind_hash) return false;
      entry.unload_count.store(count, std::memory_order_relaxed);
      return true;
    }
    unsigned char loaded[StoredBuildId::kCapacity];
    return CopyOfObject(entry.start + entry.build_id.offset, loaded, entry.build_id.bytes, may_be_unmapped) &&
           std::memcmp(loaded, entry.build_id.id, entry.build_id.bytes) == 0;
  }

 private:
  struct StoredBuildId {
    static constexpr uint32_t kCapacity = 32;
    uint32_t bytes;   // 0: the object has none in its first page
    uint32_t offset;  // in the object
    unsigned char id[kCapacity];
  };
  struct Entry {
    uintptr_t start;
    uintptr_t limit;
    uintptr_t eh_frame_hdr;
    StoredBuildId build_id;
    uint64_t unwind_hash;  // used only if there is no build id
    uint32_t next;
    std::atomic<bool> is_watched;  // the watcher has returned
    // Used only if there is no build id: UnloadCount() when the object was found last.
    std::atomic<unsigned long long> unload_count;
  };
  static constexpr int kBucketBits = 10;

  // Returns the build id of the object at `start`, if it is in the first page. (If another object is found at the same
  // address later, only its first page is certain to be mapped.) Not inlined, because of its large frame.
  [[gnu::noinline]] static StoredBuildId BuildIdOf(uintptr_t start, bool may_be_unmapped) {
    StoredBuildId result = {};
    const Headers headers(start, may_be_unmapped);
    const BuildId found =
        ReadBuildId(headers.begin(), headers.end(), headers.bias(), start, kFirstPageBytes, may_be_unmapped);
    if (found.bytes < 8 || found.bytes > result.kCapacity) return result;
    result.bytes = found.bytes;
    result.offset = static_cast<uint32_t>(found.address - start);
    std::memcpy(result.id, found.id, found.bytes);
    return result;
  }

  std::atomic<uint32_t> last_id_{0};
  std::atomic<uint32_t> buckets_[1 << kBucketBits] = {};
  Entry entries_[kObjectIds] = {};
};

Objects known_objects;

}  // namespace

bool CopyOfObject(uintptr_t from, void* to, size_t bytes, bool may_be_unmapped) {
  if (may_be_unmapped) return CopyMapped(from, to, bytes);
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return true;
}

Headers::Headers(uintptr_t start, bool may_be_unmapped) {
  if (!CopyOfObject(start, &file_, sizeof(file_), may_be_unmapped)) return;
  const ElfW(Ehdr)& header = file_.header;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr)) ||
      header.e_phoff != sizeof(header) || header.e_phnum > kMost) {
    return;
  }
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const ElfW(Phdr)& segment = file_.headers[i];
    if (segment.p_type != PT_LOAD) continue;
    if (segment.p_offset != 0 || (segment.p_flags & PF_R) == 0) return;  // these bytes are not the object's headers
    bias_ = start - (segment.p_vaddr & ~(kFirstPageBytes - 1));
    count_ = header.e_phnum;
    return;
  }
}

BuildId ReadBuildId(const ElfW(Phdr) * begin, const ElfW(Phdr) * end, uintptr_t bias, uintptr_t start, size_t bytes,
                    bool may_be_unmapped) {
  struct {
    ElfW(Nhdr) header;
    char name[4];
  } note;
  for (const ElfW(Phdr)* segment = begin; segment != end; ++segment) {
    uintptr_t at = bias + segment->p_vaddr;
    if (segment->p_type != PT_NOTE || at - start >= bytes || segment->p_memsz > bytes - (at - start)) continue;
    const uintptr_t limit = at + segment->p_memsz;
    const uintptr_t alignment = segment->p_align == 8 ? 8 : 4;
    const auto padded = [alignment](uintptr_t n) { return (n + alignment - 1) & ~(alignment - 1); };
    while (at < limit && limit - at >= sizeof(note) && CopyOfObject(at, &note, sizeof(note), may_be_unmapped)) {
      BuildId found;
      found.address = at + sizeof(note.header) + padded(note.header.n_namesz);
      at = found.address + padded(note.header.n_descsz);
      if (note.header.n_type != NT_GNU_BUILD_ID || note.header.n_namesz != sizeof(note.name) ||
          std::memcmp(note.name, "GNU", sizeof(note.name)) != 0 || note.header.n_descsz > BuildId::kCapacity ||
          found.address + note.header.n_descsz > limit ||
          !CopyOfObject(found.address, found.id, note.header.n_descsz, may_be_unmapped)) {
        continue;
      }
      found.bytes = note.header.n_descsz;
      return found;
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
  const bool may_be_unmapped = !is_permanent && is_guessed_;
  object->id = is_permanent ? 0 : known_objects.IdOf(found, may_be_unmapped);
  if (object->id != 0 && object->id != kUnidentifiedObject) {
    if (!may_be_unmapped) known_objects.Watch(object->id, found);
    SetLoaded(object->id);
  }
  object->eh_frame_hdr = found.dlfo_eh_frame;
  object->readable = SegmentsOf(found, PF_R, may_be_unmapped);
  return true;
}

bool ObjectCheck::IsLoadedSlow(uint32_t object, uintptr_t address) {
  dl_find_object found;
  if (!FindObject(address, &found) || !known_objects.Matches(object, found, is_guessed_)) return false;
  if (!is_guessed_) known_objects.Watch(object, found);  // not yet watched if a walk with a guess found it first
  SetLoaded(object);
  return true;
}

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

uintptr_t LinkerEntry() {
  dl_find_object object;
  const uintptr_t linker = getauxval(AT_BASE);
  if (linker == 0 || !FindObject(linker, &object) || StartOf(object) != linker) return 0;
  return linker + reinterpret_cast<const ElfW(Ehdr)*>(linker)->e_entry;
}

bool IsKnownCode(uintptr_t address) {
  dl_find_object found;
  return FindObject(address, &found);
}

bool ReadCode(uintptr_t address, void* code, size_t bytes) {
  dl_find_object found;
  if (FindObject(address + bytes - 1, &found)) {
    const bool is_permanent = IsPermanent(found);
    const uintptr_t limit = SegmentsOf(found, PF_R | PF_X, !is_permanent).LimitAt(address);
    if (limit == 0 || limit - address < bytes) return false;
    if (is_permanent) {
      std::memcpy(code, reinterpret_cast<const void*>(address), bytes);
      return true;
    }
  }
  return CopyMapped(address, code, bytes);
}

}  // namespace hbmprof::internal
