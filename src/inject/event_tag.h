// EventTag: a tag of what the calling thread records.
#ifndef HBMPROF_SRC_INJECT_EVENT_TAG_H_
#define HBMPROF_SRC_INJECT_EVENT_TAG_H_

#include <string_view>
#include <utility>

#include "src/core/tables/tags.h"

namespace hbmprof::internal {

// As ScopedTag, for a tag that is not the program's: a recording does not log its begin and its end.
class EventTag {
 public:
  EventTag(std::string_view key, std::string_view value)
      : outer_(std::exchange(current_tags, ExtendTags(current_tags, key, value))) {}
  ~EventTag() { current_tags = outer_; }
  EventTag(const EventTag&) = delete;
  EventTag& operator=(const EventTag&) = delete;

 private:
  const TagSetId outer_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_EVENT_TAG_H_
