// operator new that fails when a test says so. Whoever compiles failing_new.cc into a program replaces the program's.
#ifndef HBMPROF_TESTS_SUPPORT_FAILING_NEW_H_
#define HBMPROF_TESTS_SUPPORT_FAILING_NEW_H_

namespace hbmprof_test {

// While one lives, allocations that this thread makes through operator new in the program's own code are counted. Those
// of shared libraries, as of a vendor's double, are not.
class CountedNew {
 public:
  // Of all that are counted from now on, allocation number `nth` fails; the first has number 1, none has number 0.
  static void Fail(int nth);
  // Whether it has failed.
  static bool HasFailed();

  CountedNew();
  ~CountedNew();
  CountedNew(const CountedNew&) = delete;
  CountedNew& operator=(const CountedNew&) = delete;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_FAILING_NEW_H_
