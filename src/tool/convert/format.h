// The formats of `hbmprof convert --to`. Each is a file of this folder, which defines its Format.
// docs/timeline.md and docs/tables.md describe them.
#ifndef HBMPROF_SRC_TOOL_CONVERT_FORMAT_H_
#define HBMPROF_SRC_TOOL_CONVERT_FORMAT_H_

#include "src/base/atomic_file.h"
#include "src/tool/profile/view.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/stacks.h"

namespace hbmprof::tool {

using internal::FileOutput;

// A format of recordings. The functions run on one thread at a time.
struct Format {
  const char* name;
  // Writes a recording. Reads the events from the beginning, one or more times, and keeps the live buffers in memory,
  // but not the events. Errors: those of `output`; kResourceExhausted if the format cannot hold the recording.
  absl::Status (*write_recording)(RecordingReader& recording, const RecordedStacks& stacks, FileOutput& output);
  // Writes the samples of profiles, one profile after the other. Null: the format has none. Errors: those of
  // ReadProfiles, ApplyView and `output`.
  absl::Status (*write_profiles)(const std::vector<std::string>& sources, const ViewOptions& options,
                                 FileOutput& output) = nullptr;
  // The end of the name of the file, without -o. Null: text, for standard output.
  const char* suffix = nullptr;
  bool overwrites = false;  // write_recording calls FileOutput::Overwrite, so it needs a file
};

// The driver's numbers in a sample, with their names.
inline constexpr std::pair<const char*, std::optional<int64_t> DriverSample::Device::*> kDriverNumbers[] = {
    {"driver_in_use", &DriverSample::Device::bytes_in_use},
    {"driver_free", &DriverSample::Device::bytes_free},
    {"driver_limit", &DriverSample::Device::bytes_limit},
    {"driver_largest_free", &DriverSample::Device::largest_free_block_bytes},
    {"driver_cache", &DriverSample::Device::cache_bytes}};

// What the writers of recordings have in common. totals_ begins with the values at the start of the recording.
class RecordingConverter {
 public:
  RecordingConverter(RecordingReader& recording, const RecordedStacks& stacks, FileOutput& output)
      : recording_(recording),
        tables_(recording.tables()),
        stacks_(stacks),
        output_(output),
        cursor_(recording),
        totals_(tables_) {}

 protected:
  absl::Status Flush(std::string& bytes) {
    const absl::Status status = output_.Append(bytes);
    bytes.clear();
    return status;
  }

  RecordingReader& recording_;
  const RecordingTables& tables_;
  const RecordedStacks& stacks_;
  FileOutput& output_;
  RecordingCursor cursor_;
  SiteTotals totals_;
};

// A write_recording that constructs a `Writer`, a RecordingConverter, of its arguments and calls Write().
template <typename Writer>
absl::Status WriteWith(RecordingReader& recording, const RecordedStacks& stacks, FileOutput& output) {
  return Writer(recording, stacks, output).Write();
}

extern const Format kCsvFormat, kXplaneFormat, kPerfettoFormat, kMemoryVizFormat;

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_CONVERT_FORMAT_H_
