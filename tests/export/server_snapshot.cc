// See server_snapshot.h.
#include "tests/export/server_snapshot.h"

#include "src/core/pool_samples.h"

namespace hbmprof_test {

using hbmprof::MemoryKind;
using hbmprof::MemorySpace;
using hbmprof::Snapshot;

void FakeSymbolizer::Add(const std::string& file, uint64_t begin, uint64_t end, const std::string& system_name,
                         const std::string& name) {
  functions_.push_back({file, begin, end, system_name, name});
}

std::vector<hbmprof::Symbolizer::Name> FakeSymbolizer::Symbolize(const std::vector<Snapshot::Module>& modules,
                                                                 const std::vector<uint64_t>& addresses) {
  std::vector<Name> names(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) {
    for (const Snapshot::Module& module : modules) {
      if (addresses[i] < module.start || addresses[i] >= module.limit) continue;
      const uint64_t address = addresses[i] - module.bias;
      for (const Function& function : functions_) {
        const bool is_file =
            module.path.size() >= function.file.size() &&
            module.path.compare(module.path.size() - function.file.size(), std::string::npos, function.file) == 0;
        if (is_file && address >= function.begin && address < function.end)
          names[i] = {function.system_name, function.name};
      }
    }
  }
  return names;
}

FakeSymbolizer ServerSymbolizer() {
  FakeSymbolizer symbolizer;
  symbolizer.Add("server", 0x1100, 0x1200, "main", "main");
  symbolizer.Add("server", 0x1200, 0x1300, "_ZN3app6Server3RunEv", "app::Server::Run");
  symbolizer.Add("libmodel.so", 0x2100, 0x2200, "_ZN3app11LoadWeightsEi", "app::LoadWeights");
  symbolizer.Add("libmodel.so", 0x2200, 0x2300, "_ZN3app6DecodeEv", "app::Decode");
  return symbolizer;
}

Snapshot ServerSnapshot(int64_t decode_pages, uint64_t slide) {
  const uint64_t server = 0x555500000000 + slide;
  const uint64_t model = 0x7f0000000000 + 3 * slide;
  const uint64_t closed = 0x7f1000000000 + 5 * slide;

  Snapshot s;
  s.modules = {
      {server + 0x1000, server + 0x2000, 0x1000, server, "/opt/app/server", "aa01"},
      {model + 0x2000, model + 0x4000, 0x2000, model, "/opt/app/libmodel.so", "bb02"},
      {closed + 0x5000, closed + 0x6000, 0x4000, closed, "/opt/closed/libclosed.so.1", ""},
  };
  // Return addresses: one past the last byte of a call.
  const uint64_t in_main = server + 0x1150;
  const uint64_t in_run = server + 0x1300;  // the call is the last instruction of app::Server::Run
  const uint64_t in_load = model + 0x2180;
  const uint64_t in_decode = model + 0x2240;
  const uint64_t in_closed = closed + 0x5678;
  s.stacks = {
      {{in_load, in_main}, false}, {{in_decode, in_run, in_main}, false}, {{in_closed, in_main}, false}, {{}, false},
      {{in_decode, in_run}, true},
  };
  s.allocators = {"", "bfc"};

  // The reference holds until the next call.
  const auto sample = [&](uint32_t stack, uint32_t device, MemoryKind kind) -> Snapshot::Sample& {
    Snapshot::Sample& added = s.samples.emplace_back();
    added.stack = stack;
    added.device = device;
    added.kind = kind;
    return added;
  };
  // `bytes`: of each allocation.
  const auto counts = [](Snapshot::Sample& to, int64_t bytes, int64_t alloc, int64_t peak, int64_t inuse) {
    to.alloc_objects = alloc;
    to.alloc_bytes = alloc * bytes;
    to.peak_objects = peak;
    to.peak_bytes = peak * bytes;
    to.inuse_objects = inuse;
    to.inuse_bytes = inuse * bytes;
  };
  counts(sample(0, 0, MemoryKind::kDevice), kWeightBytes, 2, 2, 2);
  Snapshot::Sample& decode = sample(1, 0, MemoryKind::kDevice);
  decode.allocator = 1;
  decode.tags = {{"phase", "decode"}, {"request_class", "chat"}};
  counts(decode, kPageBytes, 10, 6, decode_pages);
  decode.pool_peak_objects = 7;
  decode.pool_peak_bytes = 7 * kPageBytes;
  Snapshot::Sample& prefill = sample(1, 0, MemoryKind::kDevice);
  prefill.allocator = 1;
  prefill.tags = {{"phase", "prefill"}, {"request_class", "chat"}};
  counts(prefill, kPageBytes, 5, 3, 2);
  prefill.pool_peak_objects = 3;
  prefill.pool_peak_bytes = 3 * kPageBytes;
  Snapshot::Sample& segment = sample(2, 0, MemoryKind::kPool);
  segment.allocator = 1;
  counts(segment, 4 << 20, 1, 1, 1);
  counts(sample(3, 1, MemoryKind::kManaged), 4096, 1, 1, 1);
  counts(sample(4, 1, MemoryKind::kDevice), 100, 3, 3, 0);
  counts(sample(0, 1, MemoryKind::kDevice), 512, 0, 0, 0);  // never held anything: no sample

  s.devices.resize(2);
  s.devices[0].name = "GPU:0";
  hbmprof::DeviceStats& gpu0 = s.devices[0].spaces[static_cast<int>(MemorySpace::kDevice)];
  gpu0.bytes_in_use = 2 * kWeightBytes + (4 << 20);
  gpu0.peak_bytes_in_use = 2 * kWeightBytes + (4 << 20);
  gpu0.num_allocs = 18;
  gpu0.num_live = 5 + decode_pages;
  gpu0.largest_alloc_size = 4 << 20;
  gpu0.bytes_limit = 64 << 20;
  gpu0.largest_free_block_bytes = 32 << 20;
  gpu0.driver_bytes_in_use = 6 << 20;
  gpu0.unaccounted = *gpu0.driver_bytes_in_use - gpu0.bytes_in_use;
  s.devices[1].name = "GPU 1=b";
  hbmprof::DeviceStats& gpu1 = s.devices[1].spaces[static_cast<int>(MemorySpace::kDevice)];
  gpu1.peak_bytes_in_use = 300;
  gpu1.num_allocs = 3;
  gpu1.largest_alloc_size = 100;
  hbmprof::DeviceStats& managed = s.devices[1].spaces[static_cast<int>(MemorySpace::kManaged)];
  managed.bytes_in_use = managed.peak_bytes_in_use = managed.largest_alloc_size = 4096;
  managed.num_allocs = managed.num_live = 1;

  s.tracker.foreign_frees = 1;
  s.tracker.refused_frees = 7;
  s.tracker.replaced_records = 2;
  s.tracker.dropped_records = 3;
  s.tracker.dropped_bytes = 12288;
  s.tracker.reentrant_events = 4;
  s.tracker.truncated_stacks = 5;
  s.tracker.dropped_tag_values = 6;
  s.tracker.host_bytes = 7 << 20;
  s.tracker.max_host_bytes = int64_t{1} << 31;
  s.tracker.live_records = 6 + decode_pages;
  s.tracker.sites = 7;
  s.tracker.unwinder = "frame_pointer";
  // The buffers of each sample were born in the first minute, those of decode all the time. Half of the freed ones got
  // 4 to 8 seconds old.
  s.uptime_seconds = 1000;
  s.birth_class_log2 = 4;
  for (Snapshot::Sample& one : s.samples) {
    const bool is_decode = one.tags == s.samples[1].tags && !one.tags.empty();
    for (int64_t i = 0; i < one.inuse_objects; ++i) {
      const auto born = static_cast<uint32_t>(is_decode ? 2 + 7 * i : 2);
      if (one.born.empty() || one.born.back().birth_class != born) one.born.push_back({born, 0, 0});
      ++one.born.back().objects;
      one.born.back().bytes += one.inuse_bytes / one.inuse_objects;
    }
    if (const int64_t freed = (one.alloc_objects - one.inuse_objects) / 2; freed != 0)
      one.freed_by_octave = {0, 0, freed};
  }
  s.time_unix_nanos = 1700000000123456789;
  s.process_id = 4242;
  s.host = "node-7";
  s.devices[0].pools.push_back({"bfc", 0, 0, 0, 4 << 20, 10 * kPageBytes, 0});
  const std::vector<uint32_t> from = {0, 2, 2, 0, 0, 0, 0};
  const auto frame_of = [&s](const std::string& text) {
    s.named_frames.push_back({text, "", 0, 0});
    return Snapshot::kNamedFrame | (s.named_frames.size() - 1);
  };
  hbmprof::internal::SeparatePools(from, frame_of, &s);
  return s;
}

}  // namespace hbmprof_test
