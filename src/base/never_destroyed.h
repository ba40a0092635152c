// NeverDestroyed: a static object that is constant-initialized and never destroyed. So threads, signal handlers, exit
// handlers and static destructors can use it at any time. Not in this file: objects that are made at first use
// (lazy.h).
#ifndef HBMPROF_SRC_BASE_NEVER_DESTROYED_H_
#define HBMPROF_SRC_BASE_NEVER_DESTROYED_H_

namespace hbmprof::internal {

template <typename T>
union NeverDestroyed {
 public:
  constexpr NeverDestroyed() : object_() {}
  ~NeverDestroyed() {}
  T& operator*() { return object_; }
  T* operator->() { return &object_; }

 private:
  T object_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_NEVER_DESTROYED_H_
