#include "src/capture/python/named_frames.h"

#include <atomic>
#include <cstring>

#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/never_destroyed.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"

namespace hbmprof::internal {
namespace {

constexpr uint32_t kMostFrames = 1 << 22;

const NamedFrame* FrameOf(uint64_t payload) { return reinterpret_cast<const NamedFrame*>(payload); }

// All named frames, by their contents and by their numbers.
struct NamedFrames {
  InternTable table;
  Arena arena ABSL_GUARDED_BY(table.lock());
  std::atomic<uint32_t> count{0};
  const NamedFrame** by_number = nullptr;  // kMostFrames of them; set before the first one is counted

  // Adds `frame` with its texts. Returns its payload; 0 if there is no memory.
  uint64_t Add(NamedFrame frame, std::string_view function, std::string_view file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table.lock()) {
    frame.number = count.load(std::memory_order_relaxed);
    if (frame.number == kMostFrames) return 0;
    // A page more than they need, so that they are in small pages (see MapPages).
    if (by_number == nullptr) {
      by_number = static_cast<const NamedFrame**>(ReservePages(kMostFrames * sizeof(NamedFrame*) + 4096));
    }
    if (by_number == nullptr || !TakeHostBytes(sizeof(NamedFrame*))) return 0;
    auto* added = static_cast<NamedFrame*>(arena.Allocate(sizeof(NamedFrame) + function.size() + file.size()));
    if (added == nullptr) return 0;
    *added = frame;
    char* text = reinterpret_cast<char*>(added + 1);
    std::memcpy(text, function.data(), function.size());
    std::memcpy(text + function.size(), file.data(), file.size());
    by_number[frame.number] = added;
    count.store(frame.number + 1, std::memory_order_release);
    return reinterpret_cast<uintptr_t>(added);
  }
};
NeverDestroyed<NamedFrames> frames;  // threads may capture until the process ends

}  // namespace

const NamedFrame* NamedFrameOf(uint64_t word) {
  const auto number = static_cast<uint32_t>(word);
  if (!IsNamedFrameWord(word) || number >= NamedFrameCount()) return nullptr;
  return frames->by_number[number];
}

uint32_t NamedFrameCount() { return frames->count.load(std::memory_order_acquire); }

uint64_t InternNamedFrame(std::string_view function, std::string_view file, int32_t line, int32_t first_line) {
  const uint64_t lines = static_cast<uint32_t>(line) | uint64_t{static_cast<uint32_t>(first_line)} << 32;
  const uint64_t hash = HashBytes(file.data(), file.size(), HashBytes(function.data(), function.size(), lines));
  const auto equal = [&](uint64_t payload) {
    const NamedFrame* frame = FrameOf(payload);
    return frame->hash == hash && frame->line == line && frame->first_line == first_line &&
           frame->function() == function && frame->file() == file;
  };
  const NamedFrame frame = {
      hash, 0, line, first_line, static_cast<uint32_t>(function.size()), static_cast<uint32_t>(file.size())};
  const uint64_t found = frames->table.Intern(
      hash, equal, [](uint64_t payload) { return FrameOf(payload)->hash; },
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return frames->Add(frame, function, file); });
  return found == 0 ? 0 : kNamedFrameWord | FrameOf(found)->number;
}

}  // namespace hbmprof::internal
