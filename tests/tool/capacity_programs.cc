// See capacity_programs.h.
#include "tests/tool/capacity_programs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "tests/tool/profile_maker.h"

namespace hbmprof_test {
namespace {

constexpr double kMiB = 1 << 20;

// The same numbers with every compiler, unlike the distributions of the standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  double Uniform() {  // from 0 to 1
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<double>((state_ * 0x2545f4914f6cdd1d) >> 11) / static_cast<double>(uint64_t{1} << 53);
  }
  double Between(double low, double high) { return low + (high - low) * Uniform(); }
  double Log(double low, double high) { return low * std::pow(high / low, Uniform()); }
  bool OneIn(double count) { return Uniform() * count < 1; }
  double Normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform();
    return sum;
  }

 private:
  uint64_t state_;
};

double Product(const Counters& at) { return std::accumulate(at.begin(), at.end(), 1.0, std::multiplies<>()); }

// At least this number of different values, the largest at least three times the smallest.
std::vector<double> Values(Random& random, size_t count, double largest) {
  std::set<double> values;
  while (values.size() < count || *values.rbegin() < 3 * *values.begin()) {
    if (values.size() == count) values.clear();
    values.insert(std::ceil(random.Between(largest / 16, largest)));
  }
  return {values.begin(), values.end()};
}

}  // namespace

CapacityProgram::CapacityProgram(uint64_t seed) : seed_(seed) {
  Random random(seed);
  for (int i = 0; i < 8; ++i) random.Uniform();
  const bool has_batch = random.OneIn(3);
  if (has_batch) counters_.push_back("batch");
  counters_.push_back("tokens");
  const std::vector<double> tokens =
      Values(random, has_batch ? 3 : 4 + static_cast<size_t>(random.Between(0, 3)), std::floor(random.Log(256, 65536)));
  for (const double batch : has_batch ? Values(random, 3, std::floor(random.Log(8, 256))) : std::vector<double>{0}) {
    for (const double count : tokens) measured_.push_back(has_batch ? Counters{batch, count} : Counters{count});
  }
  const Counters most = measured_.back();

  const double scale = random.Log(64, 65536) * kMiB;  // bytes of a large call stack at the largest values
  const size_t sites = 4 + static_cast<size_t>(random.Between(0, 12));
  for (size_t i = 0; i < sites; ++i) {
    const double bytes = scale * random.Log(0.01, 1);
    const std::string name = "site_" + std::to_string(i);
    const size_t one = random.OneIn(2) ? 0 : counters_.size() - 1;  // the counter that counts
    const auto share = [one, most](const Counters& at) { return at[one] / most[one]; };
    const auto shares = [most](const Counters& at) { return Product(at) / Product(most); };
    const double kind = random.Uniform();
    if (kind < 0.35) {
      sites_.push_back({name, [=](const Counters&) { return bytes; }});
    } else if (kind < 0.7) {
      const double constant = random.OneIn(3) ? bytes / 2 : 0;
      const bool is_product = has_batch && random.OneIn(2);
      sites_.push_back(
          {name, [=](const Counters& at) { return constant + bytes * (is_product ? shares(at) : share(at)); }});
    } else if (kind < 0.82) {  // pages
      const double page = random.Log(1.0 / 64, 0.4);
      sites_.push_back({name, [=](const Counters& at) { return bytes * page * std::ceil(shares(at) / page); }});
    } else if (kind < 0.9) {  // rounded up to powers of two
      const double phase = random.Between(1, 2);
      sites_.push_back(
          {name, [=](const Counters& at) { return bytes / 4 * std::exp2(std::ceil(std::log2(phase * share(at)))); }});
    } else {  // a cache that is full from some value on
      const double full = random.Between(0.1, 1.2);
      sites_.push_back({name, [=](const Counters& at) { return bytes / 2 * std::min(1.0, share(at) / full); }});
    }
  }
  // PyTorch's cache, in segments of 20 MiB.
  if (random.OneIn(2)) {
    const std::vector<Site> blocks = sites_;
    sites_.push_back({"[idle memory of pytorch]", [blocks](const Counters& at) {
                        double sum = 0;
                        for (const Site& site : blocks) sum += site.bytes(at);
                        return std::ceil(sum / (20 * kMiB)) * 20 * kMiB - sum;
                      }});
  }
  if (random.OneIn(2)) {
    const double context = random.Between(300, 600) * kMiB;
    sites_.push_back({"", [context](const Counters&) { return context; }, false});
  }
  noise_ = random.OneIn(3) ? random.Log(0.0005, 0.01) : 0;
}

Counters CapacityProgram::beyond() const {
  Counters at = measured_.back();
  at[seed_ % at.size()] *= 2;
  return at;
}

double CapacityProgram::PeakAt(const Counters& at) const {
  double sum = 0;
  for (const Site& site : sites_) sum += std::floor(site.bytes(at));
  return sum;
}

std::vector<std::string> CapacityProgram::WriteProfiles(const std::string& directory) const {
  std::filesystem::create_directories(directory);
  Random random(seed_ + 1'000'000);
  std::vector<std::string> files;
  for (const Counters& at : measured_) {
    ProfileMaker maker(
        {{"peak_objects", "count"}, {"peak_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    for (size_t i = 0; i < counters_.size(); ++i) {
      maker.Comment("counter " + counters_[i] + " value=" + std::to_string(static_cast<int64_t>(at[i])));
    }
    int64_t outside = 0;
    for (const Site& site : sites_) {
      const auto bytes = static_cast<int64_t>(site.bytes(at) * (1 + noise_ * random.Normal()));
      if (site.is_recorded) {
        maker.Sample({maker.Frame(site.function), maker.Frame("main")}, {1, bytes, 0, 0}, {{"device", "GPU:0"}});
      } else {
        outside = bytes;
      }
    }
    maker.Comment("device GPU:0 space=device in_use=0 peak=1 unaccounted=" + std::to_string(outside));
    files.push_back(directory + "/" + std::to_string(files.size()) + ".pb.gz");
    maker.Write(files.back());
  }
  return files;
}

}  // namespace hbmprof_test
