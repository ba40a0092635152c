// What the comments of a profile state (docs/spec/profile.md).
#ifndef HBMPROF_SRC_TOOL_PROFILE_INFO_H_
#define HBMPROF_SRC_TOOL_PROFILE_INFO_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// A comment of the profile: a word, for a device its name, then key=value pairs.
struct Comment {
  std::string word;
  std::string name;
  std::map<std::string, std::string> values;

  explicit Comment(std::string_view text);
  // Returns the value of `key` as a number; nullopt if the key is missing or its value is not a number.
  std::optional<int64_t> Number(const std::string& key) const;
  // Returns the value of `key`; `missing` if the key is missing.
  std::string Text(const std::string& key, const std::string& missing = "") const;
};

// A program that knows what a phase should need sets a counter of this name, followed by the name of the phase.
inline constexpr char kEstimatePrefix[] = "estimate:";

// The comments by their words, in the order of the file. Only a merged profile has several of `processes`,
// `trackers` or `environments`.
struct ProfileInfo {
  // One memory space of a device.
  struct Device : Comment {
    explicit Device(Comment comment);
    bool is_device_memory() const { return space == "device"; }
    std::string memory() const { return is_device_memory() ? name : name + " " + space; }  // "GPU:0 pinned_host"

    std::string space;
  };
  std::vector<Device> devices;
  std::vector<Comment> trackers;
  std::vector<Comment> processes;     // with the keys host and pid
  std::vector<Comment> environments;  // with names of variables as keys
  std::vector<Comment> counters;
  std::vector<Comment> estimates;  // counters that are named kEstimatePrefix and a phase
  std::vector<std::string> warnings;

  void Add(std::string_view comment);
  int64_t Dropped() const;  // allocations that were not recorded, because a limit was reached
  // Of the process, or of the oldest one if there are several; no value if it is not known. Does not show that samples
  // have ages.
  std::optional<int64_t> UptimeSeconds() const;
};

// In the warning of an allocation that failed, before the name of the memory.
inline constexpr char kOutOfMemory[] = "ut of memory on ";
// Returns whether a warning of a process says that recording was off, and is on again.
bool IsGap(const std::string& warning);
// Returns whether a warning of a process says that recording is off, or was off.
bool IsPause(const std::string& warning);
// Returns whether a warning says that events are missing in the recording from which the profile was made.
bool IsDamage(const std::string& warning);
// Returns the time since when the process has not recorded, as one of its warnings (Snapshot::warnings) says; "" if it
// records.
std::string OffSince(const std::vector<std::string>& warnings);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_INFO_H_
