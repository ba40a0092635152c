#include "src/tool/profile/ages.h"

namespace hbmprof::tool {
namespace {

// Adds `values`, whose first element belongs at `offset`, to `sums`.
void AddAt(size_t offset, const std::vector<int64_t>& values, std::vector<int64_t>* sums) {
  sums->resize(std::max(sums->size(), offset + values.size()));
  for (size_t i = 0; i < values.size(); ++i) (*sums)[offset + i] = Plus((*sums)[offset + i], values[i]);
}

}  // namespace

Ages::Ages(const pprof::Ages& message)
    : class_width_log2(static_cast<int>(message.class_width_log2())),
      first_class(message.first_class()),
      born_bytes(message.born_bytes().begin(), message.born_bytes().end()),
      born_counts(message.born_counts().begin(), message.born_counts().end()),
      freed_by_octave(message.freed_by_octave().begin(), message.freed_by_octave().end()) {}

void Ages::Write(pprof::Ages* message) const {
  message->set_class_width_log2(static_cast<uint32_t>(class_width_log2));
  message->set_first_class(static_cast<uint32_t>(first_class));
  message->mutable_born_bytes()->Assign(born_bytes.begin(), born_bytes.end());
  message->mutable_born_counts()->Assign(born_counts.begin(), born_counts.end());
  message->mutable_freed_by_octave()->Assign(freed_by_octave.begin(), freed_by_octave.end());
}

void Ages::Widen(int log2) {
  const int shift = log2 - class_width_log2;
  const int64_t first = first_class >> shift;
  for (std::vector<int64_t>* born : {&born_bytes, &born_counts}) {
    std::vector<int64_t> wide;
    for (size_t i = 0; i < born->size(); ++i) {
      AddAt(static_cast<size_t>(((first_class + static_cast<int64_t>(i)) >> shift) - first), {(*born)[i]}, &wide);
    }
    *born = std::move(wide);
  }
  class_width_log2 = log2;
  first_class = first;
}

void Ages::Add(const Ages& other) {
  Ages added = other;
  const int log2 = std::max(class_width_log2, added.class_width_log2);
  Widen(log2);
  added.Widen(log2);
  const int64_t first = born_bytes.empty()         ? added.first_class
                        : added.born_bytes.empty() ? first_class
                                                   : std::min(first_class, added.first_class);
  for (auto born : {&Ages::born_bytes, &Ages::born_counts}) {
    std::vector<int64_t> sums;
    if (!(this->*born).empty()) AddAt(static_cast<size_t>(first_class - first), this->*born, &sums);
    if (!(added.*born).empty()) AddAt(static_cast<size_t>(added.first_class - first), added.*born, &sums);
    this->*born = std::move(sums);
  }
  first_class = first;
  AddAt(0, added.freed_by_octave, &freed_by_octave);
}

}  // namespace hbmprof::tool
