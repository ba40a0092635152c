// The loaded objects: the program and its libraries, as captures need them.
//
// A library can be unloaded and another one loaded at the same addresses. Therefore everything that is kept about code
// (rules.h, paths/paths.h) names the object that it was read from by an id, and is used only after a check that this
// object is loaded there now (ObjectCheck, once per object and walk). This is correct without any report of unloaded
// libraries: the objects that a walk passes through by rules cannot be unloaded during the walk, because the stack
// returns to their functions. The check:
// - Objects loaded at program start are permanent: they are never unloaded. They need no check, and have the id 0.
// - Other objects: dl_iterate_phdr reports that no object was unloaded since the last check of this one. (It takes a
//   lock, but one that the dynamic linker never holds while it runs other code. So it is called once per path or walk.)
//   If one was unloaded, the stored addresses (of the object, of its .eh_frame_hdr and of the note with its build id)
//   and the start of the build id must be those of the object that is loaded now. Equal build ids mean equal code, so
//   an id stays valid when its library is loaded again.
// - Without a build id, the hash of the unwind data must be equal instead. Data of more than 256 KiB are not hashed and
//   count as different. When no id is left, such an object is unidentified: nothing is kept about its code.
//
// A frame that was guessed (RuleWalk::Guess) is different: its return address may be an old word of the stack, and
// another thread may unload the object around it. So no guess leads into an object that is not permanent, and a walk
// that has guessed a frame ends at the first frame in such an object.
#ifndef HBMPROF_SRC_CAPTURE_OBJECTS_H_
#define HBMPROF_SRC_CAPTURE_OBJECTS_H_

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

#include "src/base/linker_section.h"

namespace hbmprof::internal {

inline constexpr uint32_t kObjectIds = 1 << 14;
// The id of all objects that cannot be identified. No result that depends on them may be kept.
inline constexpr uint32_t kUnidentifiedObject = kObjectIds - 1;

// The host memory of the identities of objects, in bytes.
size_t BytesOfObjects();

// A function that is called with each object in which a walk finds code: with those that were loaded at program start,
// and with another one before anything that is known about its code is used. It may be called more than once with an
// object, and by several threads at a time, also in signal handlers. It must take no lock and call no malloc.
using ObjectWatcher = void(const link_map* object, bool is_permanent);
// Sets the watcher of the process, and calls it with the objects that were loaded at program start. To be called before
// the first walk: an object that is known before is not reported.
void WatchObjects(ObjectWatcher* watcher);

// The memory ranges that may be read in an object. Plain data.
class ReadableRanges {
 public:
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
};

// The object at an address.
struct LoadedObject {
  uint32_t id;
  const void* eh_frame_hdr;  // its PT_GNU_EH_FRAME segment; may be null
  // It is the dynamic linker or the kernel's object. Their code without unwind information is where the kernel starts
  // the process, and where signal handlers return to.
  bool begins_stacks;
  ReadableRanges readable;
};

// Returns whether `object`, an id that is not 0, is now loaded around `address`, where the thread's stack returns to.
// `unloads`: UnloadCount() since this stack exists.
bool IsObjectLoaded(uint32_t object, uintptr_t address, uint64_t unloads);

// An object that can be unloaded, and the number of a frame in it.
struct ObjectOfFrame {
  uint16_t id;
  uint16_t frame;
};
// Returns whether all these objects are now loaded around their frames. `pcs`: the return addresses of the frames.
bool AreObjectsLoaded(const ObjectOfFrame* objects, size_t count, const uintptr_t* pcs);

// The checks of the objects of one walk.
class ObjectCheck {
 public:
  // IsObjectLoaded
  bool IsLoaded(uint32_t object, uintptr_t address) {
    if (is_guessed_) return false;
    if (unloads_ == 0) unloads_ = UnloadCount();
    return IsObjectLoaded(object, address, unloads_);
  }
  // Finds the object at `address`. Returns false if there is none.
  bool Find(uintptr_t address, LoadedObject* object);
  // To be called when the walk has guessed a frame. From then on no object is found or loaded that is not permanent.
  void SetGuessed() { is_guessed_ = true; }
  bool is_guessed() const { return is_guessed_; }

 private:
  uint64_t unloads_ = 0;  // 0: not known yet
  bool is_guessed_ = false;
};

// Whether `address` is in a loaded object.
bool IsKnownCode(uintptr_t address);
// Copies `bytes` bytes of code. `address` may be any number. Returns false if it cannot be read, or is in a loaded
// object but not in the readable code of a permanent one.
bool ReadCode(uintptr_t address, void* code, size_t bytes);

// A GNU build id in an object.
struct BuildId {
  const unsigned char* id = nullptr;
  uint32_t bytes = 0;                 // 0: there is none
  const ElfW(Phdr) * note = nullptr;  // the header of its segment
};
// Finds the build id of an object that has these `count` program headers and is loaded `bias` bytes above their
// addresses.
BuildId FindBuildId(const ElfW(Phdr) * headers, size_t count, uintptr_t bias);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_OBJECTS_H_
