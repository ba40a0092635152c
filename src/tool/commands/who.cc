// `hbmprof who`: finds the buffers to which an address belonged.
#include <deque>

#include "src/tool/commands/command.h"
#include "src/tool/recording/cursor.h"
#include "src/tool/recording/instant.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

using internal::AddressOfBuffer;

struct WhoOptions {
  std::string recording;  // may name a moment
  std::string address;
  bool json = false;
};

struct Owner {
  uint64_t id = 0;
  uint32_t site = 0;
  int64_t bytes = 0;
  std::optional<int64_t> allocated;  // not set: before the recording
  uint16_t thread = 0;
  std::optional<int64_t> freed;  // not set: live at the end
  uint16_t freeing_thread = 0;

  bool IsLiveAt(int64_t time) const {
    return allocated.value_or(INT64_MIN) <= time && time < freed.value_or(INT64_MAX);
  }
};

bool Contains(uint64_t id, int64_t bytes, uint64_t address) {
  const std::optional<uint64_t> start = AddressOfBuffer(id);
  // A buffer of 0 bytes contains its own address only.
  return start.has_value() && address >= *start &&
         address - *start < static_cast<uint64_t>(std::max<int64_t>(bytes, 1));
}

// The buffers that contained the address.
struct Owners {
  std::deque<Owner> shown;  // in the order of their allocations: the last ones, or those of a given instant
  size_t count = 0;         // of all
};
constexpr size_t kMostShown = 10;

// Returns the last kMostShown owners. If `time` is set, returns all owners that are live at this time instead.
Owners OwnersOf(RecordingReader& recording, uint64_t address, std::optional<int64_t> time) {
  Owners owners;
  std::deque<Owner>& shown = owners.shown;
  const auto is_wanted = [time](const Owner& owner) { return !time.has_value() || owner.IsLiveAt(*time); };
  const auto begin = [&](const Owner& owner) {
    ++owners.count;
    if (time.has_value() && owner.allocated.value_or(INT64_MIN) > *time) return;
    if (shown.size() >= kMostShown) {
      // A free may still be undone, so at first each owner is kept.
      const auto least = time.has_value() ? absl::c_find_if_not(shown, is_wanted) : shown.begin();
      if (least != shown.end()) shown.erase(least);
    }
    shown.push_back(owner);
  };
  for (const RecordingTables::Live& live : recording.tables().live) {
    if (Contains(live.id, live.bytes, address)) begin({live.id, live.site, live.bytes, {}, 0, {}, 0});
  }
  RecordedEvent event;
  RecordingCursor cursor(recording);
  while (cursor.Next(&event)) {
    const bool begins = internal::Begins(event.kind);
    if ((!begins && !internal::Ends(event.kind)) || !Contains(event.id, event.bytes, address)) continue;
    const auto latest = std::find_if(shown.rbegin(), shown.rend(), [&](const Owner& owner) {
      return owner.id == event.id && owner.site == event.site && owner.freed.has_value() == begins;
    });
    if (!begins && latest != shown.rend()) {
      latest->freed = event.time;
      latest->freeing_thread = event.thread;
    } else if (begins) {
      begin({event.id, event.site, event.bytes, event.time, event.thread, {}, 0});
    }
  }
  EraseIf(shown, std::not_fn(is_wanted));
  return owners;
}

std::string BufferText(const OpenedRecording& recording, uint64_t start, uint32_t site, int64_t bytes) {
  const RecordingTables& tables = recording.reader->tables();
  const Snapshot::Sample& sample = tables.sites[site];
  return absl::StrFormat("0x%x to 0x%x  %s  %s %s  %s\n", start, start + static_cast<uint64_t>(bytes), Bytes(bytes),
                         tables.names.devices[sample.device].name, MemoryKindName(sample.kind),
                         recording.stacks.own_frame(sample.stack).name);
}

std::string OwnerText(const OpenedRecording& recording, const Owner& owner, uint64_t address) {
  const RecordingTables& tables = recording.reader->tables();
  const uint64_t start = *AddressOfBuffer(owner.id);
  const auto at = [&](std::optional<int64_t> time, uint16_t thread, const char* otherwise) {
    if (!time.has_value()) return std::string(otherwise);
    const RecordingTables::Thread& by = tables.threads[thread];
    return Cat(TimeText(tables, *time), ", by thread ", by.id, by.name.empty() ? "" : " ", by.name);
  };
  std::string text =
      Cat(BufferText(recording, start, owner.site, owner.bytes), "  offset    ", address - start, " of ", owner.bytes,
          " bytes\n  allocated ", at(owner.allocated, owner.thread, "before the recording"), "\n  freed     ",
          at(owner.freed, owner.freeing_thread, "not before the end of the recording"), "\n");
  for (const auto& [key, value] : tables.sites[owner.site].tags) text += Cat("  tag       ", key, "=", value, "\n");
  for (const uint32_t number : recording.stacks.stack(tables.sites[owner.site].stack)) {
    const RecordedStacks::Frame& frame = recording.stacks.frames()[number];
    const std::string position = frame.Position();
    text += Cat("    ", frame.name, position.empty() ? "" : "  ", position, "\n");
  }
  return text;
}

// The nearest live buffers before and after an address, which do not contain it, by their address; null: there is none.
struct LiveNeighbours {
  std::pair<uint64_t, const RecordingState::Buffer*> before = {0, nullptr};
  std::pair<uint64_t, const RecordingState::Buffer*> after = {UINT64_MAX, nullptr};
};
LiveNeighbours NeighboursIn(const RecordingState& state, uint64_t address) {
  LiveNeighbours found;
  for (const auto& [id, buffer] : state.live()) {
    const std::optional<uint64_t> start = AddressOfBuffer(id);
    if (!start.has_value() || Contains(id, buffer.bytes, address)) continue;
    if (*start < address && (found.before.second == nullptr || *start > found.before.first)) {
      found.before = {*start, &buffer};
    }
    if (*start > address && *start < found.after.first) found.after = {*start, &buffer};
  }
  return found;
}

std::string NeighboursText(const OpenedRecording& recording, const LiveNeighbours& neighbours, int64_t time) {
  std::string text = Cat("Live next to it at ", TimeText(recording.reader->tables(), time), ":\n");
  for (const auto& [where, found] : {std::pair("before", neighbours.before), std::pair("after", neighbours.after)}) {
    const auto& [start, buffer] = found;
    text += buffer == nullptr
                ? Cat("  nothing ", where, " it\n")
                : absl::StrFormat("  %-8s%s", where, BufferText(recording, start, buffer->site, buffer->bytes));
  }
  return text;
}

Json BufferJson(const OpenedRecording& recording, uint64_t start, uint32_t site, int64_t bytes) {
  const RecordingTables& tables = recording.reader->tables();
  const Snapshot::Sample& sample = tables.sites[site];
  const RecordedStacks::Frame& frame = recording.stacks.own_frame(sample.stack);
  return {{"address", absl::StrFormat("0x%x", start)},
          {"bytes", bytes},
          {"device", tables.names.devices[sample.device].name},
          {"kind", std::string(MemoryKindName(sample.kind))},
          {"function", frame.name},
          {"where", frame.Position()}};
}

Json OwnerJson(const OpenedRecording& recording, const Owner& owner, uint64_t address) {
  const RecordingTables& tables = recording.reader->tables();
  const uint64_t start = *AddressOfBuffer(owner.id);
  Json json = BufferJson(recording, start, owner.site, owner.bytes);
  json["offset"] = address - start;
  const auto add = [&](const std::string& what, std::optional<int64_t> time, uint16_t thread) {
    const bool is_known = time.has_value();
    json[what + "_seconds"] = is_known ? Json(static_cast<double>(Minus(*time, tables.start_time)) / 1e9) : Json();
    json[what + "_thread"] = is_known ? Json(tables.threads[thread].id) : Json();
  };
  add("allocated", owner.allocated, owner.thread);
  add("freed", owner.freed, owner.freeing_thread);
  const auto& tags = tables.sites[owner.site].tags;
  json["labels"] = ObjectOf({tags.begin(), tags.end()});
  Json& stack = json["stack"] = Json::array();
  for (const uint32_t number : recording.stacks.stack(tables.sites[owner.site].stack)) {
    const RecordedStacks::Frame& frame = recording.stacks.frames()[number];
    stack.push_back({{"function", frame.name}, {"where", frame.Position()}});
  }
  return json;
}

Json ToJson(const OpenedRecording& recording, const Owners& owners, const LiveNeighbours& neighbours,
            uint64_t address) {
  Json json = {{"version", kJsonVersion},
               {"address", absl::StrFormat("0x%x", address)},
               {"owner_count", owners.count},
               {"owners", Json::array()}};
  for (auto owner = owners.shown.rbegin(); owner != owners.shown.rend(); ++owner) {
    json["owners"].push_back(OwnerJson(recording, *owner, address));
  }
  for (const auto& [where, found] : {std::pair("before", neighbours.before), std::pair("after", neighbours.after)}) {
    const auto& [start, buffer] = found;
    json[where] = buffer == nullptr ? Json() : BufferJson(recording, start, buffer->site, buffer->bytes);
  }
  return json;
}

// Reads "0x7f0000200000", or a decimal number. Returns nullopt for anything else.
std::optional<uint64_t> ParseAddress(const std::string& text) {
  const bool is_hexadecimal = text.rfind("0x", 0) == 0 || text.rfind("0X", 0) == 0;
  uint64_t address = 0;
  // These functions also accept a sign, and space around the number.
  const bool is_number = text.find_first_not_of("0123456789abcdefABCDEFxX") == std::string::npos &&
                         (is_hexadecimal ? absl::SimpleHexAtoi(text, &address) : absl::SimpleAtoi(text, &address));
  return is_number ? std::optional(address) : std::nullopt;
}

absl::StatusOr<int> RunWho(const WhoOptions& options) {
  const std::optional<uint64_t> address = ParseAddress(options.address);
  if (!address.has_value()) return InvalidArgument("'", options.address, "' is not an address such as 0x7f0000200000");
  const SourceParts source = PartsOf(options.recording);
  ASSIGN_OR_RETURN(const OpenedRecording opened, OpenRecording(source.file, {}));
  RecordingReader& recording = *opened.reader;
  std::optional<int64_t> time;
  if (source.moment.has_value()) {
    ASSIGN_OR_RETURN(const RecordedInstant instant, In(source.file, InstantNamed(recording, *source.moment)));
    time = instant.time;
  }

  const Owners found = OwnersOf(recording, *address, time);
  const std::deque<Owner>& owners = found.shown;
  const int64_t instant = time.value_or(recording.end_time());
  const RecordingState state = StateAt(recording, InstantAt(recording, instant));
  const LiveNeighbours neighbours = NeighboursIn(state, *address);
  WarnOfGaps("who", source.file, recording);
  if (options.json) {
    Print(ToText(ToJson(opened, found, neighbours, *address)));
    return owners.empty() ? kFinding : kSuccess;
  }
  std::string text;
  // The latest buffer is shown first, because it is the most probable cause of a fault.
  for (auto owner = owners.rbegin(); owner != owners.rend(); ++owner)
    text += OwnerText(opened, *owner, *address) + "\n";
  if (!time.has_value() && found.count > owners.size()) {
    text += Cat("... and ", found.count - owners.size(),
                " earlier buffers; RECORDING@TIME shows the one of an instant\n\n");
  }
  if (owners.empty()) {
    text += time.has_value() && found.count != 0
                ? Cat("At this time, no buffer had the address. Number of buffers that had it at other times: ",
                      found.count, ".\n")
                : std::string("No recorded buffer had the address.\n");
  }
  Print(text + NeighboursText(opened, neighbours, instant));
  return owners.empty() ? kFinding : kSuccess;
}

}  // namespace

Command AddWhoCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("who", "Show which buffers of a recording had an address");
  auto options = std::make_shared<WhoOptions>();
  arguments
      ->add_option("RECORDING", options->recording,
                   "A recording; with a moment, such as run.hbmrec@12.5s: only the buffers that were live then")
      ->required();
  arguments->add_option("ADDRESS", options->address, "An address in the buffer: 0x7f0000200000")->required();
  arguments->add_flag("--json", options->json, kJsonHelp);
  return {arguments, [options] { return RunWho(*options); }, true};
}

}  // namespace hbmprof::tool
