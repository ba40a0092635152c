#include "src/tool/findings/findings.h"

#include <glob.h>

#include <cmath>
#include <tuple>

#include "absl/strings/strip.h"
#include "src/tool/sums/ranks.h"
#include "src/tool/sums/sums.h"

namespace hbmprof::tool {
namespace {

// Thresholds. docs/explain.md lists them.
constexpr int64_t kIdlePercent = 10;                   // idle memory, of the pools
constexpr int64_t kRelevantPercent = 5;                // of the device's limit: less memory than this is no finding
constexpr int64_t kFragmentedPercent = 50;             // of the free memory that is outside of the largest free block
constexpr double kSoonSeconds = 4 * 3600.0;            // until the limit is reached
constexpr double kMostSeconds = 1000 * 365 * 86400.0;  // until the limit is reached: a longer time is not shown
constexpr int64_t kOutlierPercent = 10;                // of a rank's memory: a smaller distance is no finding
// Idle memory is worth more than advice if it is this part of the device's limit, or if less than the other is left.
constexpr int64_t kLargeIdlePercent = 20;
constexpr int64_t kNearLimitPercent = 10;

using Device = ProfileInfo::Device;

int64_t PercentOf(int64_t percent, int64_t value) { return value / 100 * percent + value % 100 * percent / 100; }

std::string RateText(double per_second, const std::string& unit) {
  return Cat(FormatValue(std::llround(per_second), unit), "/s");
}

// What users of a framework do, in its words. `name`: of its pool, in profiles.
struct Framework {
  std::string_view name;
  std::string_view title;
  const char* kept;   // of a leak
  const char* idle;   // of idle memory in its pool
  const char* split;  // of fragments
};
constexpr Framework kFrameworks[] = {
    {"pytorch", "PyTorch",
     "find what keeps these tensors: a list, a closure or an autograd graph; keep loss.item() or x.detach() instead of "
     "x",
     "torch.cuda.empty_cache() returns segments without a live tensor; if the program does not set it already, "
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True keeps the cache small",
     "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, if the program does not"},
    {"pytorch expandable", "PyTorch", "",
     "torch.cuda.empty_cache() returns pages without a live tensor (expandable_segments is on)",
     "allocate the long-lived tensors first"},
    {"tensorflow", "TensorFlow",
     "find what keeps these tensors; a tf.function that is traced again and again keeps its constants",
     "set TF_FORCE_GPU_ALLOW_GROWTH=true, or TF_GPU_ALLOCATOR=cuda_malloc_async",
     "set TF_GPU_ALLOCATOR=cuda_malloc_async"},
    {"xla", "JAX",
     "find what keeps these arrays, and drop the references or call x.delete(); jax.live_arrays() lists them",
     "set XLA_PYTHON_CLIENT_PREALLOCATE=false, or a smaller XLA_PYTHON_CLIENT_MEM_FRACTION",
     "set XLA_PYTHON_CLIENT_ALLOCATOR=platform"},
    {"", "", "free these buffers where their owner ends", "make the pool smaller, or trim it (cudaMemPoolTrimTo)",
     "allocate the long-lived buffers first, or use a pool (cudaMallocAsync)"}};

const Framework& FrameworkOf(std::string_view pool) {
  const auto* found = absl::c_find_if(kFrameworks, [pool](const Framework& one) { return one.name == pool; });
  return found == std::end(kFrameworks) ? std::end(kFrameworks)[-1] : *found;
}

void UseWordsOfAscend(std::string& text) {
  text = absl::StrReplaceAll(text, {{"torch.cuda.", "torch.npu."},
                                    {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"},
                                    {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"},
                                    {"nvidia-smi", "npu-smi info"}});
}

class Finder {
 public:
  Finder(const ProfileSet& profiles, const DumpSeries& series, size_t type, const Subject& subject)
      : profiles_(profiles),
        series_(series),
        type_(type),
        unit_(profiles.types()[type].unit),
        subject_(subject),
        now_(profiles.files()[series.files[series.end - 1]]) {}

  Findings Run(const std::vector<std::string>& by) {
    found_.name = subject_.name;
    found_.unit = unit_;
    for (const Device& device : now_.info.devices) {
      if (device.is_device_memory()) devices_.try_emplace(device.name, &device);
    }
    for (const std::string& text : now_.comments) {
      Comment comment(text);
      if (comment.word == "pool") pools_[comment.Text("device")].push_back(std::move(comment));
    }
    const ProfileSet::LabelGroups labels = profiles_.GroupLabels({"device", "allocator"});
    for (size_t s = 0; s < now_.samples.size(); ++s) {
      const std::vector<std::string>& values = labels.values[labels.of_set[now_.samples[s].labels]];
      if (values[1] == "released, still held") AddTo(held_[values[0]], profiles_.Value(now_, s, type_));
    }
    if (const auto uptime = now_.info.UptimeSeconds(); uptime.has_value()) found_.seconds = *uptime;
    found_.dumps = series_.end - series_.begin;
    found_.phases = PhasesOf(profiles_, now_);
    const bool is_young = found_.seconds.has_value() && *found_.seconds < kAgeSeconds;
    found_.is_all_freed = !now_.samples.empty() && IsFreed(profiles_, now_, type_);
    if (!HasMemory(profiles_.files()[series_.files.back()])) {
      found_.not_judged = kNoMemoryText;
    } else if (const std::string& type = profiles_.types()[type_].type; absl::StartsWith(type, "alloc_")) {
      found_.not_judged = Cat("there is only ", type, ", which counts freed buffers, too");
    } else if (found_.is_all_freed && subject_.kind != Subject::Kind::kProcess) {
      const bool is_recording = subject_.kind == Subject::Kind::kRecording;
      found_.not_judged =
          Cat("all memory was freed ", is_recording ? "long before the end" : "before the profile was made",
              ", so what was kept until then is not seen; hbmprof top shows the peak");
      if (!is_recording) {
        found_.not_judged +=
            Cat("; record the run (", now_.is_injected ? "hbmprof run --record" : "HBMPROF_RECORD=FILE.hbmrec",
                "), or judge the program while it works (hbmprof explain PROCESS)");
      }
    } else if (series_.has_ages || series_.end - series_.begin >= 3) {
      found_.sites = RankGrowth(profiles_, series_, type_, by);
      AddGrowth();
      // The records of what was live then are gone, so ages count from an earlier time than the records.
      const bool was_off = series_.end - series_.begin < 3 && absl::c_any_of(now_.info.warnings, IsGap);
      if (was_off &&
          absl::c_none_of(found_.findings, [](const Finding& one) { return one.code == FindingCode::kLeak; })) {
        found_.not_judged = "recording was off in between; give at least three profiles made since then";
      }
      if (is_young && subject_.kind == Subject::Kind::kRecording) {
        EraseIf(found_.findings, [](const Finding& growth) { return growth.code != FindingCode::kLeak; });
        if (found_.findings.empty()) {
          found_.not_judged = !subject_.has_trace
                                  ? "the snapshot has no trace; torch.cuda.memory._record_memory_history() begins one"
                                  : Cat(subject_.is_snapshot ? "a trace of " : "a recording of the first ",
                                        static_cast<int64_t>(*found_.seconds),
                                        " s can show only large leaks; record for at least ", kAgeSeconds, " s");
        }
      }
    } else {
      found_.not_judged = Cat(found_.dumps, found_.dumps == 1 ? " profile" : " profiles",
                              is_young ? Cat(" of a process that had run for ", static_cast<int64_t>(*found_.seconds),
                                             " s, not ", kAgeSeconds, " s,")
                                       : " without the ages of buffers",
                              " cannot show growth; give at least three, better ", kEnoughDumps);
    }
    const bool is_attached = absl::c_any_of(profiles_.functions(), [this](const ProfileSet::Function& function) {
      return profiles_.text(function.name) == "[before attach]";
    });
    found_.extent = subject_.is_snapshot ? "as far as the trace of the snapshot goes"
                    : is_attached        ? "complete since hbmprof was attached"
                                         : "";
    found_.is_ours = !now_.info.devices.empty() || !now_.info.trackers.empty() || !now_.info.processes.empty();
    AddTrust();
    for (const Device& device : now_.info.devices) AddDevice(device);
    const int64_t sum = SumOf(profiles_, now_, type_);
    if (found_.memories.empty() && unit_ == "bytes" && sum > 0) found_.memories.push_back({"memory", sum});
    RankFindings(found_.findings);
    return std::move(found_);
  }

 private:
  // How the program is recorded anew.
  std::string Again() const {
    return !found_.extent.empty() ? "start the program with hbmprof run, which records from the start"
           : now_.is_injected     ? "start the program again with hbmprof run"
                                  : "start the program again";
  }

  // `texts`: the sentence, the evidence, what to do, and the next command.
  Finding& Add(FindingCode code, const std::string& memory, Sure sure, std::array<std::string, 4> texts = {}) {
    Finding& finding = found_.findings.emplace_back();
    finding.code = code;
    finding.sure = sure;
    finding.memory = memory;
    finding.sentence = std::move(texts[0]);
    finding.evidence = std::move(texts[1]);
    finding.action = std::move(texts[2]);
    finding.next = std::move(texts[3]);
    if (absl::StartsWith(memory, "NPU:")) {
      UseWordsOfAscend(finding.action);
      UseWordsOfAscend(finding.next);
    }
    return finding;
  }
  std::string Command(const std::string& words) const {
    const bool is_of_state = words.rfind("top", 0) == 0 && !subject_.state.empty();
    return Cat("hbmprof ", words, " ", is_of_state ? subject_.state : subject_.sources);
  }
  const Device* DeviceNamed(const std::string& name) const { return ValueOr(devices_, name); }
  // The bytes of other processes on the device, as far as they are known: not in a number of the driver for all.
  int64_t OthersOn(const Device& device) const {
    return device.Text("driver_scope") == "process" ? ValueOr(subject_.others, device.name) : 0;
  }
  // The bytes that are left until the limit, as the driver or the records show it.
  std::optional<int64_t> Headroom(const Device& device) const {
    const std::optional<int64_t> limit = device.Number("limit");
    if (limit.value_or(0) <= 0) return std::nullopt;
    const int64_t own = std::max(device.Number("in_use").value_or(0), device.Number("driver_in_use").value_or(0));
    return Minus(*limit, Plus(own, OthersOn(device)));
  }
  // Whether so many bytes of the device are worth a finding.
  static bool IsRelevant(int64_t bytes, const Device& device) {
    const int64_t whole = device.Number("limit").value_or(device.Number("in_use").value_or(0));
    return bytes > 0 && bytes >= PercentOf(kRelevantPercent, whole);
  }

  // The call stacks of one function in one memory with one verdict.
  struct Group {
    std::string memory;
    std::string pool;  // of the largest sample; "xla" for arrays of a PJRT plugin
    std::vector<const SiteGrowth*> sites;
  };
  using Place = std::pair<uint32_t, std::string>;  // a call stack and a memory

  // Returns the largest sample of each call stack that grows: its value and its pool.
  std::map<Place, std::pair<int64_t, std::string>> LargestOfGrowth() const {
    std::map<Place, std::pair<int64_t, std::string>> largest;
    for (const SiteGrowth& site : found_.sites) {
      if (site.grows()) largest[{site.stack, site.memory}] = {INT64_MIN, ""};
    }
    for (size_t s = 0; s < now_.samples.size(); ++s) {
      const auto text = [&](const char* key) { return profiles_.LabelText(now_.samples[s].labels, key); };
      const auto place = largest.find({now_.samples[s].stack, profiles_.MemoryOf(now_.samples[s].labels)});
      const int64_t value = profiles_.Value(now_, s, type_);
      if (place == largest.end() || value <= place->second.first || text("kind") == "executable") continue;
      place->second = {value, text("shape").empty() ? text("allocator") : "xla"};
    }
    return largest;
  }

  void AddGrowth() {
    const std::map<Place, std::pair<int64_t, std::string>> largest = LargestOfGrowth();
    std::map<std::tuple<Verdict, std::string, std::string, std::vector<std::pair<std::string, std::string>>>, Group>
        groups;
    for (const SiteGrowth& site : found_.sites) {
      if (!site.grows()) break;
      Group& group = groups[{site.verdict, profiles_.ShownStack(site.stack)[0].name, site.memory, site.labels}];
      if (group.sites.empty()) group = {site.memory, largest.at({site.stack, site.memory}).second, {}};
      group.sites.push_back(&site);
    }
    for (const auto& [key, group] : groups) AddGrowing(group);
    AddRest();
    if (subject_.kind == Subject::Kind::kProcess) AddFullSoon();
  }

  // Call stacks of which none is a leak can grow together as a leak does. Names the one that grew most.
  void AddRest() {
    SiteGrowth rest = RestOf(profiles_, series_, type_, found_.sites);
    const SiteGrowth* most = nullptr;
    size_t count = 0;
    for (const SiteGrowth& site : found_.sites) {
      if (site.verdict == Verdict::kLeak || site.growth <= 0) continue;
      ++count;
      if (most == nullptr || site.growth > most->growth) most = &site;
    }
    if (rest.verdict != Verdict::kLeak || count < 2) return;
    rest.stack = most->stack;
    rest.verdict = Verdict::kPerhaps;
    rest.sure = Sure::kLow;
    rest.why += "; none of these call stacks is a leak by itself";
    AddGrowing({"", "", {&rest}}, count - 1);
  }

  // `others`: Finding::others.
  void AddGrowing(const Group& group, size_t others = 0) {
    const SiteGrowth& most = *group.sites[0];
    const std::vector<ProfileSet::ShownFrame> stack = profiles_.ShownStack(most.stack);
    Finding& finding =
        Add(most.verdict == Verdict::kLeak ? FindingCode::kLeak : FindingCode::kGrows, group.memory, Sure::kLow);
    finding.labels = most.labels;
    finding.others = others;
    finding.counter = subject_.counter;
    finding.position = stack[0].Position();
    for (const SiteGrowth* site : group.sites) {
      JoinPosition(profiles_.ShownStack(site->stack)[0].Position(), finding.position);
      AddTo(finding.growth, site->growth);
      finding.sure = std::min(finding.sure, site->sure);
      if (site->per_second.has_value()) finding.per_second = finding.per_second.value_or(0) + *site->per_second;
      if (site->per_count.has_value()) finding.per_count = finding.per_count.value_or(0) + *site->per_count;
    }
    if (unit_ == "bytes") finding.bytes = finding.growth;
    finding.stack = most.stack;
    finding.function = stack[0].name;
    constexpr size_t kShownCallers = 3;
    for (size_t i = 1; i < stack.size() && i <= kShownCallers; ++i) {
      finding.callers += (i == 1 ? "" : " < ") + stack[i].name;
    }
    const Device* const device = DeviceNamed(finding.memory);
    finding.evidence = most.why;
    if (group.sites.size() > 1) {
      finding.evidence += Cat("; this is the largest of ", group.sites.size(), " call stacks",
                              finding.position == stack[0].Position() ? "" : ", at " + stack[0].Position());
    }
    finding.action = FrameworkOf(group.pool).kept;
    if (finding.code == FindingCode::kGrows) {
      const int64_t whole = device == nullptr ? 0 : device->Number("limit").value_or(0);
      const int64_t in_use = SumOf(profiles_, now_, type_);
      finding.is_minor = finding.growth < PercentOf(kRelevantPercent, whole > 0 ? whole : in_use);
      finding.is_tiny = finding.growth < PercentOf(kRelevantPercent, in_use);
      finding.action = Cat(subject_.kind == Subject::Kind::kProcess ? "look again after twice the time"
                                                                    : "judge a run of twice the time",
                           ": if it still grows, ", finding.action);
    }
    finding.next = Command(finding.is_tiny ? "leaks --all --frames 0" : "leaks --frames 0");
    finding.unknown = {{"bytes", "the sample type does not count bytes"},
                       {"per_second", "the times of the profiles are not known"},
                       {"per_count", subject_.counter.empty() ? "the program has set no counter (hbmprof::SetCounter)"
                                                              : "the counter did not change"}};
    const std::optional<int64_t> left = device == nullptr ? std::nullopt : Headroom(*device);
    std::string& why = finding.unknown["seconds_to_limit"];
    if (!left.has_value() || unit_ != "bytes") {
      why = "the limit of the memory is not known";
    } else if (finding.per_second.value_or(0) <= 0) {
      why = "the growth per second is not known";
    } else if (const double seconds = std::max(0.0, static_cast<double>(*left) / *finding.per_second);
               seconds < kMostSeconds) {
      finding.seconds_to_limit = seconds;
    } else {
      why = "it is more than 1,000 years";
    }
    std::string& text = finding.sentence = finding.function;
    if (!finding.labels.empty()) {
      text += Cat(" (", absl::StrJoin(finding.labels, " ", absl::PairFormatter("=")), ")");
    }
    if (others > 0) text += Cat(" and ", others, " other call stacks together");
    text += finding.code == FindingCode::kLeak ? " leaks " : " may leak ";
    const bool has_rate = finding.per_second.value_or(0) > 0;
    if (has_rate) text += RateText(*finding.per_second, unit_);
    if (finding.per_count.has_value()) {
      text += Cat(has_rate ? ", " : "", FormatValue(std::llround(*finding.per_count), unit_), " a ",
                  std::string(absl::StripSuffix(subject_.counter, "s")));
    }
    const std::string growth = FormatChange(finding.growth, unit_);
    text += has_rate || finding.per_count.has_value() ? Cat(" (", growth, ")") : growth;
    if (finding.seconds_to_limit.has_value()) {
      const bool is_running = subject_.kind == Subject::Kind::kProcess;
      text += Cat("; ", finding.memory, is_running ? " is full in " : " would be full in ",
                  FormatDuration(*finding.seconds_to_limit));
    }
  }

  // All growth of a memory together.
  void AddFullSoon() {
    std::map<std::string, std::pair<double, double>> by_memory;  // the rates of leaks, and of all growth
    for (const Finding& finding : found_.findings) {
      auto& [leaks, all] = by_memory[finding.memory];
      if (finding.code == FindingCode::kLeak) leaks += finding.per_second.value_or(0);
      if (!finding.is_minor) all += finding.per_second.value_or(0);
    }
    for (const auto& [memory, rates] : by_memory) {
      const Device* const device = DeviceNamed(memory);
      const std::optional<int64_t> left = device == nullptr ? std::nullopt : Headroom(*device);
      const auto [leaks, all] = rates;
      if (!left.has_value() || unit_ != "bytes" || all <= 0) continue;
      const auto seconds_at = [&](double per_second) { return std::max(0.0, static_cast<double>(*left) / per_second); };
      if (seconds_at(all) > kSoonSeconds) continue;
      const bool is_leak = leaks > 0;
      const double per_second = is_leak ? leaks : all;
      // The sum of the leaks' rates can be rounded in another way.
      const bool is_more = all > 1.1 * per_second;
      Finding& finding = Add(FindingCode::kFullSoon, memory, is_leak ? Sure::kMedium : Sure::kLow,
                             {Cat(memory, " is full in ", FormatDuration(seconds_at(per_second)), ": ", Bytes(*left),
                                  " of ", Bytes(*device->Number("limit")), " are left, and ",
                                  is_leak ? "leaks take " : "growth takes ", RateText(per_second, unit_),
                                  is_more ? Cat("; at the present load in ", FormatDuration(seconds_at(all)),
                                                ": with other growth ", RateText(all, unit_))
                                          : ""),
                              "it assumes that the growth goes on as before",
                              "restart the program before that time, until the growth is repaired", Command("top")});
      finding.bytes = *left;
      finding.per_second = per_second;
      finding.seconds_to_limit = seconds_at(per_second);
      finding.seconds_at_load = seconds_at(all);
      finding.unknown["per_count"] = "it is a rate of the device";
    }
  }

  void AddDevice(const Device& device) {
    const auto number = [&](const char* key) { return device.Number(key).value_or(0); };
    MemoryUse memory = {device.memory()};
    memory.limit = device.Number("limit");
    if (memory.limit == 0) memory.limit = std::nullopt;
    memory.peak = device.Number("peak");
    const int64_t recorded = number("in_use");
    const int64_t outside = std::max<int64_t>(0, number("unaccounted"));
    const int64_t others = OthersOn(device);
    memory.in_use = Plus(Plus(recorded, outside), Plus(number("driver_cache"), others));
    const auto part = [&](const std::string& name, int64_t bytes) {
      if (bytes > 0) memory.parts.emplace_back(name, bytes);
    };
    // The pools of the device. One can be inside another, so only their sum is exact.
    const std::vector<Comment> pools = ValueOr(pools_, device.is_device_memory() ? device.name : "");
    const auto largest = absl::c_max_element(pools, [](const Comment& a, const Comment& b) {
      return a.Number("idle").value_or(0) < b.Number("idle").value_or(0);
    });
    const std::string name = largest == pools.end() ? "" : largest->name;
    const bool is_expandable = absl::c_any_of(now_.info.environments, [](const Comment& one) {
      const auto is_set = [&](const char* name) {
        return absl::StrContains(one.Text(name), "expandable_segments:True");
      };
      return is_set("PYTORCH_CUDA_ALLOC_CONF") || is_set("PYTORCH_ALLOC_CONF") || is_set("PYTORCH_NPU_ALLOC_CONF");
    });
    const Framework& framework = FrameworkOf(name == "pytorch" && is_expandable ? "pytorch expandable" : name);
    const std::string title = !framework.title.empty() ? std::string(framework.title)
                              : pools.size() == 1      ? "pool " + pools[0].name
                                                       : "pools";
    const int64_t pool = number("pool");
    const int64_t idle = number("idle");
    const bool is_known = !framework.title.empty();
    part(is_known ? title + " tensors" : title, Minus(pool, idle));
    part(Cat("idle in ", title, is_known ? "'s cache" : ""), idle);
    part(pool > 0 ? "other recorded" : "recorded", Minus(recorded, pool));
    part("idle in CUDA's pools", number("driver_cache"));
    const int64_t baseline = std::min(std::max<int64_t>(0, number("baseline")), outside);
    part("contexts and code", baseline);
    part("not recorded", Minus(outside, baseline));
    part("other processes", others);
    if (memory.in_use > 0 || memory.peak.value_or(0) > 0) found_.memories.push_back(std::move(memory));
    if (!device.is_device_memory()) return;

    const std::optional<int64_t> free_block = device.Number("largest_free_block");
    // A program that has ended leaves all its memory idle.
    const bool has_ended = found_.is_all_freed && subject_.kind != Subject::Kind::kProcess;
    if (!has_ended && idle > PercentOf(kIdlePercent, pool) && IsRelevant(idle, device)) {
      const auto free_segments = subject_.free_segments.find(device.name);
      std::optional<int64_t> returnable;
      if (pool == idle) returnable = idle;
      if (free_segments != subject_.free_segments.end()) returnable = std::min(free_segments->second, idle);
      const std::string can_return =
          !returnable.has_value()
              ? "only segments without a live block can be returned, and a recording shows how much that is"
          : *returnable == 0 ? "each segment has a live block, so none can be returned"
                             : Bytes(*returnable) + " are in segments without a live block, and can be returned";
      const bool can_replay = framework.title == "PyTorch" && subject_.kind == Subject::Kind::kRecording;
      Finding& finding =
          Add(FindingCode::kIdlePool, device.name, Sure::kHigh,
              {Cat(Bytes(idle), " of the ", Bytes(pool), " in ", title, " on ", device.name, " are idle"),
               Cat("the pool has reserved them from the device, and has not handed them out; ", can_return),
               returnable == 0 ? framework.split : framework.idle,
               Command(can_replay ? "simulate" : "top -t reserved_space -w kind=pool")});
      finding.bytes = idle;
      finding.returnable = returnable;
      finding.unknown["returnable"] = "a profile does not say which segments have live blocks";
      finding.is_advice = !IsNeeded(idle, device);
    }
    const std::optional<int64_t> headroom = Headroom(device);
    const int64_t free = headroom.value_or(0);
    if (free_block.has_value() && device.Number("driver_in_use").has_value() && IsRelevant(free, device) &&
        Minus(free, *free_block) > PercentOf(kFragmentedPercent, free)) {
      Add(FindingCode::kFragmented, device.name, Sure::kHigh,
          {Cat("the free memory of ", device.name, " is in pieces: the largest block has ", Bytes(*free_block), " of ",
               Bytes(free), " free"),
           "as the driver reports it", framework.split, Command("top")})
          .bytes = Minus(free, *free_block);
    }
    AddHeld(device);
    if (IsRelevant(others, device)) {
      Add(FindingCode::kOtherProcess, device.name, Sure::kHigh,
          {Cat("other processes have ", Bytes(others), " of ", device.name, " in use"), "as the driver reports it",
           "end them, or give them another device (CUDA_VISIBLE_DEVICES)", "nvidia-smi"})
          .bytes = others;
    }
    AddOutside(device, Minus(outside, baseline), baseline);
  }

  void AddHeld(const Device& device) {
    const int64_t held = ValueOr(held_, device.name);
    if (unit_ != "bytes" || !IsRelevant(held, device)) return;
    Add(FindingCode::kStillHeld, device.name, Sure::kHigh,
        {Cat("the program has released ", Bytes(held), " of ", device.name, " that are still in use"),
         "HIP keeps physical memory until the addresses are freed where it was mapped",
         "call hipMemAddressFree for these addresses", Command("top --tree")})
        .bytes = held;
  }

  // Memory that no record has: `rest` bytes, and before them `baseline` bytes at the start.
  void AddOutside(const Device& device, int64_t rest, int64_t baseline) {
    if (!IsRelevant(rest, device)) return;
    const bool all_processes = device.Text("driver_scope") == "device";
    const std::string less = baseline > 0 ? Cat(" and ", Bytes(baseline), " of contexts and code at the start") : "";
    const std::string& off = found_.off_since;
    const std::string action =
        !off.empty()                                ? Cat("it was allocated after ",
                           subject_.is_detached ? "the detach" : off + ", when recording was turned off",
                           found_.extent.empty() ? "" : ", or before the attach", ": ", Again())
        : !found_.extent.empty()                    ? "it can be from before the attach: " + Again()
        : absl::c_any_of(now_.info.warnings, IsGap) ? "it can be from before recording was turned on again: " + Again()
        : now_.is_injected ? "the driver itself, or calls that hbmprof does not know (hbmprof doctor), have taken it: "
                             "see what the program did when it grew"
                           : "the program records only the calls that it names: hbmprof run records those of all "
                             "libraries";
    Add(FindingCode::kNotRecorded, device.name, all_processes ? Sure::kMedium : Sure::kHigh,
        {Cat(Bytes(rest), " of ", device.name, " are in use outside of recorded calls",
             all_processes ? ", by this process or by others" : ""),
         "the driver's number minus what is recorded" + less, action, Command("top --by library")})
        .bytes = rest;
  }

  // Whether the device needs `idle` bytes of its pools: they are a large part of it, it is nearly full, or was full.
  bool IsNeeded(int64_t idle, const Device& device) const {
    const std::optional<int64_t> left = Headroom(device);
    const int64_t limit = device.Number("limit").value_or(0);
    const bool is_full = left.has_value() &&
                         (idle >= PercentOf(kLargeIdlePercent, limit) || *left < PercentOf(kNearLimitPercent, limit));
    return is_full || absl::c_any_of(found_.findings, [&](const Finding& other) {
             return other.code == FindingCode::kOutOfMemory && (other.memory.empty() || other.memory == device.name);
           });
  }

  // What the library counted and the names that it could not read. None of it makes the sums wrong.
  void AddNotes(const ProfileSet::File& last) {
    constexpr std::pair<const char*, const char*> kCounts[] = {
        {"truncated_stacks",
         " stacks lost their outermost frames: they are deeper than HBMPROF_STACK_DEPTH, or end at code without unwind "
         "information"},
        {"replaced_records", " buffers were freed by a call that was not recorded"},
        {"refused_frees", " frees were refused: the memory may still be in use, and is not shown"},
        {"foreign_frees", " frees were of buffers whose allocation was not recorded"}};
    for (const Comment& tracker : last.info.trackers) {
      for (const auto& [key, text] : kCounts) {
        if (tracker.Number(key).value_or(0) != 0) found_.notes.push_back(Cat(tracker.Text(key), text));
      }
    }
    for (const std::string& text : last.comments) {
      const Comment comment(text);
      if (comment.word != "python" || comment.Text("problem").empty()) continue;
      found_.notes.push_back(Cat("Python functions are not in the stacks: ", comment.Text("problem")));
    }
    if (std::string hint = SymbolizeHint(profiles_); !hint.empty()) found_.notes.push_back(std::move(hint));
  }

  void AddTrust() {
    std::vector<std::string>& problems = found_.problems;
    // The last profile can be one that is not judged, because the program has freed all.
    const ProfileInfo& last = profiles_.files()[series_.files.back()].info;
    AddNotes(profiles_.files()[series_.files.back()]);
    found_.dropped = last.Dropped();
    if (found_.dropped > 0) {
      problems.push_back(Cat(found_.dropped, found_.dropped == 1 ? " allocation was" : " allocations were",
                             " not recorded, because a limit was reached (HBMPROF_MAX_LIVE, HBMPROF_MAX_HOST_BYTES)"));
    }
    for (const auto& [memory, text, state, next] : subject_.failures) {
      failures_[memory] = {text, "", true, state.has_value() ? &*state : nullptr, 0, next};
    }
    for (auto f = series_.files.rbegin(); f != series_.files.rend(); ++f) AddWarnings(*f);
    for (const auto& [memory, failure] : failures_) AddFailure(memory, failure);
    const bool is_recording = subject_.kind == Subject::Kind::kRecording;
    const bool is_jax = !problems.empty() && absl::StrContains(problems[0], "use_with_jax");
    const std::string action = found_.dropped > 0 ? "raise the limit, and " + Again()
                               : is_jax       ? "call hbmprof.use_with_jax, and set HBMPROF_RECORD or HBMPROF_OUTPUT"
                               : is_recording ? "look again when the process has ended, or record it anew"
                               : !problems.empty()       ? "repair the cause, and " + Again()
                               : series_.restart.empty() ? "get the file again: it was changed, or is damaged"
                                                         : "give the profiles of one process";
    problems.insert(problems.end(), subject_.problems.begin(), subject_.problems.end());
    if (!series_.restart.empty()) problems.push_back(series_.restart);
    if (problems.empty()) return;
    Add(FindingCode::kIncomplete, "", Sure::kHigh,
        {Cat("the data are not complete: ", problems[0],
             problems.size() == 1 ? "" : Cat(" (and ", problems.size() - 1, " more)")),
         "the data say so, or contradict themselves", Cat("the other findings hold for what was recorded; ", action),
         Command("explain --json")})
        .unknown["bytes"] = "what is missing has no size";
  }

  // The last failure in one memory.
  struct Failure {
    std::string text;
    std::string more;         // the last profile says it in other words, too
    bool is_of_state = true;  // `file` was made by the failure
    // The file that is nearest to the failure; null: not known.
    const ProfileSet* profiles = nullptr;
    size_t file = 0;
    std::string next;
  };

  // From the last file to the first one.
  void AddWarnings(size_t number) {
    const ProfileSet::File& file = profiles_.files()[number];
    const bool is_last = number == series_.files.back();
    for (const std::string& warning : file.info.warnings) {
      const size_t failed = warning.find(kOutOfMemory);
      if (failed != std::string::npos) {
        // "GPU:0, ", "GPU:0: ", "GPU:0, pinned_host memory: " or "GPU:0 pinned_host: "
        const std::string said = warning.substr(failed + sizeof(kOutOfMemory) - 1);
        const size_t end = std::min(said.find_first_of(",; "), said.size());
        std::string memory(absl::StripSuffix(said.substr(0, end), ":"));
        for (const char* const space : {" managed", " pinned_host"}) {
          if (absl::StartsWith(absl::StripPrefix(said.substr(end), ","), space)) memory += space;
        }
        // The report of a failure is in the profile that it makes. PyTorch states a failure in each later one, too.
        const bool is_of_state = !absl::StartsWith(warning, "PyTorch");
        const auto [entry, is_new] = failures_.try_emplace(memory);
        Failure& failure = entry->second;
        if (is_new) failure = {warning, "", false};
        if (!is_new && is_last) failure.more += "; " + warning;
        if (failure.is_of_state || (!is_of_state && warning != failure.text)) continue;
        failure.is_of_state = is_of_state;
        failure.profiles = &profiles_;
        failure.file = number;
        failure.next = is_last ? Command("top") : "hbmprof top " + SourcesText({file.path});
      } else if (is_last) {
        OffSince({warning}).empty() ? found_.problems.push_back(warning) : AddOff(warning);
      }
    }
  }

  void AddFailure(const std::string& memory, const Failure& failure) {
    const bool is_of_torch = absl::StartsWith(failure.text, "PyTorch");
    Finding& finding =
        Add(FindingCode::kOutOfMemory, memory, Sure::kHigh,
            {failure.text, is_of_torch ? "PyTorch reported it" : "the call that failed says so",
             "see what held the memory then, and make the largest part or the request smaller", failure.next});
    NameLargest(failure, finding);
    if (!finding.function.empty()) {
      finding.evidence +=
          Cat("; ", finding.function, " has ", Bytes(*finding.bytes), " of the memory in use, more than others");
    }
    finding.evidence += failure.more;
  }

  // Sets the function with most of the memory, and its bytes.
  void NameLargest(const Failure& failure, Finding& finding) const {
    finding.unknown["bytes"] =
        unit_ == "bytes" ? "no recorded memory was in use" : "the sample type does not count bytes";
    if (failure.profiles == nullptr || unit_ != "bytes") return;
    const std::optional<size_t> type = failure.profiles->FindType(profiles_.types()[type_].type);
    if (!type.has_value()) return;
    Grouping grouping;
    if (!finding.memory.empty()) grouping.labels = {kMemoryKey};
    for (const Sums::Row& row :
         Sums(*failure.profiles, {{failure.file, failure.file + 1}}, *type, grouping).Rows(false)) {
      if (row.flat[1] <= 0 || (!finding.memory.empty() && row.labels[0] != finding.memory)) continue;
      finding.function = row.name;
      finding.position = row.position;
      finding.bytes = row.flat[1];
      return;
    }
  }

  void AddOff(const std::string& warning) {
    found_.off_since = OffSince({warning});
    const bool is_running = subject_.kind == Subject::Kind::kProcess;
    Add(FindingCode::kRecordingOff, "", Sure::kHigh,
        {warning, "the process says so",
         is_running ? "save a profile (hbmprof dump), then turn recording on: it begins without all that is live now"
                    : Cat("if the process still runs, turn recording on; else ", Again(), ", and leave it on"),
         subject_.is_detached ? Cat("hbmprof attach ", subject_.sources)
         : is_running         ? Cat("hbmprof control ", subject_.sources, " tracking on")
                              : "hbmprof ps"})
        .unknown["bytes"] = "nothing was recorded since then";
  }

  const ProfileSet& profiles_;
  const DumpSeries& series_;
  const size_t type_;
  const std::string& unit_;
  const Subject& subject_;
  const ProfileSet::File& now_;
  // A profile can have many devices, so they are not searched one by one.
  std::map<std::string, const Device*> devices_;
  std::map<std::string, std::vector<Comment>> pools_;  // by device
  std::map<std::string, int64_t> held_;                // by device: memory that is released, and still held
  std::map<std::string, Failure> failures_;            // by memory
  Findings found_;
};

// Returns `text` as one word for a shell.
std::string Quoted(const std::string& text) {
  constexpr char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+,=";
  return text.find_first_not_of(kPlain) == std::string::npos
             ? text
             : Cat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Returns a pattern that a shell expands to these files and to no others; "" if there is none.
std::string PatternOf(std::vector<std::string> files) {
  absl::c_sort(files);
  const std::string& first = files.front();
  const std::string start(first.begin(), absl::c_mismatch(first, files.back()).first);
  for (const std::string& begin : {start.substr(0, start.rfind('/') + 1), start}) {
    const std::string pattern = begin + "*.pb.gz";
    glob_t found = {};
    std::vector<std::string> names;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) names.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    absl::c_sort(names);
    if (names == files && Quoted(begin) == begin) return pattern;
  }
  return "";
}

}  // namespace

const char* FindingName(FindingCode code) {
  constexpr const char* kNames[] = {"OUT_OF_MEMORY", "RECORDING_OFF", "LEAK",       "FULL_SOON",
                                    "IDLE_POOL",     "FRAGMENTED",    "STILL_HELD", "NOT_RECORDED",
                                    "OTHER_PROCESS", "RANK_OUTLIER",  "GROWS",      "INCOMPLETE"};
  return kNames[static_cast<size_t>(code)];
}

void RankFindings(std::vector<Finding>& findings) {
  absl::c_stable_sort(findings, [](const Finding& a, const Finding& b) {
    return std::make_tuple(a.is_advice, a.code, -a.per_second.value_or(0), -a.bytes.value_or(a.growth), a.function,
                           a.memory) < std::make_tuple(b.is_advice, b.code, -b.per_second.value_or(0),
                                                       -b.bytes.value_or(b.growth), b.function, b.memory);
  });
}

absl::StatusOr<DumpSeries> OrderToJudge(const ProfileSet& profiles, std::string* counter) {
  absl::StatusOr<DumpSeries> plain = OrderDumps(profiles, *counter);
  if (!counter->empty() || !plain.ok()) return plain;
  const std::vector<Comment>& counters = profiles.files()[plain->files.back()].info.counters;
  if (counters.size() != 1) return plain;
  absl::StatusOr<DumpSeries> series = OrderDumps(profiles, counters[0].name);
  if (!series.ok()) return plain;
  *counter = counters[0].name;
  return series;
}

std::vector<std::string> ContradictionsOf(const ProfileSet& profiles) {
  constexpr std::pair<const char*, const char*> kTotals[] = {
      {"in_use", "inuse_space"}, {"in_use", "reserved_space"}, {"peak", "peak_space"}};
  constexpr size_t kEnough = 20;
  std::vector<std::string> problems;
  const ProfileSet::LabelGroups memories = profiles.GroupLabels({kMemoryKey});
  for (const ProfileSet::File& file : profiles.files()) {
    const auto without_stack = absl::c_count_if(
        file.samples, [&](const ProfileSet::Sample& sample) { return profiles.stacks().length(sample.stack) == 0; });
    if (without_stack > 0) {
      problems.push_back(
          Cat(file.path, ": ", without_stack, " samples have no stack: they count, but no row shows them"));
    }
    if (file.info.devices.empty()) continue;
    for (const auto& [key, type_name] : kTotals) {
      const std::optional<size_t> type = profiles.FindType(type_name);
      if (!type.has_value()) continue;
      std::map<std::string, int64_t> sums;
      std::vector<int64_t> of_group(memories.values.size());
      for (size_t s = 0; s < file.samples.size(); ++s) {
        AddTo(of_group[memories.of_set[file.samples[s].labels]], profiles.Value(file, s, *type));
      }
      for (size_t i = 0; i < of_group.size(); ++i) sums[memories.values[i][0]] = of_group[i];
      for (const Device& device : file.info.devices) {
        const std::optional<int64_t> stated = device.Number(key);
        const int64_t sum = sums[device.memory()];
        if (!stated.has_value() || *stated == sum || sum == INT64_MAX) continue;
        if (problems.size() >= kEnough) return problems;
        problems.push_back(Cat(file.path, ": ", device.memory(), " states ", key, "=", *stated, ", but the samples' ",
                               type_name, " sum to ", sum));
      }
    }
  }
  return problems;
}

void ApplyViewAtFailure(const std::string& command, const ViewOptions& view, Subject& subject) {
  for (auto& [memory, text, state, next] : subject.failures) {
    // A label of the view can be one that the program has set later.
    if (!ApplyView(command, view, *state).ok()) state.reset();
  }
}

Findings FindingsOf(const ProfileSet& profiles, const DumpSeries& series, size_t type, const Subject& subject,
                    const std::vector<std::string>& by) {
  return Finder(profiles, series, type, subject).Run(by);
}

std::optional<Finding> OutlierOf(const ProfileSet& profiles, size_t type, const std::string& sources) {
  const ComparedRanks result = CompareRanks(profiles, type, {{}, Grouping::Frames::kNone});
  if (result.ranks.size() < 3 || result.rows.empty()) return std::nullopt;
  const ComparedRanks::Row& row = result.rows[0];
  const int64_t distance = Minus(row.outlier.second, row.median);
  if (row.distance <= 0 || Magnitude(distance) < PercentOf(kOutlierPercent, row.median)) return std::nullopt;
  Finding finding;
  finding.code = FindingCode::kRankOutlier;
  finding.sure = Sure::kMedium;
  const std::string& unit = profiles.types()[type].unit;
  if (unit == "bytes") finding.bytes = Magnitude(distance);
  finding.unknown["bytes"] = "the sample type does not count bytes";
  finding.sentence = Cat("rank ", result.ranks[row.outlier.first].name, " has ", FormatValue(row.outlier.second, unit),
                         ", ", FormatValue(Magnitude(distance), unit), distance > 0 ? " more" : " less",
                         " than the median of ", result.ranks.size(), " ranks");
  finding.evidence = "this distance is far above that of the other ranks";
  finding.action = "see which call stacks differ on this rank";
  finding.next = Cat("hbmprof diff --ranks ", sources);
  return finding;
}

std::string SourcesText(const std::vector<std::string>& sources, size_t most) {
  constexpr size_t kShort = 100;
  std::string text;
  for (const std::string& source : sources) text += Cat(text.empty() ? "" : " ", Quoted(source));
  if (sources.size() < 2 || text.size() <= kShort) return text;
  const std::string pattern = PatternOf(sources);
  return !pattern.empty() ? pattern : text.size() <= most ? text : "SOURCE...";
}

}  // namespace hbmprof::tool
