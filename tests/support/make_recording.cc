#include "tests/support/make_recording.h"

#include <memory>
#include <random>
#include <vector>

#include "src/recording/writer.h"
#include "tests/support/made_recording.h"

namespace hbmprof_test {
namespace {

using hbmprof::internal::DriverSample;
using hbmprof::internal::kNoRecordedSite;
using hbmprof::internal::RecordedEvent;
using hbmprof::internal::RecordedKind;
using hbmprof::internal::RecordingTables;
using hbmprof::internal::RecordingWriter;

constexpr int kThreads = 4;
constexpr int64_t kPage = 2 << 20;
constexpr int64_t kLimit = int64_t{80} << 30;
constexpr int64_t kSegmentBytes = int64_t{4} << 30;
constexpr uint64_t kPageAddress = uint64_t{0x7F00} << 32;
constexpr uint64_t kTemporaryAddress = uint64_t{0x7F80} << 32;

class Maker {
 public:
  Maker(const MadeLoad& load, RecordingWriter* writer) : load_(load), writer_(*writer), random_(load.seed) {
    AddTables();
  }

  absl::Status Write() {
    absl::Status status = writer_.AddTables(recording_.tables());
    if (!status.ok()) return status;
    for (int layer = 0; layer < 8; ++layer) {
      Alloc(0, {(uint64_t{0x7E00} << 32) + static_cast<uint64_t>(layer) * (64 << 20), 48 << 20, weights_, false});
    }
    if (load_.pool) Alloc(0, {kPageAddress, kSegmentBytes, segment_, false});
    while (status.ok() && count_ < load_.events) {
      Step();
      if (count_ >= next_flush_) status = Flush();
    }
    Mark(1);
    if (status.ok()) status = Flush();
    return status.ok() ? writer_.Finish(time_) : status;
  }

 private:
  struct Buffer {
    uint64_t address;
    int64_t bytes;
    uint32_t site;
    bool in_pool;
  };

  void AddTables() {
    recording_.mutable_tables().names.devices[0].spaces[0].bytes_limit = kLimit;
    for (int i = 1; i < kThreads; ++i) recording_.Thread(4242 + i, "worker" + std::to_string(i));
    const auto site = [&](const std::string& function, MadeRecording::SiteOptions options) {
      return recording_.Site({{function}, {"llm::Scheduler::Step"}, {"main"}}, options);
    };
    MadeRecording::SiteOptions plain;
    MadeRecording::SiteOptions segment;
    segment.kind = hbmprof::MemoryKind::kPool;
    MadeRecording::SiteOptions page;
    page.tags = {{"model", "base"}, {"phase", "decode"}};
    if (load_.pool) page.from = "";
    weights_ = site("llm::Model::Load", plain);
    segment_ = site("llm::Pool::Grow", segment);
    page_ = site("llm::KvCache::AllocatePage", page);
    leaked_ = site("llm::KvCache::LeakPage", page);
    burst_ = site("llm::Prefill::Workspace", plain);
    for (int i = 0; i < 64; ++i) {
      plain.tags = {{"layer", std::to_string(i % 8)}};
      temporary_[i] = site("llm::Layer" + std::to_string(i) + "::Forward", plain);
    }
    recording_.mutable_tables().marks = {{"warm"}, {"end"}};
  }

  uint16_t Thread() { return static_cast<uint16_t>(random_() % kThreads); }
  void Add(uint16_t thread, RecordedEvent event) {
    event.time = time_;
    event.thread = thread;
    buffers_[thread].push_back(event);
    ++count_;
  }
  void Later() { time_ += 5000 + static_cast<int64_t>(random_() % 10000); }

  void Enter(RecordedKind kind, uint16_t thread, const Buffer& buffer) {
    Later();
    const uint64_t id = buffer.in_pool ? MadeRecording::BlockId(buffer.address) : buffer.address;
    Add(thread, {0, id, buffer.bytes, buffer.site, 0, kind, false});
  }
  void Alloc(uint16_t thread, const Buffer& buffer) { Enter(RecordedKind::kAlloc, thread, buffer); }
  void Free(uint16_t thread, const Buffer& buffer) { Enter(RecordedKind::kFree, thread, buffer); }
  void Mark(uint64_t number) {
    Later();
    Add(0, {0, number, 0, kNoRecordedSite, 0, RecordedKind::kMark, false});
  }

  uint64_t TakeSlot(std::vector<uint64_t>* free, uint64_t* next) {
    if (free->empty()) return (*next)++;
    const uint64_t slot = free->back();
    free->pop_back();
    return slot;
  }

  void Step() {
    const uint16_t thread = Thread();
    if (!is_warm_ && count_ * 10 >= load_.events) {
      is_warm_ = true;
      Mark(0);
    }
    if (load_.burst && !has_burst_ && count_ * 10 >= load_.events * 7) Burst();
    const uint64_t choice = random_() % 8;
    if (choice < 3 && pages_.size() < 1000) {
      const bool is_leak = load_.leak && random_() % 40 == 0;
      const uint64_t slot = TakeSlot(&free_pages_, &next_page_);
      const Buffer page = {kPageAddress + slot * kPage, kPage, is_leak ? leaked_ : page_, load_.pool};
      Alloc(thread, page);
      if (!is_leak) pages_.push_back(page);
    } else if (choice < 5 && !pages_.empty()) {
      const size_t victim = random_() % pages_.size();
      Free(thread, pages_[victim]);
      free_pages_.push_back((pages_[victim].address - kPageAddress) / kPage);
      pages_[victim] = pages_.back();
      pages_.pop_back();
    } else {
      const uint64_t kind = random_() % 64;
      const uint64_t slot = TakeSlot(&free_temporaries_, &next_temporary_);
      const Buffer temporary = {kTemporaryAddress + slot * (512 << 10), static_cast<int64_t>(4096 * (kind + 1)),
                                temporary_[kind], false};
      Alloc(thread, temporary);
      Free(thread, temporary);
      free_temporaries_.push_back(slot);
    }
    if (count_ / 1000 != samples_) Sample();
  }

  void Burst() {
    has_burst_ = true;
    std::vector<Buffer> burst;
    for (uint64_t i = 0; i < 200; ++i) {
      burst.push_back({(uint64_t{0x7D00} << 32) + (i << 28), int64_t{256} << 20, burst_, false});
      Alloc(0, burst.back());
    }
    Later();
    Add(0, {0, 0, int64_t{40} << 30, kNoRecordedSite, 0, RecordedKind::kFailed, false});
    for (const Buffer& buffer : burst) Free(0, buffer);
  }

  void Sample() {
    samples_ = count_ / 1000;
    DriverSample sample;
    sample.time = time_;
    const int64_t used = static_cast<int64_t>(pages_.size()) * kPage + (int64_t{1} << 30);
    sample.devices.push_back({0, used, kLimit - used, kLimit, (kLimit - used) / 2, std::nullopt});
    sample.host_resident_bytes = int64_t{3} << 30;
    sample.counters = {{"requests", samples_}};
    pending_.push_back(sample);
  }

  absl::Status Flush() {
    next_flush_ = count_ + 4096;
    absl::Status status;
    for (std::vector<RecordedEvent>& buffer : buffers_) {
      if (status.ok() && !buffer.empty()) status = writer_.AddEvents(buffer.data(), buffer.size());
      buffer.clear();
    }
    for (const DriverSample& sample : pending_) {
      if (status.ok()) status = writer_.AddSample(sample);
    }
    pending_.clear();
    return status.ok() ? writer_.Flush(time_) : status;
  }

  const MadeLoad load_;
  RecordingWriter& writer_;
  std::mt19937_64 random_;
  MadeRecording recording_;  // for its tables
  uint32_t weights_ = 0, segment_ = 0, page_ = 0, leaked_ = 0, burst_ = 0;
  uint32_t temporary_[64] = {};
  int64_t time_ = MadeRecording::kStart;
  int64_t count_ = 0;
  int64_t next_flush_ = 4096;
  int64_t samples_ = 0;
  bool is_warm_ = false;
  bool has_burst_ = false;
  std::vector<RecordedEvent> buffers_[kThreads];
  std::vector<DriverSample> pending_;
  std::vector<Buffer> pages_;
  std::vector<uint64_t> free_pages_, free_temporaries_;
  uint64_t next_page_ = 0, next_temporary_ = 0;
};

}  // namespace

absl::Status MakeRecording(const std::string& path, const MadeLoad& load) {
  absl::StatusOr<std::unique_ptr<RecordingWriter>> writer = RecordingWriter::Create(path);
  return writer.ok() ? Maker(load, writer->get()).Write() : writer.status();
}

}  // namespace hbmprof_test
