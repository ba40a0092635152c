// From a symbol of an ELF file to the name that a profile shows.
#ifndef HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_
#define HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_

#include <string>
#include <string_view>

namespace hbmprof::internal {

// The short name of `symbol` (NUL-terminated): demangled if it is mangled, without return type, parameters, template
// arguments, ABI tags and what the compiler appends to parts and copies of a function. Scopes stay, also functions as
// scopes of their lambdas: "ns::Class::method", "(anonymous namespace)::f", "f::{lambda#1}::operator()". A C symbol is
// its own name.
std::string ShortFunctionName(const char* symbol);

// The part of ShortFunctionName that works on a demangled name. A name it cannot read comes back unchanged.
std::string ShortenDemangled(std::string_view demangled);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_
