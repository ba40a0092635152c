// What is wrong with the memory of programs: one typed result, which `hbmprof explain`, `hbmprof leaks` and the page of
// `hbmprof report` show. docs/explain.md describes each code and its condition.
#ifndef HBMPROF_SRC_TOOL_FINDINGS_FINDINGS_H_
#define HBMPROF_SRC_TOOL_FINDINGS_FINDINGS_H_

#include "src/tool/growth/growth.h"
#include "src/tool/profile/view.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {

// In the order in which findings are shown.
enum class FindingCode {
  kOutOfMemory,
  kRecordingOff,
  kLeak,
  kFullSoon,
  kIdlePool,
  kFragmented,
  kStillHeld,
  kNotRecorded,
  kOtherProcess,
  kRankOutlier,
  kGrows,
  kIncomplete,
};
// Returns "OUT_OF_MEMORY", "LEAK" and so on. A code does not change its name.
const char* FindingName(FindingCode code);

// A profile of a process that has run for this time has the ages of buffers.
inline constexpr int64_t kAgeSeconds = 17;

struct Finding {
  static constexpr char kNoGrowth[] = "it is a state, not growth";

  FindingCode code = FindingCode::kLeak;
  Sure sure = Sure::kHigh;
  std::string process;   // the name of its source; "" in an answer on one source
  std::string memory;    // "GPU:0"; "" if it is not of one memory
  std::string function;  // whose memory it is; "" if it is not of one function
  std::string position;  // of the function, as Sums::Row::position
  std::string callers;   // "f < g < h", the innermost first
  std::string counter;   // such as "requests"; "" if there is none
  std::optional<int64_t> bytes;
  std::optional<double> per_second;
  std::optional<double> per_count;  // growth for each unit of the counter `counter`
  std::optional<double> seconds_to_limit;
  std::optional<double> seconds_at_load;  // of kFullSoon: with all growth; seconds_to_limit: with leaks alone, if any
  // Why the number of this name is not known, if it has no value.
  std::map<std::string, std::string> unknown = {
      {"per_second", kNoGrowth}, {"per_count", kNoGrowth}, {"seconds_to_limit", kNoGrowth}};
  std::string sentence;  // what is wrong
  std::string evidence;  // how this is known
  std::string action;    // what to do
  std::string next;      // the command that shows more

  // Of kLeak and kGrows:
  int64_t growth = 0;             // in the unit of the sample type
  std::optional<uint32_t> stack;  // the one with the most growth
  std::vector<std::pair<std::string, std::string>> labels;

  size_t others = 0;      // the call stacks that grow together with `stack`, and none of them enough by itself
  bool is_minor = false;  // a possible leak that is small for the device
  bool is_tiny = false;   // a possible leak that is small for the program's memory, as most programs have some

  // Of kIdlePool: the bytes of whole free segments, which the pool can return.
  std::optional<int64_t> returnable;
  bool is_advice = false;  // nothing is wrong, but memory can be saved: does not set the exit code
};

// The memory of one device.
struct MemoryUse {
  std::string name;
  int64_t in_use = 0;  // as the driver counts it, if it does
  std::optional<int64_t> limit;
  std::optional<int64_t> peak;                         // of the recorded memory
  std::vector<std::pair<std::string, int64_t>> parts;  // of `in_use`
};

// A phase of the program: the memory of the label kPhaseLabel, on all devices.
struct PhaseUse {
  std::string name;                  // "": memory of no phase
  std::optional<int64_t> estimated;  // by the program itself
  int64_t in_use = 0;
  std::vector<std::pair<std::string, int64_t>> libraries;  // the largest parts of `in_use`
};
inline constexpr char kPhaseLabel[] = "phase";

// What is known of a program besides its profiles.
struct Subject {
  std::string name;                   // "llm_server (4242)"
  std::string sources;                // as on a command line
  std::string state;                  // of a recording: its last state, as on a command line
  std::string counter;                // for Finding::per_count; ""
  std::vector<std::string> problems;  // ContradictionsOf
  // The bytes of other processes on each device, by name; a device that is not here: not known.
  std::map<std::string, int64_t> others;
  // Of a recording: by device, the bytes of the segments of pools without a live block.
  std::map<std::string, int64_t> free_segments;
  // Of a recording: the allocations that failed in one memory.
  struct Failures {
    std::string memory;
    std::string text;
    std::optional<ProfileSet> state;  // before the last one, with the view of the profiles
    std::string next;                 // the command that shows this state
  };
  std::vector<Failures> failures;
  bool is_snapshot = false;  // of PyTorch
  bool has_trace = true;     // else it is a snapshot with its state alone
  bool is_detached = false;  // of a process: LiveProcess::is_detached
  // What the profiles are from. Only a process is known to run.
  enum class Kind { kFiles, kRecording, kProcess } kind = Kind::kFiles;
};

struct Findings {
  std::string name;
  std::string unit;               // of Finding::growth
  std::optional<double> seconds;  // since the start of the program
  size_t dumps = 0;               // that were judged
  std::vector<MemoryUse> memories;
  std::vector<PhaseUse> phases;  // the largest; empty if the program has none
  std::vector<Finding> findings;
  // Whether growth could be judged; else why not.
  std::string not_judged;
  // How far the data can be trusted.
  std::string extent;                 // of data that are not from the start of the program on
  int64_t dropped = 0;                // allocations
  std::string off_since;              // OffSince of the last profile
  bool is_all_freed = false;          // the program holds nothing (IsFreed) but has
  bool is_ours = true;                // else the profile of another tool, which says none of this
  std::vector<std::string> problems;  // what the data lack
  std::vector<std::string> notes;     // what a reader of the data should know besides

  std::vector<SiteGrowth> sites;  // in the order of RankGrowth
};

// As OrderDumps. If `*counter` is "", sets it to the only counter of the last dump, if its values can be used.
absl::StatusOr<DumpSeries> OrderToJudge(const ProfileSet& profiles, std::string* counter);

// Returns where the profiles contradict themselves: samples that no row shows, and totals that are not those of their
// samples. `profiles` has no view yet.
std::vector<std::string> ContradictionsOf(const ProfileSet& profiles);

// Applies the view of the profiles to Subject::failures.
void ApplyViewAtFailure(const std::string& command, const ViewOptions& view, Subject& subject);

// Judges the profiles of one program. `profiles` has the view of own code; `type` is judged for growth. The result
// refers to nothing else. `by`: labels whose values are judged separately. The parts of phases need the label of
// LabelLibraries.
Findings FindingsOf(const ProfileSet& profiles, const DumpSeries& series, size_t type, const Subject& subject,
                    const std::vector<std::string>& by = {});

// Returns the largest phases in the file `now` of the profiles.
std::vector<PhaseUse> PhasesOf(const ProfileSet& profiles, const ProfileSet::File& now);

// Returns the rank whose memory is farthest from that of the others, if it is conspicuous. The samples must have the
// label of LabelRanks.
std::optional<Finding> OutlierOf(const ProfileSet& profiles, size_t type, const std::string& sources);

// Returns the sources as a part of a command line for a shell: many profiles as a pattern that stands for no others;
// "SOURCE..." if there is none and the names have more than `most` bytes.
std::string SourcesText(const std::vector<std::string>& sources, size_t most = 300);

// Sorts findings in the order in which they are shown.
void RankFindings(std::vector<Finding>& findings);

// Renderings of the result. `number` is the place of the finding, from 1 on.
Json FindingJson(const Finding& finding, size_t number);
Json SourceJson(const Findings& findings);
// For pages: {"findings": those that are not minor, in their order, "trust": text, which says if there is no finding}.
Json PageJson(const Findings& findings);
// For PrintVisible: several lines; the headline; the line on trust.
std::string FindingText(const Finding& finding, size_t number);
std::string HeadText(const Findings& findings);
// For PrintVisible: a table with its heading; "" without phases.
std::string PhasesText(const std::vector<PhaseUse>& phases);
void AddPhases(const std::vector<PhaseUse>& phases, Json& json);  // as `phases`
std::string TrustText(const Findings& findings);
// The sentence if there is no finding, without a full stop. `is_judged`: whether all could be judged.
const char* NoFindingText(bool is_judged);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_FINDINGS_FINDINGS_H_
