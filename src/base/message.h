// Messages of the library to the user of the program.
#ifndef HBMPROF_SRC_BASE_MESSAGE_H_
#define HBMPROF_SRC_BASE_MESSAGE_H_

#include <string_view>

#include "absl/status/status.h"

namespace hbmprof::internal {

// Writes the parts of a message and a line feed to standard error, with one write for up to 4 KiB. Each part but `text`
// is shortened in its middle to about 1 KiB: it can contain a path of the user, which has any length. Does nothing if
// descriptor 2 is not the same file as when this library was loaded: then the program has closed it and uses the number
// for a file of its own. Also does nothing if standard output is the same file and RLIMIT_FSIZE limits its size: the
// message would take bytes from the program's own output. Raises no signal. Does not change errno. Any thread may call
// it.
void PrintMessage(std::string_view text, std::string_view more = {}, std::string_view still_more = {},
                  std::string_view end = {}) noexcept;

// Returns the text of an error, as a part of a message.
inline std::string_view TextOf(const absl::Status& error) { return {error.message().data(), error.message().size()}; }

// Sends later messages to the file that descriptor 2 refers to now. Called when the library is loaded, and by tests
// that redirect standard error.
void UseStandardError();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_MESSAGE_H_
