// What nearly all files of the command use: the usual headers, errors, and arithmetic.
#ifndef HBMPROF_SRC_TOOL_UTIL_COMMON_H_
#define HBMPROF_SRC_TOOL_UTIL_COMMON_H_

// IWYU pragma: begin_exports
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
// IWYU pragma: end_exports

namespace hbmprof::tool {

enum ExitCode : int {
  kSuccess = 0,
  kFinding = 1,   // the result needs attention: a damaged profile, growth above --fail-over
  kUnusable = 2,  // no result: wrong usage, unreadable input, output that cannot be written
};

// Returns the concatenation of strings, characters and integers.
template <typename... Parts>
std::string Cat(const Parts&... parts) {
  std::string text;
  const auto add = [&text](const auto& part) {
    using Part = std::decay_t<decltype(part)>;
    if constexpr (std::is_same_v<Part, char>) {
      text += part;
    } else if constexpr (std::is_integral_v<Part>) {
      text += std::to_string(part);
    } else {
      text += std::string_view(part);
    }
  };
  (add(parts), ...);
  return text;
}

// Makes errors of one kind. The message is the concatenation of the arguments.
template <absl::StatusCode kCode>
struct ErrorMaker {
  template <typename... Parts>
  absl::Status operator()(const Parts&... parts) const {
    return absl::Status(kCode, Cat(parts...));
  }
};
inline constexpr ErrorMaker<absl::StatusCode::kAborted> Aborted;
inline constexpr ErrorMaker<absl::StatusCode::kDeadlineExceeded> DeadlineExceeded;
inline constexpr ErrorMaker<absl::StatusCode::kFailedPrecondition> FailedPrecondition;
inline constexpr ErrorMaker<absl::StatusCode::kInvalidArgument> InvalidArgument;
inline constexpr ErrorMaker<absl::StatusCode::kNotFound> NotFound;
inline constexpr ErrorMaker<absl::StatusCode::kPermissionDenied> PermissionDenied;
inline constexpr ErrorMaker<absl::StatusCode::kResourceExhausted> ResourceExhausted;
inline constexpr ErrorMaker<absl::StatusCode::kUnavailable> Unavailable;

inline std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }
// Returns the result of work on `where`, a file or a part of it: the message of an error begins with it and a colon.
inline absl::Status In(std::string_view where, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), Cat(where, ": ", MessageOf(status)));
}
template <typename Value>
absl::StatusOr<Value> In(std::string_view where, absl::StatusOr<Value> result) {
  if (!result.ok()) return In(where, result.status());
  return result;
}

// Arithmetic on values from files. On overflow the result wraps around, as in pprof.
inline int64_t Plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
inline int64_t Minus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
inline void AddTo(int64_t& sum, int64_t value) { sum = Plus(sum, value); }
// Returns the absolute value. Returns INT64_MAX for INT64_MIN.
inline int64_t Magnitude(int64_t value) { return value == INT64_MIN ? INT64_MAX : value < 0 ? -value : value; }

template <typename List, typename Predicate>
void EraseIf(List& list, const Predicate& is_wrong) {
  list.erase(std::remove_if(list.begin(), list.end(), is_wrong), list.end());
}

// Returns the value of `key` in the map; `missing` if the key is missing.
template <typename Map, typename Key>
typename Map::mapped_type ValueOr(const Map& map, const Key& key, typename Map::mapped_type missing = {}) {
  const auto found = map.find(key);
  return found == map.end() ? missing : found->second;
}

// Gives consecutive numbers to lists; equal lists get the same number. A `View` refers to the elements of a `List`. The
// hash function differs in each process, so that no file can be crafted to cause many collisions.
template <typename List, typename View>
class Numbered {
 public:
  Numbered() = default;
  Numbered(Numbered&&) = default;  // A copy's numbers_ would refer to the original's lists.
  Numbered& operator=(Numbered&&) = default;
  uint32_t Number(View list) {
    if (const auto found = numbers_.find(list); found != numbers_.end()) return found->second;
    const auto number = static_cast<uint32_t>(size());
    numbers_.emplace(lists_.emplace_back(list.begin(), list.end()), number);
    return number;
  }
  const List& operator[](uint32_t number) const { return lists_[number]; }
  size_t length(uint32_t number) const { return lists_[number].size(); }
  size_t size() const { return lists_.size(); }

 private:
  std::deque<List> lists_;  // whose elements do not move
  absl::flat_hash_map<View, uint32_t> numbers_;
};
template <typename Integer>
using NumberedLists = Numbered<std::vector<Integer>, absl::Span<const Integer>>;
// Number 0 is the empty text.
struct NumberedTexts : Numbered<std::string, std::string_view> {
  NumberedTexts() { Number(""); }
};

}  // namespace hbmprof::tool

// Returns the status that the expression has as its value, if it is an error.
#define RETURN_IF_ERROR(...)                                                             \
  do {                                                                                   \
    if (absl::Status status_of_expression = (__VA_ARGS__); !status_of_expression.ok()) { \
      return status_of_expression;                                                       \
    }                                                                                    \
  } while (false)

// ASSIGN_OR_RETURN(const Profile profile, ParseProfile(bytes)): defines `profile` as the value that the StatusOr has,
// or returns its error. The part before the first comma can also be an existing variable.
#define ASSIGN_OR_RETURN(variable, ...) \
  HBMPROF_ASSIGN_OR_RETURN_1(HBMPROF_JOIN(result_of_line_, __LINE__), variable, __VA_ARGS__)
#define HBMPROF_ASSIGN_OR_RETURN_1(result, variable, ...) \
  auto result = (__VA_ARGS__);                            \
  if (!result.ok()) return std::move(result).status();    \
  variable = *std::move(result)
#define HBMPROF_JOIN(a, b) HBMPROF_JOIN_1(a, b)
#define HBMPROF_JOIN_1(a, b) a##b

#endif  // HBMPROF_SRC_TOOL_UTIL_COMMON_H_
