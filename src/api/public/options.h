// The checks of the options that a program passes.
#ifndef HBMPROF_SRC_API_PUBLIC_OPTIONS_H_
#define HBMPROF_SRC_API_PUBLIC_OPTIONS_H_

#include "absl/status/status.h"
#include "hbmprof/options.h"

namespace hbmprof::internal {

// Returns kInvalidArgument for the first field whose value is outside its range, else OK. The message names the field,
// the value and the range. This is what InitDefault requires of its options.
absl::Status ValidateOptions(const DefaultOptions& options);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_PUBLIC_OPTIONS_H_
