// Named frames: frames of a stack that have a name and no address, such as Python functions.
//
// A named frame is one word of a stack, so that stacks stay arrays of words. Equal function names, files and lines have
// equal words.
#ifndef HBMPROF_SRC_CAPTURE_PYTHON_NAMED_FRAMES_H_
#define HBMPROF_SRC_CAPTURE_PYTHON_NAMED_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hbmprof::internal {

// The maximum lengths of a function name and a file name, in bytes. The code that reads names cuts longer ones.
inline constexpr size_t kMaxFunctionBytes = 1024;
inline constexpr size_t kMaxFileBytes = 4096;

// A frame with a name and without an address. Immutable, and never destroyed.
struct NamedFrame {
  uint64_t hash;
  uint32_t number;
  int32_t line;  // of the call; 0 if the interpreter has none
  int32_t first_line;
  uint32_t function_bytes;
  uint32_t file_bytes;

  // UTF-8.
  std::string_view function() const { return {reinterpret_cast<const char*>(this + 1), function_bytes}; }
  std::string_view file() const { return {reinterpret_cast<const char*>(this + 1) + function_bytes, file_bytes}; }
};

// The word of a named frame in a stack. No address of a program has these upper bits.
inline constexpr uint64_t kNamedFrameWord = uint64_t{1} << 63;
inline bool IsNamedFrameWord(uint64_t word) { return word >> 32 == kNamedFrameWord >> 32; }
// Returns null if no frame has this word.
const NamedFrame* NamedFrameOf(uint64_t word);
// Returns the number of named frames that the process has so far. Their words are kNamedFrameWord + 0 to
// kNamedFrameWord + NamedFrameCount() - 1.
uint32_t NamedFrameCount();

// Returns the word of the frame; 0 if there is no memory for a new one. The texts are UTF-8 and are copied. Any thread
// may call it.
uint64_t InternNamedFrame(std::string_view function, std::string_view file, int32_t line, int32_t first_line);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PYTHON_NAMED_FRAMES_H_
