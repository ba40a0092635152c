// ParseHttpQuery: the parameters in the query of an HTTP request, for the library and the command.
#ifndef HBMPROF_SRC_PROTOCOL_HTTP_QUERY_H_
#define HBMPROF_SRC_PROTOCOL_HTTP_QUERY_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hbmprof::internal {

// Names and values, in the order of the query.
using HttpParameters = std::vector<std::pair<std::string, std::string>>;

// Returns the value of a hexadecimal digit; -1 if `digit` is none.
inline int HexDigit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

// Decodes "%2C", and "+" to `plus`. An escape that is not complete stays as it is.
inline std::string DecodeUrl(std::string_view text, char plus = ' ') {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low >= 0) {
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += text[i] == '+' ? plus : text[i];
    }
  }
  return decoded;
}

// Returns the parameters of `query`, the part of a request's target after "?". A value may contain "=".
inline HttpParameters ParseHttpQuery(std::string_view query) {
  HttpParameters parameters;
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    const size_t equals = std::min(one.find('='), one.size());
    if (!one.empty()) {
      parameters.emplace_back(DecodeUrl(one.substr(0, equals)),
                              DecodeUrl(one.substr(std::min(equals + 1, one.size()))));
    }
    query.remove_prefix(std::min(one.size() + 1, query.size()));
  }
  return parameters;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_PROTOCOL_HTTP_QUERY_H_
