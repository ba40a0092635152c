/* The version of hbmprof: of these headers, as macros, and of the library that the process runs, as functions. For C
 * and C++. docs/versions.md says what stays compatible from one version to the next.
 */
#ifndef HBMPROF_VERSION_H_
#define HBMPROF_VERSION_H_

#define HBMPROF_VERSION_MAJOR 0
#define HBMPROF_VERSION_MINOR 1
#define HBMPROF_VERSION_PATCH 0

/* One number that grows with the version: #if HBMPROF_VERSION >= 10203 asks for 1.2.3 or later. */
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

/* The version of the library that the process runs, such as "0.1.0": HBMPROF_VERSION_STRING of the headers that the
 * library was built with. With the shared library it can be newer than the HBMPROF_VERSION_STRING of the program. The
 * string lives as long as the library is loaded. Any thread, at any time, signal handlers included; never fails. */
const char* hbmprof_version(void);

#ifdef __cplusplus
} /* extern "C" */

namespace hbmprof {

// The same.
inline const char* Version() { return hbmprof_version(); }

}  // namespace hbmprof
#endif

#endif /* HBMPROF_VERSION_H_ */
