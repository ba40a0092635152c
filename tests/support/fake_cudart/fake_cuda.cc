// The fake libcuda.so.1: the device model, contexts, and the functions that query them. The functions that allocate are
// in fake_driver.cc.
#include "tests/support/fake_cudart/fake_cuda.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kContextBytes = size_t{3} << 20;
constexpr size_t kMappedBytes = size_t{1} << 20;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidContext = 201;
constexpr int kNotInitialized = 3;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Device {
  size_t capacity = 0;
  size_t bytes_in_use = 0;
  size_t bytes_elsewhere = 0;  // part of bytes_in_use: of another process
  bool context_active = false;
};

struct Failure {
  int error = 0;
  int successes = 0;
};

struct Model {
  std::mutex mutex;
  std::vector<Device> devices;
  std::map<uintptr_t, fake_cuda_block> blocks;
  std::map<std::string, Failure> failures;
  std::map<std::string, int64_t> calls;

  Model() {
    const char* devices_text = getenv("FAKE_CUDA_DEVICES");
    const char* capacity_text = getenv("FAKE_CUDA_CAPACITY");
    Start(devices_text != nullptr ? atoi(devices_text) : 2,
          capacity_text != nullptr ? strtoull(capacity_text, nullptr, 10) : size_t{1} << 30);
    if (const char* fail = getenv("FAKE_CUDA_FAIL")) {
      const std::string text = fail;
      const size_t first = text.find(':');
      const size_t second = text.find(':', first + 1);
      if (first != std::string::npos && second != std::string::npos) {
        failures[text.substr(0, first)] = {atoi(text.c_str() + first + 1), atoi(text.c_str() + second + 1)};
      }
    }
  }

  void Start(int count, size_t capacity) {
    devices.assign(static_cast<size_t>(count), Device{capacity, 0, 0, false});
    failures.clear();
    calls.clear();
  }
};

Model& TheModel() {
  static auto* model = new Model;
  return *model;
}

bool TakesDeviceMemory(fake_cuda_kind kind) { return kind == FAKE_CUDA_DEVICE || kind == FAKE_CUDA_STREAM_ORDERED; }

bool IsBacked(fake_cuda_kind kind) { return kind != FAKE_CUDA_REGISTERED; }

// Memory of a device is zero, which is what a program then reads as the result of a kernel. Large blocks take memory of
// the host only where they are written.
void* Back(size_t bytes) {
  if (bytes >= kMappedBytes) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
  }
  void* const memory = aligned_alloc(kAlignment, bytes);
  if (memory != nullptr) memset(memory, 0, bytes);
  return memory;
}

void Unback(void* memory, size_t bytes) {
  if (bytes >= kMappedBytes) {
    munmap(memory, bytes);
  } else {
    free(memory);
  }
}

void Drop(Model& model, std::map<uintptr_t, fake_cuda_block>::iterator block) {
  const fake_cuda_block& b = block->second;
  if (TakesDeviceMemory(b.kind)) model.devices[static_cast<size_t>(b.device)].bytes_in_use -= RoundUp(b.bytes);
  if (IsBacked(b.kind)) Unback(reinterpret_cast<void*>(b.base), RoundUp(b.bytes));
  model.blocks.erase(block);
}

void Activate(Device& device) {
  if (device.context_active) return;
  device.context_active = true;
  device.bytes_in_use += kContextBytes;
}

// Contexts are numbers: of a primary context, its device + 1; of a created one, kFirstCreated + 64 * a count + its
// device. So the device follows from the number.
using Context = uintptr_t;
constexpr Context kFirstCreated = 4096;

Context PrimaryContext(int device) { return static_cast<Context>(device) + 1; }
int DeviceOf(Context context) { return static_cast<int>(context < kFirstCreated ? context - 1 : context % 64); }

// The contexts of this thread, innermost last. Never destroyed, because exit handlers use them.
struct ContextStack {
  Context contexts[32];
  int size;

  bool empty() const { return size == 0; }
  Context& back() { return contexts[size - 1]; }
  void push_back(Context context) { contexts[size++] = context; }
  void pop_back() { --size; }
  void clear() { size = 0; }
};
thread_local ContextStack context_stack;

enum class State { kUnused, kFailed, kInitialized };
std::atomic<State> state{State::kUnused};  // set by cuInit, or by a runtime's call

// Loads the library of a tool once, as real drivers do, also without a device.
void LoadInjection() {
  static const int loaded = [] {
    const char* const path = getenv("CUDA_INJECTION64_PATH");
    void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
    auto* const start =
        library == nullptr ? nullptr : reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"));
    return start == nullptr ? 0 : start();
  }();
  static_cast<void>(loaded);
}

Context CurrentContext() { return context_stack.empty() ? 0 : context_stack.back(); }

void* ContextHandle(Context context) { return reinterpret_cast<void*>(context); }

}  // namespace

extern "C" {

void fake_cuda_reset(int devices, size_t capacity) {
  Model& model = TheModel();
  {
    std::lock_guard<std::mutex> lock(model.mutex);
    while (!model.blocks.empty()) Drop(model, model.blocks.begin());
    model.Start(devices, capacity);
  }
  context_stack.clear();
  state = State::kInitialized;
}

void fake_cuda_fail(const char* function, int error, int successes) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  model.failures[function] = {error, successes};
}

int64_t fake_cuda_calls(const char* function) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  return model.calls[function];
}

size_t fake_cuda_bytes_in_use(int device) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  return model.devices[static_cast<size_t>(device)].bytes_in_use;
}

size_t fake_cuda_capacity(int device) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  return model.devices[static_cast<size_t>(device)].capacity;
}

size_t fake_cuda_context_bytes(void) { return kContextBytes; }

int fake_cuda_context_active(int device) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  return model.devices[static_cast<size_t>(device)].context_active ? 1 : 0;
}

int64_t fake_cuda_live_objects(void) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  return static_cast<int64_t>(model.blocks.size());
}

int fake_cuda_ready(void) { return state == State::kInitialized ? 0 : kNotInitialized; }

int fake_cuda_init_was_called(void) { return state != State::kUnused ? 1 : 0; }

int fake_cuda_enter(const char* function) {
  if (strncmp(function, "cuda", 4) == 0) state = State::kInitialized;
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  ++model.calls[function];
  const auto failure = model.failures.find(function);
  if (failure == model.failures.end() || failure->second.successes-- > 0) {
    return strcmp(function, "cuInit") == 0 ? 0 : fake_cuda_ready();
  }
  const int error = failure->second.error;
  model.failures.erase(failure);
  return error;
}

int fake_cuda_result(const char* function, int result) {
  static const char* const path = getenv("FAKE_CUDA_LOG");
  // The drivers write no line for the results 3, 4 and 600 either.
  if (path == nullptr || result == 0 || result == kNotInitialized || result == 4 || result == 600) return result;
  if (FILE* const log = fopen(path, "a")) {
    fprintf(log, "Returning %d from %s\n", result, function);
    fclose(log);
  }
  return result;
}

int fake_cuda_device_count(void) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  return static_cast<int>(model.devices.size());
}

void fake_cuda_use_device(int device) {
  state = State::kInitialized;
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  Activate(model.devices[static_cast<size_t>(device)]);
  if (context_stack.empty()) context_stack.push_back(0);
  context_stack.back() = PrimaryContext(device);
}

int fake_cuda_current_device(void) { return context_stack.empty() ? -1 : DeviceOf(context_stack.back()); }

int fake_cuda_take(int device, size_t bytes) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  Device& d = model.devices[static_cast<size_t>(device)];
  if (bytes > d.capacity - d.bytes_in_use) return kOutOfMemory;
  d.bytes_in_use += bytes;
  return 0;
}

int fake_cuda_take_elsewhere(int device, size_t bytes) {
  if (const int error = fake_cuda_take(device, bytes)) return error;
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  model.devices[static_cast<size_t>(device)].bytes_elsewhere += bytes;
  return 0;
}

size_t fake_cuda_bytes_elsewhere(int device) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  return model.devices[static_cast<size_t>(device)].bytes_elsewhere;
}

void fake_cuda_give(int device, size_t bytes) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  model.devices[static_cast<size_t>(device)].bytes_in_use -= bytes;
}

int fake_cuda_allocate(int device, size_t bytes, enum fake_cuda_kind kind, void** ptr) {
  *ptr = nullptr;
  if (bytes == 0) return 0;
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  Device& d = model.devices[static_cast<size_t>(device)];
  if (bytes > d.capacity) return kOutOfMemory;
  if (TakesDeviceMemory(kind) && RoundUp(bytes) > d.capacity - d.bytes_in_use) return kOutOfMemory;
  void* memory = Back(RoundUp(bytes));
  if (memory == nullptr) return kOutOfMemory;
  if (TakesDeviceMemory(kind)) d.bytes_in_use += RoundUp(bytes);
  const auto base = reinterpret_cast<uintptr_t>(memory);
  model.blocks[base] = {base, bytes, device, kind, CurrentContext()};
  *ptr = memory;
  return 0;
}

int fake_cuda_adopt(int device, void* ptr, size_t bytes, enum fake_cuda_kind kind) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  const auto base = reinterpret_cast<uintptr_t>(ptr);
  return model.blocks.insert({base, {base, bytes, device, kind, CurrentContext()}}).second ? 1 : 0;
}

int fake_cuda_release(void* ptr, unsigned kinds) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  const auto block = model.blocks.find(reinterpret_cast<uintptr_t>(ptr));
  if (block == model.blocks.end() || (kinds & (1u << block->second.kind)) == 0) return 0;
  Drop(model, block);
  return 1;
}

int fake_cuda_find(const void* ptr, struct fake_cuda_block* block) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  auto next = model.blocks.upper_bound(address);
  if (next == model.blocks.begin()) return 0;
  --next;
  if (address >= next->second.base + next->second.bytes) return 0;
  *block = next->second;
  return 1;
}

void fake_cuda_reset_device(int device) {
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  for (auto block = model.blocks.begin(); block != model.blocks.end();) {
    const auto here = block++;
    if (here->second.device == device && here->second.kind != FAKE_CUDA_STREAM_ORDERED) Drop(model, here);
  }
  Device& d = model.devices[static_cast<size_t>(device)];
  if (d.context_active) d.bytes_in_use -= kContextBytes;
  d.context_active = false;
}

// --- The driver's own names. ---

int cuDeviceGet(int* device, int ordinal) {
  if (const int error = fake_cuda_ready()) return error;
  if (ordinal < 0 || ordinal >= fake_cuda_device_count()) return fake_cuda_result("cuDeviceGet", kInvalidDevice);
  *device = ordinal;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (const int error = fake_cuda_ready()) return error;
  *flags = 0;
  *active = fake_cuda_context_active(device);
  return 0;
}

int cuDeviceTotalMem_v2(size_t* total, int device) {
  if (const int error = fake_cuda_ready()) return error;
  if (device < 0 || device >= fake_cuda_device_count()) return kInvalidDevice;
  *total = fake_cuda_capacity(device);
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (const int error = fake_cuda_enter("cuDevicePrimaryCtxRetain")) return error;
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  Activate(model.devices[static_cast<size_t>(device)]);
  *context = ContextHandle(PrimaryContext(device));
  return 0;
}

// Primary contexts stay until they are reset.
int cuDevicePrimaryCtxRelease_v2(int) { return fake_cuda_enter("cuDevicePrimaryCtxRelease_v2"); }

int cuDevicePrimaryCtxReset_v2(int device) {
  if (const int error = fake_cuda_enter("cuDevicePrimaryCtxReset_v2")) return error;
  fake_cuda_reset_device(device);
  return 0;
}

int cuCtxCreate_v2(void** context, unsigned, int device) {
  if (const int error = fake_cuda_enter("cuCtxCreate_v2")) return error;
  if (device < 0 || device >= fake_cuda_device_count()) return kInvalidDevice;
  static std::atomic<Context> count{0};
  *context = ContextHandle(kFirstCreated + 64 * count++ + static_cast<Context>(device));
  context_stack.push_back(reinterpret_cast<Context>(*context));
  return 0;
}

int cuCtxCreate_v4(void** context, void*, unsigned flags, int device) { return cuCtxCreate_v2(context, flags, device); }
int cuGLCtxCreate_v2(void** context, unsigned flags, int device) { return cuCtxCreate_v2(context, flags, device); }
int cuVDPAUCtxCreate_v2(void** context, unsigned flags, int device, unsigned, void*) {
  return cuCtxCreate_v2(context, flags, device);
}

int cuCtxDestroy_v2(void* context) {
  if (context == nullptr) return kInvalidValue;
  if (const int error = fake_cuda_enter("cuCtxDestroy_v2")) return error;
  const auto number = reinterpret_cast<Context>(context);
  if (number < kFirstCreated) return kInvalidContext;
  if (!context_stack.empty() && context_stack.back() == number) context_stack.pop_back();
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  for (auto block = model.blocks.begin(); block != model.blocks.end();) {
    const auto here = block++;
    if (here->second.context == number && here->second.kind != FAKE_CUDA_STREAM_ORDERED) Drop(model, here);
  }
  return 0;
}

int cuCtxSetCurrent(void* context) {
  if (const int error = fake_cuda_ready()) return error;
  const auto number = reinterpret_cast<Context>(context);
  if (number != 0 && number < kFirstCreated) {
    // A primary context that was reset stays inactive.
    if (context_stack.empty()) context_stack.push_back(0);
    context_stack.back() = number;
    return 0;
  }
  context_stack.clear();
  if (number != 0) context_stack.push_back(number);
  return 0;
}

int cuCtxGetDevice(int* device) {
  if (const int error = fake_cuda_enter("cuCtxGetDevice")) return error;
  *device = fake_cuda_current_device();
  return fake_cuda_result("cuCtxGetDevice", *device < 0 ? kInvalidContext : 0);
}

int cuInit(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  LoadInjection();
  int error = fake_cuda_enter("cuInit");
  if (error == 0 && fake_cuda_device_count() == 0) error = kNoDevice;
  if (state != State::kInitialized) state = error == 0 ? State::kInitialized : State::kFailed;
  return error;
}

int cuDriverGetVersion(int* version) {
  if (version == nullptr) return kInvalidValue;
  *version = 13020;
  return 0;
}

int cuDeviceGetCount(int* count) {
  if (const int error = fake_cuda_ready()) return error;
  *count = fake_cuda_device_count();
  return 0;
}

int cuDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (const int error = fake_cuda_ready()) return error;
  snprintf(text, static_cast<size_t>(bytes), "0000:%02X:00.0", device + 1);
  return 0;
}

int cuCtxSynchronize() { return fake_cuda_ready(); }

int cuCtxPushCurrent_v2(void* context) {
  if (const int error = fake_cuda_ready()) return error;
  context_stack.push_back(reinterpret_cast<Context>(context));
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (const int error = fake_cuda_ready()) return error;
  if (context_stack.empty()) return kInvalidContext;
  *context = ContextHandle(context_stack.back());
  context_stack.pop_back();
  return 0;
}

// The driver reads only data of the thread. So this does not wait for a thread that is stuck in the driver.
int cuCtxGetCurrent(void** context) {
  const bool is_free = TheModel().mutex.try_lock();
  if (is_free) TheModel().mutex.unlock();
  if (const int error = is_free ? fake_cuda_enter("cuCtxGetCurrent") : fake_cuda_ready()) return error;
  *context = context_stack.empty() ? nullptr : ContextHandle(context_stack.back());
  return 0;
}

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  if (const int error = fake_cuda_ready()) return error;
  if (context_stack.empty()) return fake_cuda_result("cuMemGetInfo_v2", kInvalidContext);
  Model& model = TheModel();
  std::lock_guard<std::mutex> lock(model.mutex);
  const Device& device = model.devices[static_cast<size_t>(DeviceOf(context_stack.back()))];
  if (context_stack.back() < kFirstCreated && !device.context_active) {  // was reset
    return fake_cuda_result("cuMemGetInfo_v2", kInvalidContext);
  }
  *total = device.capacity;
  *free_bytes = device.capacity - device.bytes_in_use;
  return 0;
}

int cuMemGetAddressRange_v2(uintptr_t* base, size_t* bytes, uintptr_t address) {
  if (const int error = fake_cuda_ready()) return error;
  if (context_stack.empty()) return fake_cuda_result("cuMemGetAddressRange_v2", kInvalidContext);
  fake_cuda_block block;
  if (fake_cuda_find(reinterpret_cast<const void*>(address), &block) == 0) {
    return fake_cuda_result("cuMemGetAddressRange_v2", kInvalidValue);
  }
  *base = block.base;
  *bytes = block.bytes;
  return 0;
}
}
