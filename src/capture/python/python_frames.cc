#include "src/capture/python/python_frames.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/capture/python/named_frames.h"
#include "src/capture/rules.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

struct PythonWorkspace {
  // One call of the evaluation function.
  struct Activation {
    uintptr_t marker;  // an address inside its native frame; 0: its frame is found by the function's address range
    int end;           // one past its last Python frame
  };

  uintptr_t native[kMaxStackDepth];
  uintptr_t stack_pointer[kMaxStackDepth + 1];  // of each native frame, and where the last one ends
  uintptr_t merged[kMaxStackDepth];
  uint64_t python[kMaxStackDepth];  // words of the Python frames
  Activation activations[kMaxStackDepth];
  char function[kMaxFunctionBytes];
  char file[kMaxFileBytes];
};

namespace {

// --- Reading the interpreter's structs. ---

// Returns whether there can be an object at the address.
bool IsObjectAddress(uintptr_t address) {
  // Below 4096 nothing is mapped.
  constexpr uintptr_t kFirst = 4096;
  constexpr uintptr_t kNeverSet = (~uintptr_t{0} << kAddressBits) | (sizeof(uintptr_t) - 1);
  return ((address - kFirst) & kNeverSet) == 0;
}

constexpr uintptr_t kObjectType = 8;
constexpr uintptr_t kVarObjectSize = 16;
constexpr uintptr_t kBytesHash = 24;
constexpr uintptr_t kBytesData = 32;
constexpr uintptr_t kTextLength = 16;
constexpr uintptr_t kTextHash = 24;
constexpr uintptr_t kTextState = 32;
constexpr uint64_t kNoHash = ~uint64_t{0};  // the interpreter has not computed it

bool IsOfType(uintptr_t object, uintptr_t type) {
  return IsObjectAddress(object) && Load<uintptr_t>(object + kObjectType) == type;
}

// The characters of a str.
struct Characters {
  uintptr_t at;
  size_t count;
  uint32_t width;  // bytes of each: 1, 2 or 4
};

// Finds the characters of `text`, a str. Returns false if they are not stored in the form that is usual for names and
// file names.
bool FindCharacters(const PythonLayout& layout, uintptr_t text, Characters* found) {
  constexpr uint32_t kCompact = 0x20;
  constexpr uint32_t kAscii = 0x40;
  constexpr size_t kMaxCharacters = size_t{1} << 28;
  const auto state = Load<uint32_t>(text + kTextState);
  found->width = state >> 2 & 7;
  found->count = Load<size_t>(text + kTextLength);
  found->at = text + ((state & kAscii) != 0 ? layout.ascii_text : layout.other_text);
  return (state & kCompact) != 0 && (found->width == 1 || found->width == 2 || found->width == 4) &&
         found->count <= kMaxCharacters;
}

// Returns a hash of the characters of `text`, a str.
[[gnu::noinline, gnu::cold]] uint64_t HashOfCharacters(const PythonLayout& layout, uintptr_t text) {
  Characters characters;
  if (!FindCharacters(layout, text, &characters)) return 0;
  const size_t bytes = std::min(characters.count * characters.width, kMaxFileBytes);
  return HashBytes(reinterpret_cast<const char*>(characters.at), bytes, characters.count);
}

// Returns a number that differs between different strs at the same address: the hash that the interpreter stores in the
// str, or a hash of the contents.
inline uint64_t TextIdentity(const PythonLayout& layout, uintptr_t text) {
  const auto hash = Load<uint64_t>(text + kTextHash);
  return __builtin_expect(hash != kNoHash, 1) != 0 ? hash : HashOfCharacters(layout, text);
}

// Writes `text`, a str, as UTF-8 to `buffer`, cut at `capacity` bytes. Returns the number of bytes; nullopt if it
// cannot be read.
std::optional<size_t> WriteUtf8(const PythonLayout& layout, uintptr_t text, char* buffer, size_t capacity) {
  Characters characters;
  if (!FindCharacters(layout, text, &characters)) return std::nullopt;
  size_t size = 0;
  for (size_t i = 0; i < characters.count; ++i) {
    const uintptr_t at = characters.at + i * characters.width;
    uint32_t c = characters.width == 1   ? Load<uint8_t>(at)
                 : characters.width == 2 ? Load<uint16_t>(at)
                                         : Load<uint32_t>(at);
    constexpr uint32_t kReplacement = 0xfffd;
    if ((c >= 0xd800 && c < 0xe000) || c > 0x10ffff) c = kReplacement;
    const size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (bytes > capacity - size) break;
    if (bytes == 1) {
      buffer[size++] = static_cast<char>(c);
      continue;
    }
    constexpr uint32_t kFirstByte[] = {0, 0, 0xc0, 0xe0, 0xf0};
    buffer[size++] = static_cast<char>(kFirstByte[bytes] | c >> 6 * (bytes - 1));
    for (size_t left = bytes - 1; left > 0; --left) {
      buffer[size++] = static_cast<char>(0x80 | (c >> 6 * (left - 1) & 0x3f));
    }
  }
  return size;
}

// --- Lines. ---

struct LineTable {
  const unsigned char* bytes;
  size_t size;
};

// 3.8 and 3.9: pairs of (address increment, line increment).
int32_t LineOf38(const LineTable& table, int32_t first_line, int64_t instruction) {
  int32_t line = first_line;
  int64_t address = 0;
  for (size_t i = 0; i + 1 < table.size; i += 2) {
    address += table.bytes[i];
    if (address > instruction) break;
    line += static_cast<int8_t>(table.bytes[i + 1]);
  }
  return line;
}

// 3.10: pairs of (length of a range, line increment).
int32_t LineOf310(const LineTable& table, int32_t first_line, int64_t instruction) {
  constexpr int kNoLine = -128;
  if (instruction < 0) return first_line;
  int32_t line = first_line;
  int64_t end = 0;
  for (size_t i = 0; i + 1 < table.size; i += 2) {
    const int increment = static_cast<int8_t>(table.bytes[i + 1]);
    if (increment != kNoLine) line += increment;
    end += table.bytes[i];
    if (end > instruction * 2) return increment == kNoLine ? 0 : line;
  }
  return 0;
}

// 3.11 and later: entries that begin with a byte whose top bit is set.
int32_t LineOf311(const LineTable& table, int32_t first_line, int64_t instruction) {
  int32_t line = first_line;
  int64_t end = 0;
  for (size_t i = 0; i < table.size;) {
    const unsigned char head = table.bytes[i++];
    const int kind = head >> 3 & 15;
    int32_t increment = kind >= 10 && kind <= 12 ? kind - 10 : 0;
    if (kind == 13 || kind == 14) {
      uint32_t value = 0;
      for (int shift = 0; i < table.size && shift < 32; shift += 6) {
        const unsigned char byte = table.bytes[i++];
        value |= uint32_t{byte & 63u} << shift;
        if ((byte & 64) == 0) break;
      }
      increment = static_cast<int32_t>(value >> 1);
      if ((value & 1) != 0) increment = -increment;
    }
    line += increment;
    end += (head & 7) + 1;
    if (instruction < end) return kind == 15 ? 0 : line;
    while (i < table.size && table.bytes[i] < 128) ++i;
  }
  return 0;
}

// Returns 0 if the interpreter has no line for the instruction.
int32_t LineOf(const PythonInterpreter& python, uintptr_t code, int64_t instruction) {
  const auto table = Load<uintptr_t>(code + python.layout.code_line_table);
  constexpr size_t kMaxBytes = size_t{1} << 28;
  if (!IsOfType(table, python.bytes_type)) return 0;
  const auto size = Load<size_t>(table + kVarObjectSize);
  if (size > kMaxBytes) return 0;
  const LineTable lines = {reinterpret_cast<const unsigned char*>(table + kBytesData), size};
  const auto first_line = Load<int32_t>(code + python.layout.code_first_line);
  if (python.minor < 10) return LineOf38(lines, first_line, instruction);
  return python.minor == 10 ? LineOf310(lines, first_line, instruction) : LineOf311(lines, first_line, instruction);
}

// --- Walking the thread's Python frames. ---

// Returns whether the object with the interpreter is still loaded at its addresses.
bool IsLoaded(const PythonInterpreter& python) {
  dl_find_object found;
  return _dl_find_object(reinterpret_cast<void*>(python.runtime), &found) == 0 &&
         reinterpret_cast<uintptr_t>(found.dlfo_map_start) == python.object_start &&
         reinterpret_cast<uintptr_t>(found.dlfo_map_end) == python.object_limit;
}

uintptr_t Finalizing(const PythonInterpreter& python) {
  const uintptr_t word = python.runtime + python.layout.finalizing;
  return __atomic_load_n(reinterpret_cast<const uintptr_t*>(word), __ATOMIC_ACQUIRE);
}

// Hashes the functions and instructions of frames. Different call sites have different hashes, even at the same
// address: when functions are freed, others can be made at their addresses.
class FrameHasher {
 public:
  explicit FrameHasher(const PythonLayout& layout) : layout_(layout) {}

  // Returns a hash of the frame, and of all that has the hash `before`. `code`: a code object.
  [[gnu::always_inline]] uint64_t Add(uint64_t before, uintptr_t code, int64_t instruction) {
    // No two code objects have the same version. When all versions are used up, it is 0. An interpreter that is ended
    // and started again counts versions from the beginning. Therefore the hash also contains the name.
    const uint64_t version = layout_.code_version != 0 ? Load<uint32_t>(code + layout_.code_version) : 0;
    if (version == 0) return AddContents(before, code, instruction);
    const uint64_t at = code + static_cast<uint64_t>(instruction) * kHashSeed0;
    return MultiplyFold(before ^ at, Load<uint64_t>(code + layout_.code_name) ^ version * kHashSeed3);
  }

 private:
  // Hashes a code object without a version by its names, its first line and its line table, because to find the line
  // takes too long for each event. Compilers have computed the table's hash, so code that is compiled again, such as an
  // edited cell of a notebook, differs. Of a table without a hash, which was loaded from a file, the addresses, the
  // size, and the first, middle and last 8 bytes are hashed: such code is seldom replaced.
  [[gnu::always_inline]] uint64_t AddContents(uint64_t before, uintptr_t code, int64_t instruction) {
    const auto file = Load<uintptr_t>(code + layout_.code_filename);
    if (file != file_) {
      file_ = file;
      file_identity_ = TextIdentity(layout_, file);
    }
    const uint64_t name = TextIdentity(layout_, Load<uintptr_t>(code + layout_.code_name));
    const uint64_t named = before ^ name ^ uint64_t { Load<uint32_t>(code + layout_.code_first_line) } << 32;
    const auto table = Load<uintptr_t>(code + layout_.code_line_table);
    const uint64_t at = file_identity_ ^ static_cast<uint64_t>(instruction) * kHashSeed3;
    const auto table_hash = Load<uint64_t>(table + kBytesHash);
    if (table_hash != kNoHash) return MultiplyFold(named, at ^ table_hash);
    const auto size = Load<uint64_t>(table + kVarObjectSize);
    const auto* bytes = reinterpret_cast<const char*>(table + kBytesData);
    const uint64_t placed = MultiplyFold(named, at ^ (code + table) * kHashSeed0);
    if (size < 8) return HashBytes(bytes, size, placed);
    const auto word = [bytes](size_t i) { return *reinterpret_cast<const AnyWord*>(bytes + i); };
    return MultiplyFold(placed ^ word(0), (word((size - 8) / 2) + size) ^ word(size - 8) * kHashSeed2);
  }

  using AnyWord [[gnu::aligned(1), gnu::may_alias]] = uint64_t;
  const PythonLayout& layout_;
  uintptr_t file_ = 0;  // the last one
  uint64_t file_identity_ = 0;
};

// Returns the calling thread's PyThreadState. Returns 0 if the thread has none, or one that must not be read.
[[gnu::always_inline]] inline uintptr_t FindThreadState(const PythonInterpreter& python, const PythonLayout& layout) {
  if (!python.is_permanent && !IsLoaded(python)) return 0;
  // The key is deleted when the interpreter ends. If the interpreter is started again, it may have another key.
  if (Load<int32_t>(python.runtime + layout.tss) != 1) return 0;
  const auto key = Load<uint32_t>(python.runtime + layout.tss + 4);
  const auto state = reinterpret_cast<uintptr_t>(pthread_getspecific(key));
  if (!IsObjectAddress(state)) return 0;
  // An interpreter that is ending sets this word and soon after that frees the states of daemon threads. Such a thread
  // may run code outside of the interpreter at that time.
  const uintptr_t finalizing = Finalizing(python);
  if (finalizing != 0 && finalizing != state) return 0;
  const bool is_own = Load<uintptr_t>(state + layout.thread_id) == static_cast<uintptr_t>(pthread_self());
  return is_own ? state : 0;
}

// Calls `visitor` for the thread's `max_frames` innermost Python frames, from the innermost outwards, and for the
// activations that they belong to:
//   bool Frame(code, instruction)  false: a check failed
//   void EndActivation(marker)     after an activation's last frame; `marker` as in PythonWorkspace::Activation
// `layout`: that of the interpreter, as a constant if it is a usual one.
// Returns false if there is no frame, or if a check failed.
template <typename Visitor>
[[gnu::always_inline]] inline bool ReadFrames(const PythonInterpreter& python, const PythonLayout& layout,
                                              int max_frames, Visitor* visitor) {
  const uintptr_t state = FindThreadState(python, layout);
  if (state == 0) return false;
  constexpr int kMaxSteps = 1 << 24;  // their frames would take more than 1 GiB
  constexpr uint8_t kOwnedByGenerator = 1;
  constexpr uint8_t kFirstShimOwner = 3;
  const bool has_shims = layout.chain == PythonFrameChain::kShims;
  const bool has_entries = layout.chain == PythonFrameChain::kEntryFrames;
  const bool has_cframes = has_entries || layout.chain == PythonFrameChain::kOnePerActivationWithCframe;
  const bool has_owners = has_shims || has_entries;
  const uintptr_t code_type = python.code_type;
  uintptr_t cframe = 0;
  if (layout.thread_cframe != 0) {
    cframe = Load<uintptr_t>(state + layout.thread_cframe);
    if (!IsObjectAddress(cframe)) return false;
  }
  const uintptr_t root_cframe = state + layout.thread_root_cframe;
  uintptr_t frame =
      Load<uintptr_t>(layout.thread_frame != 0 ? state + layout.thread_frame : cframe + layout.cframe_frame);
  int visited = 0;
  int step = 0;
  for (; IsObjectAddress(frame); frame = Load<uintptr_t>(frame + layout.frame_previous)) {
    if (++step == kMaxSteps) return false;
    const uint8_t owner = has_owners ? Load<uint8_t>(frame + layout.frame_owner) : 0;
    if (has_shims && owner >= kFirstShimOwner) {
      visitor->EndActivation(frame);
      if (visited >= max_frames) return true;
      continue;
    }
    if (!has_shims || visited < max_frames) {
      // The low bits of the reference are a tag in 3.14.
      const uintptr_t code = Load<uintptr_t>(frame + layout.frame_code) & ~uintptr_t{7};
      if (!IsOfType(code, code_type)) return false;
      int64_t instruction;
      bool has_begun = true;
      if (has_owners) {
        const auto at = Load<uintptr_t>(frame + layout.frame_instruction);
        instruction = static_cast<int64_t>(at - (code + layout.code_adaptive)) >> 1;
        has_begun = instruction >= Load<int32_t>(code + layout.code_first_traceable) || owner == kOwnedByGenerator;
      } else {
        instruction = Load<int32_t>(frame + layout.frame_instruction);
      }
      if (has_begun) {
        if (!visitor->Frame(code, instruction)) return false;
        ++visited;
      }
    }
    // The marker of an activation is in its shim, or known from its first frame on.
    const bool is_enough = !has_shims && visited >= max_frames;
    if (has_shims || (has_entries && !is_enough && Load<uint8_t>(frame + layout.frame_is_entry) == 0)) continue;
    uintptr_t marker = 0;
    if (has_cframes) {
      if (cframe == root_cframe || !IsObjectAddress(cframe)) return false;
      marker = cframe;
      cframe = Load<uintptr_t>(cframe + layout.cframe_previous);
    }
    visitor->EndActivation(marker);
    if (is_enough) return true;
  }
  return frame == 0 && visited > 0;
}

class Digest {
 public:
  Digest(const PythonLayout& layout, uintptr_t sp) : frames_(layout), sp_(sp) {}
  [[gnu::always_inline]] bool Frame(uintptr_t code, int64_t instruction) {
    hash_ = frames_.Add(hash_, code, instruction);
    return true;
  }
  void EndActivation(uintptr_t marker) { hash_ = MultiplyFold(hash_ ^ (marker == 0 ? 0 : marker - sp_), kHashSeed2); }
  uint64_t value() const { return hash_ | 1; }

 private:
  FrameHasher frames_;
  const uintptr_t sp_;
  uint64_t hash_ = kHashSeed0;
};

[[gnu::always_inline]] inline uint64_t DigestWith(const PythonInterpreter& python, const PythonLayout& layout,
                                                  uintptr_t sp, int max_frames) {
  Digest digest(layout, sp);
  return ReadFrames(python, layout, max_frames, &digest) ? digest.value() : 0;
}

// The digest if the interpreter has the usual layout, whose constants halve the time.
template <int kMinor>
uint64_t UsualDigest(const PythonInterpreter& python, uintptr_t sp, int max_frames) {
  static constexpr PythonLayout kLayout = UsualPythonLayout(kMinor);
  return DigestWith(python, kLayout, sp, max_frames);
}
constexpr uint64_t (*kUsualDigests[])(const PythonInterpreter&, uintptr_t, int) = {
    UsualDigest<8>,  UsualDigest<9>,  UsualDigest<10>, UsualDigest<11>,
    UsualDigest<12>, UsualDigest<13>, UsualDigest<14>};
static_assert(std::size(kUsualDigests) == kLastPythonMinor - kFirstPythonMinor + 1);

// Puts the words of the frames, and their activations, into the workspace.
class Collector {
 public:
  Collector(const PythonInterpreter& python, PythonWorkspace* workspace)
      : python_(python), hasher_(python.layout), workspace_(*workspace) {}

  bool Frame(uintptr_t code, int64_t instruction) {
    const uint64_t key = hasher_.Add(kHashSeed0, code, instruction);
    WordBucket& known = python_.words[key >> (64 - PythonInterpreter::kWordBits)];
    uint64_t word = known.Find(key);
    if (word == 0) {
      word = Name(code, instruction);
      if (word == 0) return false;
      known.Store(key, word);
    }
    workspace_.python[frames_++] = word;
    return true;
  }
  void EndActivation(uintptr_t marker) {
    const int begin = activations_ == 0 ? 0 : workspace_.activations[activations_ - 1].end;
    if (frames_ > begin) workspace_.activations[activations_++] = {marker, frames_};
  }
  int activations() const { return activations_; }

 private:
  uint64_t Name(uintptr_t code, int64_t instruction) {
    const PythonLayout& layout = python_.layout;
    const auto name = Load<uintptr_t>(code + layout.code_name);
    const auto file = Load<uintptr_t>(code + layout.code_filename);
    const bool is_instruction = instruction >= -1 && instruction < int64_t{1} << 31;
    if (!is_instruction || !IsOfType(name, python_.unicode_type) || !IsOfType(file, python_.unicode_type)) return 0;
    const std::optional<size_t> function_bytes = WriteUtf8(layout, name, workspace_.function, kMaxFunctionBytes);
    const size_t file_bytes = WriteUtf8(layout, file, workspace_.file, kMaxFileBytes).value_or(0);
    if (!function_bytes.has_value()) return 0;
    const std::string_view function(workspace_.function, *function_bytes);
    return InternNamedFrame(function.empty() ? "<unnamed>" : function, {workspace_.file, file_bytes},
                            LineOf(python_, code, instruction), Load<int32_t>(code + layout.code_first_line));
  }

  const PythonInterpreter& python_;
  FrameHasher hasher_;
  PythonWorkspace& workspace_;
  int frames_ = 0;
  int activations_ = 0;
};

// --- Merging. ---

// Finds the stack pointer of each frame of `native`, and where the last frame ends. Returns false if a walk by rules
// does not lead to these frames.
bool FindStackPointers(const Caller& caller, const CapturedStack& native, uintptr_t* stack_pointer) {
  RuleWalk walk(caller);
  NoRecorder recorder;
  stack_pointer[0] = caller.sp;
  for (int i = 1; i <= native.depth; ++i) {
    const PackedRule rule = walk.Rule();
    RuleWalk::Step step = walk.StepOut(rule, &recorder);
    if (step == RuleWalk::Step::kUnknown) step = walk.Guess(rule);
    const bool is_frame = step == RuleWalk::Step::kFrame;
    if (i < native.depth && (!is_frame || walk.address + 1 != native.pcs[i])) return false;
    stack_pointer[i] = is_frame ? walk.sp : UINTPTR_MAX;
  }
  return true;
}

// A workspace that is not in use, or null. One is enough: only an event whose stack is not known needs one, and two at
// the same time are rare. The second one maps pages.
std::atomic<PythonWorkspace*> spare_workspace{nullptr};

}  // namespace

bool PythonIsEnding() {
  const PythonInterpreter* python = readable_python.load(std::memory_order_acquire);
  return python != nullptr && (python->is_permanent || IsLoaded(*python)) && Finalizing(*python) != 0;
}

uint64_t DigestPythonFrames(uintptr_t sp, int max_frames) {
  const PythonInterpreter* python = readable_python.load(std::memory_order_acquire);
  if (python == nullptr) return 0;
  if (!python->has_usual_layout) return DigestWith(*python, python->layout, sp, max_frames);
  return kUsualDigests[python->minor - kFirstPythonMinor](*python, sp, max_frames);
}

PythonWorkspace* AcquirePythonWorkspace() {
  PythonWorkspace* const spare = spare_workspace.exchange(nullptr, std::memory_order_acquire);
  return spare != nullptr ? spare : static_cast<PythonWorkspace*>(MapPages(sizeof(PythonWorkspace)));
}

void ReleasePythonWorkspace(PythonWorkspace* workspace) {
  UnmapPages(spare_workspace.exchange(workspace, std::memory_order_acq_rel), sizeof(PythonWorkspace));
}

uintptr_t* NativeFramesOf(PythonWorkspace* workspace) { return workspace->native; }

CapturedStack MergePythonFrames(const Caller& caller, const CapturedStack& native, int max_depth,
                                PythonWorkspace* workspace) {
  const PythonInterpreter* python = readable_python.load(std::memory_order_acquire);
  if (python == nullptr || native.depth == 0) return native;
  PythonWorkspace& work = *workspace;
  Collector collector(*python, workspace);
  if (!ReadFrames(*python, python->layout, std::min(max_depth, kMaxStackDepth), &collector) ||
      !FindStackPointers(caller, native, work.stack_pointer)) {
    return native;
  }
  const bool by_range = python->layout.chain == PythonFrameChain::kOnePerActivation;
  const auto is_in = [&](int frame, uintptr_t marker) {
    if (by_range) return native.pcs[frame] - 1 - python->evaluate < python->evaluate_bytes;
    return marker >= work.stack_pointer[frame] && marker < work.stack_pointer[frame + 1];
  };

  int depth = 0;
  bool is_cut = false;
  const auto add = [&](const uintptr_t* words, int count) {
    const int fits = std::min(count, max_depth - depth);
    std::copy_n(words, fits, work.merged + depth);
    depth += fits;
    is_cut = is_cut || fits < count;
  };
  // The native frames before `next` are in the result.
  int next = 0;
  int begin = 0;
  int innermost = -1;  // evaluation frame
  for (int i = 0; i < collector.activations(); ++i) {
    const PythonWorkspace::Activation& activation = work.activations[i];
    const uintptr_t* words = work.python + begin;
    const int count = activation.end - begin;
    begin = activation.end;
    int frame = next;
    while (frame < native.depth && !is_in(frame, activation.marker)) ++frame;
    if (frame < native.depth) {
      if (i == 0) innermost = frame;
      add(native.pcs + next, frame - next);
      add(words, count);
      next = frame + 1;
    } else if (native.truncated && native.depth < max_depth) {
      // The native walk ended in code without unwind information, but the Python frames outside of that code are known.
      add(native.pcs + next, native.depth - next);
      add(words, count);
      next = native.depth;
    } else if (by_range && !native.truncated) {
      return native;  // the native frame of each function is not known
    }
  }
  // If evaluation frames are left, they are the outermost ones: those outside of a greenlet, whose functions are not
  // known to its thread. But the innermost one may lack its function, if a signal interrupted its begin or end.
  const bool is_certain = innermost > 0 && IsReturnFromCall(native.pcs[innermost], native.pcs[innermost - 1] - 1);
  if (by_range && !is_cut && !is_certain) {
    for (int frame = next; frame < native.depth; ++frame) {
      if (is_in(frame, 0)) return native;
    }
  }
  add(native.pcs + next, native.depth - next);
  if (innermost >= 0 && (is_cut || (native.truncated && native.depth == max_depth))) {
    // The functions of a stack that is too deep are kept, rather than the native frames between them.
    depth = 0;
    is_cut = false;
    add(native.pcs, innermost);
    add(work.python, begin);
    return {work.merged, depth, is_cut || begin == max_depth};
  }
  return {work.merged, depth, native.truncated || is_cut};
}

}  // namespace hbmprof::internal
