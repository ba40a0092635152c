// ReservedArray: an array at addresses of its own. Only pages that are touched take physical memory, and none of it is
// counted as host memory: the owner counts what it uses.
#ifndef HBMPROF_SRC_CORE_TABLES_RESERVED_ARRAY_H_
#define HBMPROF_SRC_CORE_TABLES_RESERVED_ARRAY_H_

#include <cstddef>
#include <new>

#include "src/base/pages.h"

namespace hbmprof::internal {

// All bytes of the elements are 0 at first. No constructor or destructor of an element is called.
template <typename T>
class ReservedArray {
 public:
  // Throws std::bad_alloc. The array is a page larger than needed, so that it is in small pages (see MapPages).
  explicit ReservedArray(size_t size)
      : bytes_(size * sizeof(T) + 4096), elements_(static_cast<T*>(ReservePages(bytes_))) {
    if (elements_ == nullptr) throw std::bad_alloc();
  }
  ~ReservedArray() { UnmapRetiredPages(elements_, bytes_); }
  ReservedArray(const ReservedArray&) = delete;
  ReservedArray& operator=(const ReservedArray&) = delete;

  T& operator[](size_t i) const { return elements_[i]; }

 private:
  const size_t bytes_;
  T* const elements_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_RESERVED_ARRAY_H_
