// Replacements for functions of libstdc++, for a shared library that contains a static copy of it.
//
// A header of abseil includes <iostream>. So every source file that includes this header has an object that initializes
// std::cout and the other standard streams, and the linker adds these, all locales, and the code for them: 0.3 MB. This
// library uses no streams (src/base/lines.h). With the definitions below, the linker leaves them out.
#include <ios>

namespace std {

ios_base::Init::Init() {}
ios_base::Init::~Init() {}

}  // namespace std
