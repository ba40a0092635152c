#include "src/tool/findings/findings.h"

#include <cmath>
#include <tuple>

#include "src/tool/sums/ranks.h"

namespace hbmprof::tool {
namespace {

// Thresholds. docs/explain.md lists them.
constexpr int64_t kIdlePercent = 10;                   // idle memory, of the pools
constexpr int64_t kRelevantPercent = 5;                // of the device's limit: less memory than this is no finding
constexpr int64_t kFragmentedPercent = 50;             // of the free memory that is outside of the largest free block
constexpr double kSoonSeconds = 4 * 3600.0;            // until the limit is reached
constexpr double kMostSeconds = 1000 * 365 * 86400.0;  // until the limit is reached: a longer time is not shown
constexpr int64_t kOutlierPercent = 10;                // of a rank's memory: a smaller distance is no finding

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
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True keeps the cache small; torch.cuda.empty_cache() gives it back "
     "once",
     "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
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

// Says why the numbers of growth have no value.
void NoGrowth(Finding& finding) {
  for (const char* name : {"per_second", "per_count", "seconds_to_limit"}) {
    finding.unknown.emplace_back(name, "it is a state, not growth");
  }
}

// Where most memory of a call stack is.
struct Holder {
  std::string device;
  std::string pool;  // "xla" for arrays of a PJRT plugin
};

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
    if (const auto uptime = now_.info.UptimeSeconds(); uptime.has_value()) found_.seconds = *uptime;
    found_.dumps = series_.end - series_.begin;
    if (series_.CanBeJudged()) {
      found_.sites = RankGrowth(profiles_, series_, type_, by);
      found_.rest = RestOf(profiles_, series_, type_, found_.sites);
      AddGrowth();
    } else {
      const bool is_young = found_.seconds.has_value() && *found_.seconds < kAgeSeconds;
      found_.not_judged = Cat(found_.dumps, found_.dumps == 1 ? " profile" : " profiles",
                              is_young ? Cat(" of a process that had run for ", static_cast<int64_t>(*found_.seconds),
                                             " s, not ", kAgeSeconds, " s,")
                                       : " without the ages of buffers",
                              " cannot show growth; give at least three, better ", kEnoughDumps);
    }
    for (const Device& device : now_.info.devices) AddDevice(device);
    // Profiles of other tools.
    const int64_t sum = SumOf(profiles_, now_, type_);
    if (found_.memories.empty() && unit_ == "bytes" && sum > 0) found_.memories.push_back({"memory", sum, {}, sum, {}});
    AddTrust();
    RankFindings(found_.findings);
    return std::move(found_);
  }

 private:
  Finding& Add(FindingCode code, const std::string& memory, Sure sure = Sure::kHigh) {
    Finding& finding = found_.findings.emplace_back();
    finding.code = code;
    finding.sure = sure;
    finding.memory = memory;
    return finding;
  }
  std::string Command(const std::string& words) const { return Cat("hbmprof ", words, " ", subject_.sources); }
  const Device* DeviceNamed(const std::string& name) const {
    const auto device = devices_.find(name);
    return device == devices_.end() ? nullptr : device->second;
  }
  // The bytes that are left until the limit, as the driver or the records show it.
  static std::optional<int64_t> Headroom(const Device& device) {
    const std::optional<int64_t> limit = device.Number("limit");
    if (limit.value_or(0) <= 0) return std::nullopt;
    return Minus(*limit, std::max(device.Number("in_use").value_or(0), device.Number("driver_in_use").value_or(0)));
  }
  // Whether so many bytes of the device are worth a finding.
  static bool IsRelevant(int64_t bytes, const Device& device) {
    const int64_t whole = device.Number("limit").value_or(device.Number("in_use").value_or(0));
    return bytes > 0 && bytes >= PercentOf(kRelevantPercent, whole);
  }

  // The call stacks of one function on one device with one verdict.
  struct Group {
    Holder holder;
    std::vector<const SiteGrowth*> sites;
  };

  // Returns the holders of the call stacks that grow.
  std::map<uint32_t, Holder> HoldersOfGrowth() const {
    std::map<uint32_t, std::map<std::pair<std::string, std::string>, int64_t>> sums;
    for (const SiteGrowth& site : found_.sites) {
      if (site.grows()) sums[site.stack];
    }
    for (size_t s = 0; s < now_.samples.size(); ++s) {
      const auto stack = sums.find(now_.samples[s].stack);
      if (stack == sums.end()) continue;
      const uint32_t labels = now_.samples[s].labels;
      const bool is_array = !profiles_.LabelText(labels, "shape").empty();
      const std::string pool = is_array ? "xla" : profiles_.LabelText(labels, "allocator");
      AddTo(stack->second[{profiles_.LabelText(labels, "device"), pool}], profiles_.Value(now_, s, type_));
    }
    std::map<uint32_t, Holder> holders;
    for (const auto& [stack, of_stack] : sums) {
      const auto most = absl::c_max_element(of_stack, [](const auto& a, const auto& b) { return a.second < b.second; });
      holders[stack] = most == of_stack.end() ? Holder() : Holder{most->first.first, most->first.second};
    }
    return holders;
  }

  void AddGrowth() {
    const std::map<uint32_t, Holder> holders = HoldersOfGrowth();
    std::map<std::tuple<Verdict, std::string, std::string, std::vector<std::pair<std::string, std::string>>>, Group>
        groups;
    for (const SiteGrowth& site : found_.sites) {
      if (!site.grows()) break;
      const std::vector<ProfileSet::ShownFrame> stack = profiles_.ShownStack(site.stack);
      const Holder& holder = holders.at(site.stack);
      Group& group = groups[{site.verdict, stack.empty() ? "[no stack]" : stack[0].name, holder.device, site.labels}];
      if (group.sites.empty()) group.holder = holder;
      group.sites.push_back(&site);
    }
    for (const auto& [key, group] : groups) AddGrowing(group);
    if (found_.rest.verdict == Verdict::kLeak) {
      AddGrowing({Holder(), {&found_.rest}});
      found_.findings.back().function = "all other call stacks together";
    }
    for (Finding& finding : found_.findings) {
      SetLimit(finding);
      SetSentence(finding);
    }
    if (subject_.failures.empty()) AddFullSoon();
  }

  void AddGrowing(const Group& group) {
    const SiteGrowth& most = *group.sites[0];
    Finding& finding =
        Add(most.verdict == Verdict::kLeak ? FindingCode::kLeak : FindingCode::kGrows, group.holder.device, Sure::kLow);
    finding.labels = most.labels;
    finding.counter = subject_.counter;
    for (const SiteGrowth* site : group.sites) {
      AddTo(finding.growth, site->growth);
      finding.sure = std::min(finding.sure, site->sure);
      if (site->per_second.has_value()) finding.per_second = finding.per_second.value_or(0) + *site->per_second;
      if (site->per_count.has_value()) finding.per_count = finding.per_count.value_or(0) + *site->per_count;
    }
    if (unit_ == "bytes") finding.bytes = finding.growth;
    if (&most != &found_.rest) {
      finding.stack = most.stack;
      const std::vector<ProfileSet::ShownFrame> stack = profiles_.ShownStack(most.stack);
      finding.function = stack.empty() ? "[no stack]" : stack[0].name;
      finding.position = stack.empty() ? "" : stack[0].Position();
      constexpr size_t kShownCallers = 3;
      for (size_t i = 1; i < stack.size() && i <= kShownCallers; ++i) {
        finding.callers += (i == 1 ? "" : " < ") + stack[i].name;
      }
    }
    finding.evidence = most.why;
    if (group.sites.size() > 1)
      finding.evidence += Cat("; this is the largest of ", group.sites.size(), " call stacks");
    finding.action = FrameworkOf(group.holder.pool).kept;
    if (finding.code == FindingCode::kGrows) {
      const Device* const device = DeviceNamed(finding.memory);
      const int64_t whole = device == nullptr ? 0 : device->Number("limit").value_or(0);
      finding.is_minor =
          finding.growth < PercentOf(kRelevantPercent, whole > 0 ? whole : SumOf(profiles_, now_, type_));
      finding.action = Cat("look again after twice the time: if it still grows, ", finding.action);
    }
    finding.next = Command("leaks --frames 0");
    if (unit_ != "bytes") finding.unknown.emplace_back("bytes", "the sample type does not count bytes");
    if (!finding.per_second.has_value()) {
      finding.unknown.emplace_back("per_second", "the times of the profiles are not known");
    }
    if (!finding.per_count.has_value()) {
      finding.unknown.emplace_back("per_count", subject_.counter.empty()
                                                    ? "the program has set no counter (hbmprof::SetCounter)"
                                                    : "the counter did not change");
    }
  }

  void SetLimit(Finding& finding) const {
    const Device* const device = DeviceNamed(finding.memory);
    const std::optional<int64_t> left = device == nullptr ? std::nullopt : Headroom(*device);
    if (!left.has_value() || unit_ != "bytes") {
      finding.unknown.emplace_back("seconds_to_limit", "the limit of the memory is not known");
    } else if (finding.per_second.value_or(0) <= 0) {
      finding.unknown.emplace_back("seconds_to_limit", "the growth per second is not known");
    } else {
      finding.seconds_to_limit = std::max(0.0, static_cast<double>(*left) / *finding.per_second);
      if (*finding.seconds_to_limit >= kMostSeconds) {
        finding.seconds_to_limit.reset();
        finding.unknown.emplace_back("seconds_to_limit", "it is more than 1,000 years");
      }
    }
  }

  void SetSentence(Finding& finding) const {
    const bool is_leak = finding.code == FindingCode::kLeak;
    std::string text = finding.function;
    if (!finding.labels.empty()) {
      text += Cat(" (", absl::StrJoin(finding.labels, " ", absl::PairFormatter("=")), ")");
    }
    text += is_leak ? " leaks " : " may leak ";
    const bool has_rate = finding.per_second.value_or(0) > 0;
    if (has_rate) text += RateText(*finding.per_second, unit_);
    if (finding.per_count.has_value()) {
      text += Cat(has_rate ? ", " : "", FormatValue(std::llround(*finding.per_count), unit_), " a ",
                  OneOf(subject_.counter));
    }
    const std::string growth = FormatChange(finding.growth, unit_);
    text += has_rate || finding.per_count.has_value() ? Cat(" (", growth, ")") : growth;
    if (finding.seconds_to_limit.has_value()) {
      text += Cat("; ", finding.memory, " is full in ", FormatDuration(*finding.seconds_to_limit));
    }
    finding.sentence = text;
  }

  // All growth of a device together.
  void AddFullSoon() {
    struct Rates {
      double leaks = 0;
      double all = 0;
      Sure sure = Sure::kLow;
    };
    std::map<std::string, Rates> by_memory;
    for (const Finding& finding : found_.findings) {
      if (finding.is_minor) continue;
      Rates& rates = by_memory[finding.memory];
      rates.all += finding.per_second.value_or(0);
      if (finding.code != FindingCode::kLeak) continue;
      rates.leaks += finding.per_second.value_or(0);
      rates.sure = std::min(rates.sure, finding.sure);
    }
    for (const auto& [memory, rates] : by_memory) {
      const Device* const device = DeviceNamed(memory);
      const bool is_leak = rates.leaks > 0;
      const double per_second = is_leak ? rates.leaks : rates.all;
      if (device == nullptr || unit_ != "bytes" || per_second <= 0) continue;
      const std::optional<int64_t> left = Headroom(*device);
      if (!left.has_value()) continue;
      const double seconds = std::max(0.0, static_cast<double>(*left) / per_second);
      if (seconds > kSoonSeconds) continue;
      Finding& finding = Add(FindingCode::kFullSoon, memory, rates.sure);
      finding.bytes = *left;
      finding.per_second = per_second;
      finding.seconds_to_limit = seconds;
      finding.unknown.emplace_back("per_count", "it is a rate of the device");
      finding.sentence = Cat(memory, " is full in ", FormatDuration(seconds), ": ", Bytes(*left), " of ",
                             Bytes(*device->Number("limit")), " are left, and ",
                             is_leak ? "leaks take " : "growth takes ", RateText(per_second, unit_));
      finding.evidence = "it assumes that the growth goes on as before";
      finding.action = "restart the program before that time, until the growth is repaired";
      finding.next = Command("top");
    }
  }

  // A finding on the state at one moment.
  Finding& AddState(FindingCode code, const std::string& memory, int64_t bytes, Sure sure = Sure::kHigh) {
    Finding& finding = Add(code, memory, sure);
    finding.bytes = bytes;
    NoGrowth(finding);
    return finding;
  }
  // The same, without a size: `why`.
  Finding& AddEvent(FindingCode code, const std::string& memory, const char* why) {
    Finding& finding = Add(code, memory);
    finding.unknown.emplace_back("bytes", why);
    NoGrowth(finding);
    return finding;
  }

  void AddDevice(const Device& device) {
    const auto number = [&](const char* key) { return device.Number(key).value_or(0); };
    MemoryUse memory = {device.memory()};
    memory.limit = device.Number("limit");
    if (memory.limit == 0) memory.limit = std::nullopt;
    memory.peak = number("peak");
    const int64_t recorded = number("in_use");
    const int64_t outside = std::max<int64_t>(0, number("unaccounted"));
    memory.in_use = Plus(Plus(recorded, outside), number("driver_cache"));
    const auto part = [&](const std::string& name, int64_t bytes) {
      if (bytes > 0) memory.parts.emplace_back(name, bytes);
    };
    // The pools of the device. One can be inside another, so only their sum is exact.
    const auto of_device = device.is_device_memory() ? pools_.find(device.name) : pools_.end();
    const std::vector<Comment> pools = of_device == pools_.end() ? std::vector<Comment>() : of_device->second;
    const auto largest = absl::c_max_element(pools, [](const Comment& a, const Comment& b) {
      return a.Number("idle").value_or(0) < b.Number("idle").value_or(0);
    });
    const Framework& framework = FrameworkOf(largest == pools.end() ? "" : largest->name);
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
    const auto others = subject_.others.find(device.name);
    const int64_t of_others = others == subject_.others.end() ? 0 : std::min(others->second, outside);
    part("other processes", of_others);
    part("not recorded", Minus(outside, of_others));
    if (memory.in_use > 0 || memory.peak > 0) found_.memories.push_back(std::move(memory));
    if (!device.is_device_memory()) return;

    const std::optional<int64_t> free_block = device.Number("largest_free_block");
    if (idle > PercentOf(kIdlePercent, pool) && IsRelevant(idle, device)) {
      Finding& finding = AddState(FindingCode::kIdlePool, device.name, idle);
      finding.sentence = Cat(Bytes(idle), " of the ", Bytes(pool), " in ", title, " on ", device.name, " are idle");
      finding.evidence = free_block.has_value()
                             ? Cat("the largest free block of the device has ", Bytes(*free_block))
                             : "the pool has reserved them from the device, and has not handed them out";
      finding.action = framework.idle;
      finding.next = Command("top -t reserved_space -w kind=pool");
    }
    const std::optional<int64_t> headroom = Headroom(device);
    const int64_t free = headroom.value_or(0);
    if (free_block.has_value() && device.Number("driver_in_use").has_value() && IsRelevant(free, device) &&
        Minus(free, *free_block) > PercentOf(kFragmentedPercent, free)) {
      Finding& finding = AddState(FindingCode::kFragmented, device.name, Minus(free, *free_block));
      finding.sentence = Cat("the free memory of ", device.name, " is in pieces: the largest block has ",
                             Bytes(*free_block), " of ", Bytes(free), " free");
      finding.evidence = "as the driver reports it";
      finding.action = framework.split;
      finding.next = Command("top");
    }
    AddOutside(device, outside, of_others);
  }

  // Memory that no record has: `outside` bytes, `of_others` of these by other processes, as far as known.
  void AddOutside(const Device& device, int64_t outside, int64_t of_others) {
    if (IsRelevant(of_others, device)) {
      Finding& finding = AddState(FindingCode::kOtherProcess, device.name, of_others);
      finding.sentence = Cat("other processes have ", Bytes(of_others), " of ", device.name, " in use");
      finding.evidence = "as the driver reports it";
      finding.action = "end them, or give them another device (CUDA_VISIBLE_DEVICES)";
      finding.next = "nvidia-smi";
    }
    const int64_t baseline = std::max<int64_t>(0, device.Number("baseline").value_or(0));
    const int64_t rest = Minus(outside, std::max(of_others, baseline));
    if (!IsRelevant(rest, device)) return;
    const bool all_processes = device.Text("driver_scope") == "device" && of_others == 0;
    Finding& finding =
        AddState(FindingCode::kNotRecorded, device.name, rest, all_processes ? Sure::kMedium : Sure::kHigh);
    finding.sentence = Cat(Bytes(rest), " of ", device.name, " are in use outside of recorded calls",
                           all_processes ? ", by this process or by others" : "");
    finding.evidence = "the driver's number minus what is recorded";
    if (of_others > baseline) {
      finding.evidence += Cat(" and ", Bytes(of_others), " of other processes");
    } else if (baseline > 0) {
      finding.evidence += Cat(" and ", Bytes(baseline), " of contexts and code at the start");
    }
    finding.action = "see which libraries allocate without a recorded call; start the program with hbmprof run";
    finding.next = Command("top --by library");
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
  }

  void AddTrust() {
    std::vector<std::string>& problems = found_.problems;
    // The last profile can be one that is not judged, because the program has freed all.
    const ProfileInfo& last = profiles_.files()[series_.files.back()].info;
    AddNotes(profiles_.files()[series_.files.back()]);
    for (const Comment& tracker : last.trackers) {
      AddTo(found_.dropped, tracker.Number("dropped_records").value_or(0));
    }
    if (found_.dropped > 0) {
      problems.push_back(Cat(found_.dropped, found_.dropped == 1 ? " allocation was" : " allocations were",
                             " not recorded, because a limit was reached (HBMPROF_MAX_LIVE, HBMPROF_MAX_HOST_BYTES)"));
    }
    found_.is_all_freed = !found_.memories.empty() && SumOf(profiles_, now_, type_) == 0;
    found_.is_since_start = absl::c_none_of(profiles_.functions(), [this](const ProfileSet::Function& function) {
      return profiles_.text(function.name) == "[before attach]";
    });
    if (!subject_.failures.empty()) AddFailure("", subject_.failures, subject_.next_of_failures);
    for (const std::string& warning : last.warnings) {
      const size_t failed = warning.find("ut of memory on ");
      if (!OffSince({warning}).empty()) {
        AddOff(warning);
      } else if (failed != std::string::npos) {
        const size_t begin = failed + 16;
        std::string device = warning.substr(begin, warning.find_first_of(",; ", begin) - begin);
        if (!device.empty() && device.back() == ':') device.pop_back();
        AddFailure(device, warning, Command("top"));
      } else {
        problems.push_back(warning);
      }
    }
    problems.insert(problems.end(), subject_.problems.begin(), subject_.problems.end());
    if (!series_.restart.empty()) problems.push_back(series_.restart);
    if (problems.empty()) return;
    Finding& finding = AddEvent(FindingCode::kIncomplete, "", "what is missing has no size");
    finding.sentence = Cat("the data are not complete: ", problems[0],
                           problems.size() == 1 ? "" : Cat(" (and ", problems.size() - 1, " more)"));
    finding.evidence = "the data say so, or contradict themselves";
    finding.action = "the other findings hold for what was recorded; repair the cause, and record again";
    finding.next = Command("explain --json");
  }

  void AddFailure(const std::string& memory, const std::string& text, const std::string& next) {
    Finding& finding = Add(FindingCode::kOutOfMemory, memory);
    NoGrowth(finding);
    NameLargest(finding);
    finding.sentence = text;
    finding.evidence = finding.function.empty()
                           ? "the program or its allocator reported it"
                           : Cat("the program or its allocator reported it; ", finding.function, " has ",
                                 Bytes(*finding.bytes), " of the memory in use, more than others");
    finding.action = "see what held the memory then, and make the largest part smaller";
    finding.next = next;
  }

  // Sets the function with most memory, and its bytes.
  void NameLargest(Finding& finding) const {
    absl::flat_hash_map<uint32_t, int64_t> stacks;
    for (size_t s = 0; s < now_.samples.size(); ++s) {
      AddTo(stacks[now_.samples[s].stack], profiles_.Value(now_, s, type_));
    }
    std::map<std::pair<std::string, std::string>, int64_t> functions;
    for (const auto& [number, value] : stacks) {
      const std::vector<ProfileSet::ShownFrame> stack = profiles_.ShownStack(number);
      if (!stack.empty()) AddTo(functions[{stack[0].name, stack[0].Position()}], value);
    }
    const auto most = absl::c_max_element(functions, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == functions.end() || most->second <= 0 || unit_ != "bytes") {
      finding.unknown.emplace_back(
          "bytes", unit_ == "bytes" ? "no recorded memory is in use" : "the sample type does not count bytes");
      return;
    }
    std::tie(finding.function, finding.position) = most->first;
    finding.bytes = most->second;
  }

  void AddOff(const std::string& warning) {
    found_.is_recording = false;
    Finding& finding = AddEvent(FindingCode::kRecordingOff, "", "nothing was recorded since then");
    finding.sentence = warning;
    finding.evidence = "the process says so";
    finding.action = "save a profile (hbmprof dump), then turn recording on: it begins without all that is live now";
    const std::string pid = now_.info.processes.empty() ? "" : now_.info.processes[0].Text("pid");
    finding.next = Cat("hbmprof control ", pid.empty() ? "PROCESS" : pid, " tracking on");
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
  Findings found_;
};

}  // namespace

const char* FindingName(FindingCode code) {
  constexpr const char* kNames[] = {"OUT_OF_MEMORY", "RECORDING_OFF", "LEAK",         "FULL_SOON",
                                    "IDLE_POOL",     "FRAGMENTED",    "NOT_RECORDED", "OTHER_PROCESS",
                                    "RANK_OUTLIER",  "GROWS",         "INCOMPLETE"};
  return kNames[static_cast<size_t>(code)];
}

void RankFindings(std::vector<Finding>& findings) {
  absl::c_stable_sort(findings, [](const Finding& a, const Finding& b) {
    return std::make_tuple(a.code, -a.per_second.value_or(0), -a.bytes.value_or(a.growth), a.function, a.memory) <
           std::make_tuple(b.code, -b.per_second.value_or(0), -b.bytes.value_or(b.growth), b.function, b.memory);
  });
}

absl::StatusOr<DumpSeries> OrderToJudge(const ProfileSet& profiles, std::string* counter) {
  if (!counter->empty()) return OrderDumps(profiles, *counter);
  const std::vector<Comment>& counters = profiles.files().back().info.counters;
  if (counters.size() == 1) {
    absl::StatusOr<DumpSeries> series = OrderDumps(profiles, counters[0].name);
    if (series.ok()) *counter = counters[0].name;
    if (series.ok()) return series;
  }
  return OrderDumps(profiles, "");
}

std::vector<std::string> ContradictionsOf(const ProfileSet& profiles) {
  constexpr std::pair<const char*, const char*> kTotals[] = {
      {"in_use", "inuse_space"}, {"in_use", "reserved_space"}, {"peak", "peak_space"}};
  constexpr size_t kEnough = 20;
  std::vector<std::string> problems;
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
      std::map<uint32_t, int64_t> of_labels;
      for (size_t s = 0; s < file.samples.size(); ++s) {
        AddTo(of_labels[file.samples[s].labels], profiles.Value(file, s, *type));
      }
      std::map<std::pair<std::string, std::string>, int64_t> sums;
      for (const auto& [labels, bytes] : of_labels) {
        const std::string kind = profiles.LabelText(labels, "kind");
        AddTo(
            sums[{profiles.LabelText(labels, "device"), kind == "managed" || kind == "pinned_host" ? kind : "device"}],
            bytes);
      }
      for (const Device& device : file.info.devices) {
        const std::optional<int64_t> stated = device.Number(key);
        const int64_t sum = sums[{device.name, device.space}];
        if (!stated.has_value() || *stated == sum || sum == INT64_MAX) continue;
        if (problems.size() >= kEnough) return problems;
        problems.push_back(Cat(file.path, ": ", device.memory(), " states ", key, "=", *stated, ", but the samples' ",
                               type_name, " sum to ", sum));
      }
    }
  }
  return problems;
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
  NoGrowth(finding);
  finding.sentence = Cat("rank ", result.ranks[row.outlier.first].name, " has ", FormatValue(row.outlier.second, unit),
                         ", ", FormatValue(Magnitude(distance), unit), distance > 0 ? " more" : " less",
                         " than the median of ", result.ranks.size(), " ranks");
  finding.evidence = "this distance is far above that of the other ranks";
  finding.action = "see which call stacks differ on this rank";
  finding.next = Cat("hbmprof diff --ranks ", sources);
  return finding;
}

std::string SourcesText(const std::vector<std::string>& sources) {
  constexpr size_t kMost = 1000;
  std::string text;
  for (size_t i = 0; i < sources.size() && text.size() <= kMost; ++i) {
    const bool is_plain =
        sources[i].find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+,=") ==
        std::string::npos;
    text += Cat(i == 0 ? "" : " ",
                is_plain ? sources[i] : Cat("'", absl::StrReplaceAll(sources[i], {{"'", "'\\''"}}), "'"));
  }
  return text.size() > kMost ? "SOURCE..." : text;
}

}  // namespace hbmprof::tool
