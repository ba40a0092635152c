// Labels that are made of the other contents of a profile: the library that holds the memory of a sample (MemoryHolder
// in src/export/known_code.h), and the rank of its process. Also the memory that only the driver reports.
#ifndef HBMPROF_SRC_TOOL_PROFILE_LABELS_H_
#define HBMPROF_SRC_TOOL_PROFILE_LABELS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/tool/profile/own_code.h"
#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// The label that names the library, and the one that names the rank.
inline constexpr char kLibraryLabel[] = "library";
inline constexpr char kRankLabel[] = "rank";

// Gives each sample the label kLibraryLabel, if it has none: a tag of this name, which the program sets, is not
// changed.
void LabelLibraries(KnownLibraries& libraries, ProfileSet& profiles);

// Returns the number of the process in its run; if only its number on its host is known, "HOST/NUMBER"; else the path
// of the file.
std::string RankOf(const ProfileSet::File& file);
// Gives each sample the label kRankLabel, as LabelLibraries does.
void LabelRanks(ProfileSet& profiles);

// Memory of a device that is in use for the driver, and that no sample has.
struct UnaccountedMemory {
  std::string device;
  std::string_view name;      // as a value of kLibraryLabel
  std::string_view function;  // the name of the frame that shows it
  int64_t bytes;              // at least 1
};
// Returns what the comments of the file state: unaccounted memory, and the idle bytes of the driver's own pools. With
// it, the samples add up to all bytes in use for the driver, unless more is recorded than the driver reports.
std::vector<UnaccountedMemory> UnaccountedOf(const ProfileSet::File& file);

// Adds a sample for each element of UnaccountedOf, with the labels kLibraryLabel and "device". Does nothing without a
// sample type of bytes in use.
void AddUnaccounted(ProfileSet& profiles);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_LABELS_H_
