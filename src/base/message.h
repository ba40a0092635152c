// What the library says to the user of the program that it is in.
#ifndef HBMPROF_SRC_BASE_MESSAGE_H_
#define HBMPROF_SRC_BASE_MESSAGE_H_

#include <string_view>

namespace hbmprof::internal {

// Writes the parts of a message and a line feed to standard error, in one piece up to 4 KiB. Does nothing if descriptor
// 2 is not the file that it was when this library was loaded: the program has closed it, and what has the number now is
// its own. Raises no signal. Any thread; keeps errno.
void PrintMessage(std::string_view text, std::string_view more = {}, std::string_view still_more = {},
                  std::string_view end = {}) noexcept;

// From now on messages go to what descriptor 2 is now. Called when the library is loaded; for tests, which redirect it.
void UseStandardError();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_MESSAGE_H_
