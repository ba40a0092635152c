// The names that profiles show for symbols of ELF files.
#ifndef HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_
#define HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_

#include <string>
#include <string_view>

namespace hbmprof::internal {

// Returns the short name of `symbol` (NUL-terminated). A mangled name is demangled, and return type, parameters,
// template arguments and ABI tags are removed, as are suffixes that the compiler adds to parts and copies of a
// function. Scopes stay, including functions that contain lambdas: "ns::Class::method", "(anonymous namespace)::f",
// "f::{lambda#1}::operator()". The name of a C symbol is the symbol.
std::string ShortFunctionName(const char* symbol);

// Returns the short name of a demangled name, as ShortFunctionName does. A name that is not recognized is returned
// unchanged.
std::string ShortenDemangled(std::string_view demangled);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_
