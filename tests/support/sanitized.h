#ifndef HBMPROF_TESTS_SUPPORT_SANITIZED_H_
#define HBMPROF_TESTS_SUPPORT_SANITIZED_H_

namespace hbmprof_test {

// True if the test is compiled with the address or the thread sanitizer. Such a test is many times slower, so long
// tests do fewer repetitions.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_SANITIZED_H_
