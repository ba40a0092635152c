// Makes profiles of any content, also invalid ones.
#ifndef HBMPROF_TESTS_TOOL_PROFILE_MAKER_H_
#define HBMPROF_TESTS_TOOL_PROFILE_MAKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/profile.pb.h"

namespace hbmprof_test {

class ProfileMaker {
 public:
  struct Line {
    uint64_t function;
    int64_t line = 0;
  };

  // Pairs of type and unit.
  explicit ProfileMaker(const std::vector<std::pair<std::string, std::string>>& types);
  // Like this project's: inuse_objects and inuse_space, with default and period.
  ProfileMaker();

  // Each of these functions returns an id or index. Text, Function and Frame return the same one for equal arguments;
  // Mapping and Location always add a new element.
  int64_t Text(const std::string& text);
  uint64_t Function(const std::string& name, const std::string& system_name = "", const std::string& file = "",
                    int64_t start_line = 0);
  uint64_t Mapping(uint64_t start, uint64_t limit, uint64_t offset, const std::string& file,
                   const std::string& build_id = "", bool has_functions = true);
  uint64_t Location(uint64_t mapping, uint64_t address, const std::vector<Line>& lines);
  // A location of one function, in no mapping.
  uint64_t Frame(const std::string& function, const std::string& file = "", int64_t line = 0);

  hbmprof::pprof::Sample& Sample(const std::vector<uint64_t>& locations, const std::vector<int64_t>& values,
                                 const std::map<std::string, std::string>& labels = {});
  void Comment(const std::string& text);
  void NumberLabel(hbmprof::pprof::Sample& sample, const std::string& key, int64_t number, const std::string& unit);

  hbmprof::pprof::Profile& message() { return message_; }
  // The message as a gzip file.
  std::string Bytes() const;
  void Write(const std::string& path) const;

 private:
  hbmprof::pprof::Profile message_;
  std::map<std::string, int64_t> texts_;
  std::map<std::vector<int64_t>, uint64_t> functions_;
  std::map<std::string, uint64_t> frames_;
};

void WriteFile(const std::string& path, const std::string& bytes);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_PROFILE_MAKER_H_
