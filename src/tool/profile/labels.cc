#include "src/tool/profile/labels.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "src/export/known_code.h"

namespace hbmprof::tool {
namespace {

// The variables that have the number of a process in the run, and its number on its host.
constexpr const char* kRankVariables[] = {"RANK",     "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                          "PMI_RANK", "MV2_COMM_WORLD_RANK",  "SLURM_PROCID"};
constexpr const char* kLocalRankVariables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};

}  // namespace

void LabelLibraries(KnownLibraries& libraries, ProfileSet& profiles) {
  std::vector<std::vector<internal::FrameOwner>> owners(profiles.locations().size());
  for (uint64_t l = 0; l < owners.size(); ++l) owners[l] = libraries.OwnersOf(profiles, l);
  absl::flat_hash_map<uint32_t, std::string_view> holders;  // by stack
  profiles.AddLabel(kLibraryLabel, [&](const ProfileSet::File&, const ProfileSet::Sample& sample) {
    const auto [holder, new_stack] = holders.try_emplace(sample.stack);
    if (new_stack) {
      internal::MemoryHolder found;
      const uint64_t* const end = profiles.stacks().end(sample.stack);
      for (const uint64_t* l = profiles.stacks().begin(sample.stack); l != end && !found.is_complete(); ++l) {
        for (const internal::FrameOwner& owner : owners[*l]) found.Add(owner);
      }
      holder->second = found.name();
    }
    return holder->second;
  });
}

std::string RankOf(const ProfileSet::File& file) {
  if (file.info.environments.size() != 1) return file.path;  // several: of a sum of processes
  const Comment& environment = file.info.environments[0];
  for (const char* variable : kRankVariables) {
    if (const auto rank = environment.Number(variable); rank.value_or(-1) >= 0) return std::to_string(*rank);
  }
  for (const char* variable : kLocalRankVariables) {
    const auto local = environment.Number(variable);
    if (local.value_or(-1) < 0) continue;
    return Cat(file.info.processes.empty() ? "" : file.info.processes[0].Text("host"), "/", *local);
  }
  return file.path;
}

void LabelRanks(ProfileSet& profiles) {
  std::vector<std::string> ranks;  // by file
  for (const ProfileSet::File& file : profiles.files()) ranks.push_back(RankOf(file));
  profiles.AddLabel(kRankLabel, [&](const ProfileSet::File& file, const ProfileSet::Sample&) -> std::string_view {
    return ranks[static_cast<size_t>(&file - profiles.files().data())];
  });
}

std::vector<UnaccountedMemory> UnaccountedOf(const ProfileSet::File& file) {
  std::vector<UnaccountedMemory> list;
  for (const ProfileInfo::Device& device : file.info.devices) {
    // A negative number means that more is recorded than the driver reports: nothing is unaccounted.
    const int64_t unaccounted = device.Number("unaccounted").value_or(0);
    if (unaccounted > 0) {
      const bool is_of_all_processes = device.Text("driver_scope") == "device";
      list.push_back({device.name,
                      is_of_all_processes ? internal::kUnaccountedOfDeviceName : internal::kUnaccountedName,
                      "[unaccounted]", unaccounted});
    }
    const int64_t idle = device.Number("driver_cache").value_or(0);
    if (idle > 0) list.push_back({device.name, internal::kDriverCacheName, "[idle CUDA pools]", idle});
  }
  return list;
}

void AddUnaccounted(ProfileSet& profiles) {
  const std::optional<size_t> type = profiles.FindType("inuse_space");
  if (!type.has_value() || profiles.types()[*type].unit != "bytes") return;
  for (size_t f = 0; f < profiles.files().size(); ++f) {
    for (const UnaccountedMemory& one : UnaccountedOf(profiles.files()[f])) {
      profiles.AddSample(f, one.function, {{kLibraryLabel, one.name}, {"device", one.device}}, *type, one.bytes);
    }
  }
}

}  // namespace hbmprof::tool
