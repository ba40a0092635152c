// `hbmprof simulate`: what other settings of PyTorch's allocator would do, by the user's own PyTorch.
#include "src/tool/simulate/simulate.h"

#include "src/tool/commands/command.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/util/listing.h"

namespace hbmprof::tool {
namespace {

struct SimulateOptions {
  std::string source;
  std::vector<std::string> settings;
  std::string recorded;
  std::string device;
  std::string memory;
  std::string torch;
  bool json = false;
};

constexpr char kDefault[] = "default";

struct Row {
  std::string settings;
  bool is_recorded = false;
  Replay replay;
  std::string result;
  std::optional<bool> fits;  // no value: as recorded, or the limit is not known
  Json failure;
};

RowFields<Row> Fields() {
  const auto name = [](const Row& row) {
    return !row.is_recorded ? row.settings : row.settings == kDefault ? "as recorded" : "as recorded: " + row.settings;
  };
  const auto reserved = [](const Row& row) { return row.replay.reserved_peak; };
  const auto allocated = [](const Row& row) { return row.replay.allocated_peak; };
  return {{"", 'l', name, "settings", &Row::settings},
          {"", 'l', nullptr, "as_recorded", [](const Row& row) { return row.is_recorded ? Json(true) : Json(); }},
          {"reserved peak", 'r', [=](const Row& row) { return Bytes(reserved(row)); }, "reserved_peak", reserved},
          {"allocated peak", 'r', [=](const Row& row) { return Bytes(allocated(row)); }, "allocated_peak", allocated},
          {"result", 'l', &Row::result, "fits", [](const Row& row) { return OrNull(row.fits); }},
          {"", 'l', nullptr, "out_of_memory", &Row::failure}};
}

// Says whether the replay has fitted the device. `is_limited`: whether its size is known.
void SetResult(const History& history, const RecordedStacks& stacks, bool is_limited, Row& row) {
  row.result = is_limited ? "fits" : "-";
  if (is_limited) row.fits = row.replay.failed_call < 0;
  if (row.replay.failed_call < 0) return;
  const AllocatorCall& call = history.calls[static_cast<size_t>(row.replay.failed_call)];
  const RecordedStacks::Frame& frame = stacks.own_frame(call.stack);
  const double seconds = static_cast<double>(call.time) / 1e9;
  const std::string where = frame.Position();
  row.result = Cat("out of memory at ", FormatSeconds(seconds), ": ", Bytes(call.bytes), " for ", frame.name,
                   where.empty() ? "" : " " + where, "; ", Bytes(row.replay.idle), " idle in ", row.replay.pieces,
                   row.replay.pieces == 1 ? " piece" : " pieces");
  row.failure = {{"seconds", seconds}, {"bytes", call.bytes},     {"function", frame.name},
                 {"where", where},     {"idle", row.replay.idle}, {"pieces", row.replay.pieces}};
}

// Returns how the replay of what was recorded differs from it; "" if it does not.
std::string InexactOf(const History& history, const Replay& replay) {
  std::vector<std::string> parts;
  const auto compare = [&parts](const char* what, int64_t replayed, int64_t recorded) {
    const int64_t more = Minus(replayed, recorded);
    if (more == 0) return;
    parts.push_back(Cat(what, Bytes(replayed), ", ", Bytes(Magnitude(more)), more > 0 ? " more" : " less"));
  };
  compare("its reserved peak is ", replay.reserved_peak, history.reserved_peak);
  compare("its allocated peak is ", replay.allocated_peak, history.allocated_peak.value_or(replay.allocated_peak));
  if (replay.different_call >= 0) {
    const int64_t time = history.calls[static_cast<size_t>(replay.different_call)].time;
    parts.push_back(Cat("it reserves other sizes from ", FormatSeconds(static_cast<double>(time) / 1e9), " on"));
  }
  return absl::StrJoin(parts, "; ");
}

std::vector<std::string> NotesOf(const History& history, bool is_snapshot, bool is_limited) {
  std::vector<std::string> notes;
  if (!is_snapshot) {
    notes.emplace_back(
        "A recording has the sizes of blocks, not those that the program asked for: each block is replayed with its "
        "size. A snapshot of PyTorch has both. The program's settings are those of --recorded-conf.");
  }
  if (is_limited) {
    notes.push_back(is_snapshot ? "A snapshot does not say what else the device holds: PyTorch can have all of it here."
                                : Cat(Bytes(history.outside),
                                      " of the device are in use outside of recorded calls (contexts, code, other "
                                      "processes), and are not there for PyTorch."));
  }
  return notes;
}

absl::StatusOr<int> RunSimulate(const SimulateOptions& options) {
  int64_t device = 0;
  if (!options.device.empty() && (!ParseBytes(options.device, &device) || device <= 0)) {
    return InvalidArgument("--device ", options.device, ": write a size: 24GiB");
  }
  for (const std::string& settings : options.settings) {
    if (!absl::StrContains(settings, "cudaMallocAsync")) continue;
    return InvalidArgument("--alloc-conf ", settings, ": the driver decides then, not PyTorch's allocator");
  }
  TorchSnapshot snapshot;
  ASSIGN_OR_RETURN(const std::unique_ptr<RecordingReader> recording, OpenRecordingFile(options.source, &snapshot));
  ASSIGN_OR_RETURN(const RecordedStacks stacks, RecordedStacks::Make(options.source, recording->tables(), {}, true));
  const bool is_snapshot = IsPickle(options.source);
  ASSIGN_OR_RETURN(History history,
                   In(options.source, HistoryOf(*recording, is_snapshot ? &snapshot : nullptr, options.memory)));
  WarnOfGaps("simulate", options.source, *recording);
  ASSIGN_OR_RETURN(const std::string library, FindTorchLibrary(options.torch));
  if (!options.recorded.empty()) history.settings = options.recorded == kDefault ? "" : options.recorded;
  const std::string recorded = history.settings.empty() ? kDefault : history.settings;

  std::vector<Row> rows;
  const auto run = [&](const std::string& settings, std::optional<int64_t> limit) {
    Row& row = rows.emplace_back();
    row.settings = settings;
    absl::StatusOr<Replay> replay = RunReplay(history, library, settings == kDefault ? "" : settings, limit);
    if (replay.ok()) row.replay = *replay;
    return In(settings, replay.status());
  };
  RETURN_IF_ERROR(run(recorded, std::nullopt));
  const std::string inexact = InexactOf(history, rows[0].replay);
  rows[0].is_recorded = true;
  rows[0].result = inexact.empty() ? "equal to the recording" : "not equal to the recording";

  const std::optional<int64_t> limit = device > 0 ? device : history.limit;
  std::vector<std::string> settings = options.settings;
  if (settings.empty() && device == 0) settings = {"expandable_segments:True", "max_split_size_mb:128"};
  if (device > 0 && !absl::c_linear_search(settings, recorded)) settings.insert(settings.begin(), recorded);
  bool has_failed = false;
  for (const std::string& one : settings) {
    RETURN_IF_ERROR(run(one, limit.has_value() ? *limit - history.outside : INT64_MAX));
    SetResult(history, stacks, limit.has_value(), rows.back());
    has_failed = has_failed || rows.back().replay.failed_call >= 0;
  }

  Answer answer(options.json);
  const std::vector<std::string> notes = NotesOf(history, is_snapshot, limit.has_value());
  answer.json.update({{"memory", history.memory},
                      {"library", library},
                      {"limit", OrNull(limit)},
                      {"exact", inexact.empty()},
                      {"recorded",
                       {{"settings", recorded},
                        {"reserved_peak", history.reserved_peak},
                        {"allocated_peak", OrNull(history.allocated_peak)},
                        {"allocations", history.allocations},
                        {"streams", history.streams}}},
                      {"notes", notes}});
  answer.text = Visible(Cat(history.memory, limit.has_value() ? " of " + Bytes(*limit) : "", ": ", history.allocations,
                            " allocations, replayed by ", library)) +
                "\n\n";
  answer.Add("rows", rows, Fields(), 0,
             [](const Row& row) { return row.replay.failed_call >= 0 ? Tone::kWarning : Tone::kPlain; });
  answer.text += "\n";
  if (!inexact.empty()) {
    answer.json["difference"] = inexact;
    answer.text +=
        Colored(Visible("The replay is not what was recorded, so the rows are estimates: " + inexact), Tone::kWarning) +
        "\n";
  }
  for (const std::string& note : notes) answer.text += Visible(note) + "\n";
  answer.exit_code = has_failed ? kFinding : kSuccess;
  return answer.Print();
}

}  // namespace

Command AddSimulateCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand(
      "simulate", "Replay a recording in your PyTorch's allocator with other settings, without a GPU");
  auto options = std::make_shared<SimulateOptions>();
  const auto add = [&](const char* name, std::string& value, const char* type, const char* help) {
    return arguments->add_option(name, value, help)->type_name(type);
  };
  arguments->add_option("FILE", options->source, "A recording, or a snapshot of PyTorch")->required();
  arguments
      ->add_option("--alloc-conf", options->settings,
                   "Settings to try, as in PYTORCH_CUDA_ALLOC_CONF: max_split_size_mb:128; default")
      ->allow_extra_args(false)
      ->type_name("CONF");
  add("--device", options->device, "SIZE", "Memory of the device to try, such as 24GiB (default: as recorded)");
  add("--recorded-conf", options->recorded, "CONF",
      "The settings with which the program ran (default: those in the snapshot, else none)");
  add("--memory", options->memory, "NAME",
      "The device in the recording, such as GPU:1 (default: where PyTorch reserved most)");
  add("--torch", options->torch, "FOLDER", "Folder of the package torch (default: that of the python3 in $PATH)");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->footer("Exits with 1 if a setting runs out of memory, else with 0.");
  return {arguments, [options] { return RunSimulate(*options); }, true};
}

}  // namespace hbmprof::tool
