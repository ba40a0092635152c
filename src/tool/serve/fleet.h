// The processes of this host that have a control channel, for `hbmprof serve`.
#ifndef HBMPROF_SRC_TOOL_SERVE_FLEET_H_
#define HBMPROF_SRC_TOOL_SERVE_FLEET_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "src/tool/profile/merge.h"
#include "src/tool/source/control_client.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {

// All functions are thread-safe. They query the processes at the time of the call, unless their comment says otherwise.
class Fleet {
 public:
  struct Options {
    std::string directory;  // of the sockets
    double interval_s = 5;  // between two points of the history
    // Processes fold the smallest call stacks of a profile until it has at most this many samples, and bytes before it
    // is compressed. 0: no limit. The defaults are the limits of Pyroscope.
    int64_t max_samples = 16'000;
    int64_t max_bytes = 4 << 20;
    // The tag keys "KEY,KEY,..." by which the metrics split the bytes in use; "": those that each process has set.
    std::string metrics_tags;
    // What is made of a process. `profile`, `stats`: its answers to these requests.
    template <typename Answer>
    using Maker =
        std::function<absl::StatusOr<Answer>(const LiveProcess&, std::string profile, const std::string& stats)>;
    Maker<Json> explain;        // says what is wrong with its memory
    Maker<std::string> report;  // ReportPage
  };
  // The processes with this id or name; all processes if both are "".
  struct Selection {
    std::string pid;
    std::string name;
  };

  // Starts the threads that record the history and judge the processes.
  explicit Fleet(Options options);
  ~Fleet();

  // Returns the processes with their memory and its history, as of the last point of the history: {"interval",
  // "directory", "silent": [problem...], "processes": [process...]}. A process is as ProcessJson has it, with
  // "history": [bytes in use on the devices...], "explain": the last answer of Explain, and if it did not answer at
  // that point, "ended": whether it has ended, "last_answer": seconds before. Processes stay for an hour after their
  // end, at most 100.
  Json Processes() const;

  // Returns one profile of the selected processes. Unless a process id is given, each sample has the labels `pid` and
  // `name` of its process. Leaves out processes whose answer is missing, not valid or too large. If none is left,
  // returns the error of one of them. Other errors: kNotFound (no such process), kUnavailable (no answer).
  absl::StatusOr<std::string> Profile(const Selection& selection);

  // Returns what Options::explain says of the selected process. Errors: also those of Profile; kInvalidArgument with
  // their ids if there are several.
  absl::StatusOr<Json> Explain(const Selection& selection);

  // Returns the page of `hbmprof report` for the selected process. Errors: as for Explain.
  absl::StatusOr<std::string> Report(const Selection& selection);

  // Returns the metrics of all processes, with hbmprof_process_up, which is 0 for those that do not answer, and with
  // the findings in the last answer of Explain, for which each process is asked once a minute while metrics are read.
  // A folder that cannot be used counts as a process that does not answer.
  std::string Metrics();

 private:
  using Time = std::chrono::steady_clock::time_point;
  // A process over time.
  struct Course {
    LiveProcess process;        // as it was last
    Time last;                  // when it answered last, or was seen to have ended
    std::deque<int64_t> bytes;  // in use
    Json explain;               // null: nobody has asked
    Time explained;             // when it was asked
    Time next_judgement;        // not earlier
  };
  using Answers = std::vector<std::pair<LiveProcess, std::string>>;

  void RecordHistory();
  void Judge();
  // Queries the process for `make`. Error: kOutOfRange if the profile has more bytes than `most_bytes`.
  template <typename Answer>
  absl::StatusOr<Answer> Make(const LiveProcess& process, int64_t most_bytes, const Options::Maker<Answer>& make);
  // Explain, with the error of Make.
  absl::StatusOr<Json> ExplainProcess(const LiveProcess& process, int64_t most_bytes);
  // Returns the samples of the findings in the last answer of Explain; "" if there is none, or none of late.
  std::string FindingMetrics(const LiveProcess& process) const;
  // Waits for `seconds`. Returns false if the object is being destroyed.
  bool WaitFor(double seconds);
  absl::StatusOr<std::vector<LiveProcess>> Select(const Selection& selection) const;
  absl::StatusOr<LiveProcess> SelectOne(const Selection& selection) const;
  // Returns the profiles of those processes that answer. Each is folded to its share of the limits. Errors:
  // kUnavailable (no process answers), kOutOfRange (the only answers are too large).
  absl::StatusOr<Answers> ProfilesOf(const std::vector<LiveProcess>& processes) const;
  // Returns the sum of the profiles. Leaves out processes with a profile that is not valid.
  absl::StatusOr<std::string> Merged(const Answers& answers);

  const Options options_;

  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;                                          // guarded by mutex_
  bool are_metrics_read_ = false;                              // since the last judgement; guarded by mutex_
  std::vector<std::string> silent_;                            // guarded by mutex_
  std::map<std::pair<int64_t, std::string>, Course> courses_;  // by LiveProcess::pid and id; guarded by mutex_
  std::deque<Course> ended_;                                   // in the order of their ends; guarded by mutex_
  Time now_;                                                   // of the last point; guarded by mutex_

  // Held while profiles are parsed, which can take much memory.
  std::mutex parsing_;

  std::thread thread_;
  std::thread judge_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SERVE_FLEET_H_
