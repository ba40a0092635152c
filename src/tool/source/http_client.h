// An HTTP client that reads profiles from URLs.
#ifndef HBMPROF_SRC_TOOL_SOURCE_HTTP_CLIENT_H_
#define HBMPROF_SRC_TOOL_SOURCE_HTTP_CLIENT_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns whether `source` is a URL: it begins with http:// or https://, and there is no such file.
bool IsUrl(const std::string& source);

// Returns the name of `source` for messages and files. In a URL, "***" replaces what stands between "://" and the last
// "@": the user and the password, also if characters in them end the host's part of a URL. HttpGet takes the name in
// place of the URL. Other texts are returned as they are. Not thread-safe: for the arguments of the command line,
// before they are used.
std::string HideCredentials(const std::string& source);

// Returns the body of the answer to GET `url` (http://, also with USER:PASSWORD@ before the host, in which %2F is a
// slash), or the result of HideCredentials for it. Waits at most 10 s for the connection and 330 s for each part of the
// answer. Follows no redirection, so that a password is sent to this host only. Errors: kUnavailable (no connection, or
// it ended), kResourceExhausted (more than 1 GiB), kInvalidArgument (no host or a wrong port in the URL, or the server
// answers with another status than 200; the message has the first line of its answer), kUnimplemented (https://).
absl::StatusOr<std::string> HttpGet(const std::string& url);

// The value of the option --token-file of the commands that read sources: the file of the token that HttpGet sends with
// a URL that has no user and password; "" if there is none.
inline std::string token_file;
// Returns the token in a file. Error: kInvalidArgument if other users can read the file, or if the token is short.
absl::StatusOr<std::string> ReadToken(const std::string& path);

// Returns the host in "HOST:PORT", as in a URL or a header Host, without the port and the brackets of an IPv6 address.
std::string HostOf(const std::string& authority);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SOURCE_HTTP_CLIENT_H_
