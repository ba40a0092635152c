#include "src/tool/profile/labels.h"

namespace hbmprof::tool {
namespace {

// The variables that have the number of a process in the run, and its number on its host.
constexpr const char* kRankVariables[] = {"RANK",     "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                          "PMI_RANK", "MV2_COMM_WORLD_RANK",  "SLURM_PROCID"};
constexpr const char* kLocalRankVariables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};

// How Python runs in a location.
enum class PythonPart : uint8_t {
  kNone,
  kFunction,     // it is a Python function
  kInterpreter,  // it is code of the interpreter, such as type_call
};

PythonPart PythonPartOf(const ProfileSet& profiles, uint64_t number, const std::vector<internal::FrameOwner>& owners) {
  for (const ProfileSet::Frame& frame : profiles.locations()[number].frames) {
    const std::string& source = profiles.text(profiles.functions()[frame.function].filename);
    // "<string>", "<stdin>", "<frozen importlib._bootstrap>"
    if (absl::EndsWith(source, ".py") || absl::StartsWith(source, "<")) return PythonPart::kFunction;
  }
  const bool is_interpreter =
      absl::c_all_of(owners, [](const internal::FrameOwner& owner) { return owner.library == "CPython"; });
  return is_interpreter ? PythonPart::kInterpreter : PythonPart::kNone;
}

// Removes the code of the interpreter between two Python functions. `parts`: by location.
void RemoveInterpreter(const std::vector<PythonPart>& parts, std::vector<uint64_t>& stack) {
  const auto is_function = [&](uint64_t location) { return parts[location] == PythonPart::kFunction; };
  const auto begin = absl::c_find_if(stack, is_function);
  const auto end = std::find_if(stack.rbegin(), stack.rend(), is_function).base();
  if (begin == stack.end()) return;
  stack.erase(std::remove_if(begin, end, [&](uint64_t l) { return parts[l] == PythonPart::kInterpreter; }), end);
}

}  // namespace

absl::StatusOr<KnownLibraries> KnownLibraries::Make(const std::vector<std::string>& more) {
  KnownLibraries libraries;
  for (const std::string& text : more) {
    std::string name = text;
    std::string expression = text;
    RE2::FullMatch(text, R"(([\w.+-]+)=(.+))", &name, &expression);
    ASSIGN_OR_RETURN(std::unique_ptr<RE2> compiled, CompileRegex("--known", expression));
    libraries.more_.push_back({std::make_unique<const std::string>(std::move(name)), NamePattern(std::move(compiled))});
  }
  return libraries;
}

internal::FrameOwner KnownLibraries::OwnerOf(const ProfileSet& profiles, ProfileSet::String name,
                                             ProfileSet::String source, ProfileSet::String binary) {
  for (Library& library : more_) {
    for (const ProfileSet::String text : {name, source, binary}) {
      if (text != 0 && library.pattern.Matches(profiles, text)) return {internal::CodeRole::kLibrary, *library.name};
    }
  }
  internal::FrameOwner owner = internal::OwnerOf(profiles.text(name), profiles.text(source), profiles.text(binary));
  if (owner.role == internal::CodeRole::kPackage) owner.library = *packages_.insert(std::string(owner.library)).first;
  return owner;
}

std::vector<internal::FrameOwner> KnownLibraries::OwnersOf(const ProfileSet& profiles, uint64_t number) {
  const ProfileSet::Location& location = profiles.locations()[number];
  std::vector<internal::FrameOwner> owners;
  if (location.frames.empty()) owners.push_back(OwnerOf(profiles, 0, 0, location.object));
  for (const ProfileSet::Frame& frame : location.frames) {
    const ProfileSet::Function& function = profiles.functions()[frame.function];
    owners.push_back(OwnerOf(profiles, function.name, function.filename, location.object));
  }
  return owners;
}

bool AttributeToOwnCode(KnownLibraries& libraries, ProfileSet& profiles) {
  // By location: the index of its first own frame, and the location from this frame on.
  struct Own {
    std::optional<size_t> frame;
    uint64_t location;
  };
  const size_t count = profiles.locations().size();
  std::vector<std::vector<Own>> own(internal::kOwnRanks, std::vector<Own>(count));  // by the lowest rank in the stack
  std::vector<PythonPart> python(count);
  bool is_all_own = true;
  for (uint64_t l = 0; l < count; ++l) {
    const std::vector<internal::FrameOwner> frames = libraries.OwnersOf(profiles, l);
    python[l] = PythonPartOf(profiles, l, frames);
    for (int rank = 0; rank < internal::kOwnRanks; ++rank) {
      Own& here = own[static_cast<size_t>(rank)][l];
      here.location = l;
      const auto frame =
          absl::c_find_if(frames, [&](const auto& owner) { return internal::OwnRank(owner.role) == rank; });
      if (frame == frames.end()) continue;
      here.frame = frame - frames.begin();
      if (here.frame == 0 && frame->role != internal::CodeRole::kOperator) continue;
      ProfileSet::Location rest = profiles.locations()[l];
      rest.frames.erase(rest.frames.begin(), rest.frames.begin() + static_cast<std::ptrdiff_t>(*here.frame));
      if (frame->role == internal::CodeRole::kOperator) {
        const std::string& name = profiles.text(profiles.functions()[rest.frames[0].function].name);
        rest.frames[0].function = profiles.AddFunction(internal::OwnName(*frame, name));
      }
      here.location = profiles.AddLocation(std::move(rest));
    }
    is_all_own = is_all_own && own[0][l].frame == 0;
  }
  if (is_all_own) return false;
  bool changed = false;  // a leaf
  profiles.MapStacks([&](uint32_t stack) {
    std::vector<uint64_t> locations = profiles.stacks()[stack];
    const auto ranked = absl::c_find_if(own, [&](const std::vector<Own>& of_rank) {
      return absl::c_any_of(locations, [&](uint64_t location) { return of_rank[location].frame.has_value(); });
    });
    if (ranked == own.end()) return stack;
    const std::vector<Own>& owners = *ranked;
    size_t first = 0;
    while (!owners[locations[first]].frame.has_value()) ++first;
    const size_t all = locations.size();
    while (!owners[locations.back()].frame.has_value()) locations.pop_back();
    locations.erase(locations.begin(), locations.begin() + static_cast<std::ptrdiff_t>(first));
    RemoveInterpreter(python, locations);
    const uint64_t leaf = std::exchange(locations[0], owners[locations[0]].location);
    changed = changed || first != 0 || locations[0] != leaf;
    return locations.size() == all && locations[0] == leaf ? stack : profiles.StackOf(locations);
  });
  return changed;
}

void LabelLibraries(KnownLibraries& libraries, ProfileSet& profiles) {
  std::vector<std::vector<internal::FrameOwner>> owners(profiles.locations().size());
  for (uint64_t l = 0; l < owners.size(); ++l) owners[l] = libraries.OwnersOf(profiles, l);
  absl::flat_hash_map<uint32_t, std::string_view> holders;  // by stack
  profiles.AddLabel(kLibraryLabel, [&](const ProfileSet::File&, const ProfileSet::Sample& sample) {
    const auto [holder, new_stack] = holders.try_emplace(sample.stack);
    if (new_stack) {
      internal::MemoryHolder found;
      for (const uint64_t location : profiles.stacks()[sample.stack]) {
        if (found.is_complete()) break;
        for (const internal::FrameOwner& owner : owners[location]) found.Add(owner);
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

std::string ProcessAndRankOf(const ProfileSet::File& file) {
  const std::string process = ProcessIn(file);
  const std::string rank = RankOf(file);
  return process.empty() || rank == file.path ? process : Cat(process, " ", rank);
}

bool AreRanks(const ProfileSet& profiles) {
  std::map<std::string, std::string> processes;  // by rank
  std::set<std::string> runs;
  for (const ProfileSet::File& file : profiles.files()) {
    const std::string rank = RankOf(file);
    const std::string process = ProcessIn(file);
    if (rank == file.path || processes.try_emplace(rank, process).first->second != process) return false;
    std::string run = file.info.environments[0].Text("SLURM_JOB_ID");
    for (const char* variable : kRankCountVariables) run += " " + file.info.environments[0].Text(variable);
    runs.insert(run);
  }
  return runs.size() == 1;
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
