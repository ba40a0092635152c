// Loads a PJRT plugin by its path as JAX does, creates a client, keeps one buffer of 1024 floats made in
// KeepActivations(), and prints a line for each result. For tests that need their own process.
//
// usage: pjrt_host PLUGIN [PROFILE]   saves a profile through the plugin's C interface, if it has one
//        pjrt_host PLUGIN wait        keeps the buffer until the end of standard input
#include <dlfcn.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/fake_pjrt/calls.h"

namespace {

namespace abi = hbmprof::internal::pjrt;
using hbmprof_test::PjrtCalls;

// Returns whether the call succeeded. Prints the error if it failed.
template <typename Args>
bool Succeeds(const PjrtCalls& calls, const char* what, int slot, Args* args) {
  args->struct_size = sizeof(Args);
  abi::Error* const error = calls.Raw(slot, args);
  if (error == nullptr) return true;
  abi::ErrorMessageArgs message{sizeof(message), nullptr, error, nullptr, 0};
  reinterpret_cast<void (*)(abi::ErrorMessageArgs*)>(calls.Function(abi::kErrorMessage))(&message);
  abi::ErrorGetCodeArgs code{sizeof(code), nullptr, error, 0};
  calls.Raw(abi::kErrorGetCode, &code);
  std::printf("%s: error %d: %.*s\n", what, code.code, static_cast<int>(message.message_size), message.message);
  abi::ErrorDestroyArgs destroy{sizeof(destroy), nullptr, error};
  reinterpret_cast<void (*)(abi::ErrorDestroyArgs*)>(calls.Function(abi::kErrorDestroy))(&destroy);
  return false;
}

[[gnu::noinline]] abi::Buffer* KeepActivations(const PjrtCalls& calls, abi::Client* client) {
  static const std::vector<float> zeros(1024);
  const int64_t size = 1024;
  abi::BufferFromHostBufferArgs args{};
  args.client = client;
  args.data = zeros.data();
  args.type = hbmprof_test::kF32;
  args.dims = &size;
  args.num_dims = 1;
  args.host_buffer_semantics = 0;  // the data is copied during the call
  args.device = calls.Device(client, 0);
  if (!Succeeds(calls, "buffer", abi::kBufferFromHostBuffer, &args)) return nullptr;
  calls.DestroyEvent(args.done_with_host_buffer);
  return args.buffer;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  void* const library = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("dlopen: %s\n", dlerror());
    return 1;
  }
  const auto get_api = reinterpret_cast<const abi::Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) return 1;
  const PjrtCalls calls(get_api());
  std::printf("api %d.%d, %zu bytes, %s\n", calls.api()->version.major, calls.api()->version.minor,
              calls.api()->struct_size, get_api() == calls.api() ? "the same again" : "another one again");
  abi::PluginInitializeArgs initialize{};
  if (!Succeeds(calls, "initialize", abi::kPluginInitialize, &initialize)) return 0;
  std::printf("initialized\n");
  abi::ClientCreateArgs create{};
  if (!Succeeds(calls, "client", abi::kClientCreate, &create)) return 0;
  abi::ClientTextArgs platform{};
  platform.client = create.client;
  if (Succeeds(calls, "platform", abi::kClientPlatformName, &platform)) {
    std::printf("platform %.*s\n", static_cast<int>(platform.text_size), platform.text);
  }
  std::printf("buffer %s\n", KeepActivations(calls, create.client) == nullptr ? "failed" : "made");
  if (argc > 2 && std::string(argv[2]) == "wait") {
    std::fflush(stdout);
    while (std::getchar() != EOF) continue;
    return 0;
  }
  const auto save = reinterpret_cast<int (*)(const char*)>(dlsym(library, "hbmprof_save_device_memory_profile"));
  if (argc > 2 && save != nullptr) std::printf("saved: %d\n", save(argv[2]));
  std::printf("destroyed: %d\n", calls.DestroyClient(create.client));
  return 0;
}
