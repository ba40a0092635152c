// Text for people: putting it together, and writing sizes.
#ifndef HBMPROF_SRC_TOOL_TEXT_H_
#define HBMPROF_SRC_TOOL_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace hbmprof::tool {

// The arguments' text one after the other: strings, characters and whole numbers.
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

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_TEXT_H_
