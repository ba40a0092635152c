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

// The table of all named frames, by their contents.
class NamedFrames {
 public:
  // Returns the word of the frame; 0 if there is no memory for a new one.
  uint64_t Intern(std::string_view function, std::string_view file, int32_t line, int32_t first_line) {
    const uint64_t lines = static_cast<uint32_t>(line) | uint64_t{static_cast<uint32_t>(first_line)} << 32;
    const uint64_t hash = HashBytes(file.data(), file.size(), HashBytes(function.data(), function.size(), lines));
    const auto equal = [&](uint64_t payload) {
      const NamedFrame* frame = FrameOf(payload);
      return frame->hash == hash && frame->line == line && frame->first_line == first_line &&
             frame->function() == function && frame->file() == file;
    };
    uint64_t found = table_.Find(hash, equal);
    if (found == 0) {
      SpinLockHolder hold(table_.lock());
      found = table_.Find(hash, equal);
      if (found == 0) found = Add(hash, function, file, line, first_line);
    }
    return found == 0 ? 0 : kNamedFrameWord | FrameOf(found)->number;
  }

  uint32_t count() const { return count_.load(std::memory_order_acquire); }

  const NamedFrame* At(uint32_t number) const {
    if (number >= count()) return nullptr;
    return chunks_[number >> kChunkBits].load(std::memory_order_acquire)[number & ((1u << kChunkBits) - 1)];
  }

 private:
  static constexpr uint32_t kChunkBits = 12;
  static constexpr uint32_t kChunks = 1 << 10;
  static constexpr size_t kChunkBytes = sizeof(NamedFrame*) << kChunkBits;

  static const NamedFrame* FrameOf(uint64_t payload) { return reinterpret_cast<const NamedFrame*>(payload); }

  uint64_t Add(uint64_t hash, std::string_view function, std::string_view file, int32_t line, int32_t first_line)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.lock()) {
    const uint32_t number = count_.load(std::memory_order_relaxed);
    if (number >> kChunkBits >= kChunks) return 0;
    if (!table_.Reserve([](uint64_t payload) { return FrameOf(payload)->hash; })) return 0;
    std::atomic<const NamedFrame**>& chunk = chunks_[number >> kChunkBits];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      auto* frames = static_cast<const NamedFrame**>(MapPages(kChunkBytes));
      if (frames == nullptr) return 0;
      chunk.store(frames, std::memory_order_release);
    }
    auto* frame = static_cast<NamedFrame*>(arena_.Allocate(sizeof(NamedFrame) + function.size() + file.size()));
    if (frame == nullptr) return 0;
    frame->hash = hash;
    frame->number = number;
    frame->line = line;
    frame->first_line = first_line;
    frame->function_bytes = static_cast<uint32_t>(function.size());
    frame->file_bytes = static_cast<uint32_t>(file.size());
    char* text = reinterpret_cast<char*>(frame + 1);
    std::memcpy(text, function.data(), function.size());
    std::memcpy(text + function.size(), file.data(), file.size());
    chunk.load(std::memory_order_relaxed)[number & ((1u << kChunkBits) - 1)] = frame;
    count_.store(number + 1, std::memory_order_release);
    const auto payload = reinterpret_cast<uint64_t>(frame);
    table_.Insert(hash, payload);
    return payload;
  }

  InternTable table_;
  Arena arena_ ABSL_GUARDED_BY(table_.lock());
  std::atomic<uint32_t> count_{0};
  std::atomic<const NamedFrame**> chunks_[kChunks] = {};
};

NeverDestroyed<NamedFrames> named_frames;  // threads may capture until the process ends

}  // namespace

const NamedFrame* NamedFrameOf(uint64_t word) {
  return IsNamedFrameWord(word) ? named_frames->At(static_cast<uint32_t>(word)) : nullptr;
}

uint32_t NamedFrameCount() { return named_frames->count(); }

uint64_t InternNamedFrame(std::string_view function, std::string_view file, int32_t line, int32_t first_line) {
  return named_frames->Intern(function, file, line, first_line);
}

}  // namespace hbmprof::internal
