// The names that a profile shows for symbols of several compilers.
#include "src/symbolize/demangle.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace hbmprof_test {
namespace {

using hbmprof::internal::ShortenDemangled;
using hbmprof::internal::ShortFunctionName;

struct Case {
  const char* in;
  const char* out;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.in; }

class ShortName : public testing::TestWithParam<Case> {};
TEST_P(ShortName, OfASymbol) { EXPECT_EQ(ShortFunctionName(GetParam().in), GetParam().out); }

INSTANTIATE_TEST_SUITE_P(Symbols, ShortName,
                         testing::Values(Case{"main", "main"},                                                  //
                                         Case{"cudaMalloc", "cudaMalloc"},                                      //
                                         Case{"_ZN3app6Server3RunEv", "app::Server::Run"},                      //
                                         Case{"_ZNK3app6Server4SizeEi", "app::Server::Size"},                   //
                                         Case{"_Z3maxIiET_S0_S0_", "max"},                                      //
                                         Case{"_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector::push_back"},  //
                                         Case{"_ZNSt6vectorIiSaIiEEC1Ev", "std::vector::vector"},               //
                                         Case{"_ZN3app6ServerD2Ev", "app::Server::~Server"},                    //
                                         Case{"_ZN12_GLOBAL__N_14anonEv", "(anonymous namespace)::anon"},       //
                                         Case{"_ZZ4mainENKUliE_clEi", "main::{lambda#1}::operator()"},          //
                                         Case{"_ZZ4mainENUliE0_4_FUNEi", "main::{lambda#2}::_FUN"},             //
                                         Case{"_ZN3app3runEv.cold", "app::run"},                                //
                                         Case{"_ZN3app3runEv.constprop.0.isra.0", "app::run"},                  //
                                         Case{"_Z26__device_stub__Z6kernelPfiPfi", "kernel"},                   //
                                         Case{"_ZL36__device_stub__ZN3app7kernel2IiEEvT_i", "app::kernel2"},    //
                                         Case{"_ZN3app21__device_stub__kernelEPf", "app::kernel"},              //
                                         Case{"__device_stub__kernel", "kernel"},                               //
                                         Case{"__device_stub__Z6kernelPfi", "kernel"},                          //
                                         Case{"_Z29__wrapper__device_stub_kernelIiEvRT_", "kernel"},            //
                                         Case{"__device_stub__", "__device_stub__"},                            //
                                         Case{"run.constprop.0", "run"},                                        //
                                         Case{"run.cold", "run"},                                               //
                                         Case{"main.main", "main.main"},                                        //
                                         Case{"main.(*Server).Run", "main.(*Server).Run"},                      //
                                         Case{".cold", ".cold"},                                                //
                                         Case{"_Znwm", "operator new"},                                         //
                                         Case{"_Znam", "operator new[]"},                                       //
                                         Case{"_ZThn16_N3app6Server3RunEv", "app::Server::Run"},                //
                                         Case{"_Znot_a_mangled_name", "_Znot_a_mangled_name"},                  //
                                         Case{"_Z", "_Z"}, Case{"", ""}));

// Symbols that rustc 1.95 made with -C symbol-mangling-version=v0 and =legacy.
INSTANTIATE_TEST_SUITE_P(RustV0, ShortName,
                         testing::Values(Case{"_RNvCskK7mfDs1mzF_1m4leak", "m::leak"},
                                         Case{"_RNCNvCskK7mfDs1mzF_1m4leak0B3_", "m::leak::{closure#0}"},
                                         Case{"_RINvMs_NtCskK7mfDs1mzF_1m4poolINtB5_4PoolyE4takeyNCNvB7_4leak0EB7_",
                                              "<m::pool::Pool<u64>>::take"},
                                         Case{"_RNvXNtCskK7mfDs1mzF_1m4poolINtB2_4PoolyENtB2_4Grow4growB4_",
                                              "<m::pool::Pool<u64> as m::pool::Grow>::grow"},
                                         Case{"_RNvCskK7mfDs1mzF_1m4leak.llvm.1234", "m::leak"},
                                         Case{"_Rnot_rust", "_Rnot_rust"}, Case{"_R", "_R"}));
INSTANTIATE_TEST_SUITE_P(
    RustLegacy, ShortName,
    testing::Values(Case{"_ZN1m4leak17h061f34834d1a9874E", "m::leak"},
                    Case{"_ZN1m4leak28_$u7b$$u7b$closure$u7d$$u7d$17hd98b059585865cabE", "m::leak::{{closure}}"},
                    Case{"_ZN1m4pool13Pool$LT$T$GT$4take17h0d5be1dae1a0c58bE", "m::pool::Pool<T>::take"},
                    Case{"_ZN56_$LT$m..pool..Pool$LT$T$GT$$u20$as$u20$m..pool..Grow$GT$4grow17h9d966bacd16db9d2E",
                         "<m::pool::Pool<T> as m::pool::Grow>::grow"},
                    Case{"_ZN1m4leak17h061f34834d1a9874E.llvm.1234", "m::leak"}));

// 30 levels of a pair of references to the level before would be 2^30 parts.
TEST(ShortName, RustNameOfMoreThan64KiBStaysMangled) {
  const std::string digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string path = "INvC1m4leak";
  size_t before = path.size();
  path += "TuuE";
  for (int level = 0; level < 30; ++level) {
    const size_t here = path.size();
    // A reference is a position in base 62, plus one.
    std::string reference(1, digits[(before - 1) % 62]);
    if (before > 62) reference.insert(0, 1, digits[(before - 1) / 62]);
    path += "TB" + reference + "_B" + reference + "_E";
    before = here;
    const std::string symbol = "_R" + path + "E";
    if (level == 4 || level == 29) {
      EXPECT_EQ(ShortFunctionName(symbol.c_str()), level == 4 ? "m::leak" : symbol);
    }
  }
}

class Shortened : public testing::TestWithParam<Case> {};
TEST_P(Shortened, DemangledName) { EXPECT_EQ(ShortenDemangled(GetParam().in), GetParam().out); }

INSTANTIATE_TEST_SUITE_P(
    Names, Shortened,
    testing::Values(
        Case{"a::f(int, std::function<void (int)>)", "a::f"},  //
        Case{"void a::tt<3, true>()", "a::tt"},                //
        Case{"std::vector<int, std::allocator<int> > a::f<int>(int)", "a::f"},
        Case{"std::iterator_traits<char const*>::difference_type std::distance<char const*>(char const*, char const*)",
             "std::distance"},
        Case{"void (*a::fp<int>(int))(char)", "a::fp"},  //
        Case{"decltype(auto) a::da<int>(int)", "a::da"}, Case{"decltype ({parm#1}+(1)) a::db<int>(int)", "a::db"},
        Case{"void a::lt<1, 2>(a::I<(1)<(2)>)", "a::lt"}, Case{"void a::gt<(1)<(2), ((3)>(4))>(int)", "a::gt"},  //
        Case{"void a::shift<(1)<<(2)>()", "a::shift"}, Case{"a::S::f[abi:cxx11](int) const &", "a::S::f"},
        Case{"a::S::f[abi:cxx11](int) const &::{lambda(int, char)#1}::operator()(int, char) const",
             "a::S::f::{lambda#1}::operator()"},
        Case{"auto a::S::g<int>(int)::{lambda(auto:1)#1}::operator()<int>(int) const",
             "a::S::g::{lambda#1}::operator()"},
        Case{"run()::{lambda({lambda()#1})#2}::operator()({lambda()#1}) const", "run::{lambda#2}::operator()"},
        Case{"f(int)::Local::method()", "f::Local::method"},  //
        Case{"ns::{unnamed type#1}::method()", "ns::{unnamed type#1}::method"},
        Case{"a::S::operator()(int) const", "a::S::operator()"},  //
        Case{"a::S::operator[](int)", "a::S::operator[]"}, Case{"a::S::operator->()", "a::S::operator->"},
        Case{"a::S::operator->*(int)", "a::S::operator->*"}, Case{"a::S::operator<<(int)", "a::S::operator<<"},
        Case{"std::ostream& a::operator<< <int>(std::ostream&, int)", "a::operator<<"},
        Case{"int a::S::operator< <int>(int) const", "a::S::operator<"},
        Case{"bool a::operator<=>(a::S, a::S)", "a::operator<=>"}, Case{"a::S::operator>(a::S)", "a::S::operator>"},  //
        Case{"a::operator==(a::S, a::S)", "a::operator=="}, Case{"a::operator, <int>(a::S, int)", "a::operator,"},
        Case{"a::S::operator std::vector<int, std::allocator<int> >() const", "a::S::operator std::vector"},
        Case{"a::S::operator bool() const", "a::S::operator bool"},
        Case{"a::operator\"\" _kb(unsigned long long)", "a::operator\"\" _kb"},
        Case{"a::operator_name(int)", "a::operator_name"},  //
        Case{"my_operator(int)", "my_operator"}, Case{"void a::apply<&(a::S::operator<(int))>()", "a::apply"},
        Case{"void a::apply<&(a::S::operator>(int))>()", "a::apply"},
        Case{"(anonymous namespace)::S::f((anonymous namespace)::T)", "(anonymous namespace)::S::f"},
        Case{"void (anonymous namespace)::f<int>(int)", "(anonymous namespace)::f"},
        Case{"a::(anonymous namespace)::f()", "a::(anonymous namespace)::f"},
        Case{"non-virtual thunk to a::S::f()", "a::S::f"},  //
        Case{"a::f() [clone .cold]", "a::f"}, Case{"a::f [clone .part.0]", "a::f"},
        // Names that are not recognized stay unchanged.
        Case{"a::f<int", "a::f<int"}, Case{"a::f(int", "a::f(int"}, Case{"{lambda", "{lambda"}, Case{"()", "()"},
        Case{"", ""}));

TEST(ShortFunctionName, AcceptsAnyText) {
  const std::string alphabet = "ab:<>(){}[] *&#operator()decltype";
  uint32_t random = 1;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int length = 0; length < 24; ++length) {
      random = random * 1664525 + 1013904223;
      text += alphabet[(random >> 16) % alphabet.size()];
    }
    EXPECT_FALSE(ShortenDemangled(text).empty());
    EXPECT_LE(ShortenDemangled(text).size(), text.size()) << text;
  }
}

}  // namespace
}  // namespace hbmprof_test
