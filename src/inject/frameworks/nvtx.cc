// NVTX ranges as tags: what a thread allocates inside a range that it has pushed gets the label `nvtx`. A program that
// uses NVTX 3 loads the library that NVTX_INJECTION64_PATH names and calls InitializeInjectionNvtx2 in it, once for
// each of its modules that contains a copy of NVTX; `hbmprof run --nvtx` names this library. With
// HBMPROF_CAPTURE_RANGE=nvtx:NAME, the ranges of that name are capture ranges (capture_range.h). A range whose name is
// a wide text (wchar_t) has neither a label nor a capture range.
//
// Environment: HBMPROF_NVTX=innermost|outermost|path|none selects the ranges that the label names.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "src/api/control/capture_range.h"
#include "src/base/message.h"
#include "src/base/option_text.h"
#include "src/base/per_thread.h"
#include "src/core/tables/tags.h"
#include "src/inject/driver_shim.h"
#include "src/inject/frameworks/nvtx_abi.h"

namespace hbmprof::internal {
namespace {

// Set before the program gets the functions of this file.
enum class Shown : uint8_t { kInnermost, kOutermost, kPath, kNone };
std::atomic<Shown> shown{Shown::kInnermost};
std::atomic_flag has_read_environment = ATOMIC_FLAG_INIT;

constexpr std::string_view kLabel = "nvtx";
constexpr int kMaxRanges = 32;

// The pushed ranges of a thread, of all domains. Ranges beyond kMaxRanges are only counted.
struct Range {
  const void* domain;
  uint64_t captured;  // the number of the capture range that it has begun; 0: none
  TagSetId tags_before;
  uint16_t path_size_before;
};
struct ThreadRanges {
  int count;
  uint16_t path_size;
  Range ranges[kMaxRanges];
  char path[kMaxTagBytes];  // the texts of all ranges, with '/' between them, as far as they fit
};
PerThread<ThreadRanges> thread_ranges;

// Returns `text` without the parts that differ at each call: PyTorch's emit_nvtx adds numbers and sizes to an
// operator's name.
std::string_view WithoutNumbers(std::string_view text) {
  for (const std::string_view start : {", seq = ", ", op_id = ", ", sizes = "}) {
    text = text.substr(0, text.find(start));
  }
  return text;
}

// Returns the name of the ranges that are captured; "": none.
std::string_view CapturedName() {
  const CaptureChoice* const ranges = ChosenRanges();
  return ranges == nullptr ? std::string_view() : ranges->nvtx_name;
}

// Begins a capture range if `text` is the name of one. Returns its number, else 0.
uint64_t Capture(std::string_view text) {
  if (text.empty() || text != CapturedName()) return 0;
  PrepareTracking();
  return BeginCaptureRange(text);
}

void EndCaptured(uint64_t number) {
  if (number != 0) EndCaptureRange(number);
}

void AddToPath(ThreadRanges& of_thread, std::string_view text) {
  const auto add = [&](std::string_view part) {
    part = part.substr(0, sizeof(of_thread.path) - of_thread.path_size);
    std::memcpy(of_thread.path + of_thread.path_size, part.data(), part.size());
    of_thread.path_size = static_cast<uint16_t>(of_thread.path_size + part.size());
  };
  if (of_thread.path_size != 0) add("/");
  add(text);
}

// Returns the number of pushed ranges of the domain.
int LevelOf(const ThreadRanges& of_thread, const void* domain) {
  int level = 0;
  for (int i = 0; i < of_thread.count && i < kMaxRanges; ++i) level += of_thread.ranges[i].domain == domain ? 1 : 0;
  return level;
}

// Begins a range. Returns its level in its domain, from 0.
int Push(const void* domain, std::string_view text) {
  ThreadRanges* const found = thread_ranges.Get();
  if (found == nullptr) return 0;
  ThreadRanges& of_thread = *found;
  const int level = LevelOf(of_thread, domain);
  if (of_thread.count++ >= kMaxRanges) return level;
  text = WithoutNumbers(text);
  of_thread.ranges[of_thread.count - 1] = {domain, Capture(text), current_tags, of_thread.path_size};
  const Shown choice = shown.load(std::memory_order_relaxed);
  if (choice == Shown::kPath) {
    AddToPath(of_thread, text);
    text = {of_thread.path, of_thread.path_size};
  }
  const bool is_shown = choice != Shown::kNone && (choice != Shown::kOutermost || of_thread.count == 1);
  if (is_shown && !text.empty()) internal::SetCurrentTags(ExtendTags(current_tags, kLabel, text));
  return level;
}

// Ends the innermost range of the domain. Returns its level, -1 if there is none.
int Pop(const void* domain) {
  ThreadRanges* const found = thread_ranges.Find();
  if (found == nullptr) return -1;
  ThreadRanges& of_thread = *found;
  const int level = LevelOf(of_thread, domain) - 1;
  if (of_thread.count > kMaxRanges) {
    --of_thread.count;
    return level;
  }
  int ended = of_thread.count - 1;
  while (ended >= 0 && of_thread.ranges[ended].domain != domain) --ended;
  if (ended < 0) return -1;
  const Range range = of_thread.ranges[ended];
  if (ended == of_thread.count - 1) {
    internal::SetCurrentTags(range.tags_before);
    of_thread.path_size = range.path_size_before;
  } else {
    // A range of another domain that began inside this range is still pushed. When that range ends, it restores the
    // tags from before both ranges.
    of_thread.ranges[ended + 1].tags_before = range.tags_before;
    of_thread.ranges[ended + 1].path_size_before = range.path_size_before;
    std::memmove(of_thread.ranges + ended, of_thread.ranges + ended + 1,
                 static_cast<size_t>(of_thread.count - 1 - ended) * sizeof(Range));
  }
  --of_thread.count;
  EndCaptured(range.captured);
  return level;
}

std::string_view Text(const char* text) { return text == nullptr ? std::string_view() : text; }

// Returns the message of an event; "" if it has none, or a wide one.
std::string_view MessageOf(const nvtx::EventAttributes* event) {
  const bool is_text =
      event != nullptr && (event->message_type == nvtx::kAscii || event->message_type == nvtx::kRegistered);
  return is_text ? Text(static_cast<const char*>(event->message)) : std::string_view();
}

// A registered string is a copy of its text. It lives as long as the program; without host memory, it is null.
char* Copy(std::string_view text) {
  text = text.substr(0, kMaxTagBytes);
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

// --- The functions that programs call. ---

int RangePushEx(const nvtx::EventAttributes* event) { return Push(nullptr, MessageOf(event)); }
int RangePushA(const char* text) { return Push(nullptr, Text(text)); }
int RangePushW(const wchar_t* /*text*/) { return Push(nullptr, ""); }
int RangePop() { return Pop(nullptr); }
// A range that belongs to no thread. Its id is the number of the capture range, or 0, as without a tool.
uint64_t RangeStartEx(const nvtx::EventAttributes* event) { return Capture(WithoutNumbers(MessageOf(event))); }
uint64_t RangeStartA(const char* text) { return Capture(WithoutNumbers(Text(text))); }
void RangeEnd(uint64_t id) { EndCaptured(id); }
uint64_t DomainRangeStartEx(const void* /*domain*/, const nvtx::EventAttributes* event) { return RangeStartEx(event); }
void DomainRangeEnd(const void* /*domain*/, uint64_t id) { EndCaptured(id); }
int DomainRangePushEx(const void* domain, const nvtx::EventAttributes* event) { return Push(domain, MessageOf(event)); }
int DomainRangePop(const void* domain) { return Pop(domain); }
void* DomainRegisterStringA(const void* /*domain*/, const char* text) { return Copy(Text(text)); }
// A domain is identified by its address only.
void* DomainCreateA(const char* name) { return Copy(Text(name)); }
void* DomainCreateW(const wchar_t* /*name*/) { return Copy(""); }

void ReadEnvironment() {
  if (has_read_environment.test_and_set()) return;
  const char* const value = OptionText("HBMPROF_NVTX");
  const std::string_view name = Text(value);
  constexpr std::string_view kNames[] = {"innermost", "outermost", "path", "none"};  // by Shown
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found != std::end(kNames)) {
    shown.store(static_cast<Shown>(found - kNames), std::memory_order_relaxed);
  } else if (!name.empty()) {
    PrintMessage("hbmprof: HBMPROF_NVTX='", value, "' is not innermost, outermost, path or none; using innermost");
  }
}

template <typename Signature>
void Take(nvtx::FunctionTable table, unsigned size, unsigned number, Signature* function) {
  if (number < size && table[number] != nullptr) *table[number] = reinterpret_cast<nvtx::Function*>(function);
}

}  // namespace
}  // namespace hbmprof::internal

// Called by a program's copy of NVTX when it is first used. Replaces the functions of that copy by the functions above;
// its other functions still do nothing. Returns 1, or 0 if the copy has none of these functions.
extern "C" [[gnu::visibility("default")]] int InitializeInjectionNvtx2(
    hbmprof::internal::nvtx::GetExportTable* get_export_table) {
  using namespace hbmprof::internal;  // NOLINT: its functions
  const auto* callbacks = static_cast<const nvtx::Callbacks*>(get_export_table(nvtx::kCallbacks));
  if (callbacks == nullptr || callbacks->struct_size < sizeof(nvtx::Callbacks)) return 0;
  ReadEnvironment();
  nvtx::FunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->get_module_function_table(nvtx::kCore, &table, &size) == 0) return 0;
  Take(table, size, nvtx::kRangePushEx, &RangePushEx);
  Take(table, size, nvtx::kRangePushA, &RangePushA);
  Take(table, size, nvtx::kRangePushW, &RangePushW);
  Take(table, size, nvtx::kRangePop, &RangePop);
  const bool captures = !CapturedName().empty();
  if (captures) {
    Take(table, size, nvtx::kRangeStartEx, &RangeStartEx);
    Take(table, size, nvtx::kRangeStartA, &RangeStartA);
    Take(table, size, nvtx::kRangeEnd, &RangeEnd);
  }
  if (callbacks->get_module_function_table(nvtx::kCore2, &table, &size) == 0) return 1;
  if (captures) {
    Take(table, size, nvtx::kDomainRangeStartEx, &DomainRangeStartEx);
    Take(table, size, nvtx::kDomainRangeEnd, &DomainRangeEnd);
  }
  Take(table, size, nvtx::kDomainRangePushEx, &DomainRangePushEx);
  Take(table, size, nvtx::kDomainRangePop, &DomainRangePop);
  Take(table, size, nvtx::kDomainRegisterStringA, &DomainRegisterStringA);
  Take(table, size, nvtx::kDomainCreateA, &DomainCreateA);
  Take(table, size, nvtx::kDomainCreateW, &DomainCreateW);
  return 1;
}
