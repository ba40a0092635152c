#include "src/base/option_text.h"

#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace hbmprof::internal {
namespace {

struct Lines {
  size_t bytes;
  char* text;  // each line ends with a null byte
};
std::atomic<const Lines*> replaced{nullptr};  // never freed

}  // namespace

bool ReplaceOptions(const char* lines, size_t bytes) {
  auto* const text = new (std::nothrow) char[bytes + 1];
  auto* const copy = new (std::nothrow) Lines{bytes + 1, text};
  if (text == nullptr || copy == nullptr) {
    delete copy;
    delete[] text;
    return false;
  }
  std::replace_copy(lines, lines + bytes, text, '\n', '\0');
  text[bytes] = '\0';
  replaced.store(copy, std::memory_order_release);
  return true;
}

const char* OptionText(const char* name) {
  const Lines* const lines = replaced.load(std::memory_order_acquire);
  if (lines == nullptr) return secure_getenv(name);
  const size_t length = std::strlen(name);
  for (const char* line = lines->text; line < lines->text + lines->bytes; line += std::strlen(line) + 1) {
    if (std::strncmp(line, name, length) == 0 && line[length] == '=') return line + length + 1;
  }
  return nullptr;
}

void ForEachOptionName(const std::function<void(std::string_view name)>& visit) {
  const auto visit_line = [&visit](std::string_view line) { visit(line.substr(0, line.find('='))); };
  if (const Lines* const lines = replaced.load(std::memory_order_acquire)) {
    for (const char* line = lines->text; line < lines->text + lines->bytes; line += std::strlen(line) + 1) {
      visit_line(line);
    }
  } else if (getauxval(AT_SECURE) == 0) {
    for (char** line = environ; line != nullptr && *line != nullptr; ++line) visit_line(*line);
  }
}

}  // namespace hbmprof::internal
