// Perfetto's trace: counters, tags as slices, and as instants the marks, the peaks and the failed allocations.
#include <protozero/pbf_builder.hpp>

#include "src/tool/convert/format.h"

namespace hbmprof::tool {
namespace {

// Field numbers of trace_packet.proto and the messages in it.
using Field = protozero::pbf_tag_type;
enum class TraceField : Field { kPacket = 1 };
enum class PacketField : Field {
  kClockSnapshot = 6,
  kTimestamp = 8,
  kSequenceId = 10,
  kTrackEvent = 11,
  kTrackDescriptor = 60,
};
enum class ClocksField : Field { kClock = 1, kPrimaryClock = 2 };
enum class ClockField : Field { kId = 1, kTimestamp = 2 };
enum class TrackField : Field { kUuid = 1, kName = 2, kProcess = 3, kThread = 4, kParent = 5, kCounter = 8 };
enum class ProcessField : Field { kPid = 1, kName = 6 };
enum class ThreadField : Field { kPid = 1, kTid = 2, kName = 5 };
enum class CounterField : Field { kUnit = 3 };
enum class EventField : Field { kAnnotation = 4, kType = 9, kTrackUuid = 11, kName = 23, kCounterValue = 30 };
enum class AnnotationField : Field { kInt = 4, kString = 6, kName = 10 };

template <typename F>
using Message = protozero::pbf_builder<F>;

constexpr uint64_t kRealtime = 1, kMonotonic = 3, kBoottime = 6;                // clocks
constexpr uint64_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounter = 4;  // types of events
constexpr uint64_t kCount = 2, kBytes = 3;                                      // units of counters

// Tracks: the process, then one for each thread, then the counters.
constexpr uint64_t kProcessTrack = 1;

class PerfettoWriter : RecordingConverter {
 public:
  using RecordingConverter::RecordingConverter;

  absl::Status Write() {
    WriteClocks();
    WriteTracks();
    for (size_t i = 0; i < accounts_.size(); ++i) {
      if (totals_.account(i).is_used) WriteAccount(i, tables_.start_time);
    }
    RecordedEvent event;
    while (cursor_.Next(&event)) {
      WriteSamples(event.time);
      WriteEvent(event);
      if (totals_.Apply(event)) {
        for (const size_t account : totals_.changed_accounts()) WriteAccount(account, event.time);
      }
      RETURN_IF_ERROR(Flush(bytes_));
    }
    WriteSamples(recording_.end_time());
    for (size_t thread = 0; thread < open_tags_.size(); ++thread) SetTags(recording_.end_time(), thread, {});
    for (size_t i = 0; i < accounts_.size(); ++i) WritePeak(i);
    return Flush(bytes_);
  }

 private:
  struct Course {
    uint64_t track = 0;           // 0: none yet
    std::optional<int64_t> last;  // value that was written
  };
  struct Account {
    Course in_use;
    Course idle;
  };

  // A packet, which ends with this object.
  struct Packet {
    Packet(std::string& bytes, std::optional<int64_t> time) : trace(bytes), packet(trace, TraceField::kPacket) {
      packet.add_uint64(PacketField::kSequenceId, 1);
      if (time.has_value()) packet.add_uint64(PacketField::kTimestamp, static_cast<uint64_t>(*time));
    }
    Message<TraceField> trace;
    Message<PacketField> packet;
  };
  struct Event : Packet {
    Event(std::string& bytes, int64_t time, uint64_t type, uint64_t track)
        : Packet(bytes, time), event(packet, PacketField::kTrackEvent) {
      event.add_uint64(EventField::kType, type);
      event.add_uint64(EventField::kTrackUuid, track);
    }
    void AnnotateBytes(int64_t bytes) {
      Message<AnnotationField> annotation(event, EventField::kAnnotation);
      annotation.add_string(AnnotationField::kName, "bytes");
      annotation.add_int64(AnnotationField::kInt, bytes);
    }
    Message<EventField> event;
  };
  struct Track : Packet {
    Track(std::string& bytes, uint64_t uuid)
        : Packet(bytes, std::nullopt), track(packet, PacketField::kTrackDescriptor) {
      track.add_uint64(TrackField::kUuid, uuid);
    }
    Message<TrackField> track;
  };

  void Counter(int64_t time, uint64_t track, int64_t value) {
    Event(bytes_, time, kCounter, track).event.add_int64(EventField::kCounterValue, value);
  }

  // Times are those of CLOCK_MONOTONIC. They are given as BOOTTIME, the trace's default clock.
  void WriteClocks() {
    const auto start = static_cast<uint64_t>(tables_.start_time);
    Packet packet(bytes_, std::nullopt);
    Message<ClocksField> clocks(packet.packet, PacketField::kClockSnapshot);
    for (const auto& [id, time] : {std::pair(kBoottime, start), std::pair(kMonotonic, start),
                                   std::pair(kRealtime, static_cast<uint64_t>(tables_.start_unix_nanos))}) {
      Message<ClockField> clock(clocks, ClocksField::kClock);
      clock.add_uint64(ClockField::kId, id);
      clock.add_uint64(ClockField::kTimestamp, time);
    }
    clocks.add_uint64(ClocksField::kPrimaryClock, kBoottime);
  }

  std::string ProcessName() const {
    if (tables_.names.modules.empty()) return "process";
    const std::string& path = tables_.names.modules[0].path;
    return path.substr(path.rfind('/') + 1);
  }

  void WriteTracks() {
    const int64_t pid = tables_.names.process_id;
    {
      Track track(bytes_, kProcessTrack);
      Message<ProcessField> process(track.track, TrackField::kProcess);
      process.add_int64(ProcessField::kPid, pid);
      process.add_string(ProcessField::kName, ProcessName());
    }
    for (size_t i = 0; i < tables_.threads.size(); ++i) {
      if (ThreadTrack(i) == kProcessTrack) continue;
      Track track(bytes_, ThreadTrack(i));
      track.track.add_uint64(TrackField::kParent, kProcessTrack);
      Message<ThreadField> thread(track.track, TrackField::kThread);
      thread.add_int64(ThreadField::kPid, pid);
      thread.add_int64(ThreadField::kTid, tables_.threads[i].id);
      thread.add_string(ThreadField::kName, tables_.threads[i].name);
    }
  }
  // Returns the track of the process for a thread whose id is not known (0).
  uint64_t ThreadTrack(size_t thread) const {
    return tables_.threads[thread].id == 0 ? kProcessTrack : kProcessTrack + 1 + thread;
  }

  uint64_t CounterTrack(const std::string& name, uint64_t unit) {
    const uint64_t uuid = next_track_++;
    Track track(bytes_, uuid);
    track.track.add_uint64(TrackField::kParent, kProcessTrack);
    track.track.add_string(TrackField::kName, name);
    Message<CounterField>(track.track, TrackField::kCounter).add_uint64(CounterField::kUnit, unit);
    return uuid;
  }

  void WriteAccount(size_t number, int64_t time) {
    const SiteTotals::Account& now = totals_.account(number);
    Account& account = accounts_[number];
    const auto write = [&](Course& course, const char* name, int64_t value) {
      if (course.last == value) return;
      if (course.track == 0) course.track = CounterTrack(Cat(AccountName(tables_, number), name), kBytes);
      course.last = value;
      Counter(time, course.track, value);
    };
    write(account.in_use, " in use", now.in_use);
    if (now.idle != 0 || account.idle.track != 0) write(account.idle, " pool idle", now.idle);
  }

  void WriteSamples(int64_t time) {
    while (const DriverSample* sample = cursor_.NextSample(time)) {
      for (const DriverSample::Device& device : sample->devices) {
        const std::string& name = tables_.names.devices[device.device].name;
        for (const auto& [what, number] : kDriverNumbers) {
          SampledCounter(sample->time, Cat(name, " ", absl::StrReplaceAll(what, {{"_", " "}})), device.*number);
        }
      }
      SampledCounter(sample->time, "host resident", sample->host_resident_bytes);
      for (const auto& [name, value] : sample->counters) SampledCounter(sample->time, name, value, kCount);
    }
  }
  void SampledCounter(int64_t time, const std::string& name, std::optional<int64_t> value, uint64_t unit = kBytes) {
    if (!value.has_value()) return;
    const auto [track, is_new] = sampled_tracks_.try_emplace(name, 0);
    if (is_new) track->second = CounterTrack(name, unit);
    Counter(time, track->second, *value);
  }

  void WriteEvent(const RecordedEvent& event) {
    if (event.kind == RecordedKind::kTags) {
      SetTags(event.time, event.thread, tables_.tag_sets[event.id]);
    } else if (event.kind == RecordedKind::kFailed) {
      Event failed(bytes_, event.time, kInstant, ThreadTrack(event.thread));
      failed.event.add_string(EventField::kName, "allocation failed");
      failed.AnnotateBytes(event.bytes);
      if (event.id >= accounts_.size()) return;
      Message<AnnotationField> memory(failed.event, EventField::kAnnotation);
      memory.add_string(AnnotationField::kName, "memory");
      memory.add_string(AnnotationField::kString, AccountName(tables_, event.id));
    } else if (event.kind == RecordedKind::kMark) {
      Event(bytes_, event.time, kInstant, kProcessTrack)
          .event.add_string(EventField::kName, internal::MarkText(tables_.marks[event.id].name));
    }
  }

  // Each tag is a slice of its thread. Slices of a thread must be nested. So if a tag ends, the slices inside it also
  // end, and those whose tags are still set begin again.
  using Tag = std::pair<std::string, std::string>;
  void SetTags(int64_t time, size_t thread, const std::vector<Tag>& tags) {
    std::vector<Tag>& open = open_tags_[thread];
    const auto is_set = [&tags](const Tag& tag) { return absl::c_linear_search(tags, tag); };
    const auto kept = absl::c_find_if_not(open, is_set);
    std::vector<Tag> next(open.begin(), kept);
    for (auto tag = kept; tag != open.end(); ++tag) {
      Event(bytes_, time, kSliceEnd, ThreadTrack(thread));
      if (is_set(*tag)) next.push_back(*tag);
    }
    const auto begin = static_cast<size_t>(kept - open.begin());
    for (const Tag& tag : tags) {
      if (!absl::c_linear_search(next, tag)) next.push_back(tag);
    }
    for (size_t i = begin; i < next.size(); ++i) {
      Event(bytes_, time, kSliceBegin, ThreadTrack(thread))
          .event.add_string(EventField::kName, Cat(next[i].first, "=", next[i].second));
    }
    open = std::move(next);
  }

  void WritePeak(size_t number) {
    const SiteTotals::Account& account = totals_.account(number);
    if (account.peak == 0) return;
    Event peak(bytes_, account.peak_time, kInstant, kProcessTrack);
    peak.event.add_string(EventField::kName, Cat("peak of ", AccountName(tables_, number)));
    peak.AnnotateBytes(account.peak);
  }

  std::vector<Account> accounts_ = std::vector<Account>(totals_.account_count());
  // By thread: outermost slice first.
  std::vector<std::vector<Tag>> open_tags_ = std::vector<std::vector<Tag>>(tables_.threads.size());
  uint64_t next_track_ = kProcessTrack + 1 + tables_.threads.size();
  absl::flat_hash_map<std::string, uint64_t> sampled_tracks_;
  std::string bytes_;
};

}  // namespace

const Format kPerfettoFormat = {"perfetto", &WriteWith<PerfettoWriter>, nullptr, ".perfetto-trace"};

}  // namespace hbmprof::tool
