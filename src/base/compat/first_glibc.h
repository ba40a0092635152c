// HBMPROF_FIRST_GLIBC: the symbol version of the functions in the first glibc for this processor. Every later glibc has
// these functions with this version, too.
#ifndef HBMPROF_SRC_BASE_COMPAT_FIRST_GLIBC_H_
#define HBMPROF_SRC_BASE_COMPAT_FIRST_GLIBC_H_

#if defined(__x86_64__)
#define HBMPROF_FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define HBMPROF_FIRST_GLIBC "GLIBC_2.17"
#else
#error "The first glibc for this processor is not known here"
#endif

#endif  // HBMPROF_SRC_BASE_COMPAT_FIRST_GLIBC_H_
