// See own_code.h.
#include "src/tool/own_code.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

// The file names of binaries, without their folders and without ".so" and the text after it. A hash may follow a name,
// as in libcudart-d0da41ae.so.11.0 of a Python package.
constexpr const char* kSharedLibraries[] = {
    // libc
    R"(libc|libm|libmvec|libpthread|libdl|librt|libutil|libresolv|libnss_\w+|ld|ld-linux[-\w]*|ld-musl[-\w]*)",
    // The C++ runtime and OpenMP
    R"(libstdc\+\+|libsupc\+\+|libc\+\+|libc\+\+abi|libgcc_s|libunwind|libgomp|libi?omp\d*)",
    // CUDA
    R"(libcuda|libcudart|libnvrtc|libnvrtc-builtins|libnvJitLink|libnvptxcompiler|libcupti|libnvToolsExt|libnvidia[-\w]+)",
    R"(libcufftw?|libcufile\w*|libcurand|libcusolver(Mg)?|libcusparse(Lt)?|libnvjpeg|libnpp\w+)",
    // cuDNN, cuBLAS, NCCL, TensorRT
    R"(libcudnn\w*|libcublas(Lt)?|libnvblas|libnccl[-\w]*|libnvinfer\w*|libnvonnxparser|libnvparsers)",
    // torch
    R"(libtorch(_(cpu|cuda|hip|xpu|python|global_deps|cuda_linalg|nvshmem))?|libc10(_(cuda|hip|xpu))?|libcaffe2\w*)",
    // ONNX Runtime
    R"(libonnxruntime(_providers_\w+|4j_jni)?|onnxruntime_pybind11_state[-\w.]*)",
    // XLA
    R"(libtpu|xla_(extension|cuda_plugin|rocm_plugin)|pjrt_(c_api|plugin)_\w+|libtensorflow(_\w+)?|_pywrap_tensorflow\w*)",
    // CPython
    R"(libpython\d\w*(\.\d+)?|libffi)",
    // hbmprof
    R"(libhbmprof\w*)",
};
// Other binaries: the vDSO, musl, the interpreter, packages of Python, and the modules of its standard library.
constexpr char kOtherBinaries[] =
    R"(\[?(linux-)?vdso.*|(.*/)?(libc\.musl-.*|python[\d.]*)|)"
    R"(.*/(site|dist)-packages/(torch|jax|jaxlib|onnxruntime|tensorrt\w*|tensorflow|nvidia|jax_\w+_plugin)/.*|)"
    R"(.*/lib-dynload/[^/]*)";

// Functions, for code that is linked statically or inlined into the program.
constexpr const char* kFunctions[] = {
    R"(_start|__libc_start_(main|call_main)\w*|(__)?clone3?|start_thread)",
    R"((void )?(std|__gnu_cxx|__cxxabiv1)::.*|operator (new|delete).*)",
    R"(cuda(Malloc|Host|Free|Launch|Graph|Stream|MemPool|Array)(\w*))",
    R"(cu(Mem|Array|MipmappedArray|Graph|Launch|Stream|Ctx|Module|Library)[A-Z]\w*)",
    R"((cudnn|cublas|cublasLt|nccl)[A-Z]\w*|nvinfer1::.*)",
    R"((at|c10|torch|caffe2)::.*)",
    R"((onnxruntime|Ort)::.*)",
    R"((xla|tsl|tensorflow|stream_executor|mlir)::.*)",
    R"(_?Py(Eval|Object|Run|Import|Function|Method|CFunction|Vectorcall|Type|Iter|Gen|Coro)?_\w+)",
    R"(hbmprof::.*|hbmprof_\w+)",
};

// Source files of Python functions in packages of known libraries, and in the standard library.
constexpr char kPythonPackages[] =
    R"(.*/(site|dist)-packages/(torch|jax|jaxlib|onnxruntime|tensorrt\w*|tensorflow|nvidia)/.*|<frozen .*)";
constexpr char kPythonLibrary[] = R"(.*/lib(64)?/python\d\.\d+/.*)";

// Names of frames without known code: unknown code, and the marks that the writer of a profile adds.
constexpr char kNotCode[] = R"(\[(unknown|no stack|stack truncated)\]|<unknown>)";

template <size_t N>
std::string AnyOf(const char* const (&expressions)[N]) {
  std::string any;
  for (const char* expression : expressions) any += Cat(any.empty() ? "" : "|", expression);
  return any;
}

NamePattern WholeText(const std::string& expression) {
  return NamePattern(std::make_unique<RE2>(Cat("^(", expression, ")$"), RE2::Latin1));
}

bool IsPython(const std::string& source) {
  constexpr std::string_view kSuffix = ".py";
  return (source.size() > kSuffix.size() &&
          source.compare(source.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0) ||
         (!source.empty() && source.front() == '<');
}

}  // namespace

absl::StatusOr<KnownLibraries> KnownLibraries::Make(const std::vector<std::string>& more) {
  KnownLibraries libraries;
  libraries.binaries_ = WholeText(Cat("(.*/)?(", AnyOf(kSharedLibraries), R"()(-[\da-f.]+)?\.so.*|)", kOtherBinaries));
  libraries.functions_ = WholeText(AnyOf(kFunctions));
  libraries.python_packages_ = WholeText(kPythonPackages);
  libraries.python_library_ = WholeText(kPythonLibrary);
  libraries.not_code_ = WholeText(kNotCode);
  for (const std::string& expression : more) {
    absl::StatusOr<std::unique_ptr<RE2>> compiled = CompileRegex("--known", expression);
    if (!compiled.ok()) return compiled.status();
    libraries.more_.emplace_back(*std::move(compiled));
  }
  return libraries;
}

bool KnownLibraries::IsOwn(const ProfileSet& profiles, ProfileSet::String name, ProfileSet::String source,
                           ProfileSet::String binary) {
  if ((name == 0 && binary == 0) || not_code_.Matches(profiles, name)) return false;
  for (NamePattern& pattern : more_) {
    for (const ProfileSet::String text : {name, source, binary}) {
      if (text != 0 && pattern.Matches(profiles, text)) return false;
    }
  }
  // The binary of a Python function is the interpreter, so only its source file counts.
  if (IsPython(profiles.text(source))) {
    const bool in_package = profiles.text(source).find("-packages/") != std::string::npos;
    return !python_packages_.Matches(profiles, source) && (in_package || !python_library_.Matches(profiles, source));
  }
  return !binaries_.Matches(profiles, binary) && !functions_.Matches(profiles, name);
}

std::vector<bool> KnownLibraries::OwnFrames(const ProfileSet& profiles, uint64_t number) {
  const ProfileSet::Location& location = profiles.locations()[number];
  std::vector<bool> own;
  if (location.frames.empty()) own.push_back(IsOwn(profiles, 0, 0, location.object));
  for (const ProfileSet::Frame& frame : location.frames) {
    const ProfileSet::Function& function = profiles.functions()[frame.function];
    own.push_back(IsOwn(profiles, function.name, function.filename, location.object));
  }
  return own;
}

bool AttributeToOwnCode(KnownLibraries& libraries, ProfileSet& profiles) {
  // By location: the index of its first own frame, and the location from this frame on.
  struct Own {
    std::optional<size_t> frame;
    uint64_t location;
  };
  std::vector<Own> own(profiles.locations().size());
  for (uint64_t l = 0; l < own.size(); ++l) {
    const std::vector<bool> frames = libraries.OwnFrames(profiles, l);
    own[l].location = l;
    for (size_t i = 0; i < frames.size() && !own[l].frame.has_value(); ++i) {
      if (frames[i]) own[l].frame = i;
    }
    if (own[l].frame.value_or(0) == 0) continue;
    ProfileSet::Location rest = profiles.locations()[l];
    rest.frames.erase(rest.frames.begin(), rest.frames.begin() + static_cast<std::ptrdiff_t>(*own[l].frame));
    own[l].location = profiles.AddLocation(std::move(rest));
  }
  bool changed = false;  // a leaf
  absl::flat_hash_map<uint32_t, uint32_t> stacks;
  profiles.MapSamples(ProfileSet::Removed::kInTotal, [&](const ProfileSet::Sample& sample) -> std::optional<uint32_t> {
    const auto [entry, is_new] = stacks.try_emplace(sample.stack, sample.stack);
    if (!is_new) return entry->second;
    std::vector<uint64_t> locations(profiles.stacks().begin(sample.stack), profiles.stacks().end(sample.stack));
    size_t first = 0;
    while (first < locations.size() && !own[locations[first]].frame.has_value()) ++first;
    if (first == locations.size()) return entry->second;
    while (!own[locations.back()].frame.has_value()) locations.pop_back();
    changed = changed || first != 0 || *own[locations[0]].frame != 0;
    locations.erase(locations.begin(), locations.begin() + static_cast<std::ptrdiff_t>(first));
    locations[0] = own[locations[0]].location;
    entry->second = profiles.StackOf(locations);
    return entry->second;
  });
  return changed;
}

}  // namespace hbmprof::tool
