#include "src/export/known_code.h"

#include <cstddef>

#include "src/core/pool_samples.h"

namespace hbmprof::internal {
namespace {

// Lists of patterns with '|' between them. In a pattern, '*' is any number of word characters (letters, digits, '_'),
// '%' any number of any characters, '#' one or more digits, '^' a capital letter, and '?' says that the character
// before it may be missing.
struct KnownLibrary {
  CodeRole role;
  std::string_view name;
  // The file names of shared libraries, without their folders and without ".so" and the text after it. A hash may
  // follow a name, as in libcudart-d0da41ae.so.11.0 of a Python package.
  std::string_view shared_libraries;
  // Functions, for code that is linked statically or inlined into another binary.
  std::string_view functions;
  // Python packages, by the name of their folder.
  std::string_view packages;
  // Paths of binaries, and of the source files of Python functions.
  std::string_view paths;
};

// A frame belongs to the first row that its binary or its Python package matches, else to the first row that its
// function matches, but a row of kLibrary comes before rows of other roles, and a framework before a runtime: NCCL's
// part of PyTorch is found by its functions.
constexpr KnownLibrary kKnownLibraries[] = {
    {CodeRole::kLibrary, "NCCL", "libnccl|libnccl-%",
     "nccl^*|c10d::ProcessGroupNCCL%|c10d::NCCLComm%|torch::cuda::nccl::%", "", ""},
    {CodeRole::kLibrary, "RCCL", "librccl", "", "", ""},
    {CodeRole::kLibrary, "HCCL", "libhccl*", "", "", ""},
    {CodeRole::kLibrary, "GE", "libge_*|libgraph|libgraph_base", "", "", ""},
    {CodeRole::kLibrary, "ATB", "libatb*", "", "", ""},
    // PyTorch allocates the workspaces of cuBLAS and cuDNN in these functions.
    {CodeRole::kLibrary, "cuBLAS", "libcublas|libcublasLt|libnvblas",
     "cublas^*|at::cuda::blas::%|at::cuda::getNewWorkspace|at::cuda::getCurrentCUDABlasHandle|"
     "at::cuda::getCUDABlasLtWorkspace*",
     "", ""},
    {CodeRole::kLibrary, "cuDNN", "libcudnn*", "cudnn^*|cudnn_frontend::%|at::native::%run_conv_plan*", "", ""},
    {CodeRole::kLibrary, "cuFFT", "libcufftw?", "cufft^*", "", ""},
    {CodeRole::kLibrary, "cuSPARSE", "libcusparse|libcusparseLt", "cusparse^*|cusparseLt^*", "", ""},
    {CodeRole::kLibrary, "cuSOLVER", "libcusolver|libcusolverMg", "cusolver^*", "", ""},
    {CodeRole::kLibrary, "cuRAND", "libcurand", "curand^*", "", ""},
    {CodeRole::kLibrary, "NPP", "libnpp*", "", "", ""},
    {CodeRole::kLibrary, "nvJPEG", "libnvjpeg", "nvjpeg^*", "", ""},
    {CodeRole::kLibrary, "NVSHMEM", "libnvshmem*|libtorch_nvshmem", "nvshmem_*|nvshmemx_*", "", ""},
    {CodeRole::kLibrary, "CUTLASS", "", "cutlass::%|void cutlass::%", "cutlass|nvidia_cutlass*", ""},
    {CodeRole::kLibrary, "Triton", "libtriton|__triton_launcher%", "", "triton",
     "%/.triton/cache/%|%/torchinductor_%/triton/%"},
    // The code that torch.compile generates.
    {CodeRole::kLibrary, "TorchInductor", "", "", "", "%/torchinductor_*/%|%/inductor_cache/%|%/torch_compile_cache/%"},
    {CodeRole::kLibrary, "TensorRT", "libnvinfer*|libnvonnxparser|libnvparsers", "nvinfer1::%", "tensorrt*", ""},
    {CodeRole::kFramework, "PyTorch",
     "libtorch|libtorch_cpu|libtorch_cuda|libtorch_hip|libtorch_xpu|libtorch_python|libtorch_global_deps|"
     "libtorch_cuda_linalg|libtorch_npu|libc10|libc10_cuda|libc10_hip|libc10_xpu|libcaffe2*",
     "at::%|c10::%|c10d::%|torch::%|caffe2::%|at_npu::%|c10_npu::%|torch_npu::%", "torch|torch_npu",
     "<eval_with_key>%"},
    {CodeRole::kFramework, "MindSpore", "libmindspore*", "mindspore::%", "mindspore", ""},
    {CodeRole::kFramework, "TensorFlow", "libtensorflow|libtensorflow_*|_pywrap_tensorflow*", "tensorflow::%",
     "tensorflow", ""},
    {CodeRole::kFramework, "XLA",
     "libtpu|libjax_common|xla_extension|xla_cuda_plugin|xla_rocm_plugin|pjrt_c_api_*|pjrt_plugin_*",
     "xla::%|tsl::%|stream_executor::%|mlir::%", "jax|jaxlib|jax_*_plugin", ""},
    {CodeRole::kFramework, "ONNX Runtime",
     "libonnxruntime|libonnxruntime_providers_*|libonnxruntime4j_jni|onnxruntime_pybind11_state%",
     "onnxruntime::%|Ort::%", "onnxruntime", ""},
    {CodeRole::kFramework, "ggml", "libggml|libggml-%", "ggml_%|gguf_%", "", ""},
    // The record of the memory that the process had before `hbmprof attach`.
    {CodeRole::kRuntime, "before attach", "", "[before attach]", "", ""},
    {CodeRole::kRuntime, "CUDA",
     "libcuda|libcudart|libnvrtc|libnvrtc-builtins|libnvJitLink|libnvptxcompiler|libcupti|libnvToolsExt|libnvidia-%|"
     "libcufile*",
     "cudaMalloc*|cudaHost*|cudaFree*|cudaLaunch*|cudaGraph*|cudaStream*|cudaMemPool*|cudaArray*|"
     "cuMem^*|cuArray^*|cuMipmappedArray^*|cuGraph^*|cuLaunch^*|cuStream^*|cuCtx^*|cuModule^*|cuLibrary^*",
     "nvidia|cuda", ""},
    {CodeRole::kRuntime, "HIP", "libamdhip64|libhsa-runtime64|libhiprtc|librocprofiler%",
     "hipMalloc*|hipMem^*|hipHost*", "rocm", ""},
    {CodeRole::kRuntime, "MUSA", "libmusa|libmusart", "musaMalloc*|musaHost*|musaMemPool*|muMem^*", "", ""},
    {CodeRole::kRuntime, "CANN", "libascend_hal|libascendcl|libacl_rt*|libruntime|libms_tools_ext", "halMem*|aclrt^*",
     "", ""},
    {CodeRole::kRuntime, "OpenCL", "libOpenCL|libpocl%|libintelocl%|libigdrcl%|libamdocl%", "", "", ""},
    {CodeRole::kRuntime, "CPython", "libpython#*|libpython#.*|libffi",
     "_?Py_*|_?PyEval_*|_?PyObject_*|_?PyRun_*|_?PyImport_*|_?PyFunction_*|_?PyMethod_*|_?PyCFunction_*|"
     "_?PyVectorcall_*|_?PyType_*|_?PyIter_*|_?PyGen_*|_?PyCoro_*",
     "", "python|python#|python#.#|%/python|%/python#|%/python#.#|%/lib-dynload/%"},
    {CodeRole::kRuntime, "GoogleTest", "libgtest*|libgmock*", "testing::%|void testing::%|bool testing::%", "", ""},
    {CodeRole::kRuntime, "hbmprof", "libhbmprof*", "hbmprof::%|hbmprof_*", "hbmprof", ""},
    {CodeRole::kRuntime, "C++ runtime",
     "libstdc++|libsupc++|libc++|libc++abi|libgcc_s|libunwind|libgomp|libi?omp|libi?omp#",
     "std::%|__gnu_cxx::%|__cxxabiv1::%|void std::%|void __gnu_cxx::%|void __cxxabiv1::%|operator new%|operator "
     "delete%",
     "", ""},
    {CodeRole::kRuntime, "libc",
     "libc|libm|libmvec|libpthread|libdl|librt|libutil|libresolv|libnss_*|ld|ld-linux%|ld-musl%|libc.musl-%",
     "_start|__libc_start_main*|__libc_start_call_main*|clone3?|__clone3?|start_thread", "",
     "vdso%|[vdso%|linux-vdso%|[linux-vdso%"},
};

// Functions of frameworks with the roles kAllocator and kOperator. The second list has the nodes of PyTorch's graph of
// operators, and the function that calls them and sums up their results.
constexpr char kAllocators[] =
    "%Allocator::%|at::detail::empty_%|at::detail::_empty_%|at::(anonymous namespace)::create_out";
constexpr char kNodes[] = "torch::autograd::*::apply|torch::autograd::generated::*::apply";
constexpr char kEngine[] = "torch::autograd::Engine::evaluate_function";

// The source files of Python's standard library.
constexpr char kPythonLibrary[] = "<frozen %|%/lib/python#.#/%|%/lib64/python#.#/%";

// Names of frames without known code: unknown code, and the marks that the writer of a profile adds.
constexpr char kNotCode[] = "[unknown]|[no stack]|[stack truncated]|[small call stacks]|<unknown>";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsCapital(char c) { return c >= 'A' && c <= 'Z'; }
bool IsWord(char c) { return IsDigit(c) || IsCapital(c) || (c >= 'a' && c <= 'z') || c == '_'; }

bool Matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  const char first = pattern.front();
  const std::string_view rest = pattern.substr(1);
  if (first == '%' && rest.empty()) return true;
  if (first == '*' || first == '%' || first == '#') {
    for (size_t count = 0;; ++count) {
      if ((first != '#' || count > 0) && Matches(rest, text.substr(count))) return true;
      if (count == text.size()) return false;
      if (first != '%' && !(first == '#' ? IsDigit(text[count]) : IsWord(text[count]))) return false;
    }
  }
  const bool begins = !text.empty() && (first == '^' ? IsCapital(text.front()) : text.front() == first);
  if (!rest.empty() && rest.front() == '?') {
    return Matches(rest.substr(1), text) || (begins && Matches(rest.substr(1), text.substr(1)));
  }
  return begins && Matches(rest, text.substr(1));
}

// No pattern matches an empty text.
bool MatchesAny(std::string_view patterns, std::string_view text) {
  if (text.empty()) return false;
  for (;;) {
    const size_t end = patterns.find('|');
    if (Matches(patterns.substr(0, end), text)) return true;
    if (end == patterns.npos) return false;
    patterns.remove_prefix(end + 1);
  }
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Returns the name of the Python package in which the file lies; "" if it lies in none.
std::string_view PackageOf(std::string_view path) {
  constexpr std::string_view kFolder = "-packages/";
  for (size_t at = path.find(kFolder); at != path.npos; at = path.find(kFolder, at + 1)) {
    const std::string_view inside = path.substr(at + kFolder.size());
    const std::string_view before = path.substr(0, at);
    const size_t end = inside.find('/');
    if (end != inside.npos && (EndsWith(before, "/site") || EndsWith(before, "/dist"))) return inside.substr(0, end);
  }
  return "";
}

// The parts of a binary's path that the table compares. A part is empty if the path has none.
struct Binary {
  explicit Binary(std::string_view whole_path) : path(whole_path), package(PackageOf(whole_path)) {
    const std::string_view file = path.substr(path.rfind('/') + 1);
    const size_t end = file.find(".so");
    if (end == file.npos || end > 255) return;  // a file name has at most 255 bytes
    name = file.substr(0, end);
    const size_t hash = name.find_last_not_of("0123456789abcdef.") + 1;
    if (hash < name.size() && EndsWith(name.substr(0, hash), "-")) name_without_hash = name.substr(0, hash - 1);
  }
  bool IsOf(const KnownLibrary& library) const {
    return MatchesAny(library.shared_libraries, name) || MatchesAny(library.shared_libraries, name_without_hash) ||
           MatchesAny(library.packages, package) || MatchesAny(library.paths, path);
  }

  std::string_view path;
  std::string_view package;
  std::string_view name;  // of a shared library
  std::string_view name_without_hash;
};

// Returns the owner of a frame of `library`. `name`: of its function.
FrameOwner OwnerIn(const KnownLibrary& library, std::string_view name) {
  CodeRole role = library.role;
  if (role == CodeRole::kFramework && MatchesAny(kAllocators, name)) role = CodeRole::kAllocator;
  if (role == CodeRole::kFramework && (MatchesAny(kNodes, name) || MatchesAny(kEngine, name)))
    role = CodeRole::kOperator;
  return {role, library.name};
}

// Returns the owner of a frame of a Python function. The binary is that of the interpreter, so only the source file
// counts.
FrameOwner OwnerOfPython(std::string_view source) {
  const std::string_view package = PackageOf(source);
  for (const KnownLibrary& library : kKnownLibraries) {
    if (MatchesAny(library.packages, package) || MatchesAny(library.paths, source)) return {library.role, library.name};
  }
  if (!package.empty()) return {CodeRole::kPackage, package};
  // What runs in exec(), such as the functions of a dataclass, and a program given by -c.
  if (source == "<string>") return {CodeRole::kGenerated, "generated code"};
  const bool in_package = source.find("-packages/") != source.npos;
  if (!in_package && MatchesAny(kPythonLibrary, source)) return {CodeRole::kRuntime, "CPython"};
  return {CodeRole::kOwnCode, ""};
}

}  // namespace

FrameOwner OwnerOf(std::string_view name, std::string_view source, std::string_view binary) {
  // A file can contain a text of any length, in many frames.
  constexpr size_t kMostBytes = 4096;
  name = name.substr(0, kMostBytes);
  source = source.substr(0, kMostBytes);
  binary = binary.substr(0, kMostBytes);
  if ((name.empty() && binary.empty()) || MatchesAny(kNotCode, name)) return {};
  if (IsIdleMemoryFrame(name)) return {CodeRole::kLibrary, kIdleName};
  // PyTorch names the code that it generates as FILE.py:codegen(NAME).
  const bool is_python = EndsWith(source, ".py") || source.find(".py:") != source.npos;
  if (is_python || (!source.empty() && source.front() == '<')) return OwnerOfPython(source);
  // The script that pip makes for a command of a package, such as `vllm`.
  const size_t end = source.rfind('/');
  const bool is_in_bin = end != source.npos && EndsWith(source.substr(0, end), "/bin");
  if (is_in_bin && name == "<module>") return {CodeRole::kPackage, source.substr(end + 1)};
  const Binary parts(binary.empty() ? source : binary);
  for (const CodeRole role : {CodeRole::kLibrary, CodeRole::kFramework, CodeRole::kRuntime}) {
    for (const KnownLibrary& library : kKnownLibraries) {
      if (library.role == role && parts.IsOf(library)) return OwnerIn(library, name);
    }
    for (const KnownLibrary& library : kKnownLibraries) {
      if (library.role == role && MatchesAny(library.functions, name)) return OwnerIn(library, name);
    }
  }
  if (!parts.package.empty()) return {CodeRole::kPackage, parts.package};
  return {CodeRole::kOwnCode, ""};
}

std::string OwnName(const FrameOwner& owner, std::string_view name) {
  if (owner.role != CodeRole::kOperator) return std::string(name);
  std::string text = "backward";
  if (MatchesAny(kNodes, name)) {
    name.remove_suffix(std::string_view("::apply").size());
    for (const std::string_view space : {"torch::autograd::", "generated::"}) {
      if (name.substr(0, space.size()) == space) name.remove_prefix(space.size());
    }
    text.append(": ").append(name);
  }
  return text.append(" [").append(owner.library).append("]");
}

void MemoryHolder::Add(const FrameOwner& frame) {
  if (is_complete_) return;
  switch (frame.role) {
    case CodeRole::kNone:
      break;
    case CodeRole::kRuntime:
      if (runtime_.empty()) runtime_ = frame.library;
      break;
    case CodeRole::kFramework:
    case CodeRole::kAllocator:
    case CodeRole::kOperator:
      if (framework_.empty()) framework_ = frame.library;
      break;
    case CodeRole::kPackage:
    case CodeRole::kGenerated:
      if (package_.empty() && library_.empty()) package_ = frame.library;
      break;
    case CodeRole::kLibrary:
      if (library_.empty()) library_ = frame.library;
      is_complete_ = package_.empty();  // own code farther out makes the package the holder
      break;
    case CodeRole::kOwnCode:
      has_own_code_ = is_complete_ = true;
      break;
  }
}

std::string_view MemoryHolder::name() const {
  if (has_own_code_ && !package_.empty()) return package_;
  if (!library_.empty()) return library_;
  if (!framework_.empty()) return framework_;
  if (has_own_code_ || !package_.empty()) return kOwnCodeName;
  return runtime_.empty() ? kUnknownName : runtime_;
}

}  // namespace hbmprof::internal
