// A session of ONNX Runtime whose memory is recorded. argv[1] is a model with one input X, a matrix of floats of 256 x
// 256, and one output Y.
#include <hbmprof/adapters/onnxruntime.h>
#include <hbmprof/hbmprof.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

const OrtApi* const api = OrtGetApiBase()->GetApi(18);

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  std::exit(1);
}

[[gnu::noinline]] OrtValue* Infer(OrtSession* session, OrtValue* input) {
  const char* const inputs[] = {"X"};
  const char* const outputs[] = {"Y"};
  OrtValue* output = nullptr;
  Check(api->Run(session, inputs, &input, 1, outputs, 1, &output));
  return output;
}

int main(int argc, char** argv) {
  if (argc < 2) return 1;
  OrtAllocator* upstream = nullptr;
  Check(api->GetAllocatorWithDefaultOptions(&upstream));
  hbmprof::adapters::TrackingOrtAllocator tracker(*upstream, {"CPU", "onnxruntime"});

  OrtEnv* env = nullptr;
  Check(api->CreateEnv(2, "example", &env));
  Check(api->RegisterAllocator(env, &tracker));
  OrtSessionOptions* options = nullptr;
  Check(api->CreateSessionOptions(&options));
  Check(api->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  std::ifstream file(argv[1], std::ios::binary);
  const std::string model{std::istreambuf_iterator<char>(file), {}};
  OrtSession* session = nullptr;
  Check(api->CreateSessionFromArray(env, model.data(), model.size(), options, &session));

  std::vector<float> data(256 * 256, 1.0f);
  const int64_t shape[] = {256, 256};
  OrtValue* input = nullptr;
  Check(
      api->CreateTensorWithDataAsOrtValue(upstream->Info(upstream), data.data(), data.size() * 4, shape, 2, 1, &input));
  OrtValue* const output = Infer(session, input);
  if (!hbmprof::save_device_memory_profile(argc > 2 ? argv[2] : "onnxruntime.pb.gz").ok()) return 1;
  api->ReleaseValue(output);
  std::exit(0);  // the tracker lives as long as the environment
}
