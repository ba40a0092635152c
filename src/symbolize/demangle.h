// The names that profiles show for symbols of ELF files.
#ifndef HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_
#define HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_

#include <string>
#include <string_view>

namespace hbmprof::internal {

// Returns the short name of `symbol` (NUL-terminated). The name of C++ and Rust symbols is demangled.
// - C++: without return type, parameters, template arguments, ABI tags and the suffixes that compilers append to parts
//   and copies of a function. Scopes are kept, including functions that are the scopes of lambdas: "ns::Class::method",
//   "(anonymous namespace)::f", "f::{lambda#1}::operator()".
// - Rust (v0 and legacy symbols): without the hash and the generic arguments of the path: "crate::module::f",
//   "<crate::Pool<u8> as crate::Grow>::grow", "crate::f::{closure#0}".
// - CUDA: the functions on the host that start a kernel ("__device_stub__Z6kernelPfi") have the name of the kernel.
// - C: the symbol, without suffixes that the compiler appended.
// A symbol whose demangled name has more than 64 KiB stays mangled.
std::string ShortFunctionName(const char* symbol);

// Returns the short name of a demangled name, as ShortFunctionName does. A name that is not recognized is returned
// unchanged.
std::string ShortenDemangled(std::string_view demangled);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_SYMBOLIZE_DEMANGLE_H_
