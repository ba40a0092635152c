// An operator new that a test can make fail. A program that contains failing_new.cc uses it.
#ifndef HBMPROF_TESTS_SUPPORT_FAILING_NEW_H_
#define HBMPROF_TESTS_SUPPORT_FAILING_NEW_H_

namespace hbmprof_test {

// While an object of this class exists, allocations that this thread makes through operator new in the program's own
// code are counted. Those of shared libraries, such as the fake vendor libraries, are not.
class CountedNew {
 public:
  // The allocation with the number `nth` from now on fails; the first has number 1. 0: none fails.
  static void Fail(int nth);
  // Returns whether it has failed.
  static bool HasFailed();

  CountedNew();
  ~CountedNew();
  CountedNew(const CountedNew&) = delete;
  CountedNew& operator=(const CountedNew&) = delete;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_FAILING_NEW_H_
