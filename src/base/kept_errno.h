// KeptErrno: gives errno back its value.
#ifndef HBMPROF_SRC_BASE_KEPT_ERRNO_H_
#define HBMPROF_SRC_BASE_KEPT_ERRNO_H_

#include <cerrno>

namespace hbmprof::internal {

// At its end, errno has the value again that it had when the object was made.
class KeptErrno {
 public:
  KeptErrno() = default;
  ~KeptErrno() { errno = value_; }
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;

 private:
  const int value_ = errno;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_KEPT_ERRNO_H_
