// See course_command.h.
#include "tests/tool/course_command.h"

#include <cmath>
#include <cstdio>
#include <numeric>

#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {

ProgramCourses MakeProgram(uint64_t seed, size_t dumps, ProgramRun::Special special, size_t sites_of_a_kind) {
  Random random(seed);
  ProgramCourses program;
  program.run = ProgramRun::Make(random, dumps, special);
  for (const CourseKind& kind : CourseKinds()) {
    if (kind.special != special) continue;
    for (size_t i = 0; i < sites_of_a_kind; ++i) {
      program.kinds.push_back(&kind);
      program.sites.push_back(MakeCourse(kind, program.run, random));
    }
  }
  return program;
}

std::vector<Answer> QueryCommand(const ProgramCourses& program, const std::vector<size_t>& dumps,
                                 const std::string& directory) {
  std::vector<std::string> arguments = {"leaks", "--rows", "0"};
  for (const size_t d : dumps) {
    ProfileMaker maker(
        {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    maker.message().set_default_sample_type(maker.Text("inuse_space"));
    maker.message().set_time_nanos(1700000000000000000 + std::llround(program.run.times[d] * 1e13));
    const bool restarted = program.run.restart != 0 && d >= program.run.restart;
    maker.Comment("hbmprof version=1 pid=" + std::to_string(restarted ? 4243 : 4242));
    maker.Comment("counter requests value=" + std::to_string(std::llround(program.run.requests[d])));
    const uint64_t main = maker.Frame("main");
    for (size_t s = 0; s < program.sites.size(); ++s) {
      const SiteCourse& site = program.sites[s];
      maker.Sample({maker.Frame("site_" + std::to_string(s)), main},
                   {site.allocated_objects[d], site.allocated[d], site.objects[d], site.bytes[d]});
    }
    char name[32];
    std::snprintf(name, sizeof(name), "/%04zu.pb.gz", d);
    arguments.push_back(directory + name);
    maker.Write(arguments.back());
  }
  nlohmann::json json;
  if (program.run.load == ProgramRun::Load::kStalling) {
    std::vector<std::string> per_request = arguments;
    per_request.insert(per_request.begin() + 1, {"--per", "requests"});
    json = ToolJson(per_request);
  }
  // With too few different counts the command fails with --per, so it judges by time.
  if (!json.is_object()) json = ToolJson(arguments);
  if (!json.is_object()) return {};
  std::vector<Answer> answers(program.sites.size(), Answer::kNo);
  for (const auto& site : json["sites"]) {
    const auto number = std::stoul(site["stack"][0]["name"].get<std::string>().substr(5));
    if (site["verdict"] == "leak") answers[number] = Answer::kSure;
    if (site["verdict"] == "perhaps") answers[number] = Answer::kPerhaps;
  }
  return answers;
}

void Tally::Add(Answer answer) {
  sure += answer == Answer::kSure ? 1 : 0;
  any += answer != Answer::kNo ? 1 : 0;
  all += 1;
}

std::vector<size_t> AllDumps(size_t dumps) {
  std::vector<size_t> all(dumps);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

std::vector<size_t> SpreadDumps(size_t dumps, size_t count) {
  std::vector<size_t> some;
  for (size_t i = 0; i < count; ++i) some.push_back((i * (dumps - 1) + (count - 1) / 2) / (count - 1));
  return some;
}

}  // namespace hbmprof_test
