// Models with names that would command a terminal, break a line or become code.
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace odd_names_test {

using namespace onnx_bytes;
using testing::HasSubstr;
using testing::Not;

// A terminal's title, a colour, a line that looks like ours, and C1's short form of "escape [".
const std::string kOdd =
    "\x1b]0;title\x07\x1b[31mred\nfsdp-run: done\xc2\x9b"
    "2J\x7f";

SmallModel odd_model(const std::string& op = "MatMul", const std::string& domain = "") {
  SmallModel model;
  model.nodes = {node(op, {"x", "w" + kOdd}, {"products" + kOdd}, "/block/multiply" + kOdd, domain),
                 node("Add", {"products" + kOdd, "b"}, {"logits" + kOdd}, "add" + kOdd)};
  model.initializers = {tensor("w" + kOdd, kFloat, {4, 3}, raw(linear_weights())),
                        tensor("b", kFloat, {3}, raw<float>({0.5f, 0.f, -0.5f}))};
  model.inputs = {declared("x", {-1, 4})};
  model.outputs = {declared("logits" + kOdd, {-1, 3})};
  if (!domain.empty()) model.domains = {domain};
  return model;
}

void expect_plain(const std::string& text) {
  for (const char c : text) {
    if (c == '\n' || (c >= 0x20 && c != 0x7f) || (c & 0x80) != 0) continue;
    ADD_FAILURE() << "byte " << static_cast<int>(c) << " in\n" << text;
    return;
  }
  EXPECT_THAT(text, Not(HasSubstr("\xc2\x9b")));
  EXPECT_THAT(text, Not(HasSubstr("\nfsdp-run: done")));
}

TEST(OddNames, NothingButTextReachesTheTerminal) {
  const ModelFolder folder;
  folder.write("model.onnx", odd_model().bytes());
  const Words plan =
      fsdp_run({"plan", folder.model(), "--loss", "cross_entropy", "--min-params", "1"});
  const Words train = folder.train();
  for (const Words& words :
       {train, train + ranks(2), plan, plan + Words{"--verbose"}, plan + Words{"--schedule"},
        plan + Words{"--explain"}, plan + Words{"--operations"}, plan + Words{"--json"},
        train + Words{"--freeze", kOdd}, train + Words{"--labels", kOdd},
        train + Words{"--prediction", kOdd}, train + Words{"--data", folder / kOdd}}) {
    const Finished run = Program::run(words);
    SCOPED_TRACE(joined(words, " ") + run.err);
    EXPECT_LE(run.status, 2);
    expect_plain(run.out);
    expect_plain(run.err);
    EXPECT_EQ(lines_of(run.err).size(), run.status == 0 ? 0u : 1u);
  }
  const Finished planned = Program::run(plan + Words{"--verbose"});
  EXPECT_EQ(planned.status, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("train   w\\x1b]0;title\\x07\\x1b[31mred\\x0afsdp-run: done"));
}

TEST(OddNames, OperatorsWithoutAKernelAreNamedInOneLine) {
  const ModelFolder folder;
  folder.write("model.onnx", odd_model("Cube" + kOdd, "com.example").bytes());
  const Finished run = Program::run(folder.train());
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"Cube\\x1b]0;title"});
  expect_plain(run.err);
}

TEST(OddNames, NoneBecomesCode) {
  const ModelFolder folder;
  for (const char* name :
       {"Cube\nint pwned = system(\"touch INJECTED\");//",
        "Cube\",0,0};int z=(int)system(\"id\");//", "Cu be", "9Cube", "Cube\\"}) {
    folder.write("model.onnx", odd_model(name, "com.example").bytes());
    const Finished run =
        Program::run(fsdp_run({"plan", folder.model(), "--make-plugin", folder / "plugin"}));
    EXPECT_EQ(run.status, 2) << run.err;
    expect_one_line(run.err, {"--make-plugin", "letters, digits and _"});
    EXPECT_FALSE(std::filesystem::exists(folder / "plugin"));
  }
  folder.write("model.onnx", odd_model("Cube", "com\n.example").bytes());
  EXPECT_EQ(Program::run(fsdp_run({"plan", folder.model(), "--make-plugin", folder / "p"})).status,
            2);
  folder.write("model.onnx", odd_model("Cube", "com.example").bytes());
  EXPECT_EQ(Program::run(fsdp_run({"plan", folder.model(), "--make-plugin", folder / "p"})).status,
            0);
}

}  // namespace odd_names_test
}  // namespace ofsdp
