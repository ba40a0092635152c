// --by library: which library holds the memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;

constexpr char kUnaccounted[] = "unaccounted (contexts, driver, calls not recorded)";
constexpr char kIdlePools[] = "CUDA memory pools (idle)";

// A frame: its function, its binary, its source file.
struct Frame {
  std::string function;
  std::string binary = "/srv/app";
  std::string source = {};
};

const Frame kCudaMalloc = {"cudaMalloc", "/usr/lib/libcudart.so.12"};
const Frame kMain = {"main"};
const Frame kTrain = {"train", "/usr/bin/python3.11", "/srv/train.py"};
const Frame kPythonTorch = {"Module._call_impl", "/usr/bin/python3.11", "/x/site-packages/torch/nn/modules/module.py"};
const Frame kInterpreter = {"_PyEval_EvalFrameDefault", "/usr/bin/python3.11"};
const Frame kCaching = {"c10::cuda::CUDACachingAllocator::Native::malloc", "/x/site-packages/torch/lib/libc10_cuda.so"};

Frame OfTorch(const std::string& function) { return {function, "/x/site-packages/torch/lib/libtorch_cuda.so"}; }

struct Stack {
  std::vector<Frame> frames;  // innermost first
  int64_t bytes = 100;
  std::map<std::string, std::string> labels = {};
};

void Write(const std::string& path, const std::vector<Stack>& stacks, const std::vector<std::string>& comments = {}) {
  ProfileMaker maker;
  std::map<std::string, uint64_t> mappings;
  uint64_t address = 0;
  for (const Stack& stack : stacks) {
    std::vector<uint64_t> locations;
    for (const Frame& frame : stack.frames) {
      uint64_t& mapping = mappings[frame.binary];
      const uint64_t start = 0x1000000 * (mappings.size() + 1);
      if (mapping == 0) mapping = maker.Mapping(start, start + 0x10000, 0, frame.binary);
      const uint64_t function = maker.Function(frame.function, frame.function, frame.source);
      locations.push_back(maker.Location(mapping, start + ++address, {{function, 7}}));
    }
    maker.Sample(locations, {1, stack.bytes}, stack.labels);
  }
  for (const std::string& comment : comments) maker.Comment(comment);
  maker.Write(path);
}

// The values of `field` by library.
std::map<std::string, int64_t> ByLibrary(const std::vector<std::string>& arguments, const char* field = "flat") {
  std::map<std::string, int64_t> bytes;
  const nlohmann::json json = ToolJson(arguments);
  for (const auto& row : json["rows"]) bytes[row["labels"]["library"]] += row[field].get<int64_t>();
  return bytes;
}
using Bytes = std::map<std::string, int64_t>;

TEST(ByLibrary, NamesTheHolder) {
  const struct {
    const char* why;
    Stack stack;
    const char* library;
  } cases[] = {
      {"a tensor", {{kCudaMalloc, kCaching, OfTorch("at::empty"), kInterpreter, kPythonTorch, kTrain}}, "PyTorch"},
      {"cuBLAS, called by PyTorch",
       {{kCudaMalloc, {"f", "/x/libcublas.so.12"}, OfTorch("at::cuda::blas::gemm"), kPythonTorch, kTrain}},
       "cuBLAS"},
      {"cuBLAS, called by cuSOLVER",
       {{kCudaMalloc, {"f", "/x/libcublasLt.so.12"}, {"f", "/x/libcusolver.so.11"}, kMain}},
       "cuBLAS"},
      {"a workspace of cuBLAS in PyTorch's pool",
       {{kCaching, OfTorch("at::cuda::getNewWorkspace"), OfTorch("at::native::addmm"), kPythonTorch, kTrain}},
       "cuBLAS"},
      {"a workspace of cuDNN in PyTorch's pool",
       {{kCaching, OfTorch("at::native::(anonymous namespace)::run_conv_plan"), kPythonTorch, kTrain}},
       "cuDNN"},
      {"a buffer of NCCL in PyTorch's pool",
       {{kCaching, OfTorch("c10d::ProcessGroupNCCL::allgather"), kPythonTorch, kTrain}},
       "NCCL"},
      {"NCCL itself", {{kCudaMalloc, {"ncclCommInitRank", "/x/libnccl.so.2"}, OfTorch("f"), kTrain}}, "NCCL"},
      {"NCCL, linked statically", {{kCudaMalloc, {"ncclCommInitRank"}, kMain}}, "NCCL"},
      {"cuFFT", {{kCudaMalloc, {"f", "/x/libcufft.so.11"}, kMain}}, "cuFFT"},
      {"cuSPARSE", {{kCudaMalloc, {"f", "/x/libcusparse.so.12"}, kMain}}, "cuSPARSE"},
      {"CUTLASS", {{kCudaMalloc, {"cutlass::device_memory::allocate"}, kMain}}, "CUTLASS"},
      {"Triton",
       {{kCaching,
         OfTorch("at::empty"),
         {"do_bench", "/usr/bin/python3.11", "/x/site-packages/triton/testing.py"},
         kTrain}},
       "Triton"},
      {"a kernel of Triton",
       {{{"cuModuleLoadData", "/x/libcuda.so.1"}, {"loadBinary", "/home/user/.triton/cache/ab/cuda_utils.so"}, kTrain}},
       "Triton"},
      {"TensorRT",
       {{kCudaMalloc, {"f", "/x/libnvinfer.so.10"}, {"f", "/x/libonnxruntime_providers_tensorrt.so"}, kMain}},
       "TensorRT"},
      {"TensorFlow's allocator, whose code XLA has too",
       {{{"tsl::BFCAllocator::Extend", "/x/site-packages/tensorflow/libtensorflow_framework.so.2"}, kMain}},
       "TensorFlow"},
      {"XLA", {{{"tsl::BFCAllocator::Extend", "/x/jax_plugins/xla_cuda_plugin.so"}, kMain}}, "XLA"},
      {"ONNX Runtime", {{kCudaMalloc, {"f", "/x/libonnxruntime.so.1"}, kMain}}, "ONNX Runtime"},
      {"an extension, called by PyTorch, that calls CUDA",
       {{kCudaMalloc, {"extension::Load", "/srv/extension.so"}, OfTorch("f"), kPythonTorch, kTrain}},
       "own code"},
      {"a package between PyTorch and own code",
       {{kCaching,
         OfTorch("at::empty"),
         kPythonTorch,
         {"Model.forward", "/usr/bin/python3.11", "/x/site-packages/transformers/model.py"},
         kPythonTorch,
         kTrain}},
       "transformers"},
      {"a package that is the program",
       {{kCudaMalloc, {"Worker.run", "/usr/bin/python3.11", "/x/site-packages/vllm/worker.py"}, kInterpreter}},
       "own code"},
      {"PyTorch, called by a package that is the program",
       {{kCaching, OfTorch("f"), {"Worker.run", "/usr/bin/python3.11", "/x/site-packages/vllm/worker.py"}}},
       "PyTorch"},
      {"cuBLAS, called by a package",
       {{{"f", "/x/libcublas.so.12"}, {"f", "/usr/bin/python3.11", "/x/site-packages/transformers/model.py"}, kTrain}},
       "cuBLAS"},
      {"a package, called by a library of own code",
       {{kCudaMalloc,
         {"f", "/usr/bin/python3.11", "/x/site-packages/plugin/f.py"},
         {"f", "/x/libnvinfer.so.10"},
         kTrain}},
       "plugin"},
      {"code of torch.compile",
       {{kCaching, OfTorch("f"), {"call", "/usr/bin/python3.11", "/tmp/torchinductor_me/a/b.py"}, kTrain}},
       "TorchInductor"},
      {"ggml", {{kCudaMalloc, {"ggml_cuda_device_malloc"}, {"load_tensors"}, kMain}}, "ggml"},
      {"own code, called back by a library",
       {{kCudaMalloc, {"Plugin::Run"}, {"f", "/x/libnvinfer.so.10"}, kMain}},
       "own code"},
      {"the driver", {{{"cuMemAlloc_v2", "/x/libcuda.so.1"}, {"start_thread", "/lib/libc.so.6"}}}, "CUDA"},
      {"no code", {{{"[no stack]", "-"}}}, "unknown"},
      {"memory from before attach", {{{"[before attach]", "-"}}}, "before attach"},
      {"idle memory of PyTorch's pool", {{{"[idle memory of pytorch]", "-"}}}, "idle memory of pools"},
  };
  const std::string path = ScratchDir() + "/p.pb.gz";
  for (const auto& one : cases) {
    Write(path, {one.stack});
    EXPECT_EQ(ByLibrary({"top", "--by", "library", path}), (Bytes{{one.library, 100}})) << one.why;
  }
}

const std::vector<Stack>& Stacks() {
  static const std::vector<Stack> stacks = {
      {{kCudaMalloc, kCaching, OfTorch("at::empty"), kTrain}, 700, {{"device", "GPU:0"}, {"kind", "device"}}},
      {{kCudaMalloc, {"f", "/x/libnccl.so.2"}, OfTorch("f"), kTrain}, 200, {{"device", "GPU:0"}, {"kind", "device"}}},
      {{kCudaMalloc, {"Cache::Grow"}, kMain}, 100, {{"device", "GPU:1"}, {"kind", "device"}}},
  };
  return stacks;
}

std::string DeviceComment(const std::string& device, int64_t unaccounted, const std::string& more = "") {
  return "device " + device + " space=device in_use=0 peak=0 unaccounted=" + std::to_string(unaccounted) + more;
}

TEST(ByLibrary, AddsUpToTheBytesThatTheDriverHas) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  Write(path, Stacks(),
        {DeviceComment("GPU:0", 300, " driver_scope=process driver_cache=50"), DeviceComment("GPU:1", -7)});
  const Bytes expected = {{"PyTorch", 700}, {"NCCL", 200}, {"own code", 100}, {kUnaccounted, 300}, {kIdlePools, 50}};
  EXPECT_EQ(ByLibrary({"top", "--by", "library", path}), expected);
  const nlohmann::json json = ToolJson({"top", "--by", "library", path});
  EXPECT_EQ(json["total"], 1350);
  EXPECT_EQ(json["selected"], 1350);
  EXPECT_EQ(ToolJson({"top", path})["total"], 1000) << "only with --by library";
  const CommandResult text = RunTool({"top", "--by", "library", "--exact", path});
  EXPECT_THAT(text.out, HasSubstr("inuse_space: 1350"));
  EXPECT_THAT(text.out, HasSubstr(kUnaccounted));
  // Other groups and filters see the same rows.
  EXPECT_EQ(ByLibrary({"top", "--by", "library,device", "--where", "device=GPU:1", path}), (Bytes{{"own code", 100}}));
  EXPECT_EQ(ByLibrary({"top", "--by", "library", "--type", "inuse_objects", path}),
            (Bytes{{"PyTorch", 1}, {"NCCL", 1}, {"own code", 1}}));
  const nlohmann::json tree = ToolJson({"top", "--tree", "--by", "library", path});
  EXPECT_EQ(tree["nodes"][0]["function"], "library=PyTorch");
  EXPECT_EQ(tree["nodes"][0]["cum"], 700);
}

TEST(ByLibrary, NamesTheOtherProcessesIfTheDriverCountsThem) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  Write(path, Stacks(), {DeviceComment("GPU:0", 300, " driver_scope=device")});
  EXPECT_EQ(ByLibrary({"top", "--by", "library", path})["unaccounted (driver and other processes)"], 300);
}

TEST(ByLibrary, SelectsSamples) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  Write(path, Stacks());
  EXPECT_EQ(ToolJson({"top", "--where", "library=NCCL", path})["total"], 200);
  EXPECT_EQ(ToolJson({"top", "--where", "library!=NCCL", path})["total"], 800);
}

TEST(ByLibrary, ShowsTheChangeOfEachLibrary) {
  const std::string dir = ScratchDir();
  Write(dir + "/a.pb.gz", Stacks(), {DeviceComment("GPU:0", 300)});
  std::vector<Stack> stacks = Stacks();
  stacks[1].bytes = 260;
  Write(dir + "/b.pb.gz", stacks, {DeviceComment("GPU:0", 310)});
  EXPECT_EQ(ByLibrary({"diff", "--by", "library", dir + "/a.pb.gz", dir + "/b.pb.gz"}),
            (Bytes{{"NCCL", 60}, {"unaccounted (contexts, driver, calls not recorded)", 10}}));
}

TEST(ByLibrary, LeaksNameTheLibrary) {
  const std::string dir = ScratchDir();
  std::vector<std::string> arguments = {"leaks", "--by", "library", "--json"};
  for (int i = 0; i < 6; ++i) {
    std::vector<Stack> stacks = Stacks();
    stacks[1].bytes += i * (1 << 20);
    arguments.push_back(dir + "/" + std::to_string(i) + ".pb.gz");
    Write(arguments.back(), stacks);
  }
  const CommandResult result = RunTool(arguments);
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["findings"][0]["labels"]["library"], "NCCL") << result.out;
}

TEST(ByLibrary, UsersExtendTheTable) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  Write(path, {{{kCudaMalloc, {"rmm::allocate", "/x/librmm.so"}, kMain}, 70},
               {{kCudaMalloc, {"Pool::operator=", "/x/libpool.so"}, kMain}, 30}});
  EXPECT_EQ(ByLibrary({"top", "--by", "library", path}), (Bytes{{"own code", 100}}));
  EXPECT_EQ(ByLibrary({"top", "--by", "library", "--known", "RMM=^rmm::|librmm", "--known", "libpool", path}),
            (Bytes{{"RMM", 70}, {"libpool", 30}}));
  EXPECT_EQ(ToolJson({"top", "--known", "RMM=^rmm::", "--focus", "rmm", path})["rows"][0]["function"], "main")
      << "the view of own code skips it";
}

TEST(ByLibrary, ATagOfTheProgramIsKept) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  Write(path, {{{kCudaMalloc, {"f", "/x/libnccl.so.2"}, kMain}, 70, {{"library", "mine"}}}, {{kMain}, 30}});
  EXPECT_EQ(ByLibrary({"top", "--by", "library", path}), (Bytes{{"mine", 70}, {"own code", 30}}));
}

}  // namespace
}  // namespace hbmprof_test
