// Demangles names by libiberty, and shortens them.
#include "src/symbolize/demangle.h"

#include <demangle.h>

#include <csetjmp>
#include <cstddef>

namespace hbmprof::internal {
namespace {

bool IsWordByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// Reads a demangled function name from left to right. It matches brackets and does not parse types.
class Shortener {
 public:
  explicit Shortener(std::string_view text) : text_(text) {}

  // Sets `*out` to the short name. Returns false if the text is not recognized as a function name.
  bool Run(std::string* out) {
    while (position_ < text_.size()) {
      const char c = text_[position_];
      if (const size_t word = WordLength(); word != 0) {
        const bool is_operator = text_.substr(position_, word) == kOperator;
        Copy(word);
        if (is_operator) CopyOperatorSymbol();
      } else if (c == '(') {
        if (StartsWith(Rest(), kAnonymous)) {
          Copy(kAnonymous.size());
        } else if (StartsWith(Rest(), "(*") || StartsWith(Rest(), "(&")) {
          // In "void (*f(int))(char)", the text before f belongs to its return type.
          name_.clear();
          position_ += 2;
        } else if (name_ == "decltype") {
          if (!SkipParentheses()) return false;
          name_.clear();
        } else {
          if (!SkipParentheses()) return false;
          SkipQualifiers();
          if (!StartsWith(Rest(), "::")) break;  // the parentheses had the function's own parameters
        }
      } else if (c == '<') {
        if (!SkipAngles()) return false;
      } else if (c == '{') {
        if (!CopyBraces()) return false;
      } else if (StartsWith(Rest(), "[abi:")) {
        SkipPast(']');
      } else if (StartsWith(Rest(), " [clone ")) {
        break;
      } else if (c == ' ') {
        // The text before is a return type, or words like "virtual thunk to".
        if (name_ != "decltype") name_.clear();
        ++position_;
      } else {
        Copy(1);
      }
    }
    *out = name_;
    return !name_.empty();
  }

 private:
  static constexpr std::string_view kAnonymous = "(anonymous namespace)";
  static constexpr std::string_view kOperator = "operator";

  std::string_view Rest() const { return text_.substr(position_); }

  void Copy(size_t count) {
    name_.append(Rest().substr(0, count));
    position_ += count;
  }

  void SkipPast(char c) {
    const size_t found = text_.find(c, position_);
    position_ = found == std::string_view::npos ? text_.size() : found + 1;
  }

  // Returns the length of the identifier, keyword or number that starts here; 0 if there is none.
  size_t WordLength() const {
    size_t end = position_;
    while (end < text_.size() && IsWordByte(text_[end])) ++end;
    return end - position_;
  }

  // Returns the length of the operator at the beginning of `text`, which follows the word "operator".
  static size_t OperatorSymbolLength(std::string_view text) {
    for (const std::string_view symbol :
         {"()", "[]", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">"}) {
      if (StartsWith(text, symbol)) return symbol.size();
    }
    size_t length = 0;
    while (length < text.size() && std::string_view("+-*/%^&|~!=,\"").find(text[length]) != std::string_view::npos) {
      ++length;
    }
    return length;
  }

  // Reads the text after the word "operator".
  void CopyOperatorSymbol() {
    if (const size_t length = OperatorSymbolLength(Rest()); length != 0) {
      const bool is_literal = Rest()[0] == '"';
      Copy(length);
      if (!is_literal) {
        if (StartsWith(Rest(), " <")) ++position_;  // "operator< <int>"
        return;
      }
    }
    // In "operator new[]", "operator std::string" and "operator\"\" _kb", the name has several words and ends at the
    // parameters.
    while (position_ < text_.size() && text_[position_] != '(') {
      if (text_[position_] == '<') {
        if (!SkipAngles()) position_ = text_.size();
      } else if (StartsWith(Rest(), "[abi:")) {
        SkipPast(']');
      } else {
        Copy(1);
      }
    }
  }

  bool SkipParentheses() {
    int depth = 0;
    for (; position_ < text_.size(); ++position_) {
      if (text_[position_] == '(') ++depth;
      if (text_[position_] == ')' && --depth == 0) {
        ++position_;
        return true;
      }
    }
    return false;
  }

  bool SkipAngles() {
    int depth = 0;
    while (position_ < text_.size()) {
      if (const size_t word = WordLength(); word != 0) {
        const bool is_operator = text_.substr(position_, word) == kOperator;
        position_ += word;
        if (is_operator) position_ += OperatorSymbolLength(Rest());
        continue;
      }
      const char c = text_[position_];
      if (c == '(') {
        if (!SkipParentheses()) return false;
        // In "(1)<(2)", the demangler has put the operands of a comparison into parentheses.
        while (position_ < text_.size() && text_[position_] == '<') ++position_;
        continue;
      }
      ++position_;
      if (c == '<') ++depth;
      if (c == '>' && --depth == 0) return true;
    }
    return false;
  }

  // "{lambda(int, char)#2}" becomes "{lambda#2}"; "{unnamed type#1}" stays.
  bool CopyBraces() {
    const size_t begin = position_;
    int depth = 0;
    for (; position_ < text_.size(); ++position_) {
      if (text_[position_] == '{') ++depth;
      if (text_[position_] == '}' && --depth == 0) {
        ++position_;
        const std::string_view group = text_.substr(begin, position_ - begin);
        const size_t number = group.rfind('#');
        if (StartsWith(group, "{lambda") && number != std::string_view::npos) {
          name_.append("{lambda").append(group.substr(number));
        } else {
          name_.append(group);
        }
        return true;
      }
    }
    return false;
  }

  void SkipQualifiers() {
    bool found = true;
    while (found) {
      found = false;
      for (const std::string_view word : {" const", " volatile", " &&", " &"}) {
        if (StartsWith(Rest(), word)) {
          position_ += word.size();
          found = true;
        }
      }
      if (StartsWith(Rest(), "[abi:")) {
        SkipPast(']');
        found = true;
      }
    }
  }

  const std::string_view text_;
  size_t position_ = 0;
  std::string name_;
};

// Returns `symbol` without the suffixes that the compiler adds ("f.cold", "f.constprop.0").
std::string_view WithoutCompilerSuffix(std::string_view symbol) {
  for (const std::string_view suffix :
       {".cold", ".part.", ".constprop.", ".isra.", ".lto_priv.", ".llvm.", ".localalias"}) {
    const size_t found = symbol.find(suffix);
    if (found != std::string_view::npos && found != 0) symbol = symbol.substr(0, found);
  }
  return symbol;
}

// A name as libiberty writes it, part by part.
struct DemangledName {
  // A symbol of a few hundred bytes can have a name of gigabytes, because references in it repeat parts of the name.
  static constexpr size_t kMaxBytes = size_t{1} << 16;

  std::string text;
  std::jmp_buf too_long;

  // Called by libiberty for each part. If the name is too long, it leaves libiberty by longjmp, because libiberty
  // provides no other way to stop.
  static void Append(const char* part, size_t bytes, void* name) {
    auto* const self = static_cast<DemangledName*>(name);
    if (self->text.size() + bytes > kMaxBytes) std::longjmp(self->too_long, 1);
    self->text.append(part, bytes);
  }
};

// A demangler of libiberty.
using Demangler = int (*)(const char* symbol, int options, demangle_callbackref append, void* name);

// Sets `name->text`. Returns false if `symbol` is not a symbol of this demangler, or its name is too long.
bool Demangle(Demangler demangler, const char* symbol, int options, DemangledName* name) {
  name->text.clear();
  if (setjmp(name->too_long) != 0) return false;
  return demangler(symbol, options, &DemangledName::Append, name) != 0;
}

// Removes generic arguments ("::<u8, fn() -> u8>") from the path of a Rust name. A type in front of the path stays:
// "<Pool<u8>>::take::<u8>" becomes "<Pool<u8>>::take".
std::string WithoutGenericArguments(std::string_view name) {
  std::string rest;
  int depth = 0;         // of all angle brackets
  int removed_from = 0;  // the depth inside the arguments that are being removed; 0: none
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool is_arrow = c == '>' && i > 0 && name[i - 1] == '-';
    if (c == '<') {
      ++depth;
      const bool is_generic = rest.size() >= 2 && rest.compare(rest.size() - 2, 2, "::") == 0;
      if (removed_from == 0 && depth == 1 && is_generic) {
        rest.resize(rest.size() - 2);
        removed_from = depth;
      }
    }
    if (removed_from == 0) rest += c;
    if (c == '>' && !is_arrow) {
      if (depth == removed_from) removed_from = 0;
      --depth;
    }
  }
  return depth == 0 ? rest : std::string(name);
}

}  // namespace

std::string ShortenDemangled(std::string_view demangled) {
  std::string name;
  return Shortener(demangled).Run(&name) ? name : std::string(demangled);
}

namespace {

std::string ShortNameOf(const char* symbol) {
  const bool may_be_cpp = StartsWith(symbol, "_Z");
  // Rust is tried first, because its legacy symbols are also valid C++ symbols.
  DemangledName name;
  if (may_be_cpp || StartsWith(symbol, "_R")) {
    const std::string own(WithoutCompilerSuffix(symbol));
    if (Demangle(&rust_demangle_callback, own.c_str(), DMGL_NO_OPTS, &name)) return WithoutGenericArguments(name.text);
  }
  if (may_be_cpp && Demangle(&cplus_demangle_v3_callback, symbol, DMGL_PARAMS | DMGL_TYPES, &name)) {
    return ShortenDemangled(name.text);
  }
  return std::string(WithoutCompilerSuffix(symbol));
}

}  // namespace

std::string ShortFunctionName(const char* symbol) {
  std::string name = ShortNameOf(symbol);
  if (StartsWith(name, "_Z")) return name;
  // The functions on the host that start a kernel. nvcc puts the kernel's symbol behind the first prefix, without its
  // underscore, and its name behind the second one; clang puts the name behind the first one.
  for (const std::string_view stub : {"__device_stub__", "__wrapper__device_stub_"}) {
    const size_t begin = name.find(stub);
    const size_t end = begin + stub.size();
    if (begin == std::string::npos || end == name.size()) continue;
    const std::string kernel = "_" + name.substr(end);
    std::string demangled = ShortNameOf(kernel.c_str());
    if (demangled != kernel) return demangled;
    return name.erase(begin, stub.size());
  }
  return name;
}

}  // namespace hbmprof::internal
