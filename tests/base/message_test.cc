// Messages of the library, and the texts that are cut for them.
#include "src/base/message.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/cut_text.h"

namespace hbmprof::internal {
namespace {

using ::testing::EndsWith;
using ::testing::Pair;
using ::testing::StartsWith;

TEST(Message, ALongPathIsShortenedInItsMiddle) {
  testing::internal::CaptureStderr();
  UseStandardError();
  PrintMessage("hbmprof: no profile: ", "/begin" + std::string(100'000, 'a') + "/end: File name too long");
  const std::string printed = testing::internal::GetCapturedStderr();
  UseStandardError();
  EXPECT_THAT(printed, StartsWith("hbmprof: no profile: /beginaaa"));
  EXPECT_THAT(printed, EndsWith("aaa/end: File name too long\n"));
  EXPECT_LT(printed.size(), 1100);
}

TEST(CutMiddle, KeepsCharactersWhole) {
  EXPECT_THAT(CutMiddle("abcd", 4), Pair("abcd", ""));
  EXPECT_THAT(CutMiddle("abcde", 4), Pair("ab", "de"));
  EXPECT_THAT(CutMiddle("a\u20ac\u20acb", 4), Pair("a", "b"));
  EXPECT_THAT(CutMiddle(std::string(9, '\x80'), 8), Pair("\x80\x80\x80\x80", "\x80"));
}

}  // namespace
}  // namespace hbmprof::internal
