// pjrt_inference: serves requests with a StableHLO program on any PJRT plugin (CPU, TPU, GPU), and profiles the device
// memory it uses. Run it with --help.
//
// This file has the command line, the model and the requests. device.h has the calls of PJRT.

#include <getopt.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "examples/pjrt_inference/device.h"
#include "hbmprof/hbmprof.h"

namespace inference {
namespace {

constexpr char kUsage[] =
    R"(usage: pjrt_inference [OPTION]... PLUGIN PROGRAM
Loads the PJRT plugin PLUGIN (a path), compiles the StableHLO file PROGRAM (encoder.mlir) and serves requests with it.

  --before FILE   save a device memory profile after warm-up, before the requests are served
  --after FILE    save one after the last answer
  --leak          the bug to be found: the answers' device buffers are kept
  --requests N    (default 300)
  --bare          leave the plugin unwrapped: nothing is recorded
  --help
)";

constexpr int64_t kBatch = 8;
constexpr int64_t kWidth = 128;
constexpr int64_t kClasses = 32;
constexpr int kLayers = 4;
constexpr int kWarmUp = 10;

// Pseudo-random numbers in [-1, 1), the same on every machine.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  std::vector<float> Take(int64_t count, float scale) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      values.push_back(scale * (static_cast<float>(state_ >> 40) / 8388608.0f - 1.0f));
    }
    return values;
  }

 private:
  uint64_t state_;
};

class Model {
 public:
  Model(Device& device, const std::string& stablehlo) : device_(device), program_(device.Compile(stablehlo)) {
    Numbers numbers(7);
    for (int layer = 0; layer < kLayers; ++layer) {
      weights_.push_back(device.Upload(numbers.Take(kWidth * kWidth, 0.1f), {kWidth, kWidth}));
      weights_.push_back(device.Upload(numbers.Take(kWidth, 0.1f), {kWidth}));
    }
    weights_.push_back(device.Upload(numbers.Take(kWidth * kClasses, 0.1f), {kWidth, kClasses}));
  }
  ~Model() {
    for (PJRT_Buffer* weight : weights_) device_.Destroy(weight);
    device_.Destroy(program_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  PJRT_Buffer* Classify(PJRT_Buffer* input) {
    std::vector<PJRT_Buffer*> arguments = {input};
    arguments.insert(arguments.end(), weights_.begin(), weights_.end());
    PJRT_Buffer* const classes = device_.Execute(program_, arguments);
    return classes;
  }

 private:
  Device& device_;
  PJRT_LoadedExecutable* const program_;
  std::vector<PJRT_Buffer*> weights_;
};

class Server {
 public:
  Server(Device& device, Model& model, bool leak) : device_(device), model_(model), leak_(leak) {}

  void Answer(int request) {
    PJRT_Buffer* const input = device_.Upload(Numbers(1000 + request).Take(kBatch * kWidth, 1.0f), {kBatch, kWidth});
    const auto start = std::chrono::steady_clock::now();
    PJRT_Buffer* const output = model_.Classify(input);
    const auto end = std::chrono::steady_clock::now();
    microseconds_.push_back(std::chrono::duration<double, std::micro>(end - start).count());
    for (const float value : device_.Download(output)) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      checksum_ = (checksum_ ^ bits) * 1099511628211u;
    }
    device_.Destroy(input);
    // The bug that --leak turns on: the program keeps each answer, in case that it is needed again.
    if (leak_) {
      ++kept_;
    } else {
      device_.Destroy(output);
    }
  }

  uint64_t checksum() const { return checksum_; }
  int kept() const { return kept_; }
  double MedianMicroseconds() {
    std::nth_element(microseconds_.begin(), microseconds_.begin() + microseconds_.size() / 2, microseconds_.end());
    return microseconds_[microseconds_.size() / 2];
  }

 private:
  Device& device_;
  Model& model_;
  const bool leak_;
  int kept_ = 0;
  uint64_t checksum_ = 14695981039346656037u;
  std::vector<double> microseconds_;
};

void Save(const std::string& path) {
  if (path.empty()) return;
  const absl::Status saved = hbmprof::save_device_memory_profile(path);
  if (!saved.ok()) Fail(std::string(saved.message()));
}

int Main(int argc, char** argv) {
  std::string before, after;
  int leak = 0, bare = 0, requests = 300;
  const option options[] = {
      {"before", required_argument, nullptr, 'b'},
      {"after", required_argument, nullptr, 'a'},
      {"leak", no_argument, &leak, 1},
      {"bare", no_argument, &bare, 1},
      {"requests", required_argument, nullptr, 'n'},
      {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0},
  };
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    if (c == 'b') before = optarg;
    if (c == 'a') after = optarg;
    if (c == 'n') requests = std::max(1, std::atoi(optarg));
    if (c == 'h') {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (c == '?') {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  if (argc - optind != 2) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::ifstream file(argv[optind + 1]);
  if (!file) Fail(std::string("cannot read ") + argv[optind + 1]);
  const std::string program((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());

  Device device(argv[optind], bare == 0);
  Model model(device, program);
  Server server(device, model, leak != 0);
  for (int i = 0; i < kWarmUp; ++i) Server(device, model, false).Answer(i);
  Save(before);
  for (int i = 0; i < requests; ++i) server.Answer(i);
  Save(after);

  std::printf("plugin     %s%s\n", device.description().c_str(), bare != 0 ? ", unwrapped" : "");
  std::printf("requests   %d, checksum of the answers %016" PRIx64 "\n", requests, server.checksum());
  std::printf("execution  %.1f us (median)\n", server.MedianMicroseconds());
  if (server.kept() > 0) {
    const auto bytes = static_cast<int64_t>(kBatch * kClasses * sizeof(float));
    std::printf("leaked     %d answers x %" PRId64 " B = %" PRId64 " B\n", server.kept(), bytes, server.kept() * bytes);
  }
  return 0;
}

}  // namespace
}  // namespace inference

int main(int argc, char** argv) { return inference::Main(argc, argv); }
