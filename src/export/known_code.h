// Tells the program's own code from the code of known libraries. docs/command.md lists the libraries.
#ifndef HBMPROF_SRC_EXPORT_KNOWN_CODE_H_
#define HBMPROF_SRC_EXPORT_KNOWN_CODE_H_

#include <string_view>

namespace hbmprof::internal {

// Returns whether a frame is the program's own code: it has a name or a binary, and is not of a known library. `source`
// is the function's source file, `binary` the path of the binary. Texts that are not known are empty. Only the
// first 4096 bytes of a text count.
bool IsOwnCode(std::string_view name, std::string_view source, std::string_view binary);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_KNOWN_CODE_H_
