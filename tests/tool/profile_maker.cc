// See profile_maker.h.
#include "tests/tool/profile_maker.h"

#include <fstream>

#include "src/export/gzip.h"

namespace hbmprof_test {

ProfileMaker::ProfileMaker(const std::vector<std::pair<std::string, std::string>>& types) {
  Text("");
  for (const auto& [type, unit] : types) {
    auto* added = message_.add_sample_type();
    added->set_type(Text(type));
    added->set_unit(Text(unit));
  }
}

ProfileMaker::ProfileMaker() : ProfileMaker({{"inuse_objects", "count"}, {"inuse_space", "bytes"}}) {
  message_.set_default_sample_type(Text("inuse_space"));
  message_.mutable_period_type()->set_type(Text("space"));
  message_.mutable_period_type()->set_unit(Text("bytes"));
  message_.set_period(1);
  message_.set_time_nanos(1700000000000000000);
}

int64_t ProfileMaker::Text(const std::string& text) {
  const auto [entry, is_new] = texts_.try_emplace(text, message_.string_table_size());
  if (is_new) message_.add_string_table(text);
  return entry->second;
}

uint64_t ProfileMaker::Function(const std::string& name, const std::string& system_name, const std::string& file,
                                int64_t start_line) {
  const std::vector<int64_t> key = {Text(name), Text(system_name), Text(file), start_line};
  const auto [entry, is_new] = functions_.try_emplace(key, functions_.size() + 1);
  if (is_new) {
    auto* function = message_.add_function();
    function->set_id(entry->second);
    function->set_name(key[0]);
    function->set_system_name(key[1]);
    function->set_filename(key[2]);
    function->set_start_line(start_line);
  }
  return entry->second;
}

uint64_t ProfileMaker::Mapping(uint64_t start, uint64_t limit, uint64_t offset, const std::string& file,
                               const std::string& build_id, bool has_functions) {
  auto* mapping = message_.add_mapping();
  mapping->set_id(static_cast<uint64_t>(message_.mapping_size()));
  mapping->set_memory_start(start);
  mapping->set_memory_limit(limit);
  mapping->set_file_offset(offset);
  mapping->set_filename(Text(file));
  mapping->set_build_id(Text(build_id));
  mapping->set_has_functions(has_functions);
  return mapping->id();
}

uint64_t ProfileMaker::Location(uint64_t mapping, uint64_t address, const std::vector<Line>& lines) {
  auto* location = message_.add_location();
  location->set_id(static_cast<uint64_t>(message_.location_size()));
  location->set_mapping_id(mapping);
  location->set_address(address);
  for (const Line& line : lines) {
    auto* added = location->add_line();
    added->set_function_id(line.function);
    added->set_line(line.line);
  }
  return location->id();
}

uint64_t ProfileMaker::Frame(const std::string& function, const std::string& file, int64_t line) {
  const auto [entry, is_new] = frames_.try_emplace(function + "@" + file + ":" + std::to_string(line), 0);
  if (is_new) entry->second = Location(0, 0, {{Function(function, "", file), line}});
  return entry->second;
}

hbmprof::pprof::Sample& ProfileMaker::Sample(const std::vector<uint64_t>& locations, const std::vector<int64_t>& values,
                                             const std::map<std::string, std::string>& labels) {
  auto* sample = message_.add_sample();
  sample->mutable_location_id()->Assign(locations.begin(), locations.end());
  sample->mutable_value()->Assign(values.begin(), values.end());
  for (const auto& [key, value] : labels) {
    auto* label = sample->add_label();
    label->set_key(Text(key));
    label->set_str(Text(value));
  }
  return *sample;
}

void ProfileMaker::Comment(const std::string& text) { message_.add_comment(Text(text)); }

void ProfileMaker::NumberLabel(hbmprof::pprof::Sample& sample, const std::string& key, int64_t number,
                               const std::string& unit) {
  auto* label = sample.add_label();
  label->set_key(Text(key));
  label->set_num(number);
  label->set_num_unit(Text(unit));
}

std::string ProfileMaker::Bytes() const { return *hbmprof::internal::Gzip(message_.SerializeAsString()); }

void ProfileMaker::Write(const std::string& path) const { WriteFile(path, Bytes()); }

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace hbmprof_test
