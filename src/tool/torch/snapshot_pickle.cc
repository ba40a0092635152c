// Reads the pickle.
//
// The contents are not built as a tree. A dictionary becomes the number of a frame, an event, a block or a segment in
// the TorchSnapshot, by its keys, as soon as its items are set: a pickle sets them all at once. A list can get elements
// many times; it holds their numbers until a dictionary uses it.
#include <sys/stat.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "src/tool/torch/torch_snapshot.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr uint8_t kProtocol = 0x80;
constexpr uint64_t kMostInputBytes = uint64_t{64} << 30;  // a small gzip file can have very many
constexpr size_t kMostTextBytes = size_t{16} << 20;
constexpr size_t kMostValues = size_t{1} << 24;      // on the stack
constexpr size_t kMostOpen = size_t{1} << 20;        // lists that no dictionary has used
constexpr size_t kMostMemoValues = size_t{1} << 26;  // in the memo; lists and dictionaries, too
constexpr size_t kMostDevices = 1024;
constexpr size_t kMostEvents = UINT32_MAX - 1;
constexpr int64_t kMostAddress = (int64_t{1} << 50) - 1;  // RecordedEvent::id has more bits for other purposes
constexpr int64_t kMostBytes = int64_t{1} << 48;

using GzipFile = std::unique_ptr<gzFile_s, int (*)(gzFile)>;

// Opens a file; zlib also reads files that are not compressed. Null, with errno set, on failure.
GzipFile OpenGzip(const std::string& path) { return {gzopen(path.c_str(), "rbe"), &gzclose_r}; }

class Input {
 public:
  Input(GzipFile file, size_t file_bytes)
      : file_(std::move(file)), progress_(file_bytes >> 20, "MiB of the snapshot read") {
    gzbuffer(file_.get(), 1 << 20);
  }

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

enum class Type : uint8_t {
  kAbsent,     // a dictionary has no such key
  kNone,       // None
  kOther,      // a value of which nothing is read
  kInteger,    // the number itself
  kText,       // number of a text
  kMark,       // the start of the elements of a container
  kContainer,  // a list or a dictionary: index in Machine::containers_, which has values of the types below
  kDictionary,
  kRoot,      // the dictionary with the segments or the traces
  kOpenList,  // index in Machine::open_
  kUsedList,  // the Type of its elements
  kFrame,     // these have the number of an element of the TorchSnapshot
  kStack,
  kEvent,
  kBlock,
  kSegment,
};
constexpr int64_t kNoEvent = UINT32_MAX;  // the number of an event that is left out

// A type and a number of at most 56 bits.
class Value {
 public:
  Value() = default;
  Value(Type type, int64_t number) : word_(static_cast<uint64_t>(number) << 8 | static_cast<uint64_t>(type)) {}
  Type type() const { return static_cast<Type>(word_ & 0xff); }
  int64_t number() const { return static_cast<int64_t>(word_) >> 8; }
  size_t index() const { return static_cast<size_t>(number()); }

 private:
  uint64_t word_ = static_cast<uint64_t>(Type::kAbsent);
};

// The keys that are read: the type of the value (of a list, of its elements), the same in words, and the largest
// number.
#define HBMPROF_KEYS(KEY)                                                              \
  KEY(name, kText, "a text", 0)                                                        \
  KEY(filename, kText, "a text", 0)                                                    \
  KEY(line, kInteger, "a whole number", INT64_MAX)                                     \
  KEY(frames, kFrame, "a list of frames", 0)                                           \
  KEY(action, kText, "a text", 0)                                                      \
  KEY(addr, kInteger, "a whole number of the right size", kMostAddress)                \
  KEY(device_free, kInteger, "a whole number of the right size", kMostBytes)           \
  KEY(size, kInteger, "a whole number of the right size", kMostBytes)                  \
  KEY(time_us, kInteger, "a whole number", INT64_MAX)                                  \
  KEY(user_metadata, kText, "a text", 0)                                               \
  KEY(stream, kInteger, "a whole number", INT64_MAX)                                   \
  KEY(address, kInteger, "a whole number of the right size", kMostAddress)             \
  KEY(requested_size, kInteger, "a whole number of the right size", kMostBytes)        \
  KEY(state, kText, "a text", 0)                                                       \
  KEY(device, kInteger, "a whole number of the right size", int64_t{kMostDevices} - 1) \
  KEY(total_size, kInteger, "a whole number of the right size", kMostBytes)            \
  KEY(blocks, kBlock, "a list of blocks", 0)                                           \
  KEY(segments, kSegment, "a list of segments", 0)                                     \
  KEY(device_traces, kContainer, "a list of lists of events", 0)                       \
  KEY(PYTORCH_CUDA_ALLOC_CONF, kText, "a text", 0)

#define HBMPROF_KEY_ENUM(name, ...) k_##name,
#define HBMPROF_KEY_INFO(name, type, ...) {#name, Type::type, __VA_ARGS__},
enum Key : uint8_t { HBMPROF_KEYS(HBMPROF_KEY_ENUM) kKeys };
struct KeyInfo {
  const char* name;
  Type type;
  const char* expected;
  int64_t most;
};
constexpr KeyInfo kKeyInfos[] = {HBMPROF_KEYS(HBMPROF_KEY_INFO)};

class Machine {
 public:
  Machine(Input& input, TorchSnapshot& snapshot) : input_(input), snapshot_(snapshot) {
    for (uint8_t key = 0; key < kKeys; ++key) key_texts_[key] = snapshot_.texts.Number(kKeyInfos[key].name);
    for (const Instruction& instruction : kInstructions) instructions_[instruction.code] = &instruction;
    snapshot_.stacks.Number({});
  }

  // Runs the program of the pickle. The message of an error has the number of the byte.
  absl::Status Run() {
    for (size_t steps = 0; !has_ended_; ++steps) {
      if (steps % (1 << 20) == 0) input_.ReportProgress();
      const uint64_t at = input_.position();
      if (const absl::Status status = Step(at); !status.ok()) return In(Cat("byte ", at), status);
    }
    return absl::OkStatus();
  }

 private:
  struct Instruction {
    uint8_t code;
    absl::Status (Machine::*run)(uint64_t argument);
    size_t argument_bytes = 0;
    uint64_t argument = 0;  // if it has no bytes
  };
  static const Instruction kInstructions[31];

  // The numbers of elements of one type. kAbsent: it has none; kOther: the types differ, or are not read.
  struct List {
    Type elements = Type::kAbsent;
    std::vector<uint32_t> numbers;
  };

  absl::Status Truncated() const {
    return InvalidArgument(input_.problem().empty() ? "the file ends in the middle of the pickle" : input_.problem());
  }

  absl::Status Step(uint64_t at) {
    uint64_t code;
    if (!input_.ReadNumber(1, &code)) return Truncated();
    if (at > kMostInputBytes) return ResourceExhausted("the pickle is larger than 64 GiB");
    if ((at == 0) != (code == kProtocol)) return InvalidArgument("the start of a pickle is expected once, at byte 0");
    const Instruction* const instruction = instructions_[code];
    if (instruction == nullptr) {
      return InvalidArgument(
          "the pickle has the instruction 0x", absl::StrCat(absl::Hex(code, absl::kZeroPad2)),
          ", which is not one for plain data; hbmprof does not run it: a pickle can execute any code");
    }
    uint64_t argument = instruction->argument;
    const size_t bytes = instruction->argument_bytes;
    if (bytes != 0 && !input_.ReadNumber(bytes, &argument)) return Truncated();
    return (this->*instruction->run)(argument);
  }

  absl::Status Protocol(uint64_t version) {
    return version >= 2 && version <= 5 ? absl::OkStatus()
                                        : InvalidArgument("the pickle has protocol ", version, "; 2 to 5 can be read");
  }

  // The length of the next part, which is not needed.
  absl::Status Frame(uint64_t) { return absl::OkStatus(); }

  absl::Status Push(const Value& value) {
    if (stack_.size() == kMostValues) return ResourceExhausted("the stack of the pickle is too large");
    stack_.push_back(value);
    return absl::OkStatus();
  }

  absl::Status PushType(uint64_t type) { return Push({static_cast<Type>(type), 0}); }
  absl::Status Float(uint64_t) { return Push({Type::kOther, 0}); }
  absl::Status Integer(uint64_t number) { return Push({Type::kInteger, static_cast<int64_t>(number)}); }
  absl::Status SignedInteger(uint64_t number) { return Push({Type::kInteger, static_cast<int32_t>(number)}); }

  absl::Status Long(uint64_t bytes) {
    if (!input_.Read(bytes, &text_)) return Truncated();
    if (bytes > 8) return Push({Type::kOther, 0});
    uint64_t number = bytes > 0 && static_cast<int8_t>(text_.back()) < 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes; i > 0; --i) number = number << 8 | static_cast<uint8_t>(text_[i - 1]);
    const Value value = {Type::kInteger, static_cast<int64_t>(number)};
    // No number that is read is larger than a Value.
    return Push(value.number() == static_cast<int64_t>(number) ? value : Value(Type::kOther, 0));
  }

  absl::Status Text(uint64_t length) {
    if (length > kMostTextBytes) return ResourceExhausted("a text has ", length, " bytes");
    if (!input_.Read(length, &text_)) return Truncated();
    return Push({Type::kText, snapshot_.texts.Number(text_)});
  }

  absl::Status NewDictionary(uint64_t) { return PushContainer({Type::kDictionary, 0}); }
  absl::Status NewList(uint64_t) {
    if (free_.empty()) {
      if (open_.size() == kMostOpen) return ResourceExhausted("the pickle has too many open lists");
      free_.push_back(open_.size());
      open_.emplace_back();
    }
    const size_t index = free_.back();
    free_.pop_back();
    return PushContainer({Type::kOpenList, static_cast<int64_t>(index)});
  }
  absl::Status PushContainer(const Value& contents) {
    if (containers_.size() == kMostMemoValues) return ResourceExhausted("the pickle has too many lists");
    containers_.push_back(contents);
    return Push({Type::kContainer, static_cast<int64_t>(containers_.size() - 1)});
  }

  absl::Status Memoize(uint64_t) { return Put(memo_.size()); }
  absl::Status Put(uint64_t number) {
    if (stack_.empty() || stack_.back().type() == Type::kMark) {
      return InvalidArgument("the value for the memo is missing");
    }
    if (number > memo_.size()) return InvalidArgument("number ", number, " of the memo comes before smaller ones");
    if (number >= kMostMemoValues) return ResourceExhausted("the memo of the pickle is too large");
    if (stack_.back().type() == Type::kInteger) return InvalidArgument("a number is put into the memo");
    if (number == memo_.size()) memo_.emplace_back();
    memo_[number] = stack_.back();
    return absl::OkStatus();
  }
  absl::Status Get(uint64_t number) {
    return number < memo_.size() ? Push(memo_[number]) : InvalidArgument("the memo has no number ", number);
  }

  // Moves the last `count` values from the stack to values_; if it is 0, those after the last mark, and removes the
  // mark.
  absl::Status Take(uint64_t count) {
    if (stack_.size() < count) return InvalidArgument("an element of a container is missing");
    size_t first = stack_.size() - count;
    if (count == 0) {
      while (first > 0 && stack_[first - 1].type() != Type::kMark) --first;
      if (first == 0) return InvalidArgument("the start of a container is missing");
    }
    values_.assign(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(count == 0 ? first - 1 : first);
    return absl::OkStatus();
  }

  // The elements of a tuple are not read.
  absl::Status Tuple(uint64_t count) {
    RETURN_IF_ERROR(Take(count));
    for (const Value& value : values_) Close(value);
    return Push({Type::kOther, 0});
  }

  Value Contents(const Value& value) const {
    return value.type() == Type::kContainer ? containers_[value.index()] : value;
  }
  Value Last() const { return stack_.empty() ? Value() : Contents(stack_.back()); }

  // Adds elements to the list below them.
  absl::Status Append(uint64_t count) {
    RETURN_IF_ERROR(Take(count));
    const Value contents = Last();
    if (contents.type() != Type::kOpenList) {
      return InvalidArgument("an element is added to a value that is not a list, or that is in use already");
    }
    List& list = open_[contents.index()];
    for (const Value& value : values_) {
      Value element = Contents(value);
      if (element.type() == Type::kOpenList || element.type() == Type::kUsedList) element = value;
      const bool is_read = element.type() >= Type::kFrame || element.type() == Type::kContainer;
      if (list.elements == Type::kAbsent) list.elements = element.type();
      if (!is_read || list.elements != element.type()) list.elements = Type::kOther;
      if (list.elements != Type::kOther && element.number() != kNoEvent) {
        list.numbers.push_back(static_cast<uint32_t>(element.number()));
      }
    }
    return absl::OkStatus();
  }

  // Adds pairs of keys and values to the dictionary below them.
  absl::Status SetItems(uint64_t count) {
    RETURN_IF_ERROR(Take(count));
    if (Last().type() != Type::kDictionary) {
      return InvalidArgument("an element is added to a value that is not a dictionary, or that is in use already");
    }
    if (values_.size() % 2 != 0) return InvalidArgument("a key has no value");
    items_.fill(Value());
    for (size_t i = 0; i < values_.size(); i += 2) {
      if (values_[i].type() != Type::kText) continue;
      const auto* const key = absl::c_find(key_texts_, values_[i].number());
      if (key != key_texts_.end()) items_[static_cast<size_t>(key - key_texts_.begin())] = values_[i + 1];
    }
    const Value made = ValueOfItems();
    containers_[stack_.back().index()] = made;
    if (made.type() == Type::kRoot) return problem_;
    for (const Value& value : values_) Close(value);
    return problem_;
  }

  // No more elements can be added to the list, if `value` is one.
  void Close(const Value& value) {
    const Value contents = Contents(value);
    if (contents.type() != Type::kOpenList) return;
    List& list = open_[contents.index()];
    containers_[value.index()] = {Type::kUsedList, static_cast<int64_t>(list.elements)};
    list.elements = Type::kAbsent;
    list.numbers.clear();
    free_.push_back(contents.index());
  }

  bool Has(Key key) const { return items_[key].type() != Type::kAbsent; }

  // Makes an element of the TorchSnapshot of items_. Sets problem_ if they are not as PyTorch writes them.
  Value ValueOfItems() {
    if (Has(k_action)) return MakeEvent();
    if (Has(k_blocks)) return MakeSegment();
    if (Has(k_state) && Has(k_size)) return MakeBlock();
    if (Has(k_filename) && Has(k_name)) return MakeFrame();
    if (Has(k_PYTORCH_CUDA_ALLOC_CONF)) snapshot_.settings = TextOf(k_PYTORCH_CUDA_ALLOC_CONF);
    // A dictionary of another kind is not read.
    if (!Has(k_segments) && !Has(k_device_traces)) return {Type::kDictionary, 0};
    root_ = items_;
    return {Type::kRoot, 0};
  }

  void SetWrong(Key key) {
    problem_ = InvalidArgument("'", kKeyInfos[key].name, "' of ", what_, " is not ", kKeyInfos[key].expected);
  }

  // These return the value of a key. If it is not as the key demands, they set problem_.

  // `missing`: the value if there is no such key; without it, the key must be there.
  int64_t IntegerOf(Key key, std::optional<int64_t> missing = std::nullopt) {
    const Value value = items_[key];
    if (value.type() == Type::kAbsent && missing.has_value()) return *missing;
    if (value.type() == Type::kInteger && value.number() >= 0 && value.number() <= kKeyInfos[key].most) {
      return value.number();
    }
    SetWrong(key);
    return 0;
  }
  uint32_t TextOf(Key key) {
    if (items_[key].type() == Type::kText) return static_cast<uint32_t>(items_[key].number());
    SetWrong(key);
    return 0;
  }
  uint32_t StackOf() {
    const Value value = items_[k_frames];
    Value contents = Contents(value);
    if (contents.type() == Type::kOpenList && open_[contents.index()].elements == Type::kFrame) {
      contents = {Type::kStack, snapshot_.stacks.Number(open_[contents.index()].numbers)};
      Close(value);
      containers_[value.index()] = contents;
    }
    if (contents.type() == Type::kStack) return static_cast<uint32_t>(contents.number());
    if (contents.type() != Type::kAbsent && contents.type() != Type::kNone) NumbersOf(value, k_frames, Type::kFrame);
    return 0;
  }
  std::vector<uint32_t> NumbersOf(Key key) {
    return Has(key) ? NumbersOf(items_[key], key, kKeyInfos[key].type) : std::vector<uint32_t>();
  }
  // Takes the numbers: a second use of the list finds none. PyTorch uses each list once.
  std::vector<uint32_t> NumbersOf(const Value& list, Key key, Type type) {
    const Value contents = Contents(list);
    const bool is_open = contents.type() == Type::kOpenList;
    const Type elements = is_open                              ? open_[contents.index()].elements
                          : contents.type() == Type::kUsedList ? static_cast<Type>(contents.number())
                                                               : Type::kOther;
    if (elements != type && elements != Type::kAbsent) SetWrong(key);
    return is_open ? std::exchange(open_[contents.index()].numbers, {}) : std::vector<uint32_t>();
  }

  template <typename Element>
  static Value Add(Type type, Element element, std::vector<Element>& elements) {
    elements.push_back(std::move(element));
    return {type, static_cast<int64_t>(elements.size() - 1)};
  }

  Value MakeFrame() {
    what_ = "a frame";
    TorchFrame frame = {TextOf(k_name), TextOf(k_filename), 0};
    const Value line = items_[k_line];
    if (line.type() != Type::kInteger && line.type() != Type::kAbsent) SetWrong(k_line);
    frame.line = std::max<int64_t>(line.number(), 0);  // negative: not known
    const auto [entry, is_new] = frame_numbers_.try_emplace({frame.function, frame.file, frame.line});
    if (is_new) entry->second = Add(Type::kFrame, frame, snapshot_.frames);
    return entry->second;
  }

  Value MakeEvent() {
    what_ = "an event";
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
    const std::string& action = snapshot_.texts[TextOf(k_action)];
    const auto* const found = absl::c_find_if(kActions, [&](const auto& known) { return action == known.first; });
    if (found == std::end(kActions)) {
      // Such as "annotate", which changes no memory.
      if (action != "annotate") ++snapshot_.left_out;
      return {Type::kEvent, kNoEvent};
    }
    TorchEvent event;
    event.action = found->second;
    if (event.action == TorchAction::kOutOfMemory) {
      event.address = static_cast<uint64_t>(IntegerOf(k_device_free, 0));
    } else if (event.action != TorchAction::kSnapshot) {
      event.address = static_cast<uint64_t>(IntegerOf(k_addr));
    }
    if (event.action != TorchAction::kSnapshot) event.bytes = IntegerOf(k_size);
    event.time_us = IntegerOf(k_time_us, 0);
    if (items_[k_stream].type() == Type::kInteger) event.stream = items_[k_stream].number();
    event.stack = StackOf();
    if (items_[k_user_metadata].type() == Type::kText) event.metadata = TextOf(k_user_metadata);
    if (snapshot_.events.size() == kMostEvents) problem_ = ResourceExhausted("the trace has too many events");
    return Add(Type::kEvent, event, snapshot_.events);
  }

  Value MakeBlock() {
    what_ = "a block";
    TorchBlock block;
    // A block that waits for a stream is free for the program.
    block.is_live = snapshot_.texts[TextOf(k_state)] == "active_allocated";
    block.room = block.bytes = IntegerOf(k_size);
    if (const int64_t requested = IntegerOf(k_requested_size, 0); requested > 0) {
      block.bytes = std::min(requested, block.room);
    }
    block.has_address = Has(k_address);
    block.address = static_cast<uint64_t>(IntegerOf(k_address, 0));
    block.stack = StackOf();
    return Add(Type::kBlock, block, snapshot_.blocks);
  }

  Value MakeSegment() {
    what_ = "a segment";
    TorchSegment segment;
    segment.device = static_cast<uint32_t>(IntegerOf(k_device));
    segment.address = static_cast<uint64_t>(IntegerOf(k_address));
    segment.bytes = IntegerOf(k_total_size);
    segment.stack = StackOf();
    segment.blocks = NumbersOf(k_blocks);
    return Add(Type::kSegment, std::move(segment), snapshot_.segments);
  }

  // The result is a dictionary with the state and the traces.
  absl::Status End(uint64_t) {
    what_ = "the snapshot";
    has_ended_ = true;
    const Value result = stack_.size() == 1 ? Last() : Value();
    if (result.type() != Type::kRoot) {
      return InvalidArgument(
          "the pickle has no 'segments' and 'device_traces', so it is not a snapshot of PyTorch's memory");
    }
    items_ = root_;
    snapshot_.state = NumbersOf(k_segments);
    const std::vector<uint32_t> lists = NumbersOf(k_device_traces);
    if (lists.size() > kMostDevices) return ResourceExhausted("there are too many devices");
    for (const uint32_t list : lists) {
      snapshot_.traces.push_back(NumbersOf({Type::kContainer, list}, k_device_traces, Type::kEvent));
    }
    return problem_;
  }

  Input& input_;
  TorchSnapshot& snapshot_;
  std::array<const Instruction*, 256> instructions_ = {};  // by code
  std::array<int64_t, kKeys> key_texts_ = {};
  bool has_ended_ = false;
  const char* what_ = "";  // what is made of items_
  absl::Status problem_;
  std::array<Value, kKeys> items_;  // of a dictionary
  std::array<Value, kKeys> root_;
  // These are here so that their memory is used again.
  std::string text_;
  std::vector<Value> values_;

  std::vector<Value> stack_;
  std::deque<Value> memo_;
  std::deque<Value> containers_;
  std::vector<List> open_;
  std::vector<size_t> free_;  // indices in open_
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, int64_t>, Value> frame_numbers_;
};

const Machine::Instruction Machine::kInstructions[31] = {
    {kProtocol, &Machine::Protocol, 1},
    {0x95, &Machine::Frame, 8},
    {'.', &Machine::End},
    {'(', &Machine::PushType, 0, static_cast<uint64_t>(Type::kMark)},
    {'N', &Machine::PushType, 0, static_cast<uint64_t>(Type::kNone)},
    {')', &Machine::PushType, 0, static_cast<uint64_t>(Type::kOther)},   // the empty tuple
    {0x88, &Machine::PushType, 0, static_cast<uint64_t>(Type::kOther)},  // True
    {0x89, &Machine::PushType, 0, static_cast<uint64_t>(Type::kOther)},  // False
    {'G', &Machine::Float, 8},
    {'K', &Machine::Integer, 1},
    {'M', &Machine::Integer, 2},
    {'J', &Machine::SignedInteger, 4},
    {0x8a, &Machine::Long, 1},
    {0x8c, &Machine::Text, 1},
    {'X', &Machine::Text, 4},
    {0x8d, &Machine::Text, 8},
    {']', &Machine::NewList},
    {'}', &Machine::NewDictionary},
    {0x85, &Machine::Tuple, 0, 1},
    {0x86, &Machine::Tuple, 0, 2},
    {0x87, &Machine::Tuple, 0, 3},
    {'t', &Machine::Tuple},
    {'a', &Machine::Append, 0, 1},
    {'e', &Machine::Append},
    {'s', &Machine::SetItems, 0, 2},
    {'u', &Machine::SetItems},
    {0x94, &Machine::Memoize},
    {'q', &Machine::Put, 1},
    {'r', &Machine::Put, 4},
    {'h', &Machine::Get, 1},
    {'j', &Machine::Get, 4},
};

}  // namespace

bool BeginsAsPickle(std::string_view bytes) {
  return bytes.size() >= 2 && static_cast<uint8_t>(bytes[0]) == kProtocol && bytes[1] >= 2 && bytes[1] <= 5;
}

bool IsPickle(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  const GzipFile file = OpenGzip(path);
  char begin[2];
  return file != nullptr && gzread(file.get(), begin, sizeof(begin)) == sizeof(begin) &&
         BeginsAsPickle({begin, sizeof(begin)});
}

absl::Status ReadPickle(const std::string& path, TorchSnapshot* snapshot) {
  GzipFile file = OpenGzip(path);
  if (file == nullptr) return absl::ErrnoToStatus(errno, Cat(path, ": cannot be opened"));
  struct stat info = {};
  stat(path.c_str(), &info);
  Input input(std::move(file), static_cast<size_t>(std::max<off_t>(info.st_size, 0)));
  return In(Cat(path, ": is not readable as a snapshot of PyTorch"), Machine(input, *snapshot).Run());
}

}  // namespace hbmprof::tool
