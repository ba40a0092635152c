#include "src/tool/profile/ages.h"

#include <iterator>

#include "src/tool/profile/info.h"
#include "src/tool/profile/profile_reader.h"

namespace hbmprof::tool {
namespace {

// Adds `values`, whose first element belongs at `offset`, to `sums`.
void AddAt(size_t offset, const std::vector<int64_t>& values, std::vector<int64_t>* sums) {
  sums->resize(std::max(sums->size(), offset + values.size()));
  for (size_t i = 0; i < values.size(); ++i) (*sums)[offset + i] = Plus((*sums)[offset + i], values[i]);
}

}  // namespace

Ages::Ages(const pprof::Ages& message)
    : class_width_log2(static_cast<int>(message.class_width_log2())),
      first_class(message.first_class()),
      born_bytes(message.born_bytes().begin(), message.born_bytes().end()),
      born_counts(message.born_counts().begin(), message.born_counts().end()),
      freed_by_octave(message.freed_by_octave().begin(), message.freed_by_octave().end()) {}

void Ages::Write(pprof::Ages* message) const {
  message->set_class_width_log2(static_cast<uint32_t>(class_width_log2));
  message->set_first_class(static_cast<uint32_t>(first_class));
  message->mutable_born_bytes()->Assign(born_bytes.begin(), born_bytes.end());
  message->mutable_born_counts()->Assign(born_counts.begin(), born_counts.end());
  message->mutable_freed_by_octave()->Assign(freed_by_octave.begin(), freed_by_octave.end());
}

void Ages::Widen(int log2) {
  const int shift = log2 - class_width_log2;
  const int64_t first = first_class >> shift;
  for (std::vector<int64_t>* born : {&born_bytes, &born_counts}) {
    std::vector<int64_t> wide;
    for (size_t i = 0; i < born->size(); ++i) {
      AddAt(static_cast<size_t>(((first_class + static_cast<int64_t>(i)) >> shift) - first), {(*born)[i]}, &wide);
    }
    *born = std::move(wide);
  }
  class_width_log2 = log2;
  first_class = first;
}

void Ages::Add(const Ages& other) {
  Ages added = other;
  const int log2 = std::max(class_width_log2, added.class_width_log2);
  Widen(log2);
  added.Widen(log2);
  const int64_t first = born_bytes.empty()         ? added.first_class
                        : added.born_bytes.empty() ? first_class
                                                   : std::min(first_class, added.first_class);
  for (auto born : {&Ages::born_bytes, &Ages::born_counts}) {
    std::vector<int64_t> sums;
    if (!(this->*born).empty()) AddAt(static_cast<size_t>(first_class - first), this->*born, &sums);
    if (!(added.*born).empty()) AddAt(static_cast<size_t>(added.first_class - first), added.*born, &sums);
    this->*born = std::move(sums);
  }
  first_class = first;
  AddAt(0, added.freed_by_octave, &freed_by_octave);
}

absl::Status LabelBirths(int64_t older, pprof::Profile* profile) {
  const auto& all = profile->sample();
  if (absl::c_none_of(all, [](const auto& sample) { return sample.has_ages(); })) {
    return InvalidArgument(
        "has no ages of buffers; they are in profiles of this version or later that no other tool has rewritten");
  }
  ProfileInfo info;
  for (const int64_t comment : profile->comment()) info.Add(profile->string_table(static_cast<int>(comment)));
  if (older != 0 && info.processes.size() > 1) {
    return InvalidArgument(
        "is of several processes, so the ages of its buffers are not known; name their "
        "own profiles");
  }
  const std::optional<int64_t> uptime = info.UptimeSeconds();
  if (older != 0 && !uptime.has_value()) {
    return InvalidArgument("does not state its process's uptime, so the ages of its buffers are not known");
  }
  const int64_t latest = older == 0 ? INT64_MAX : Minus(*uptime, older);
  StringTable table(*profile);
  const auto type_named = [&](const std::string& text) {
    const auto& types = profile->sample_type();
    const int64_t number = table.Of(text);
    return absl::c_find_if(types, [&](const auto& type) { return type.type() == number; }) - types.begin();
  };
  const std::ptrdiff_t types[] = {type_named("inuse_objects"), type_named("inuse_space")};
  if (std::max(types[0], types[1]) == profile->sample_type_size()) return absl::OkStatus();
  const int64_t texts[] = {table.Of(kBirthLabel), table.Of("seconds")};
  const int samples = profile->sample_size();
  for (int s = 0; s < samples; ++s) {
    const Ages ages(profile->sample(s).ages());
    profile->mutable_sample(s)->clear_ages();
    for (size_t i = 0; i < ages.born_counts.size(); ++i) {
      const int64_t born[] = {ages.born_counts[i], ages.born_bytes[i]};
      const int64_t begin = (ages.first_class + static_cast<int64_t>(i)) << ages.class_width_log2;
      if ((born[0] == 0 && born[1] == 0) || begin + (int64_t{1} << ages.class_width_log2) > latest) continue;
      pprof::Sample& added = *profile->add_sample();
      pprof::Sample& rest = *profile->mutable_sample(s);
      added = rest;
      for (int64_t& value : *added.mutable_value()) value = 0;
      for (size_t t = 0; t < std::size(types); ++t) {
        const auto type = static_cast<int>(types[t]);
        added.set_value(type, born[t]);
        rest.set_value(type, Minus(rest.value(type), born[t]));
      }
      pprof::Label& label = *added.add_label();
      label.set_key(texts[0]);
      label.set_num(begin);
      label.set_num_unit(texts[1]);
    }
  }
  return absl::OkStatus();
}

}  // namespace hbmprof::tool
