// A shared library that allocates device memory while it is loaded and unloaded, through the program's hook.

extern "C" void AllocateFromConstructor();

namespace {

struct OnLoad {
  OnLoad() { AllocateFromConstructor(); }
  ~OnLoad() { AllocateFromConstructor(); }
} on_load;

}  // namespace
