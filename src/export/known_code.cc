#include "src/export/known_code.h"

#include <cstddef>

namespace hbmprof::internal {
namespace {

// Lists of patterns with '|' between them. In a pattern, '*' is any number of word characters (letters, digits, '_'),
// '%' any number of any characters, '#' one or more digits, '^' a capital letter, and '?' says that the character
// before it may be missing.

// The file names of binaries, without their folders and without ".so" and the text after it. A hash may follow a name,
// as in libcudart-d0da41ae.so.11.0 of a Python package.
constexpr char kSharedLibraries[] =
    // libc
    "libc|libm|libmvec|libpthread|libdl|librt|libutil|libresolv|libnss_*|ld|ld-linux%|ld-musl%|libc.musl-%|"
    // The C++ runtime and OpenMP
    "libstdc++|libsupc++|libc++|libc++abi|libgcc_s|libunwind|libgomp|libi?omp|libi?omp#|"
    // CUDA
    "libcuda|libcudart|libnvrtc|libnvrtc-builtins|libnvJitLink|libnvptxcompiler|libcupti|libnvToolsExt|libnvidia-%|"
    "libcufftw?|libcufile*|libcurand|libcusolver|libcusolverMg|libcusparse|libcusparseLt|libnvjpeg|libnpp*|"
    // cuDNN, cuBLAS, NCCL, TensorRT
    "libcudnn*|libcublas|libcublasLt|libnvblas|libnccl|libnccl-%|libnvinfer*|libnvonnxparser|libnvparsers|"
    // torch
    "libtorch|libtorch_cpu|libtorch_cuda|libtorch_hip|libtorch_xpu|libtorch_python|libtorch_global_deps|"
    "libtorch_cuda_linalg|libtorch_nvshmem|libc10|libc10_cuda|libc10_hip|libc10_xpu|libcaffe2*|"
    // ONNX Runtime
    "libonnxruntime|libonnxruntime_providers_*|libonnxruntime4j_jni|onnxruntime_pybind11_state%|"
    // XLA
    "libtpu|libjax_common|xla_extension|xla_cuda_plugin|xla_rocm_plugin|pjrt_c_api_*|pjrt_plugin_*|libtensorflow|"
    "libtensorflow_*|"
    "_pywrap_tensorflow*|"
    // CPython and hbmprof
    "libpython#*|libpython#*.#|libffi|libhbmprof*";
// The file names of other binaries, and the paths of others: the vDSO, and the modules of Python's standard library.
constexpr char kPrograms[] = "python|python#|python#.#";
constexpr char kOtherPaths[] = "vdso%|[vdso%|linux-vdso%|[linux-vdso%|%/lib-dynload/%";

// Functions, for code that is linked statically or inlined into the program.
constexpr char kFunctions[] =
    "_start|__libc_start_main*|__libc_start_call_main*|clone3?|__clone3?|start_thread|"
    "std::%|__gnu_cxx::%|__cxxabiv1::%|void std::%|void __gnu_cxx::%|void __cxxabiv1::%|operator new%|operator delete%|"
    "cudaMalloc*|cudaHost*|cudaFree*|cudaLaunch*|cudaGraph*|cudaStream*|cudaMemPool*|cudaArray*|"
    "cuMem^*|cuArray^*|cuMipmappedArray^*|cuGraph^*|cuLaunch^*|cuStream^*|cuCtx^*|cuModule^*|cuLibrary^*|"
    "cudnn^*|cublas^*|cublasLt^*|nccl^*|nvinfer1::%|"
    "at::%|c10::%|torch::%|caffe2::%|onnxruntime::%|Ort::%|"
    "xla::%|tsl::%|tensorflow::%|stream_executor::%|mlir::%|"
    "_?Py_*|_?PyEval_*|_?PyObject_*|_?PyRun_*|_?PyImport_*|_?PyFunction_*|_?PyMethod_*|_?PyCFunction_*|"
    "_?PyVectorcall_*|_?PyType_*|_?PyIter_*|_?PyGen_*|_?PyCoro_*|"
    "hbmprof::%|hbmprof_*";

// Python packages, by the name of their folder, and other source files of known Python code: the standard library.
constexpr char kPythonPackages[] = "torch|jax|jaxlib|onnxruntime|tensorrt*|tensorflow|nvidia|jax_*_plugin";
constexpr char kPythonLibrary[] = "<frozen %|%/lib/python#.#/%|%/lib64/python#.#/%";

// Names of frames without known code: unknown code, and the marks that the writer of a profile adds.
constexpr char kNotCode[] = "[unknown]|[no stack]|[stack truncated]|<unknown>";

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

bool MatchesAny(std::string_view patterns, std::string_view text) {
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

// Returns whether the file lies in the folder of a known Python package.
bool IsInKnownPackage(std::string_view path) {
  constexpr std::string_view kFolder = "-packages/";
  for (size_t at = path.find(kFolder); at != path.npos; at = path.find(kFolder, at + 1)) {
    const std::string_view inside = path.substr(at + kFolder.size());
    const std::string_view before = path.substr(0, at);
    const size_t end = inside.find('/');
    if (end != inside.npos && (EndsWith(before, "/site") || EndsWith(before, "/dist")) &&
        MatchesAny(kPythonPackages, inside.substr(0, end))) {
      return true;
    }
  }
  return false;
}

bool IsKnownBinary(std::string_view path) {
  if (path.empty()) return false;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  const std::string_view stem = file.substr(0, file.find(".so"));
  if (stem.size() == file.size()) {
    if (MatchesAny(kPrograms, file)) return true;
  } else {
    const std::string_view name = stem.substr(0, stem.find_last_not_of("0123456789abcdef.") + 1);
    if (MatchesAny(kSharedLibraries, stem)) return true;
    if (name.size() < stem.size() && EndsWith(name, "-") &&
        MatchesAny(kSharedLibraries, name.substr(0, name.size() - 1))) {
      return true;
    }
  }
  return MatchesAny(kOtherPaths, path) || IsInKnownPackage(path);
}

}  // namespace

bool IsOwnCode(std::string_view name, std::string_view source, std::string_view binary) {
  // A file can contain a text of any length, in many frames.
  constexpr size_t kMostBytes = 4096;
  name = name.substr(0, kMostBytes);
  source = source.substr(0, kMostBytes);
  binary = binary.substr(0, kMostBytes);
  if ((name.empty() && binary.empty()) || MatchesAny(kNotCode, name)) return false;
  // The binary of a Python function is the interpreter, so only its source file counts.
  if (EndsWith(source, ".py") || (!source.empty() && source.front() == '<')) {
    const bool in_package = source.find("-packages/") != source.npos;
    return !IsInKnownPackage(source) && (in_package || !MatchesAny(kPythonLibrary, source));
  }
  return !IsKnownBinary(binary) && !MatchesAny(kFunctions, name);
}

}  // namespace hbmprof::internal
