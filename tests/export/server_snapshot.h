// A hand-written snapshot of an inference server, and names for its code.
#ifndef HBMPROF_TESTS_EXPORT_SERVER_SNAPSHOT_H_
#define HBMPROF_TESTS_EXPORT_SERVER_SNAPSHOT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hbmprof/pprof.h"
#include "hbmprof/snapshot.h"

namespace hbmprof_test {

inline constexpr int64_t kWeightBytes = 1 << 20;
inline constexpr int64_t kPageBytes = 1 << 16;

// Names code by module and the module's own addresses, so that it gives the same names wherever modules are loaded.
class FakeSymbolizer : public hbmprof::Symbolizer {
 public:
  // `begin` and `end` are addresses in the file of the module whose path ends with `file`.
  void Add(const std::string& file, uint64_t begin, uint64_t end, const std::string& system_name,
           const std::string& name);
  std::vector<Name> Symbolize(const std::vector<hbmprof::Snapshot::Module>& modules,
                              const std::vector<uint64_t>& addresses) override;

 private:
  struct Function {
    std::string file;
    uint64_t begin;
    uint64_t end;
    std::string system_name;
    std::string name;
  };
  std::vector<Function> functions_;
};

// The server's: main, app::Server::Run, app::LoadWeights, app::Decode.
FakeSymbolizer ServerSymbolizer();

// Two devices. On GPU:0: two weights of 1 MiB; `decode_pages` pages of 64 KiB in use, tagged phase=decode, of ten that
// were allocated; two pages tagged phase=prefill; an idle pool segment of 3 MiB held by code without names. On GPU:1:
// managed memory with no stack, and device memory with a truncated one. `slide` is added to every load address.
hbmprof::Snapshot ServerSnapshot(int64_t decode_pages = 4, uint64_t slide = 0);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_EXPORT_SERVER_SNAPSHOT_H_
