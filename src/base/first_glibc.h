// HBMPROF_FIRST_GLIBC: the version of the functions that the first glibc for this processor has had. All later ones
// have these functions too.
#ifndef HBMPROF_SRC_BASE_FIRST_GLIBC_H_
#define HBMPROF_SRC_BASE_FIRST_GLIBC_H_

#if defined(__x86_64__)
#define HBMPROF_FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define HBMPROF_FIRST_GLIBC "GLIBC_2.17"
#else
#error "The first glibc for this processor is not known here"
#endif

#endif  // HBMPROF_SRC_BASE_FIRST_GLIBC_H_
