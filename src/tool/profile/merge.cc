#include "src/tool/profile/merge.h"

#include "src/export/gzip.h"
#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// Translates the ids and strings of one profile to those of the result.
class ProfileMerger::Adder {
 public:
  Adder(ProfileMerger& merger, const RawProfile& raw) : merger_(merger), raw_(raw), message_(raw.message()) {}

  int64_t Text(int64_t index) { return merger_.texts_.Of(std::string(raw_.text(index))); }

  uint64_t Mapping(uint64_t id) {
    return IdOf(id, message_.mapping(), mappings_, merger_.mappings_, merger_.result_.mutable_mapping(),
                [this](pprof::Mapping& mapping) {
                  mapping.set_filename(Text(mapping.filename()));
                  mapping.set_build_id(Text(mapping.build_id()));
                });
  }

  uint64_t Function(uint64_t id) {
    return IdOf(id, message_.function(), functions_, merger_.functions_, merger_.result_.mutable_function(),
                [this](pprof::Function& function) {
                  function.set_name(Text(function.name()));
                  function.set_system_name(Text(function.system_name()));
                  function.set_filename(Text(function.filename()));
                });
  }

  uint64_t Location(uint64_t id) {
    return IdOf(id, message_.location(), locations_, merger_.locations_, merger_.result_.mutable_location(),
                [this](pprof::Location& location) {
                  location.set_mapping_id(Mapping(location.mapping_id()));
                  for (pprof::Line& line : *location.mutable_line()) line.set_function_id(Function(line.function_id()));
                });
  }

  // Returns the sample with the ids of the result and without values.
  pprof::Sample Translated(const pprof::Sample& sample, const Labels& added) {
    pprof::Sample translated;
    for (const uint64_t id : sample.location_id()) translated.add_location_id(Location(id));
    for (const pprof::Label& label : sample.label()) {
      pprof::Label& copy = *translated.add_label();
      const std::string_view key = raw_.text(label.key());
      const bool is_added = absl::c_any_of(added, [&](const auto& one) { return std::string_view(one.first) == key; });
      copy.set_key(merger_.texts_.Of(Cat(is_added ? "exported_" : "", key)));
      copy.set_str(Text(label.str()));
      copy.set_num(label.num());
      copy.set_num_unit(Text(label.num_unit()));
    }
    for (const auto& [key, value] : added) {
      pprof::Label& label = *translated.add_label();
      label.set_key(merger_.texts_.Of(key));
      label.set_str(merger_.texts_.Of(value));
    }
    return translated;
  }

 private:
  // Returns the id that an entry of `raw` has in the result's table `list`, to which it is added if it is new; 0 for 0.
  // `translate` replaces what it refers to.
  template <typename List, typename Translate>
  static uint64_t IdOf(uint64_t id, const List& raw, std::vector<uint64_t>& ids,
                       absl::flat_hash_map<std::string, uint64_t>& known, List* list, const Translate& translate) {
    if (id == 0) return 0;
    ids.resize(static_cast<size_t>(raw.size()) + 1);
    uint64_t& number = ids[id];
    if (number != 0) return number;
    auto entry = raw.Get(static_cast<int>(id) - 1);
    translate(entry);
    entry.clear_id();
    number = known.try_emplace(entry.SerializeAsString(), list->size() + 1).first->second;
    if (number > static_cast<uint64_t>(list->size())) {
      entry.set_id(number);
      *list->Add() = std::move(entry);
    }
    return number;
  }

  ProfileMerger& merger_;
  const RawProfile& raw_;
  const pprof::Profile& message_;
  // By id in the profile: the id in the result; 0: not yet known.
  std::vector<uint64_t> mappings_, functions_, locations_;
};

absl::Status ProfileMerger::Add(const RawProfile& profile, const Labels& added, bool is_only) {
  const pprof::Profile& message = profile.message();
  Adder adder(*this, profile);
  if (result_.sample_type_size() == 0) {
    for (const pprof::ValueType& type : message.sample_type()) {
      pprof::ValueType& copy = *result_.add_sample_type();
      copy.set_type(adder.Text(type.type()));
      copy.set_unit(adder.Text(type.unit()));
    }
    result_.set_drop_frames(adder.Text(message.drop_frames()));
    result_.set_keep_frames(adder.Text(message.keep_frames()));
    result_.set_default_sample_type(adder.Text(message.default_sample_type()));
    if (message.has_period_type()) {
      result_.mutable_period_type()->set_type(adder.Text(message.period_type().type()));
      result_.mutable_period_type()->set_unit(adder.Text(message.period_type().unit()));
    }
    result_.set_period(message.period());
    if (message.mapping_size() > 0) adder.Mapping(message.mapping(0).id());  // the first one is the main program's
  }
  // By type of the result: its index in this profile, or -1.
  std::vector<int> positions;
  for (const pprof::ValueType& type : result_.sample_type()) {
    int& position = positions.emplace_back(-1);
    for (int i = 0; i < message.sample_type_size() && position < 0; ++i) {
      if (adder.Text(message.sample_type(i).type()) != type.type()) continue;
      if (adder.Text(message.sample_type(i).unit()) != type.unit()) {
        return InvalidArgument("the profiles have different units, so they cannot be added up");
      }
      position = i;
    }
  }
  for (const pprof::Sample& sample : message.sample()) {
    pprof::Sample translated = adder.Translated(sample, added);
    const auto [found, is_new] = samples_.try_emplace(translated.SerializeAsString(), result_.sample_size());
    if (is_new) {
      for (size_t t = 0; t < positions.size(); ++t) translated.add_value(0);
      *result_.add_sample() = std::move(translated);
    }
    pprof::Sample& sum = *result_.mutable_sample(found->second);
    for (int t = 0; t < sum.value_size(); ++t) {
      const int position = positions[static_cast<size_t>(t)];
      if (position < 0) continue;
      sum.set_value(t, Plus(sum.value(t), sample.value(position)));
    }
    if (sample.has_ages()) {
      Ages ages(sum.ages());
      ages.Add(Ages(sample.ages()));
      ages.Write(sum.mutable_ages());
    }
  }
  for (const int64_t comment : message.comment()) {
    const std::string word = Comment(profile.text(comment)).word;
    if (!is_only && (word == "device" || word == "pool")) continue;
    const int64_t text = adder.Text(comment);
    if (!absl::c_linear_search(result_.comment(), text)) result_.add_comment(text);
  }
  result_.set_time_nanos(std::max(result_.time_nanos(), message.time_nanos()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ProfileMerger::Take() {
  auto& samples = *result_.mutable_sample();
  EraseIf(samples, [](const pprof::Sample& sample) {
    return absl::c_all_of(sample.value(), [](int64_t value) { return value == 0; });
  });
  return hbmprof::internal::Gzip(result_.SerializeAsString());
}

}  // namespace hbmprof::tool
