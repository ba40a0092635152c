/* The version of hbmprof, for C and C++. The macros give the version of these headers, the functions that of the
 * library in the process. docs/versions.md has the rules of compatibility.
 */
#ifndef HBMPROF_VERSION_H_
#define HBMPROF_VERSION_H_

#define HBMPROF_VERSION_MAJOR 0
#define HBMPROF_VERSION_MINOR 1
#define HBMPROF_VERSION_PATCH 0

/* The version as one number: #if HBMPROF_VERSION >= 10203 is true for 1.2.3 and later. */
#define HBMPROF_VERSION (HBMPROF_VERSION_MAJOR * 10000 + HBMPROF_VERSION_MINOR * 100 + HBMPROF_VERSION_PATCH)

#define HBMPROF_STRINGIFY_VALUE_(number) #number
#define HBMPROF_STRINGIFY_(number) HBMPROF_STRINGIFY_VALUE_(number)
/* "MAJOR.MINOR.PATCH" */
#define HBMPROF_VERSION_STRING              \
  HBMPROF_STRINGIFY_(HBMPROF_VERSION_MAJOR) \
  "." HBMPROF_STRINGIFY_(HBMPROF_VERSION_MINOR) "." HBMPROF_STRINGIFY_(HBMPROF_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the library in the process, such as "0.1.0": the HBMPROF_VERSION_STRING that the library was
 * built with. With the shared library it can be newer than the program's HBMPROF_VERSION_STRING. The string is valid as
 * long as the library is loaded. Any thread may call it at any time, also in a signal handler. Never fails. */
const char* hbmprof_version(void);

#ifdef __cplusplus
} /* extern "C" */

namespace hbmprof {

// Returns hbmprof_version().
inline const char* Version() { return hbmprof_version(); }

}  // namespace hbmprof
#endif

#endif /* HBMPROF_VERSION_H_ */
