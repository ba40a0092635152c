#include "src/base/option_text.h"

#include <stdlib.h>

#include <atomic>
#include <cstring>

namespace hbmprof::internal {
namespace {

size_t replaced_bytes = 0;
std::atomic<const char*> replaced{nullptr};

}  // namespace

void ReplaceOptions(char* lines, size_t bytes) {
  for (char* end = lines; (end = static_cast<char*>(std::memchr(end, '\n', bytes - (end - lines)))) != nullptr;) {
    *end = '\0';
  }
  replaced_bytes = bytes;
  replaced.store(lines, std::memory_order_release);
}

const char* OptionText(const char* name) {
  const char* const lines = replaced.load(std::memory_order_acquire);
  if (lines == nullptr) return secure_getenv(name);
  const size_t length = std::strlen(name);
  for (const char* line = lines; line < lines + replaced_bytes; line += std::strlen(line) + 1) {
    if (std::strncmp(line, name, length) == 0 && line[length] == '=') return line + length + 1;
  }
  return nullptr;
}

}  // namespace hbmprof::internal
