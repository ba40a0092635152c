// The loaded objects: the program and its libraries, as captures need them.
//
// A library can be unloaded and another one loaded at the same addresses. Therefore everything that is kept about code
// (rules.h, paths/paths.h) names the object that it was read from by an id, and is used only after a check that this
// object is loaded there now (ObjectCheck, once per object and walk). This is correct without any report of unloaded
// libraries: the objects that a walk passes through cannot be unloaded during the walk, because the stack returns to
// their functions. The check:
// - Objects loaded at program start are never unloaded. They need no check, and have the id 0.
// - Other objects with a build id in their first page: the check compares the stored addresses (of the object and
//   of its .eh_frame_hdr) and the stored build id with those of the object that is loaded now. Equal build ids mean
//   equal code, so an id stays valid when its library is loaded again.
// - Other objects: the addresses are equal, and dl_iterate_phdr reports that no object was unloaded since the last
//   check. It takes a lock, but one that the dynamic linker never holds while it runs other code. If an object was
//   unloaded, a hash of the unwind data must be equal (data above 256 KiB are not hashed and count as different).
//
// A frame that was guessed (RuleWalk::Guess) is an exception: its return address may be an old word of the stack, so
// another thread may unload its object during the walk. From there on, a walk reads objects other than those loaded at
// program start through the kernel (CopyMapped).
#ifndef HBMPROF_SRC_CAPTURE_OBJECTS_H_
#define HBMPROF_SRC_CAPTURE_OBJECTS_H_

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal {

inline constexpr uint32_t kObjectIds = 1 << 14;
// The id of all objects that cannot be identified. No result that depends on them may be kept.
inline constexpr uint32_t kUnidentifiedObject = kObjectIds - 1;

// The host memory of the identities of objects, in bytes.
size_t BytesOfObjects();

// A function that is called with each object in which a walk finds code: with those that were loaded at program start,
// and with another one before a walk that has not guessed a frame uses what is known about its code. It may be called
// more than once with an object, and by several threads at a time, also in signal handlers. It must take no lock and
// call no malloc.
using ObjectWatcher = void(const link_map* object, bool is_permanent);
// Sets the watcher of the process, and calls it with the objects that were loaded at program start.
void WatchObjects(ObjectWatcher* watcher);

// The memory ranges that may be read in an object. Plain data.
class ReadableRanges {
 public:
  // `may_be_unmapped`: another thread may unmap the ranges while they are read.
  explicit ReadableRanges(bool may_be_unmapped = false) : may_be_unmapped_(may_be_unmapped) {}
  bool may_be_unmapped() const { return may_be_unmapped_; }
  // Ignores empty ranges, and all ranges after the first kCapacity ones.
  void Add(uintptr_t start, uintptr_t limit) {
    if (count_ < kCapacity && start < limit) ranges_[count_++] = {start, limit};
  }
  // Returns the end of the range that contains `address`; 0 if there is none.
  uintptr_t LimitAt(uintptr_t address) const {
    for (uint32_t i = 0; i < count_; ++i) {
      if (address - ranges_[i].start < ranges_[i].limit - ranges_[i].start) return ranges_[i].limit;
    }
    return 0;
  }

 private:
  static constexpr size_t kCapacity = 8;
  struct Range {
    uintptr_t start;
    uintptr_t limit;
  };
  Range ranges_[kCapacity];
  uint32_t count_ = 0;
  bool may_be_unmapped_;
};

// The object at an address.
struct LoadedObject {
  uint32_t id;
  const void* eh_frame_hdr;  // its PT_GNU_EH_FRAME segment; may be null
  ReadableRanges readable;
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
  // Finds the object at `address`. Returns false if there is none.
  bool Find(uintptr_t address, LoadedObject* object);

  // Whether the walk has guessed a frame.
  bool is_guessed() const { return is_guessed_; }
  void set_is_guessed() { is_guessed_ = true; }

 private:
  static constexpr uint32_t kLoaded = 4;

  bool IsLoadedSlow(uint32_t object, uintptr_t address);
  void SetLoaded(uint32_t object) { loaded_[next_++ % kLoaded] = object; }

  uint32_t loaded_[kLoaded] = {};  // the last ones
  uint32_t next_ = 0;
  bool is_guessed_ = false;
};

// Returns how many objects were unloaded since the process began.
unsigned long long UnloadCount();

// The address at which the kernel starts the process: the entry point of the dynamic linker. 0 if it is not known.
uintptr_t LinkerEntry();

// Whether `address` is in a loaded object.
bool IsKnownCode(uintptr_t address);
// Copies `bytes` bytes of code. `address` may be any number. Returns false if it cannot be read, or is in a loaded
// object but not in its readable code.
bool ReadCode(uintptr_t address, void* code, size_t bytes);

// Copies bytes of an object. `may_be_unmapped`: another thread may be unloading it. Returns false if they cannot be
// read.
bool CopyOfObject(uintptr_t from, void* to, size_t bytes, bool may_be_unmapped);

// The program headers of the object that is loaded at `start`, which must be mapped for a page, unless it
// `may_be_unmapped`. There are none if they do not directly follow the ELF header, where linkers place them.
class Headers {
 public:
  Headers(uintptr_t start, bool may_be_unmapped);

  const ElfW(Phdr) * begin() const { return file_.headers; }
  const ElfW(Phdr) * end() const { return file_.headers + count_; }
  bool empty() const { return count_ == 0; }
  // An address in memory minus the address in the headers.
  uintptr_t bias() const { return bias_; }

 private:
  static constexpr unsigned kMost = 16;  // objects have 4 to 14

  uintptr_t bias_ = 0;
  unsigned count_ = 0;
  struct {
    ElfW(Ehdr) header;
    ElfW(Phdr) headers[kMost];
  } file_;
};

// A GNU build id.
struct BuildId {
  static constexpr uint32_t kCapacity = 64;  // there are 20 bytes, unless the build chooses another kind of id
  uintptr_t address = 0;                     // in memory
  uint32_t bytes = 0;                        // 0: there is none
  unsigned char id[kCapacity];
};
// Reads the build id from those notes of an object that lie in the `bytes` bytes from `start`.
BuildId ReadBuildId(const ElfW(Phdr) * begin, const ElfW(Phdr) * end, uintptr_t bias, uintptr_t start, size_t bytes,
                    bool may_be_unmapped);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_OBJECTS_H_
