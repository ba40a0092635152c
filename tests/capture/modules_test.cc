// The list of loaded objects while the host has no memory: each allocation fails in turn. No exception may pass through
// dl_iterate_phdr (src/base/loaded_objects.h).
#include "src/capture/modules.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <new>

#include "gtest/gtest.h"
#include "tests/support/failing_new.h"

namespace {

int exceptions_out_of_callbacks = 0;

using Callback = int(dl_phdr_info*, size_t, void*);

struct Call {
  Callback* callback;
  void* argument;
};

int CallAndCatch(dl_phdr_info* object, size_t size, void* argument) {
  const Call& call = *static_cast<Call*>(argument);
  try {
    return call.callback(object, size, call.argument);
  } catch (...) {
    ++exceptions_out_of_callbacks;
    throw;
  }
}

}  // namespace

// The program's function is used instead of the C library's.
extern "C" int dl_iterate_phdr(Callback* callback, void* argument) {
  static auto* const real = reinterpret_cast<int (*)(Callback*, void*)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
  Call call = {callback, argument};
  return real(&CallAndCatch, &call);
}

namespace hbmprof::internal {
namespace {

using hbmprof_test::CountedNew;

TEST(LoadedModules, FailedAllocationThrowsBehindTheDynamicLinker) {
  const size_t objects = LoadedModules().size();
  int failures = 0;
  for (bool has_failed = true; has_failed; failures += has_failed) {
    CountedNew::Fail(failures + 1);
    try {
      const CountedNew counted;
      EXPECT_EQ(LoadedModules().size(), objects);
    } catch (const std::bad_alloc&) {
    }
    has_failed = CountedNew::HasFailed();
  }
  CountedNew::Fail(0);
  EXPECT_GT(failures, 5);
  EXPECT_EQ(exceptions_out_of_callbacks, 0);
}

}  // namespace
}  // namespace hbmprof::internal
