// See lives_command.h.
#include "tests/tool/lives_command.h"

#include <cmath>
#include <cstdio>
#include <numeric>

#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {

Program MakeProgram(uint64_t seed, size_t dumps, DumpTimes when, size_t sites_of_a_kind) {
  Random random(seed);
  Program program;
  program.run = Run::Make(random);
  program.times = MakeDumpTimes(random, dumps, when);
  program.dumps.resize(dumps);
  for (const Kind& kind : Kinds()) {
    for (size_t i = 0; i < sites_of_a_kind; ++i) {
      program.kinds.push_back(&kind);
      const std::vector<Buffer> buffers = MakeSite(kind, program.run, random);
      for (size_t d = 0; d < dumps; ++d) {
        program.dumps[d].push_back(StateAt(buffers, program.run, program.times[d]));
      }
    }
  }
  return program;
}

std::vector<Answer> QueryCommand(const Program& program, const std::vector<size_t>& dumps, bool with_ages,
                                 const std::string& directory) {
  std::vector<std::string> arguments = {"leaks", "--all", "--frames", "1"};
  for (const size_t d : dumps) {
    ProfileMaker maker(
        {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    maker.message().set_default_sample_type(maker.Text("inuse_space"));
    const double seconds = program.times[d] * program.run.seconds;
    maker.message().set_time_nanos(1700000000000000000 + std::llround(seconds * 1e9));
    maker.Comment("hbmprof version=1 pid=4242" +
                  (with_ages ? " uptime=" + std::to_string(static_cast<int64_t>(seconds)) : ""));
    const uint64_t main = maker.Frame("main");
    for (size_t s = 0; s < program.kinds.size(); ++s) {
      const SiteState& site = program.dumps[d][s];
      hbmprof::pprof::Sample& sample = maker.Sample({maker.Frame("site_" + std::to_string(s)), main},
                                                    {site.allocated_objects, site.allocated, site.objects, site.bytes});
      if (!with_ages) continue;
      hbmprof::pprof::Ages& ages = *sample.mutable_ages();
      ages.set_class_width_log2(static_cast<uint32_t>(std::lround(std::log2(site.class_seconds))));
      ages.mutable_born_bytes()->Assign(site.live_bytes.begin(), site.live_bytes.end());
      ages.mutable_born_counts()->Assign(site.live_objects.begin(), site.live_objects.end());
      // The youngest ones are not counted.
      if (!site.freed.empty()) ages.mutable_freed_by_octave()->Assign(site.freed.begin() + 1, site.freed.end());
    }
    char name[32];
    std::snprintf(name, sizeof(name), "/%04zu.pb.gz", d);
    arguments.push_back(directory + name);
    maker.Write(arguments.back());
  }
  const nlohmann::json json = ToolJson(arguments);
  if (!json.is_object()) return {};
  std::vector<Answer> answers(program.kinds.size(), Answer::kNo);
  for (const auto& finding : json["findings"]) {
    if (finding["stack"].empty()) continue;  // all that are no leaks
    const auto number = std::stoul(finding["function"].get<std::string>().substr(5));
    answers[number] = finding["code"] == "LEAK" ? Answer::kSure : Answer::kPerhaps;
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
