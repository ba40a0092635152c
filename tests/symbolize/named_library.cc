// A shared library with one function of each type. Built three times: as it is, stripped, and without a build id.
#include <cstdint>

namespace named {

[[gnu::noinline, gnu::visibility("default")]] uint64_t Exported() {
  return reinterpret_cast<uint64_t>(__builtin_return_address(0));
}

namespace {
[[gnu::noinline, gnu::used]] uint64_t Hidden() { return reinterpret_cast<uint64_t>(__builtin_return_address(0)); }
}  // namespace

}  // namespace named

// Its symbol is "named_versioned@@V1".
extern "C" [[gnu::used, gnu::visibility("default")]] void named_versioned_function() {}
asm(".symver named_versioned_function, named_versioned@@V1");

// Start addresses of the functions above.
extern "C" [[gnu::visibility("default")]] uint64_t named_exported_address() {
  return reinterpret_cast<uint64_t>(&named::Exported);
}
extern "C" [[gnu::visibility("default")]] uint64_t named_hidden_address() {
  return reinterpret_cast<uint64_t>(&named::Hidden);
}
extern "C" [[gnu::visibility("default")]] uint64_t named_versioned_address() {
  return reinterpret_cast<uint64_t>(&named_versioned_function);
}
