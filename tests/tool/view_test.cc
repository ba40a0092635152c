// The view of the user's own code, call trees, and the output on a terminal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <sstream>
#include <thread>

#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A stack, innermost frame first, as "BINARY FUNCTION [SOURCE FILE]" each; "-" for none.
struct Stack {
  std::vector<std::vector<std::string>> frames;
  int64_t bytes;
};

void WriteStacks(const std::string& path, const std::vector<Stack>& stacks, int64_t seconds = 0) {
  ProfileMaker maker;
  if (seconds != 0) maker.message().set_time_nanos(seconds * 1000000000);
  std::map<std::string, uint64_t> mappings;
  uint64_t address = 0x1000;
  for (const Stack& stack : stacks) {
    std::vector<uint64_t> locations;
    for (const std::vector<std::string>& frame : stack.frames) {
      uint64_t& mapping = mappings[frame[0]];
      if (mapping == 0 && frame[0] != "-") {
        const uint64_t start = 0x100000 * (mappings.size() + 1);
        mapping = maker.Mapping(start, start + 0x10000, 0, frame[0]);
      }
      const bool is_python = frame.size() > 2;
      const uint64_t function = maker.Function(frame[1], is_python ? "" : frame[1], is_python ? frame[2] : "");
      locations.push_back(
          maker.Location(mapping, mapping == 0 ? 0 : 0x100000 * (mappings.size() + 1) + ++address, {{function, 7}}));
    }
    maker.Sample(locations, {1, stack.bytes});
  }
  maker.Write(path);
}

// The flat values by function.
std::map<std::string, int64_t> Flat(const std::vector<std::string>& arguments) {
  std::map<std::string, int64_t> flat;
  const nlohmann::json json = ToolJson(arguments);
  for (const auto& row : json["rows"]) {
    if (row["flat"] != 0) flat[row["function"]] = row["flat"];
  }
  return flat;
}

// When a function takes a block from a pool, the idle memory of the pool becomes smaller by the same number of bytes.
TEST(Diff, GrowthComesBeforeShrinkageOfTheSameSize) {
  const std::string dir = ScratchDir();
  WriteStacks(dir + "/before.pb.gz", {{{{"-", "AllocatesSegments"}}, 2000}, {{{"-", "Keeps"}}, 100}});
  WriteStacks(dir + "/after.pb.gz", {{{{"-", "AllocatesSegments"}}, 1300}, {{{"-", "Keeps"}}, 800}});
  for (const char* order : {"", "--cum"}) {
    std::vector<std::string> arguments = {"diff", dir + "/before.pb.gz", dir + "/after.pb.gz"};
    if (*order != '\0') arguments.push_back(order);
    const nlohmann::json json = ToolJson(arguments);
    EXPECT_EQ(json["rows"][0]["function"], "Keeps");
    EXPECT_EQ(json["rows"][1]["function"], "AllocatesSegments");
  }
}

// A profile of one stack. Its types are a size in kilobytes and a number.
void WriteKilobytes(const std::string& path, int64_t kilobytes, int64_t objects) {
  ProfileMaker maker({{"inuse_objects", "count"}, {"inuse_space", "kilobytes"}});
  maker.Sample({maker.Frame("Grows")}, {objects, kilobytes});
  maker.Write(path);
}

TEST(Diff, FailOverIsASizeOrANumberInTheUnit) {
  const std::string dir = ScratchDir();
  WriteKilobytes(dir + "/before.pb.gz", 10, 100);
  WriteKilobytes(dir + "/after.pb.gz", 4106, 150);
  const auto fails_over = [&](const std::string& limit, const std::string& type) {
    return RunTool({"diff", dir + "/before.pb.gz", dir + "/after.pb.gz", "--fail-over", limit, "--type", type});
  };
  const CommandResult failed = fails_over("1024", "inuse_space");
  EXPECT_EQ(failed.exit_code, 1) << failed.err;
  EXPECT_THAT(failed.out, HasSubstr("FAILED: the total grew by more than 1024 kilobytes"));
  EXPECT_EQ(fails_over("4096", "inuse_space").exit_code, 0) << "it grew by exactly as much";
  EXPECT_EQ(fails_over("49", "inuse_objects").exit_code, 1);
  EXPECT_EQ(fails_over("50", "inuse_objects").exit_code, 0);
  const CommandResult no_size = fails_over("10B", "inuse_objects");
  EXPECT_EQ(no_size.exit_code, 2);
  EXPECT_THAT(
      no_size.err,
      HasSubstr("--fail-over 10B: the values of the sample type are not bytes; write a number in their unit, 'count'"));
}

TEST(Where, ADashSelectsSamplesWithoutTheLabel) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 100}, {{"phase", "load"}});
  maker.Sample({maker.Frame("g")}, {1, 20});
  maker.Sample({maker.Frame("h")}, {1, 3}, {{"phase", "-"}});
  maker.Write(path);
  EXPECT_THAT(RunTool({"top", path, "--by", "phase"}).out, HasSubstr("  -\n"));
  EXPECT_EQ(Flat({"top", path, "-w", "phase=-"}), (std::map<std::string, int64_t>{{"g", 20}, {"h", 3}}));
  EXPECT_EQ(RunTool({"top", path, "-w", "phasee=-"}).exit_code, 2);
}

TEST(Top, KernelCodeHasRowsOfItsOwn) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  const uint64_t main = maker.Frame("main");
  maker.Sample({maker.Frame("step"), main}, {1, 100}, {{"kind", "device"}});
  maker.Sample({maker.Frame("step"), main}, {1, 20}, {{"kind", "executable"}});
  maker.Write(path);
  const std::string text = RunTool({"top", path, "--exact"}).out;
  EXPECT_THAT(text, testing::ContainsRegex("\n100 B +83.33% +100 B +83.33% +step\n"));
  EXPECT_THAT(text, testing::ContainsRegex(" 20 B +16.67% +20 B +16.67% +step \\(kernel code\\)\n"));
  EXPECT_THAT(text, testing::ContainsRegex(" 0 B +0.00% +120 B +100.00% +main\n"));
  EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{"step", 120}})) << "JSON has pprof's rows";
}

// --- Own code ----------------------------------------------------------------------------------------------------

TEST(OwnCode, SkipsKnownLibraries) {
  const std::pair<std::vector<std::string>, const char*> libraries[] = {
      {{"/lib/x86_64-linux-gnu/libc.so.6", "malloc"}, "libc"},
      {{"/lib64/ld-linux-x86-64.so.2", "_dl_init"}, "dynamic linker"},
      {{"/usr/lib/libstdc++.so.6.0.30", "operator new"}, "C++ runtime"},
      {{"/srv/app", "std::vector::_M_realloc_insert"}, "C++ runtime, inlined"},
      {{"/usr/lib/libcuda.so.550.54", "cuMemAlloc_v2"}, "CUDA driver"},
      {{"/usr/local/cuda/lib64/libcudart.so.12", "cudaMalloc"}, "CUDA runtime"},
      {{"/srv/app", "cudaMalloc"}, "static CUDA runtime"},
      {{"/usr/lib/libcudnn_engines_precompiled.so.9", "f"}, "cuDNN"},
      {{"/usr/lib/libcublasLt.so.12", "f"}, "cuBLAS"},
      {{"/usr/lib/libnccl.so.2.20.5", "f"}, "NCCL"},
      {{"/x/libcudart-d0da41ae.so.11.0", "f"}, "CUDA runtime of a Python package"},
      {{"/lib/ld-2.31.so", "f"}, "dynamic linker"},
      {{"/usr/lib/libnvinfer_plugin.so.10", "f"}, "TensorRT"},
      {{"/usr/lib/python3/dist-packages/torch/lib/libc10_cuda.so", "f"}, "torch"},
      {{"/opt/libtorch/lib/libtorch_cpu.so", "at::empty"}, "torch"},
      {{"/srv/app", "c10::cuda::CUDACachingAllocator::Native::malloc"}, "static torch"},
      {{"/usr/lib/libonnxruntime_providers_cuda.so", "f"}, "ONNX Runtime"},
      {{"/x/jaxlib/xla_extension.so", "f"}, "XLA"},
      {{"/x/jaxlib/libjax_common.so", "jax::PyClient::Compile"}, "jaxlib"},
      {{"/x/libtpu.so", "f"}, "XLA"},
      {{"/usr/bin/python3.11", "_PyEval_EvalFrameDefault"}, "CPython"},
      {{"/usr/lib/libpython3.12.so.1.0", "cfunction_call"}, "CPython"},
      {{"/usr/lib/libpython3.13t.so.1.0", "cfunction_call"}, "CPython"},
      {{"/usr/lib/libpython3.7m.so.1.0", "cfunction_call"}, "CPython"},
      {{"/usr/bin/python3.11", "Module._call_impl", "/x/site-packages/torch/nn/modules/module.py"}, "torch in Python"},
      {{"/usr/bin/python3.11", "Thread.run", "/usr/lib/python3.11/threading.py"}, "Python's library"},
      {{"/usr/lib/libhbmprof_gpu.so", "f"}, "hbmprof"},
      {{"/srv/app", "hbmprof::cuda::Malloc"}, "hbmprof"},
  };
  const std::string path = ScratchDir() + "/p.pb.gz";
  for (const auto& [frame, name] : libraries) {
    WriteStacks(path, {{{frame, {"/srv/app", "app::Load"}, {"/srv/app", "main"}}, 100}});
    EXPECT_EQ(Flat({"top", "--own", path}), (std::map<std::string, int64_t>{{"app::Load", 100}})) << name;
    EXPECT_EQ(Flat({"top", "--no-own", path}), (std::map<std::string, int64_t>{{frame[1], 100}})) << name;
  }
}

TEST(OwnCode, KeepsCodeThatOnlyLooksLikeALibrary) {
  const std::vector<std::string> own[] = {
      {"/srv/libcache.so", "Insert"},
      {"/srv/libcudamodel.so.1", "model::Load"},
      {"/srv/libtorch_extension.so", "extension::Load"},
      {"/srv/libcore.so", "core::Load"},
      {"/srv/app", "atlas::Load"},
      {"/srv/app", "mystd::vector::push_back"},
      {"/srv/app", "hbmprof_test::Load"},
      {"/srv/python_bindings.so", "Load"},
      {"/usr/bin/python3.11", "load", "/home/user/model.py"},
      {"/srv/app", "app+0x1234"},
  };
  const std::string path = ScratchDir() + "/p.pb.gz";
  for (const std::vector<std::string>& frame : own) {
    WriteStacks(path, {{{frame, {"/srv/app", "main"}}, 100}});
    EXPECT_EQ(Flat({"top", "--own", path}), (std::map<std::string, int64_t>{{frame[1], 100}}));
  }
}

TEST(OwnCode, PackagesAreLibrariesIfThereIsOtherCode) {
  const std::string packages = "/x/lib/python3.11/site-packages/";
  const std::string python = "/usr/bin/python3.11";
  const std::vector<std::string> in_packages[] = {
      {python, "load", packages + "transformers/model.py"},
      {packages + "cuda_helper/_bindings.so", "Load"},
      {"/usr/lib/python3/dist-packages/numba/_core.so", "Load"},
  };
  const std::string path = ScratchDir() + "/p.pb.gz";
  using Expected = std::map<std::string, int64_t>;
  for (const std::vector<std::string>& frame : in_packages) {
    const std::vector<std::string> server = {python, "run", packages + "server/main.py"};
    const std::vector<std::string> thread = {python, "Thread.run", "/usr/lib/python3.11/threading.py"};
    WriteStacks(path,
                {{{{"/x/libcuda.so.1", "cuMemAlloc_v2"}, frame, server, {python, "train", "/srv/train.py"}}, 100}});
    EXPECT_EQ(Flat({"top", path}), (Expected{{"train", 100}})) << frame[1];
    const std::vector<std::string> command = {"-", "<module>", "/srv/venv/bin/server"};  // which pip makes
    for (const std::vector<std::string>& start : {thread, command}) {
      WriteStacks(path, {{{{"/x/libcuda.so.1", "cuMemAlloc_v2"}, frame, server, start}, 100}});
      EXPECT_EQ(Flat({"top", path}), (Expected{{frame[1], 100}})) << "the packages are the program";
    }
  }
}

TEST(OwnCode, WhatRunsInExecIsOwnCodeOnlyWithoutOther) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  const std::vector<std::string> driver = {"/x/libcuda.so.1", "cuMemAlloc_v2"};
  const std::vector<std::string> generated = {"-", "__init__", "<string>"};
  const std::vector<std::string> package = {"-", "run", "/x/site-packages/server/main.py"};
  const std::vector<std::string> program = {"-", "train", "/srv/train.py"};
  const std::vector<std::string> start = {"-", "Thread.run", "/usr/lib/python3.11/threading.py"};
  for (const std::vector<std::string>& caller : {package, program}) {
    WriteStacks(path, {{{driver, generated, caller, start}, 100}});
    EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{caller[1], 100}}));
  }
  WriteStacks(path, {{{driver, generated, start}, 100}});  // a program that is given by -c
  EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{"__init__", 100}}));
}

TEST(OwnCode, AScriptWithoutASuffixIsOwnCode) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  const std::vector<std::string> package = {"-", "run", "/usr/lib/python3/dist-packages/server/main.py"};
  for (const std::vector<std::string>& frame : {std::vector<std::string>{"-", "main", "/home/me/bin/train"},
                                                {"-", "<module>", "/home/me/train"},
                                                {"-", "<module>", "/home/me/bin/train.py"}}) {
    WriteStacks(path, {{{{"/x/libcuda.so.1", "cuMemAlloc_v2"}, package, frame}, 100}});
    EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{frame[1], 100}}));
  }
}

// JAX gives a function one name in both fields.
TEST(OwnCode, AModuleOfTheUserIsOwnCode) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  const auto frame = [&](const std::string& name, const std::string& file) {
    return maker.Location(0, 0, {{maker.Function(name, name, file), 7}});
  };
  maker.Sample({frame("batched_device_put", "/x/site-packages/jax/_src/interpreters/pxla.py"),
                frame("<module>", "/home/me/train.py")},
               {1, 100});
  maker.Write(path);
  EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{"<module>", 100}}));
}

TEST(OwnCode, GeneratedCodeAndGgmlAreLibraries) {
  const std::string python = "/usr/bin/python3.11";
  const std::vector<std::string> libraries[] = {
      {python, "call", "/tmp/torchinductor_root/ab/cabc.py"},
      {python, "call", "/srv/inductor_cache/ab/cabc.py"},
      {python, "call", "/home/me/.cache/vllm/torch_compile_cache/1234/rank_0_0/inductor_cache/ab/cabc.py"},
      {python, "forward", "<eval_with_key>.12"},
      {"-", "_runtime_wrapper", "/x/site-packages/torch/_functorch/codegen.py:codegen(wrapper)"},
      {"/opt/llama/libggml-cuda.so", "f"},
      {"/opt/llama/libggml-base.so.0", "f"},
      {"/srv/llama", "ggml_backend_alloc_ctx_tensors_from_buft"},
      {"/srv/llama", "ggml_cuda_pool_vmm::alloc"},
      {python, "buffer_type_alloc", "/x/site-packages/cuda/bindings/driver.py"},
  };
  const std::string path = ScratchDir() + "/p.pb.gz";
  for (const std::vector<std::string>& frame : libraries) {
    WriteStacks(path, {{{frame, {"/srv/app", "load_tensors"}, {"/srv/app", "main"}}, 100}});
    EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{"load_tensors", 100}})) << frame.back();
  }
}

TEST(OwnCode, AttributesStacksWithoutOwnCodeToTheirLeaf) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  WriteStacks(path, {{{{"/x/libcuda.so.1", "cuMemAlloc_v2"},
                       {"/x/libtorch_cpu.so", "at::empty"},
                       {"-", "[unknown]"},
                       {"/lib/libc.so.6", "start_thread"},
                       {"-", "[stack truncated]"}},
                      100}});
  EXPECT_EQ(Flat({"top", "--own", path}), (std::map<std::string, int64_t>{{"cuMemAlloc_v2", 100}}));
}

// PyTorch runs the backward pass in threads of its own, where no code of the program is.
TEST(OwnCode, OperatorsNameTheBackwardPass) {
  const std::string torch = "/x/site-packages/torch/lib/libtorch_cpu.so";
  const std::vector<std::string> allocator = {
      "/x/libc10_cuda.so", "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_found_block"};
  const std::vector<std::string> empty = {torch, "at::detail::empty_cuda"};
  const std::vector<std::string> mm = {torch, "at::_ops::mm::call"};
  const std::vector<std::string> node = {torch, "torch::autograd::generated::AddmmBackward0::apply"};
  const std::vector<std::string> engine = {torch, "torch::autograd::Engine::evaluate_function"};
  const std::vector<std::string> start = {"/lib/libc.so.6", "start_thread"};
  const std::vector<std::string> hook = {"/usr/bin/python3.11", "hook", "/srv/train.py"};
  const std::vector<std::string> package = {"/usr/bin/python3.11", "bwd", "/x/site-packages/flash/attention.py"};
  const struct {
    std::vector<std::vector<std::string>> frames;
    const char* name;
  } cases[] = {
      {{allocator, empty, mm, node, engine, start}, "backward: AddmmBackward0 [PyTorch]"},
      {{allocator, {torch, "torch::autograd::AccumulateGrad::apply"}, node, engine},
       "backward: AccumulateGrad [PyTorch]"},
      {{allocator, {torch, "torch::autograd::CppNode<app::Scale>::apply"}, engine}, "backward: CppNode [PyTorch]"},
      {{allocator, empty, {torch, "torch::autograd::validate_outputs_impl"}, engine, start}, "backward [PyTorch]"},
      {{allocator, empty, node, hook, engine, start}, "hook"},
      {{allocator, empty, package, {torch, "torch::autograd::PyNode::apply"}, engine, start}, "bwd"},
      {{allocator, empty, node, engine, {"/srv/app", "app::Train"}}, "app::Train"},
      {{allocator, empty, mm, start}, "at::_ops::mm::call"},
      {{allocator, allocator}, allocator[1].c_str()},
      {{{"/x/libtensorflow_framework.so.2", "tsl::BFCAllocator::AllocateRaw"},
        {"/x/libtensorflow_framework.so.2", "tensorflow::Tensor::Tensor"},
        start},
       "tensorflow::Tensor::Tensor"},
  };
  const std::string path = ScratchDir() + "/p.pb.gz";
  for (const auto& [frames, name] : cases) {
    WriteStacks(path, {{frames, 100}});
    EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{name, 100}}));
    EXPECT_EQ(Flat({"top", "--no-own", path}), (std::map<std::string, int64_t>{{frames[0][1], 100}}));
  }
  // Two nodes with one name are one row, also if their code is at different addresses.
  WriteStacks(path, {{{allocator, mm, node, engine}, 100}, {{allocator, node, engine, start}, 20}});
  EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{"backward: AddmmBackward0 [PyTorch]", 120}}));
}

TEST(OwnCode, LeavesOutTheInterpreterBetweenPythonFunctions) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  const std::string python = "/usr/bin/python3.11";
  WriteStacks(path, {{{{"/x/libtorch_cuda.so", "at::empty"},
                       {python, "_PyObject_MakeTpCall"},
                       {python, "Model.forward", "/srv/model.py"},
                       {python, "slot_tp_call"},
                       {python, "type_call"},
                       {python, "main", "/srv/train.py"},
                       {python, "Py_RunMain"}},
                      100}});
  const auto functions = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> names;
    const nlohmann::json json = ToolJson(arguments);
    for (const auto& node : json["nodes"]) names.push_back(node["function"]);
    return names;
  };
  EXPECT_THAT(functions({"top", "--tree", path}), testing::ElementsAre("main", "Model.forward"));
  EXPECT_EQ(functions({"top", "--tree", "--no-own", path}).size(), 7u);
  EXPECT_EQ(Flat({"top", path}), (std::map<std::string, int64_t>{{"Model.forward", 100}}));
}

TEST(OwnCode, SkipsInlinedLibraryFunctionsOfALocation) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  const uint64_t mapping = maker.Mapping(0x1000, 0x9000, 0, "/srv/app");
  const uint64_t load = maker.Function("app::Load", "app::Load", "/src/load.cc");
  const uint64_t vector = maker.Function("std::vector<int>::resize", "std::vector<int>::resize", "/usr/include/v");
  maker.Sample({maker.Location(mapping, 0x1100, {{vector, 3}, {load, 12}})}, {1, 100});
  maker.Write(path);
  const nlohmann::json json = ToolJson({"top", "--own", path});
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["rows"][0]["function"], "app::Load");
  EXPECT_EQ(json["rows"][0]["where"], "/src/load.cc:12");
}

TEST(OwnCode, KnownAddsLibraries) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  WriteStacks(path,
              {{{{"/srv/libpool.so", "Pool::Get"}, {"/srv/app", "rt::Run", "/rt/run.cc"}, {"/srv/app", "main"}}, 9}});
  using Expected = std::map<std::string, int64_t>;
  EXPECT_EQ(Flat({"top", "--own", path}), (Expected{{"Pool::Get", 9}}));
  EXPECT_EQ(Flat({"top", "--own", "--known", "libpool", path}), (Expected{{"rt::Run", 9}}));
  EXPECT_EQ(Flat({"top", "--own", "--known", "^Pool::", "--known", "^/rt/", path}), (Expected{{"main", 9}}));
}

// Two call paths in a library, called from one function of the user, are one site of leaks. --no-own shows them as two.
TEST(OwnCode, IsTheDefaultOfLeaks) {
  const std::string dir = ScratchDir();
  std::vector<std::string> arguments = {"leaks", "--fail-over", "1"};
  for (int dump = 0; dump < 12; ++dump) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + int64_t{dump} * 1000000000);
    const uint64_t app = maker.Mapping(0x1000, 0x9000, 0, "/srv/app");
    const uint64_t cuda = maker.Mapping(0x10000, 0x90000, 0, "/usr/lib/libcudart.so.12");
    const uint64_t load = maker.Location(app, 0x1100, {{maker.Function("app::Load", "app::Load"), 5}});
    for (uint64_t call = 0; call < 2; ++call) {
      const uint64_t leaf = maker.Location(cuda, 0x10100 + call, {{maker.Function("cudaMalloc", "cudaMalloc"), 0}});
      maker.Sample({leaf, load}, {1, 1000 * (dump + 1)});
    }
    arguments.push_back(dir + "/" + std::to_string(100 + dump));
    maker.Write(arguments.back());
  }
  const CommandResult own = RunTool(arguments);
  EXPECT_EQ(own.exit_code, 1) << own.err;
  EXPECT_THAT(own.out, HasSubstr("1. LEAK  app::Load leaks 1.95 KiB/s (+21.48 KiB)"));
  EXPECT_THAT(own.out, Not(HasSubstr("cudaMalloc")));
  EXPECT_THAT(own.out, Not(HasSubstr("2. ")));
  arguments.push_back("--no-own");
  const CommandResult all = RunTool(arguments);
  EXPECT_THAT(all.out, HasSubstr("1. LEAK  cudaMalloc leaks 1.95 KiB/s (+21.48 KiB)"));
  EXPECT_THAT(all.out, HasSubstr("this is the largest of 2 call stacks"));
}

// The start of the program, of a thread and of the interpreter say nothing about the program.
TEST(OwnCode, IsTheDefaultOfTopAndDiffWithoutOuterLibraryFrames) {
  const std::string dir = ScratchDir();
  const std::vector<std::string> python = {"/usr/bin/python3.11", "_PyEval_EvalFrameDefault"};
  const auto write = [&](const std::string& name, int64_t bytes) {
    WriteStacks(dir + "/" + name, {{{{"/x/libcuda.so.1", "cuMemAlloc_v2"},
                                     {"/lib/libffi.so.8", "ffi_call"},
                                     {"-", "Cache.grow", "/srv/serve.py"},
                                     python,
                                     {"-", "main", "/srv/serve.py"},
                                     python,
                                     {"/usr/bin/python3.11", "Py_RunMain"},
                                     {"/lib/libc.so.6", "__libc_start_main"},
                                     {"/usr/bin/python3.11", "_start"}},
                                    bytes}});
    return dir + "/" + name;
  };
  const std::string before = write("before", 1024);
  const std::string after = write("after", 3072);
  const CommandResult top = RunTool({"top", after});
  EXPECT_THAT(top.out, HasSubstr("stacks start at the first frame outside of known libraries (--no-own shows all"));
  EXPECT_THAT(top.out, HasSubstr("function    where\n"
                                 "3.00 KiB  100.00%  3.00 KiB  100.00%  Cache.grow  /srv/serve.py:7\n"));
  const std::string tree =
      "main         /srv/serve.py:7\n"
      "3.00 KiB  100.00%  3.00 KiB   Cache.grow  /srv/serve.py:7\n";
  EXPECT_THAT(RunTool({"top", "--tree", after}).out, testing::EndsWith(tree));
  EXPECT_EQ(Flat({"diff", before, after}), (std::map<std::string, int64_t>{{"Cache.grow", 2048}}));
  EXPECT_EQ(Flat({"diff", "--no-own", before, after}), (std::map<std::string, int64_t>{{"cuMemAlloc_v2", 2048}}));
  EXPECT_THAT(RunTool({"top", "--tree", "--no-own", after}).out, HasSubstr("  _start  "));
  EXPECT_EQ(ToolJson({"top", "--callers", "cuMemAlloc", after})["rows"].size(), 1u) << "all callers and callees";
}

// --- Call trees --------------------------------------------------------------------------------------------------

class Tree : public testing::Test {
 protected:
  void SetUp() override {
    path_ = ScratchDir() + "/p.pb.gz";
    const std::vector<std::string> main = {"-", "main"};
    const std::vector<std::string> serve = {"-", "Serve"};
    WriteStacks(path_, {{{{"-", "Load"}, main}, 1024},
                        {{{"-", "Decode"}, serve, main}, 4096},
                        {{{"-", "Prefill"}, serve, main}, 2048},
                        {{serve, main}, 1024}});
  }
  std::string path_;
};

TEST_F(Tree, ShowsCallsIndentedLargestFirst) {
  const std::string out = RunTool({"top", "--tree", path_}).out;
  EXPECT_THAT(out, HasSubstr("    cum     cum%      flat  call tree  where\n"
                             "8.00 KiB  100.00%            main\n"
                             "7.00 KiB   87.50%  1.00 KiB   Serve\n"
                             "4.00 KiB   50.00%  4.00 KiB    Decode\n"
                             "2.00 KiB   25.00%  2.00 KiB    Prefill\n"
                             "1.00 KiB   12.50%  1.00 KiB   Load\n"));
}

TEST_F(Tree, KeepsTheLargestNodesWithTheirCallers) {
  const std::string out = RunTool({"top", "--tree", "-n", "3", path_}).out;
  EXPECT_THAT(out, HasSubstr("    Decode\n... and 2 more rows (-n 0 shows all)\n"));
  EXPECT_THAT(out, Not(HasSubstr("Prefill")));
}

// The idle memory of a pool becomes smaller by the bytes that a function keeps, so the sum of both does not change.
TEST_F(Tree, DiffShowsChangesWithSumZero) {
  const std::string after = path_ + ".after";
  const std::vector<std::string> main = {"-", "main"};
  const std::vector<std::string> serve = {"-", "Serve"};
  WriteStacks(after, {{{{"-", "Load"}, main}, 1024},
                      {{{"-", "Decode"}, serve, main}, 1024},
                      {{{"-", "Prefill"}, serve, main}, 5120},
                      {{serve, main}, 1024}});
  const std::string out = RunTool({"diff", "--tree", path_, after}).out;
  EXPECT_THAT(out, HasSubstr("      cum     cum%       flat  call tree  where\n"
                             "      0 B    0.00%             main\n"
                             "      0 B    0.00%              Serve\n"
                             "+3.00 KiB   37.50%  +3.00 KiB    Prefill\n"
                             "-3.00 KiB  -37.50%  -3.00 KiB    Decode\n"));
  const nlohmann::json json = ToolJson({"diff", "--tree", path_, after});
  ASSERT_EQ(json["nodes"].size(), 4u);
  EXPECT_EQ(json["nodes"][2]["function"], "Prefill");
  EXPECT_EQ(json["nodes"][2]["cum"], 3072);
}

TEST_F(Tree, JsonHasTheNodesInOrder) {
  EXPECT_EQ(ToolJson({"top", "--tree", "-n", "1", path_})["left_out"], 4);
  const nlohmann::json json = ToolJson({"top", "--tree", path_});
  std::string nodes;
  for (const auto& node : json["nodes"]) {
    nodes += std::to_string(node["depth"].get<int>()) + node["function"].get<std::string>() + " ";
  }
  EXPECT_EQ(nodes, "1main 2Serve 3Decode 3Prefill 2Load ");
  EXPECT_EQ(json["nodes"][1]["flat"], 1024);
  EXPECT_EQ(json["nodes"][1]["cum"], 7168);
}

// --- On a terminal -----------------------------------------------------------------------------------------------

// Runs the command on a terminal with this many rows and returns what the terminal receives.
std::string RunOnTerminal(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment,
                          unsigned short rows = 200, unsigned short columns = 200) {
  arguments.insert(arguments.begin(), ToolPath());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  winsize size = {};
  size.ws_row = rows;
  size.ws_col = columns;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    for (const char* name : {"NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG"}) unsetenv(name);
    setenv("TERM", "xterm", 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  EXPECT_GT(child, 0);
  std::string received;
  char buffer[4096];
  for (ssize_t count; (count = read(terminal, buffer, sizeof(buffer))) > 0;) {
    received.append(buffer, static_cast<size_t>(count));
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  std::string text;
  for (size_t i = 0; i < received.size(); ++i) {
    if (received.compare(i, 2, "\r\n") != 0) text += received[i];
  }
  return text;
}

class OnATerminal : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = ScratchDir();
    before_ = dir + "/before.pb.gz";
    after_ = dir + "/after.pb.gz";
    WriteStacks(before_, {{{{"-", "Grows"}}, 1024}, {{{"-", "Shrinks\x1b[2J"}}, 2048}});
    WriteStacks(after_, {{{{"-", "Grows"}}, 4096}, {{{"-", "Shrinks\x1b[2J"}}, 1024}});
  }
  std::string before_;
  std::string after_;
};

// The lines of a table fit the terminal: names are shortened, numbers and the ends of paths stay.
TEST_F(OnATerminal, NamesAreShortenedToTheWidth) {
  const std::string function = "llm::" + std::string(60, 'a') + "::Prefill";
  const std::string file = "/srv/" + std::string(60, 'b') + "/prefill.cc";
  WriteStacks(before_, {{{{"-", function, file}}, 1024}});
  WriteStacks(after_, {{{{"-", function, file}}, 4096}});
  const std::string between = before_ + ".2";
  WriteStacks(between, {{{{"-", function, file}}, 2560}});
  const std::vector<std::string> commands[] = {
      {"top", after_}, {"top", "--tree", after_}, {"diff", before_, after_}, {"leaks", before_, between, after_}};
  for (const std::vector<std::string>& command : commands) {
    const std::string out = RunOnTerminal(command, {{"LC_ALL", "C.UTF-8"}, {"NO_COLOR", "1"}}, 200, 80);
    EXPECT_THAT(out, HasSubstr("Prefill ")) << command[0];
    EXPECT_THAT(out, HasSubstr("ill.cc:7")) << command[0];
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("ill.cc:7") == std::string::npos) continue;
      EXPECT_LE(line.size(), 80u + 4) << command[0] << ": two marks of three bytes each\n" << line;
    }
    EXPECT_THAT(RunTool(command).out, HasSubstr(function)) << "in a pipe";
  }
}

TEST_F(OnATerminal, DiffHasColors) {
  const std::string out = RunOnTerminal({"diff", before_, after_}, {});
  EXPECT_THAT(out, HasSubstr("\x1b[31m+3.00 KiB"));
  EXPECT_THAT(out, HasSubstr("\x1b[32m-1.00 KiB"));
  EXPECT_THAT(out, HasSubstr("Shrinks\\x1b[2J")) << "a name in the profile has no effect on the terminal";
  EXPECT_THAT(out, Not(HasSubstr("\x1b[2J")));
}

TEST_F(OnATerminal, NoColorDumbTerminalsAndPipesHaveNone) {
  const std::string piped = RunTool({"diff", before_, after_}, {"TERM=xterm"}).out;
  EXPECT_THAT(piped, HasSubstr("\n+3.00 KiB"));
  EXPECT_THAT(piped, Not(HasSubstr("\x1b")));
  EXPECT_EQ(RunOnTerminal({"diff", before_, after_}, {{"TERM", "dumb"}}), piped);
  EXPECT_EQ(RunOnTerminal({"diff", before_, after_}, {{"NO_COLOR", "1"}}), piped);
}

// The profile comes from a pipe whose writer is slow.
TEST_F(OnATerminal, ProgressIsShownAfterASecond) {
  const std::string pipe = before_ + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 1024});
  const std::string bytes = maker.Bytes();
  const auto write_late = [&] {
    const int fd = open(pipe.c_str(), O_WRONLY);
    std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(fd);
  };
  std::thread writer(write_late);
  const std::string out = RunOnTerminal({"top", pipe, before_}, {});
  writer.join();
  EXPECT_THAT(out, HasSubstr("] 1 of 2 files read"));
  EXPECT_THAT(out, HasSubstr("\r\x1b[K")) << "the bar is removed";
  EXPECT_THAT(out, HasSubstr("1.00 KiB"));
  std::thread second_writer(write_late);
  const CommandResult piped = RunTool({"top", pipe});
  second_writer.join();
  EXPECT_EQ(piped.err, "");
}

}  // namespace
}  // namespace hbmprof_test
