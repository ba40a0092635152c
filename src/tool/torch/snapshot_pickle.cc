// See snapshot_pickle.h.
//
// The contents are not built as a tree. A dictionary becomes a number of a frame, an event, a block or a segment in the
// TorchSnapshot, by its keys, as soon as its items are set: a pickle sets them all at once. A list can get elements
// many times. It is closed when it becomes an element of another container, or when the memo is asked for it.
#include "src/tool/torch/snapshot_pickle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/descriptor.h"
#include "src/tool/util/terminal.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr uint8_t kProtocol = 0x80;
constexpr uint64_t kMostInputBytes = uint64_t{64} << 30;  // a small gzip file can have very many
constexpr size_t kMostTextBytes = size_t{16} << 20;
constexpr size_t kMostValues = size_t{1} << 24;      // on the stack
constexpr size_t kMostOpen = size_t{1} << 16;        // lists and dictionaries that are not closed
constexpr size_t kMostMemoValues = size_t{1} << 26;  // in the memo
constexpr size_t kMostDevices = 1024;
constexpr size_t kMostEvents = UINT32_MAX - 1;
constexpr uint64_t kMostAddress = (uint64_t{1} << 50) - 1;  // RecordedEvent::id has more bits for other purposes
constexpr int64_t kMostBytes = int64_t{1} << 48;

struct CloseGzip {
  void operator()(gzFile_s* file) const { gzclose_r(file); }
};
using GzipFile = std::unique_ptr<gzFile_s, CloseGzip>;

// Opens a file; zlib also reads files that are not compressed. Null, with errno set, on failure.
GzipFile OpenGzip(const std::string& path) {
  internal::FileDescriptor descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.get() < 0) return nullptr;
  GzipFile file(gzdopen(descriptor.get(), "rb"));
  if (file != nullptr) descriptor.Release();
  return file;
}

// The bytes of the file, one after the other.
class Input {
 public:
  Input(GzipFile file, size_t file_bytes)
      : file_(std::move(file)), progress_(file_bytes >> 20, "MiB of the snapshot read") {
    gzbuffer(file_.get(), 1 << 20);
  }

  // Returns the number of the byte that is read next.
  uint64_t position() const { return static_cast<uint64_t>(gztell(file_.get())); }
  // Stores the next `count` bytes, at most INT_MAX. Returns false if the file has fewer.
  bool Read(size_t count, std::string* bytes) {
    bytes->resize(count);
    return gzread(file_.get(), bytes->data(), static_cast<unsigned>(count)) == static_cast<int>(count);
  }
  // Stores a number of `count` <= 8 bytes, the lowest byte first. Returns false if the file has fewer.
  bool ReadNumber(size_t count, uint64_t* number) {
    *number = 0;
    for (size_t i = 0; i < count; ++i) {
      const int byte = gzgetc(file_.get());
      if (byte < 0) return false;
      *number |= static_cast<uint64_t>(byte) << (8 * i);
    }
    return true;
  }
  void ReportProgress() {
    const auto done = static_cast<size_t>(std::max<z_off_t>(gzoffset(file_.get()), 0)) >> 20;
    progress_.Advance(done - std::min(done, reported_));
    reported_ = done;
  }
  // The reason if reading has failed before the end of the file; "" otherwise.
  std::string problem() const {
    int code = Z_OK;
    const char* const text = gzerror(file_.get(), &code);
    return code == Z_OK ? "" : Cat("the file cannot be read: ", text);
  }

 private:
  const GzipFile file_;
  Progress progress_;
  size_t reported_ = 0;
};

// The keys that are read.
enum Key : uint8_t {
  kName,
  kFilename,
  kLine,
  kFrames,
  kAction,
  kAddr,
  kDeviceFree,
  kSize,
  kTimeUs,
  kUserMetadata,
  kAddress,
  kRequestedSize,
  kState,
  kDevice,
  kTotalSize,
  kBlocks,
  kSegments,
  kDeviceTraces,
  kKeys,
};
constexpr const char* kKeyNames[kKeys] = {"name",    "filename",       "line",         "frames",  "action",
                                          "addr",    "device_free",    "size",         "time_us", "user_metadata",
                                          "address", "requested_size", "state",        "device",  "total_size",
                                          "blocks",  "segments",       "device_traces"};

enum class Type : uint8_t {
  kAbsent,      // a dictionary has no such key
  kNone,        // None
  kOther,       // a value of which nothing is read
  kInteger,     // the number itself
  kText,        // number of a text
  kMark,        // the start of the elements of a container
  kDictionary,  // 1 plus its number in the memo; 0: it has none
  kRoot,        // the dictionary with the segments or the traces
  kOpenList,    // index in Machine::open_
  kFrame,       // these have the number of an element of the TorchSnapshot
  kStack,
  kEvent,
  kBlock,
  kSegment,
  kList,  // index in Machine::lists_; 0: the empty list
};

struct Value {
  Type type = Type::kAbsent;
  int64_t number = 0;
};
constexpr int64_t kNoEvent = UINT32_MAX;  // the number of an event that is left out

// A Value of 8 bytes. Only integers need more; pickles never number these.
class MemoValue {
 public:
  explicit MemoValue(const Value& value)
      : word_(static_cast<uint64_t>(value.number) << 8 | static_cast<uint64_t>(value.type)) {}
  Value value() const { return {static_cast<Type>(word_ & 0xff), static_cast<int64_t>(word_ >> 8)}; }

 private:
  uint64_t word_;
};

using Items = std::array<Value, kKeys>;  // of a dictionary

// The numbers of elements of one type. kAbsent: it has none; kOther: the types differ.
struct List {
  Type elements = Type::kAbsent;
  std::vector<uint32_t> numbers;
};

// A list to which elements can be added.
struct OpenList : List {
  size_t position = 0;         // on the stack
  std::optional<size_t> memo;  // its number in the memo
};

class Machine {
 public:
  Machine(Input& input, TorchSnapshot& snapshot) : input_(input), snapshot_(snapshot) {
    for (uint8_t key = 0; key < kKeys; ++key) key_texts_[key] = snapshot_.texts.Number(kKeyNames[key]);
    snapshot_.stacks.emplace_back();
    stack_numbers_.emplace("", 0);
  }

  // Runs the program of the pickle. The message of an error has the number of the byte.
  absl::Status Run() {
    bool has_ended = false;
    for (size_t steps = 0; !has_ended; ++steps) {
      if (steps % (1 << 20) == 0) input_.ReportProgress();
      const uint64_t at = input_.position();
      const absl::Status status = Step(at, &has_ended);
      if (!status.ok()) return absl::Status(status.code(), Cat("byte ", at, ": ", std::string(status.message())));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Wrong(const std::string& text) { return absl::InvalidArgumentError(text); }
  absl::Status Truncated() const {
    return Wrong(input_.problem().empty() ? "the file ends in the middle of the pickle" : input_.problem());
  }

  absl::Status Step(uint64_t at, bool* has_ended) {
    uint64_t code;
    if (!input_.ReadNumber(1, &code)) return Truncated();
    if (at > kMostInputBytes) return absl::ResourceExhaustedError("the pickle is larger than 64 GiB");
    if ((at == 0) != (code == kProtocol)) return Wrong("the start of a pickle is expected once, at byte 0");
    switch (code) {
      case kProtocol:
        return Protocol();
      case 0x95:  // FRAME: the length of the next part, which is not needed
        return Number(8).status();
      case '.':
        *has_ended = true;
        return End();
      case '(':
        return Push({Type::kMark, 0});
      case 'N':
        return Push({Type::kNone, 0});
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        return Push({Type::kOther, 0});
      case 'G': {  // BINFLOAT
        RETURN_IF_ERROR(Number(8).status());
        return Push({Type::kOther, 0});
      }
      case 'K':  // BININT1
        return Integer(1, false);
      case 'M':  // BININT2
        return Integer(2, false);
      case 'J':  // BININT
        return Integer(4, true);
      case 0x8a:  // LONG1
        return Long();
      case 0x8c:  // SHORT_BINUNICODE
        return Text(1);
      case 'X':  // BINUNICODE
        return Text(4);
      case 0x8d:  // BINUNICODE8
        return Text(8);
      case ']':
        return PushList();
      case '}':
        return Push({Type::kDictionary, 0});
      case ')':  // EMPTY_TUPLE
        return Push({Type::kOther, 0});
      case 0x85:  // TUPLE1 to TUPLE3
      case 0x86:
      case 0x87:
        return Tuple(code - 0x84);
      case 't': {
        ASSIGN_OR_RETURN(const size_t first, AfterMark());
        RETURN_IF_ERROR(Tuple(stack_.size() - first));
        stack_.erase(stack_.end() - 2);  // the mark
        return absl::OkStatus();
      }
      case 'a': {
        if (stack_.empty()) return Wrong("an element of a list is missing");
        return Append(stack_.size() - 1, stack_.size() - 1);
      }
      case 'e': {
        ASSIGN_OR_RETURN(const size_t first, AfterMark());
        return Append(first, first - 1);
      }
      case 's': {
        if (stack_.size() < 2) return Wrong("an element of a dictionary is missing");
        return SetItems(stack_.size() - 2, stack_.size() - 2);
      }
      case 'u': {
        ASSIGN_OR_RETURN(const size_t first, AfterMark());
        return SetItems(first, first - 1);
      }
      case 0x94:  // MEMOIZE
        return Put(memo_.size());
      case 'q':  // BINPUT
      case 'r': {
        ASSIGN_OR_RETURN(const uint64_t number, Number(code == 'q' ? 1 : 4));
        return Put(number);
      }
      case 'h':  // BINGET
      case 'j': {
        ASSIGN_OR_RETURN(const uint64_t number, Number(code == 'h' ? 1 : 4));
        return Get(number);
      }
      default:
        return Wrong(
            absl::StrCat("the pickle has the instruction 0x", absl::Hex(code, absl::kZeroPad2),
                         ", which is not one for plain data; hbmprof does not run it: a pickle can execute any code"));
    }
  }

  absl::StatusOr<uint64_t> Number(size_t bytes) {
    uint64_t number;
    if (!input_.ReadNumber(bytes, &number)) return Truncated();
    return number;
  }

  absl::Status Protocol() {
    ASSIGN_OR_RETURN(const uint64_t version, Number(1));
    return version >= 2 && version <= 5 ? absl::OkStatus()
                                        : Wrong(Cat("the pickle has protocol ", version, "; 2 to 5 can be read"));
  }

  // --- Values ---

  absl::Status Push(const Value& value) {
    if (stack_.size() == kMostValues) return absl::ResourceExhaustedError("the stack of the pickle is too large");
    stack_.push_back(value);
    return absl::OkStatus();
  }

  absl::Status Integer(size_t bytes, bool is_signed) {
    ASSIGN_OR_RETURN(const uint64_t number, Number(bytes));
    return Push({Type::kInteger, is_signed ? static_cast<int32_t>(number) : static_cast<int64_t>(number)});
  }

  absl::Status Long() {
    ASSIGN_OR_RETURN(const uint64_t bytes, Number(1));
    if (!input_.Read(bytes, &text_)) return Truncated();
    if (bytes > 8) return Push({Type::kOther, 0});  // no value that is read is so large
    uint64_t number = bytes > 0 && static_cast<int8_t>(text_.back()) < 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes; i > 0; --i) number = number << 8 | static_cast<uint8_t>(text_[i - 1]);
    return Push({Type::kInteger, static_cast<int64_t>(number)});
  }

  absl::Status Text(size_t length_bytes) {
    ASSIGN_OR_RETURN(const uint64_t length, Number(length_bytes));
    if (length > kMostTextBytes) return absl::ResourceExhaustedError(Cat("a text has ", length, " bytes"));
    if (!input_.Read(length, &text_)) return Truncated();
    return Push({Type::kText, snapshot_.texts.Number(text_)});
  }

  absl::Status PushList() {
    if (free_.empty()) {
      if (open_.size() == kMostOpen) return absl::ResourceExhaustedError("the lists of the pickle are too deep");
      free_.push_back(open_.size());
      open_.emplace_back();
    }
    const size_t index = free_.back();
    RETURN_IF_ERROR(Push({Type::kOpenList, static_cast<int64_t>(index)}));
    free_.pop_back();
    open_[index].position = stack_.size() - 1;
    return absl::OkStatus();
  }

  // The elements of a tuple are not read.
  absl::Status Tuple(size_t count) {
    if (stack_.size() < count) return Wrong("an element of a tuple is missing");
    for (size_t i = stack_.size() - count; i < stack_.size(); ++i) Close(i);
    stack_.resize(stack_.size() - count);
    return Push({Type::kOther, 0});
  }

  // Returns the position after the last mark.
  absl::StatusOr<size_t> AfterMark() {
    size_t first = stack_.size();
    while (first > 0 && stack_[first - 1].type != Type::kMark) --first;
    if (first == 0) return Wrong("the start of a container is missing");
    return first;
  }

  absl::Status Put(uint64_t number) {
    if (stack_.empty() || stack_.back().type == Type::kMark) return Wrong("the value for the memo is missing");
    if (number > memo_.size()) return Wrong(Cat("number ", number, " of the memo comes before smaller ones"));
    if (number >= kMostMemoValues) return absl::ResourceExhaustedError("the memo of the pickle is too large");
    if (stack_.back().type == Type::kInteger) return Wrong("a number is put into the memo");
    if (stack_.back().type == Type::kOpenList) {
      OpenList& list = open_[static_cast<size_t>(stack_.back().number)];
      // A list has one number at most while it is open.
      if (list.memo.has_value()) Close(stack_.size() - 1);
      if (stack_.back().type == Type::kOpenList) list.memo = number;
    }
    if (number == memo_.size()) {
      memo_.emplace_back(stack_.back());
    } else {
      // The list that had this number has it no longer.
      const Value before = memo_[number].value();
      if (before.type == Type::kOpenList) open_[static_cast<size_t>(before.number)].memo.reset();
      memo_[number] = MemoValue(stack_.back());
    }
    if (stack_.back().type == Type::kDictionary) stack_.back().number = static_cast<int64_t>(number) + 1;
    return absl::OkStatus();
  }

  absl::Status Get(uint64_t number) {
    if (number >= memo_.size()) return Wrong(Cat("the memo has no number ", number));
    const Value value = memo_[number].value();
    if (value.type == Type::kOpenList) Close(open_[static_cast<size_t>(value.number)].position);
    return Push(memo_[number].value());
  }

  // --- Containers ---

  // Adds the values from `first` on to the list below `end`, and removes them and what is between.
  absl::Status Append(size_t first, size_t end) {
    if (end == 0 || stack_[end - 1].type != Type::kOpenList) {
      return Wrong("an element is added to a value that is not a list, or that is in use already");
    }
    OpenList& list = open_[static_cast<size_t>(stack_[end - 1].number)];
    for (size_t i = first; i < stack_.size(); ++i) {
      Close(i);  // cannot close the list, because the list is not an element of its elements
      const auto [type, number] = stack_[i];
      const bool is_read = type == Type::kFrame || type == Type::kEvent || type == Type::kBlock ||
                           type == Type::kSegment || type == Type::kList;
      if (list.elements == Type::kAbsent) list.elements = type;
      if (!is_read || list.elements != type) list.elements = Type::kOther;
      if (list.elements == type && number != kNoEvent) list.numbers.push_back(static_cast<uint32_t>(number));
    }
    stack_.resize(end);
    return absl::OkStatus();
  }

  // Likewise, pairs of keys and values to the dictionary below `end`.
  absl::Status SetItems(size_t first, size_t end) {
    if (end == 0 || stack_[end - 1].type != Type::kDictionary) {
      return Wrong("an element is added to a value that is not a dictionary, or that is in use already");
    }
    if ((stack_.size() - first) % 2 != 0) return Wrong("a key has no value");
    Items items;
    for (size_t i = first; i < stack_.size(); i += 2) {
      Close(i);
      Close(i + 1);
      if (stack_[i].type != Type::kText) continue;
      const auto* const key = std::find(key_texts_.begin(), key_texts_.end(), stack_[i].number);
      if (key != key_texts_.end()) items[static_cast<size_t>(key - key_texts_.begin())] = stack_[i + 1];
    }
    stack_.resize(end);
    ASSIGN_OR_RETURN(const Value value, ValueOf(items));
    // A dictionary of another kind, such as the settings of the allocator, is not read. It stays a dictionary.
    if (value.type == Type::kOther) return absl::OkStatus();
    const auto memo = static_cast<size_t>(std::exchange(stack_.back(), value).number);
    if (memo != 0 && memo_[memo - 1].value().type == Type::kDictionary) memo_[memo - 1] = MemoValue(value);
    return absl::OkStatus();
  }

  // Closes the list at a position of the stack, if there is an open one.
  void Close(size_t position) {
    if (stack_[position].type != Type::kOpenList) return;
    OpenList& list = open_[static_cast<size_t>(stack_[position].number)];
    free_.push_back(static_cast<size_t>(stack_[position].number));
    stack_[position] = ValueOf(list);
    if (list.memo.has_value()) memo_[*list.memo] = MemoValue(stack_[position]);
    list = OpenList();
  }

  Value ValueOf(List& list) {
    if (list.elements == Type::kAbsent) return {Type::kList, 0};
    if (list.elements == Type::kOther) return {Type::kOther, 0};
    if (list.elements != Type::kFrame) {
      lists_.push_back(std::move(list));
      return {Type::kList, static_cast<int64_t>(lists_.size() - 1)};
    }
    const std::string key(reinterpret_cast<const char*>(list.numbers.data()),
                          list.numbers.size() * sizeof(list.numbers[0]));
    const auto [entry, is_new] = stack_numbers_.try_emplace(key, static_cast<uint32_t>(snapshot_.stacks.size()));
    if (is_new) snapshot_.stacks.push_back(std::move(list.numbers));
    return {Type::kStack, entry->second};
  }

  absl::StatusOr<Value> ValueOf(const Items& items) {
    const auto has = [&](Key key) { return items[key].type != Type::kAbsent; };
    if (has(kAction)) return EventOf(items);
    if (has(kBlocks)) return SegmentOf(items);
    if (has(kState) && has(kSize)) return BlockOf(items);
    if (has(kFilename) && has(kName)) return FrameOf(items);
    if (!has(kSegments) && !has(kDeviceTraces)) return Value{Type::kOther, 0};
    root_ = items;
    return Value{Type::kRoot, 0};
  }

  static absl::Status WrongType(const char* what, Key key, const char* expected) {
    return Wrong(Cat("'", kKeyNames[key], "' of ", what, " is not ", expected));
  }
  // These return the value of a key.
  static absl::StatusOr<int64_t> IntegerOf(const Items& items, const char* what, Key key, int64_t most) {
    const Value& value = items[key];
    if (value.type == Type::kInteger && value.number >= 0 && value.number <= most) return value.number;
    return WrongType(what, key, most == INT64_MAX ? "a whole number" : "a whole number of the right size");
  }
  static absl::StatusOr<uint32_t> TextOf(const Items& items, const char* what, Key key) {
    const Value& value = items[key];
    if (value.type == Type::kText) return static_cast<uint32_t>(value.number);
    return WrongType(what, key, "a text");
  }
  static absl::StatusOr<uint32_t> StackOf(const Items& items, const char* what) {
    const Value& value = items[kFrames];
    if (value.type == Type::kStack) return static_cast<uint32_t>(value.number);
    const bool is_empty = value.type == Type::kList && value.number == 0;
    if (value.type == Type::kAbsent || value.type == Type::kNone || is_empty) return 0;
    return WrongType(what, kFrames, "a list of frames");
  }
  // Takes the list: a second use of it finds no elements. PyTorch uses each list once.
  absl::StatusOr<std::vector<uint32_t>> NumbersOf(const Value& value, Type elements, const char* what, Key key) {
    if (value.type == Type::kList) {
      List& list = lists_[static_cast<size_t>(value.number)];
      if (list.elements == elements || list.elements == Type::kAbsent) return std::exchange(list.numbers, {});
    }
    return WrongType(what, key,
                     elements == Type::kBlock     ? "a list of blocks"
                     : elements == Type::kSegment ? "a list of segments"
                                                  : "a list of lists of events");
  }

  absl::StatusOr<Value> FrameOf(const Items& items) {
    TorchFrame frame;
    ASSIGN_OR_RETURN(frame.function, TextOf(items, "a frame", kName));
    ASSIGN_OR_RETURN(frame.file, TextOf(items, "a frame", kFilename));
    const Value& line = items[kLine];
    if (line.type == Type::kInteger) frame.line = std::max<int64_t>(line.number, 0);  // negative: not known
    if (line.type != Type::kInteger && line.type != Type::kAbsent) return WrongType("a frame", kLine, "a whole number");
    char key[sizeof(frame)];
    std::memcpy(key, &frame, sizeof(frame));
    const auto number = static_cast<uint32_t>(snapshot_.frames.size());
    const auto [entry, is_new] = frame_numbers_.try_emplace(std::string(key, sizeof(key)), number);
    if (is_new) snapshot_.frames.push_back(frame);
    return Value{Type::kFrame, entry->second};
  }

  absl::StatusOr<Value> EventOf(const Items& items) {
    constexpr const char* kWhat = "an event";
    constexpr std::pair<const char*, TorchAction> kActions[] = {
        {"alloc", TorchAction::kAlloc},
        {"free_requested", TorchAction::kFreeRequested},
        {"free_completed", TorchAction::kFreeCompleted},
        {"segment_alloc", TorchAction::kMap},
        {"segment_map", TorchAction::kMap},
        {"segment_free", TorchAction::kUnmap},
        {"segment_unmap", TorchAction::kUnmap},
        {"oom", TorchAction::kOutOfMemory},
        {"snapshot", TorchAction::kSnapshot},
    };
    ASSIGN_OR_RETURN(const uint32_t action_text, TextOf(items, kWhat, kAction));
    const std::string& action = snapshot_.texts.text(action_text);
    const auto* const found = std::find_if(std::begin(kActions), std::end(kActions),
                                           [&](const auto& known) { return action == known.first; });
    if (found == std::end(kActions)) {
      // Such as "annotate", which changes no memory.
      if (action != "annotate") ++snapshot_.left_out;
      return Value{Type::kEvent, kNoEvent};
    }
    TorchEvent event;
    event.action = found->second;
    if (event.action == TorchAction::kOutOfMemory) {
      if (items[kDeviceFree].type != Type::kAbsent) {
        ASSIGN_OR_RETURN(const int64_t free, IntegerOf(items, kWhat, kDeviceFree, kMostBytes));
        event.address = static_cast<uint64_t>(free);
      }
    } else if (event.action != TorchAction::kSnapshot) {
      ASSIGN_OR_RETURN(const int64_t address, IntegerOf(items, kWhat, kAddr, kMostAddress));
      event.address = static_cast<uint64_t>(address);
    }
    if (event.action != TorchAction::kSnapshot) {
      ASSIGN_OR_RETURN(event.bytes, IntegerOf(items, kWhat, kSize, kMostBytes));
    }
    if (items[kTimeUs].type != Type::kAbsent) {
      ASSIGN_OR_RETURN(event.time_us, IntegerOf(items, kWhat, kTimeUs, INT64_MAX));
    }
    ASSIGN_OR_RETURN(event.stack, StackOf(items, kWhat));
    if (items[kUserMetadata].type == Type::kText) {
      event.metadata = static_cast<uint32_t>(items[kUserMetadata].number);
    }
    if (snapshot_.events.size() == kMostEvents) return absl::ResourceExhaustedError("the trace has too many events");
    snapshot_.events.push_back(event);
    return Value{Type::kEvent, static_cast<int64_t>(snapshot_.events.size() - 1)};
  }

  absl::StatusOr<Value> BlockOf(const Items& items) {
    constexpr const char* kWhat = "a block";
    TorchBlock block;
    ASSIGN_OR_RETURN(const uint32_t state, TextOf(items, kWhat, kState));
    // A block that waits for a stream is free for the program.
    block.is_live = snapshot_.texts.text(state) == "active_allocated";
    ASSIGN_OR_RETURN(block.room, IntegerOf(items, kWhat, kSize, kMostBytes));
    block.bytes = block.room;
    const Value& requested = items[kRequestedSize];
    if (requested.type != Type::kAbsent) {
      ASSIGN_OR_RETURN(const int64_t bytes, IntegerOf(items, kWhat, kRequestedSize, kMostBytes));
      if (bytes > 0) block.bytes = std::min(bytes, block.room);
    }
    if (items[kAddress].type != Type::kAbsent) {
      ASSIGN_OR_RETURN(const int64_t address, IntegerOf(items, kWhat, kAddress, kMostAddress));
      block.address = static_cast<uint64_t>(address);
      block.has_address = true;
    }
    ASSIGN_OR_RETURN(block.stack, StackOf(items, kWhat));
    snapshot_.blocks.push_back(block);
    return Value{Type::kBlock, static_cast<int64_t>(snapshot_.blocks.size() - 1)};
  }

  absl::StatusOr<Value> SegmentOf(const Items& items) {
    constexpr const char* kWhat = "a segment";
    TorchSegment segment;
    ASSIGN_OR_RETURN(const int64_t device, IntegerOf(items, kWhat, kDevice, kMostDevices - 1));
    segment.device = static_cast<uint32_t>(device);
    ASSIGN_OR_RETURN(const int64_t address, IntegerOf(items, kWhat, kAddress, kMostAddress));
    segment.address = static_cast<uint64_t>(address);
    ASSIGN_OR_RETURN(segment.bytes, IntegerOf(items, kWhat, kTotalSize, kMostBytes));
    ASSIGN_OR_RETURN(segment.stack, StackOf(items, kWhat));
    ASSIGN_OR_RETURN(segment.blocks, NumbersOf(items[kBlocks], Type::kBlock, kWhat, kBlocks));
    snapshot_.segments.push_back(std::move(segment));
    return Value{Type::kSegment, static_cast<int64_t>(snapshot_.segments.size() - 1)};
  }

  // The result is a dictionary with the state and the traces, or the list of segments that
  // torch.cuda.memory_snapshot() returns.
  absl::Status End() {
    constexpr const char* kWhat = "the snapshot";
    const absl::Status none =
        Wrong("the pickle has no 'segments' and 'device_traces', so it is not a snapshot of PyTorch's memory");
    if (stack_.size() != 1) return none;
    Close(0);
    if (stack_[0].type == Type::kList) {
      List& list = lists_[static_cast<size_t>(stack_[0].number)];
      snapshot_.state = std::move(list.numbers);
      return list.elements == Type::kSegment ? absl::OkStatus() : none;
    }
    if (stack_[0].type != Type::kRoot) return none;
    const Value& segments = root_[kSegments];
    const Value& traces = root_[kDeviceTraces];
    if (segments.type != Type::kAbsent) {
      ASSIGN_OR_RETURN(snapshot_.state, NumbersOf(segments, Type::kSegment, kWhat, kSegments));
    }
    if (traces.type == Type::kAbsent) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<uint32_t> lists, NumbersOf(traces, Type::kList, kWhat, kDeviceTraces));
    if (lists.size() > kMostDevices) return absl::ResourceExhaustedError("there are too many devices");
    for (const uint32_t list : lists) {
      ASSIGN_OR_RETURN(snapshot_.traces.emplace_back(),
                       NumbersOf({Type::kList, list}, Type::kEvent, kWhat, kDeviceTraces));
    }
    return absl::OkStatus();
  }

  Input& input_;
  TorchSnapshot& snapshot_;
  std::array<int64_t, kKeys> key_texts_ = {};
  std::string text_;  // is here so that its memory is used again

  std::vector<Value> stack_;
  // The open lists. Each is on the stack exactly once, because it is closed before it is pushed again.
  std::vector<OpenList> open_;
  std::vector<size_t> free_;  // indices in open_
  std::deque<MemoValue> memo_;
  std::vector<List> lists_{1};  // [0] is empty
  Items root_;
  std::unordered_map<std::string, uint32_t> stack_numbers_;
  std::unordered_map<std::string, uint32_t> frame_numbers_;
};

}  // namespace

bool IsPickle(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  const GzipFile file = OpenGzip(path);
  char begin[2];
  return file != nullptr && gzread(file.get(), begin, sizeof(begin)) == sizeof(begin) &&
         static_cast<uint8_t>(begin[0]) == kProtocol && begin[1] >= 2 && begin[1] <= 5;
}

absl::Status ReadPickle(const std::string& path, TorchSnapshot* snapshot) {
  GzipFile file = OpenGzip(path);
  if (file == nullptr) {
    const int error = errno;
    const std::string text = Cat(path, ": cannot be opened: ", std::strerror(error));
    if (error == ENOENT) return absl::NotFoundError(text);
    return error == EACCES ? absl::PermissionDeniedError(text) : absl::InternalError(text);
  }
  struct stat info = {};
  stat(path.c_str(), &info);
  Input input(std::move(file), static_cast<size_t>(std::max<off_t>(info.st_size, 0)));
  const absl::Status status = Machine(input, *snapshot).Run();
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      Cat(path, ": is not readable as a snapshot of PyTorch: ", std::string(status.message())));
}

}  // namespace hbmprof::tool
