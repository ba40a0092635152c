// The warning of a snapshot that nothing is recorded although hbmprof is attached (attach.cc).
#ifndef HBMPROF_SRC_INJECT_ATTACH_WARNINGS_H_
#define HBMPROF_SRC_INJECT_ATTACH_WARNINGS_H_

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Throws std::bad_alloc.
void AddAttachWarnings(Snapshot* snapshot);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_ATTACH_WARNINGS_H_
