// The CPython versions whose frames the library can read (capture/python/interpreter.h), for the command too.
#ifndef HBMPROF_SRC_PROTOCOL_PYTHON_VERSIONS_H_
#define HBMPROF_SRC_PROTOCOL_PYTHON_VERSIONS_H_

namespace hbmprof::internal {

// 3.x, both included.
inline constexpr int kFirstPythonMinor = 8;
inline constexpr int kLastPythonMinor = 14;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_PROTOCOL_PYTHON_VERSIONS_H_
