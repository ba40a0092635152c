#include "src/capture/traceback.h"

#include <string_view>
#include <thread>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

TEST(TracebackTest, LineIsSplitAtItsLastColonAndParenthesis) {
  std::string_view text = "/a (1)/b:2/c.py:34 (C.f.<locals>.<lambda>)\nd.py:0 (<module>)";
  const auto inner = TakeTracebackFrame(&text);
  ASSERT_TRUE(inner.has_value());
  EXPECT_EQ(inner->function, "C.f.<locals>.<lambda>");
  EXPECT_EQ(inner->file, "/a (1)/b:2/c.py");
  EXPECT_EQ(inner->line, 34);
  const auto outer = TakeTracebackFrame(&text);
  ASSERT_TRUE(outer.has_value());
  EXPECT_EQ(outer->function, "<module>");
  EXPECT_EQ(outer->file, "d.py");
  EXPECT_EQ(outer->line, 0);
  EXPECT_TRUE(text.empty());
}

TEST(TracebackTest, OtherTextIsNone) {
  for (const char* text :
       {"", "\n", "model.py:17", "model.py:17 (f", "model.py (f)", "model.py: (f)", ":17 (f)", "model.py:17 ()",
        "model.py:1x (f)", "model.py:-1 (f)", "model.py:9999999999 (f)", " (", ")"}) {
    EXPECT_FALSE(IsTraceback(text)) << text;
  }
  EXPECT_TRUE(IsTraceback("model.py:999999999 (f)"));
}

TEST(TracebackTest, ScopesNestAndBelongToTheirThread) {
  EXPECT_EQ(current_traceback, nullptr);
  {
    const ScopedTraceback outer("a.py:1 (f)");
    const Traceback* const first = current_traceback;
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(std::string_view(first->text, first->bytes), "a.py:1 (f)");
    {
      const ScopedTraceback inner("a.py:2 (f)");
      EXPECT_NE(current_traceback->hash, first->hash);
      const ScopedTraceback none("");
      EXPECT_EQ(std::string_view(current_traceback->text, current_traceback->bytes), "a.py:2 (f)");
      std::thread([] { EXPECT_EQ(current_traceback, nullptr); }).join();
    }
    EXPECT_EQ(current_traceback, first);
  }
  EXPECT_EQ(current_traceback, nullptr);
}

}  // namespace
}  // namespace hbmprof::internal
