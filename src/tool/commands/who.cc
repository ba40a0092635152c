// `hbmprof who`: finds the buffers to which an address belonged.
#include <tuple>

#include "src/tool/commands/command.h"
#include "src/tool/recording/instant.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

using internal::AddressOfBuffer;

struct WhoOptions {
  std::string recording;  // may name a moment
  std::string address;
  bool json = false;
};

// A buffer that contained the address.
struct Owner {
  uint64_t id = 0;
  uint32_t site = 0;
  int64_t bytes = 0;
  std::optional<int64_t> allocated;  // not set: before the recording
  uint16_t thread = 0;
  std::optional<int64_t> freed;  // not set: live at the end
  uint16_t freeing_thread = 0;

  uint64_t start() const { return *AddressOfBuffer(id); }
};

bool Contains(uint64_t id, int64_t bytes, uint64_t address) {
  const std::optional<uint64_t> start = AddressOfBuffer(id);
  // A buffer of 0 bytes contains its own address only.
  return start.has_value() && address >= *start &&
         address - *start < static_cast<uint64_t>(std::max<int64_t>(bytes, 1));
}

struct Owners {
  std::deque<Owner> shown;  // in the order of their allocations: the last ones, or those of a given instant
  size_t count = 0;         // of all
};
constexpr size_t kMostShown = 10;

// Returns the last kMostShown owners. If `time` is set, returns all owners that are live at this time instead.
Owners OwnersOf(RecordingReader& recording, uint64_t address, std::optional<int64_t> time) {
  Owners owners;
  std::deque<Owner>& shown = owners.shown;
  const auto begin = [&](const Owner& owner) {
    ++owners.count;
    if (time.has_value() && owner.allocated.value_or(INT64_MIN) > *time) return;
    shown.push_back(owner);
    if (!time.has_value() && shown.size() > kMostShown) shown.pop_front();
  };
  for (const RecordingTables::Live& live : recording.tables().live) {
    if (Contains(live.id, live.bytes, address)) begin({live.id, live.site, live.bytes, {}, 0, {}, 0});
  }
  RecordedEvent event;
  RecordingCursor cursor(recording);
  bool was_inside = false;  // the address, in the buffer that moves
  while (cursor.Next(&event)) {
    const bool is_inside = Contains(event.id, event.bytes, address);
    if (event.kind == RecordedKind::kMoveFrom) {  // the buffer stays live: its kMoveTo follows
      was_inside = is_inside;
      continue;
    }
    const bool stays = event.kind == RecordedKind::kMoveTo && was_inside;
    if (is_inside && !stays && internal::Begins(event.kind)) {
      begin({event.id, event.site, event.bytes, event.time, event.thread, {}, 0});
      continue;
    }
    if (!stays && (event.kind != RecordedKind::kFree || !is_inside)) continue;
    const auto live = absl::c_find_if(
        shown, [&event](const Owner& owner) { return owner.id == event.id && !owner.freed.has_value(); });
    if (live == shown.end()) continue;
    const bool is_later = time.has_value() && event.time > *time;
    if (stays && is_inside) {
      if (!is_later) std::tie(live->site, live->bytes) = std::pair(event.site, event.bytes);
      continue;
    }
    live->freed = event.time;
    live->freeing_thread = event.thread;
    if (time.has_value() && !is_later) shown.erase(live);
  }
  return owners;
}

void AddOwner(const OpenedRecording& recording, const Owner& owner, uint64_t address, Answer& answer) {
  const RecordingTables& tables = recording.reader->tables();
  const Snapshot::Sample& site = tables.sites[owner.site];
  const RecordedStacks::Frame& own = recording.stacks.own_frame(site.stack);
  const std::string& device = tables.names.devices[site.device].name;
  const std::string kind(MemoryKindName(site.kind));
  Json json = {{"address", absl::StrFormat("0x%x", owner.start())},
               {"bytes", owner.bytes},
               {"device", device},
               {"kind", kind},
               {"function", own.name},
               {"where", own.Position()},
               {"offset", address - owner.start()}};
  std::string text = absl::StrFormat("0x%x to 0x%x  %s  %s %s  %s\n  offset    %d of %d bytes\n", owner.start(),
                                     owner.start() + static_cast<uint64_t>(owner.bytes), Bytes(owner.bytes), device,
                                     kind, own.name, address - owner.start(), owner.bytes);
  const auto add = [&](const std::string& what, std::optional<int64_t> time, uint16_t thread, const char* unknown) {
    std::string shown = unknown;
    Json seconds;
    Json id;
    if (time.has_value()) {
      const RecordingTables::Thread& by = tables.threads[thread];
      seconds = static_cast<double>(Minus(*time, tables.start_time)) / 1e9;
      id = by.id;
      shown = Cat(TimeText(tables, *time), ", by thread ", by.id, by.name.empty() ? "" : " ", by.name);
    }
    json[what + "_seconds"] = seconds;
    json[what + "_thread"] = id;
    text += absl::StrFormat("  %-9s %s\n", what, shown);
  };
  add("allocated", owner.allocated, owner.thread, "before the recording");
  add("freed", owner.freed, owner.freeing_thread, "not before the end of the recording");
  for (const auto& [key, value] : site.tags) text += Cat("  tag       ", key, "=", value, "\n");
  json["labels"] = ObjectOf({site.tags.begin(), site.tags.end()});
  Json& stack = json["stack"] = Json::array();
  for (const uint32_t number : recording.stacks.stack(site.stack)) {
    const RecordedStacks::Frame& frame = recording.stacks.frames()[number];
    const std::string position = frame.Position();
    text += Cat("    ", frame.name, position.empty() ? "" : "  ", position, "\n");
    stack.push_back({{"function", frame.name}, {"where", position}});
  }
  answer.text += Cat(answer.text.empty() ? "" : "\n", text);
  answer.json["owners"].push_back(std::move(json));
}

absl::StatusOr<int> RunWho(const WhoOptions& options) {
  const std::string& text = options.address;  // hexadecimal, or a decimal number
  const bool is_hexadecimal = text.rfind("0x", 0) == 0 || text.rfind("0X", 0) == 0;
  uint64_t address = 0;
  // These functions also accept a sign, and space around the number.
  const bool is_address = text.find_first_not_of("0123456789abcdefABCDEFxX") == std::string::npos &&
                          (is_hexadecimal ? absl::SimpleHexAtoi(text, &address) : absl::SimpleAtoi(text, &address));
  if (!is_address) return InvalidArgument("'", text, "' is not an address such as 0x7f0000200000");
  const SourceParts source = PartsOf(options.recording);
  ASSIGN_OR_RETURN(const OpenedRecording opened, OpenRecording(source.file, {}));
  RecordingReader& recording = *opened.reader;
  std::optional<int64_t> time;
  if (source.moment.has_value()) {
    ASSIGN_OR_RETURN(const RecordedInstant instant, In(source.file, InstantNamed(recording, *source.moment)));
    time = instant.time;
  }

  const Owners found = OwnersOf(recording, address, time);
  const std::deque<Owner>& owners = found.shown;
  WarnOfGaps("who", source.file, recording);
  Answer answer(options.json);
  answer.json.update(
      {{"address", absl::StrFormat("0x%x", address)}, {"owner_count", found.count}, {"owners", Json::array()}});
  // The latest buffer is shown first, because it is the most probable cause of a fault.
  for (auto owner = owners.rbegin(); owner != owners.rend(); ++owner) AddOwner(opened, *owner, address, answer);
  if (!time.has_value() && found.count > owners.size()) {
    answer.text += Cat("\n... and ", found.count - owners.size(),
                       " earlier buffers; RECORDING@TIME shows the one of an instant\n");
  }
  if (owners.empty()) {
    answer.exit_code = kFinding;
    answer.text += time.has_value() && found.count != 0
                       ? Cat("At this time, no buffer had the address. Number of buffers that had it at other times: ",
                             found.count, ".\n")
                       : std::string("No recorded buffer had the address.\n");
  }
  Print(options.json ? ToText(answer.json) : answer.text);
  return answer.exit_code;
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
