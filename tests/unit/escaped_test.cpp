// Words in messages: control characters as text, all output through the one place that escapes it,
// names near a wrong one, and commands as lines for a shell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "kernels/base/names.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace escaped_test {

TEST(Escaped, ControlCharactersBecomeText) {
  EXPECT_EQ(escaped("plain ü 漢 {}"), "plain ü 漢 {}");
  EXPECT_EQ(escaped("\x1b[31m\n\t\r\x7f"), "\\x1b[31m\\x0a\\x09\\x0d\\x7f");
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(escaped("\xc2\x9b"
                    "2J \xc2\xa0 \xc2"),
            "\\xc2\\x9b2J \xc2\xa0 \xc2");
  EXPECT_EQ(escaped_lines("one\ntwo\x1b\n"), "one\ntwo\\x1b\n");
  EXPECT_EQ(escaped_json("{\n\"\x7f\xc2\x9bü\"}"), "{\n\"\\u007f\\u009bü\"}");
}

TEST(Escaped, AnErrorIsOneLine) {
  const Status status = input_error("{}: expected {}\nadvice", "a\nb", std::string("c\x1b"));
  EXPECT_EQ(status.message(), "a\\x0ab: expected c\\x1b\nadvice");
  EXPECT_EQ(fault("why").with_prefix("x\ny").message(), "x\\x0ay: why");
}

TEST(Escaped, EverythingPrintedGoesThroughIt) {
  // Questions at a terminal print our own words; text.cpp prints our own bugs.
  const std::set<std::string> others = {"runtime/cli/config/config_questions.cpp",
                                        "kernels/base/text.cpp"};
  const std::regex prints(R"(\b(f?printf|fputs|puts|putchar)\()");
  const auto may_print = [](const std::string& text) {  // a regex is a hundred times slower
    return text.find("printf(") != text.npos || text.find("puts(") != text.npos ||
           text.find("putchar(") != text.npos;
  };
  std::set<std::string> found;
  for (const char* top : {"kernels", "importer", "fsdp", "runtime", "plugins"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::string(OFSDP_SOURCE_DIR "/") + top)) {
      const std::string path = entry.path().lexically_relative(OFSDP_SOURCE_DIR).string();
      if (entry.path().extension() != ".cpp" || path.starts_with("plugins/examples/")) continue;
      const std::string text = onnx_bytes::content(entry.path().string());
      if (may_print(text) && std::regex_search(text, prints)) found.insert(path);
    }
  }
  EXPECT_THAT(found, testing::IsSubsetOf(others));
}

// --- nearest names ---

const std::vector<std::string> kKnown = {"strategy", "shard-size", "batch-size", "lr",
                                         "epochs",   "eps",        "steps",      "step-size"};

TEST(NearestName, FindsAChangedLetter) { EXPECT_EQ(nearest_name("stratezy", kKnown), "strategy"); }

TEST(NearestName, FindsADroppedLetter) { EXPECT_EQ(nearest_name("stratgy", kKnown), "strategy"); }

TEST(NearestName, CountsASwapOnce) { EXPECT_EQ(nearest_name("rl", kKnown), "lr"); }

TEST(NearestName, IgnoresCaseAndUnderscores) {
  EXPECT_EQ(nearest_name("Batch_Size", kKnown), "batch-size");
}

TEST(NearestName, TakesTheNearest) {
  EXPECT_EQ(nearest_name("epoch", kKnown), "epochs");
  EXPECT_EQ(nearest_name("step", kKnown), "steps");
}

TEST(NearestName, ContinuesAShortName) {
  EXPECT_EQ(nearest_name("batch", kKnown), "batch-size");
  EXPECT_EQ(nearest_name("shard", kKnown), "shard-size");
}

TEST(NearestName, PrefersAWholeBeginningAndTheSameFirstLetter) {
  EXPECT_EQ(nearest_name("acc", {"auc", "accuracy"}), "accuracy");
  EXPECT_EQ(nearest_name("jsn", {"rsn", "json"}), "json");
  EXPECT_EQ(nearest_name("adamv", {"adam", "adamw"}), "adam");
  EXPECT_EQ(nearest_name("adamv", {"adamw", "adam"}), "adamw");
}

TEST(NearestName, FindsANameThatAWordLengthens) {
  EXPECT_EQ(nearest_name("num-epochs", kKnown), "epochs");
  EXPECT_EQ(nearest_name("lr_rate", kKnown), "lr");
  EXPECT_EQ(nearest_name("max-lr", kKnown), "") << "two letters are too few at the end";
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("quantization", kKnown), "");
  EXPECT_EQ(nearest_name("x", kKnown), "");
  EXPECT_EQ(nearest_name("", kKnown), "");
  EXPECT_EQ(nearest_name("lr", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), kKnown), "");
}

TEST(NearestName, EndsAMessage) {
  EXPECT_EQ(did_you_mean("stratgy", kKnown), "; did you mean 'strategy'?");
  EXPECT_EQ(did_you_mean("quantization", kKnown), "");
}

TEST(ShellWords, AreReadAsTheyWereWritten) {
  const std::vector<std::string> words = {"fsdp-run",   "a b",   "it's", "",    "--x=$HOME", "\\",
                                          "two\nlines", "\"q\"", "~",    "ü*?", "&&"};
  const auto read = shell_words(shell_line(words));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, words);
  EXPECT_EQ(shell_line({"fsdp-run", "m.onnx", "--lr", "0.1"}), "fsdp-run m.onnx --lr 0.1");
}

TEST(ShellWords, AreReadAsAPersonWritesThem) {
  const auto read = shell_words("cd \"/a b\"  &&\tx\\ y 'z'\"w\"\n");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, (std::vector<std::string>{"cd", "/a b", "&&", "x y", "zw"}));
  EXPECT_FALSE(shell_words("'open").ok());
}

}  // namespace escaped_test
}  // namespace ofsdp
