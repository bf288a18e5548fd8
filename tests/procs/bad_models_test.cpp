// Small files that ask for much: each is refused in one line, soon and without much memory.
//
// The test measures resident memory and does not limit it: threads and oneDNN map address space
// that they never touch. The address space has a limit, so that a failing case leaves the machine
// alone.
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace bad_models_test {

using namespace onnx_bytes;

constexpr size_t kMaxAddresses = size_t{4} << 30;
constexpr size_t kMaxResident = size_t{1} << 30;
constexpr double kMaxSeconds = 5;  // on an idle machine

Finished run(const Words& words) {
  return Program::run(fsdp_run(words) + Words{"--data", "synthetic", "--threads", "1"},
                      {.patience = 4 * kMaxSeconds, .address_space = kMaxAddresses});
}

// `statuses`: the exit statuses that may occur.
void expect_ends(const Words& words, const Words& facts, const std::set<int>& statuses = {2}) {
  SCOPED_TRACE(format_text("{}", joined(words, " ")));
  const Finished ended = run(words);
  EXPECT_TRUE(statuses.contains(ended.status)) << ended.status << "\n" << ended.err;
  if (ended.status != 0) expect_one_line(ended.err, facts);
  EXPECT_LT(ended.peak_bytes, kMaxResident);
}

// Both commands: a user may want only a plan for a model that no machine can hold.
void expect_refused(const std::string& model, const Words& facts) {
  expect_ends({"plan", model, "--loss", "mse"}, facts);
  expect_ends({model, "--loss", "mse", "--steps", "1"}, facts);
}

std::string attribute(const std::string& name, const std::string& value, uint64_t type) {
  return message(5, message(1, name) + value + number(20, type));
}
std::string int_attribute(const std::string& name, int64_t value) {
  return attribute(name, number(3, static_cast<uint64_t>(value)), 2);
}
std::string graph_attribute(const std::string& name, const std::string& graph) {
  return attribute(name, message(6, graph), 5);
}

std::string ints(const std::string& name, const std::vector<int64_t>& values) {
  return tensor(name, kInt64, {static_cast<int64_t>(values.size())}, raw(values));
}
std::string scalar(const std::string& name, int64_t value) {
  return tensor(name, kInt64, {}, raw<int64_t>({value}));
}

// logits = (x + something) w + b; the nodes make "extra" in any shape that adds to x.
SmallModel with_extra(const std::vector<std::string>& nodes,
                      const std::vector<std::string>& initializers) {
  SmallModel model = linear_model();
  std::vector<std::string> all = nodes;
  all.push_back(node("Add", {"x", "extra"}, {"y"}, "add_extra"));
  all.push_back(node("MatMul", {"y", "w"}, {"products"}, "multiply"));
  all.push_back(model.nodes[1]);
  model.nodes = all;
  model.initializers.insert(model.initializers.end(), initializers.begin(), initializers.end());
  return model;
}

// The same with a value "big"; the model adds its sum.
SmallModel with_big(std::vector<std::string> nodes, const std::vector<std::string>& initializers) {
  nodes.push_back(node("ReduceSum", {"big"}, {"extra"}, "sum") + int_attribute("keepdims", 0));
  return with_extra(nodes, initializers);
}

class BadModels : public ::testing::Test {
 protected:
  std::string write(const SmallModel& model) { return folder.write("model.onnx", model.bytes()); }
  void expect_refused_model(const SmallModel& model, Words facts) {
    const std::string path = write(model);
    facts.push_back(path);
    expect_refused(path, facts);
  }

  const Folder folder;
};

TEST_F(BadModels, ABatchAxisOfZeroIsOpen) {
  SmallModel model = linear_model();
  model.inputs = {declared("x", {0, 4})};
  model.outputs = {declared("logits", {0, 3})};
  const std::string path = write(model);
  for (const Words& words : {Words{"plan", path, "--loss", "mse"},
                             Words{path, "--loss", "mse", "--steps", "2", "--batch-size", "3"}}) {
    const Finished ended = run(words);
    EXPECT_EQ(ended.status, 0) << ended.err;
  }
}

TEST_F(BadModels, SeventeenAxes) {
  const std::vector<int64_t> axes(17, 1);
  expect_refused_model(with_big({}, {tensor("big", kFloat, axes, raw<float>({1}))}),
                       {"initializer 'big'", "at most 16 axes", "found 17"});
  expect_refused_model(with_big({node("Reshape", {"one", "axes"}, {"big"}, "many")},
                                {tensor("one", kFloat, {1}, raw<float>({1})), ints("axes", axes)}),
                       {"node 'many' (Reshape)", "at most 16 axes", "found 17"});
}

TEST_F(BadModels, AConvolutionWithABiasOfIntegers) {
  SmallModel model = linear_model();
  model.nodes = {node("Reshape", {"x", "image"}, {"i"}, "to_image"),
                 node("Conv", {"i", "kernel", "bias"}, {"c"}, "convolve"),
                 node("Reshape", {"c", "row"}, {"r"}, "to_row"),
                 node("MatMul", {"r", "w"}, {"products"}, "multiply"), model.nodes[1]};
  model.initializers.push_back(ints("image", {0, 1, 2, 2}));
  model.initializers.push_back(ints("row", {0, -1}));
  model.initializers.push_back(tensor("kernel", kFloat, {1, 1, 1, 1}, raw<float>({1})));
  model.initializers.push_back(tensor("bias", 6, {1}, raw<int32_t>({1})));
  expect_refused_model(model, {"node 'convolve' (Conv)", "B: expected float32", "found int32[1]"});
}

TEST_F(BadModels, GroupsThatTheGradientContradicts) {
  const std::string from = fixture("artifacts/mnist_cnn");
  std::filesystem::copy(from, folder / "artifacts", std::filesystem::copy_options::recursive);
  std::string bytes = content(from + "/training_model.onnx");
  // The last "group" in the file belongs to a ConvGrad; the value follows the tag of field 3.
  const size_t name = bytes.rfind("group");
  ASSERT_NE(name, std::string::npos);
  const size_t value = bytes.find(std::string("\x18\x01", 2), name);
  ASSERT_LT(value, name + 16);
  bytes[value + 1] = 2;
  folder.write("artifacts/training_model.onnx", bytes);
  const Finished ended = Program::run(
      fsdp_run({folder / "artifacts", "--data", folder / "artifacts/data", "--steps", "1"}),
      {.address_space = kMaxAddresses});
  EXPECT_EQ(ended.status, 2);
  expect_one_line(ended.err, {"(com.microsoft.ConvGrad)", "group"});
}

SmallModel chain(int length) {
  std::vector<std::string> nodes;
  for (int i = 0; i < length; ++i) {
    nodes.push_back(node("Not", {format_text("c{}", i)}, {format_text("c{}", i + 1)}, ""));
  }
  const auto branch = [](const std::string& output) {
    return message(1, node("Identity", {"x"}, {output}, "")) + message(2, output) +
           message(12, value_info(output, {1, 4}));
  };
  nodes.push_back(node("If", {format_text("c{}", length)}, {"extra"}, "branch") +
                  graph_attribute("then_branch", branch("then")) +
                  graph_attribute("else_branch", branch("else")));
  return with_extra(nodes, {tensor("c0", 9, {}, message(9, std::string(1, '\1')))});
}

TEST_F(BadModels, ALongChainBeforeABranchIsWalkedWithoutRecursion) {
  expect_ends({"plan", write(chain(10'000)), "--loss", "mse"}, {}, {0});
}

TEST_F(BadModels, ANameOfThirtyThousandModules) {
  SmallModel model = linear_model();
  std::string name;
  for (int i = 0; i < 30'000; ++i) name += "a/";
  name += "w";
  model.nodes[0] = node("MatMul", {"x", name}, {"products"}, "multiply");
  model.initializers[0] = tensor(name, kFloat, {4, 3}, raw(linear_weights()));
  const std::string path = write(model);
  expect_ends({"plan", path, "--loss", "mse"}, {}, {0});
  expect_ends({path, "--loss", "mse", "--steps", "1"}, {}, {0});
}

TEST_F(BadModels, ASequenceOfMorePiecesThanAnyoneNeeds) {
  for (const int64_t keep : {1, 0}) {
    SmallModel model = with_big({node("SplitToSequence", {"z"}, {"pieces"}, "split") +
                                     int_attribute("axis", 1) + int_attribute("keepdims", keep),
                                 node("SequenceAt", {"pieces", "first"}, {"big"}, "at")},
                                {scalar("first", 0)});
    model.inputs.push_back(declared("z", {-1, int64_t{1} << 36}));
    expect_refused_model(model, {"node 'split' (SplitToSequence)", "at most 4096", "68719476736"});
  }
}

// ONNX's inference would list every element of an integer vector, although they are unknown.
TEST_F(BadModels, AVectorOfTwoBillionIntegers) {
  SmallModel model = with_big({node("Unsqueeze", {"v", "axes"}, {"row"}, "widen"),
                               node("SplitToSequence", {"row"}, {"pieces"}, "split"),
                               node("SequenceAt", {"pieces", "first"}, {"piece"}, "at"),
                               node("Cast", {"piece"}, {"big"}, "cast") + int_attribute("to", 1)},
                              {scalar("first", 0), ints("axes", {0})});
  model.inputs.push_back(declared("v", {(int64_t{1} << 31) - 1}, kInt64));
  const std::string path = write(model);
  expect_ends({"plan", path, "--loss", "mse"}, {}, {0, 2});
  expect_ends({path, "--loss", "mse", "--steps", "1"}, {}, {1, 2});
}

// oneDNN divides by a count that is cut to an int.
TEST_F(BadModels, MoreRowsThanAnIntCounts) {
  SmallModel model = linear_model();
  model.inputs[0] = declared("x", {int64_t{1} << 36, 4});
  const std::string path = write(model);
  expect_ends({"plan", path, "--loss", "mse"}, {}, {0, 2});
  expect_ends({path, "--loss", "mse", "--steps", "1"}, {}, {1, 2});
}

// A Loop with 4096 iterations; each has one inside.
SmallModel loops(int depth) {
  const auto types = [](const std::string& name, uint64_t type) {
    return message(1, name) + message(2, message(1, number(1, type)));
  };
  std::string body;
  for (int i = 0; i < depth; ++i) {
    const std::string inner =
        i == 0 ? node("Neg", {"v"}, {"out"}, "negate")
               : node("Loop", {"trips", "", "v"}, {"out"}, "inner") + graph_attribute("body", body);
    body = message(1, inner) + message(1, node("Identity", {"on"}, {"still_on"}, "")) +
           message(2, "body") + message(11, types("i", kInt64)) + message(11, types("on", 9)) +
           message(11, types("v", kFloat)) + message(12, types("still_on", 9)) +
           message(12, types("out", kFloat));
  }
  return with_extra(
      {node("Loop", {"trips", "", "x"}, {"extra"}, "outer") + graph_attribute("body", body)},
      {scalar("trips", 4096)});
}

TEST_F(BadModels, LoopsInLoops) {
  expect_refused_model(loops(2), {"node 'outer' (Loop)", "nodes"});
  expect_refused_model(loops(3), {"node 'outer' (Loop)", "nodes"});
}

// Functions f0 .. f(depth - 1); each makes `calls` calls to the next.
std::string functions_that_call(int depth, int calls) {
  std::string model;
  for (int i = 0; i < depth; ++i) {
    std::string function = message(1, format_text("F{}", i));
    function += message(4, "a") + message(5, "c");
    for (int k = 0; k < calls; ++k) {
      const bool last = i == depth - 1;
      const std::string from = k == 0 ? "a" : format_text("t{}", k);
      const std::string to = k == calls - 1 ? "c" : format_text("t{}", k + 1);
      function += message(7, node(last ? "Identity" : format_text("F{}", i + 1), {from}, {to}, "",
                                  last ? "" : "f"));
    }
    function += message(9, number(2, 20)) + message(9, message(1, "f") + number(2, 1));
    model += message(25, function + message(10, "f"));
  }
  return model;
}

TEST_F(BadModels, FunctionsThatCallEachOther) {
  SmallModel model = with_extra({node("F0", {"x"}, {"extra"}, "call", "f")}, {});
  model.domains = {"f"};
  const auto write_with = [&](int depth, int calls) {
    return folder.write("model.onnx", model.bytes() + functions_that_call(depth, calls));
  };
  expect_refused(write_with(8, 10), {"functions", "nodes", "found 10000000"});
  expect_refused(write_with(40, 10), {"functions", "nodes", "found more"});
  expect_refused(write_with(2000, 1), {"function 'F", "at most 256 deep"});
  expect_ends({"plan", write_with(3, 4), "--loss", "mse"}, {}, {0});
}

TEST_F(BadModels, TensorsThatShareAHole) {
  SmallModel model = linear_model();
  for (int i = 0; i < 20; ++i) {
    model.initializers.push_back(
        tensor(format_text("q{}", i), kInt64, {250'000'000}, external("hole.bin", "", "")));
  }
  folder.write("hole.bin", "");
  std::filesystem::resize_file(folder / "hole.bin", 2'000'000'000);
  expect_refused_model(model, {"expected at most 2147483647 bytes", "found 40000"});
}

TEST_F(BadModels, AnAxisResizedToATrillion) {
  SmallModel model = with_big({node("Resize", {"pixel", "", "", "sizes"}, {"big"}, "resize")},
                              {tensor("pixel", kFloat, {1, 1, 1}, raw<float>({1})),
                               ints("sizes", {1, 1, int64_t{1} << 40})});
  expect_refused_model(model, {"node 'resize' (Resize)", "places to resize"});
  model.initializers.back() = tensor("sizes", kFloat, {3}, raw<float>({1, 1, 1e30f}));
  model.nodes[0] = node("Resize", {"pixel", "", "sizes"}, {"big"}, "resize");
  expect_refused_model(model, {"node 'resize' (Resize)", "places to resize"});
}

// Values made from shapes: too large to hold, or large and held by nobody before the run.
TEST_F(BadModels, ValuesMadeOfShapes) {
  const auto made = [&](const std::string& op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& initializers) {
    return with_big({node(op, inputs, {"big"}, "make")}, initializers);
  };
  const std::string one = tensor("one", kFloat, {1}, raw<float>({1}));
  const int64_t huge = int64_t{1} << 58;
  expect_refused_model(made("ConstantOfShape", {"n"}, {ints("n", {huge})}), {"'make'", "bytes"});
  expect_refused_model(made("Expand", {"one", "n"}, {one, ints("n", {1 << 20, huge >> 20})}),
                       {"'make'", "bytes"});
  expect_refused_model(made("Tile", {"one", "n"}, {one, ints("n", {huge})}), {"'make'", "bytes"});
  expect_refused_model(
      made("OneHot", {"i", "n", "v"},
           {ints("i", {0, 1}), scalar("n", huge), tensor("v", kFloat, {2}, raw<float>({0, 1}))}),
      {"'make'"});
  expect_refused_model(
      with_big({node("Range", {"from", "to", "by"}, {"numbers"}, "make"),
                node("Cast", {"numbers"}, {"big"}, "cast") + int_attribute("to", 1)},
               {scalar("from", 0), scalar("to", int64_t{1} << 39), scalar("by", 1)}),
      {"'make'", "table"});
  for (const int64_t n : {int64_t{1} << 38, int64_t{1} << 44}) {
    const SmallModel model = made("ConstantOfShape", {"n"}, {ints("n", {n})});
    const std::string path = write(model);
    expect_ends({"plan", path, "--loss", "mse"}, {}, {0, 1, 2});
    expect_ends({path, "--loss", "mse", "--steps", "1"}, {}, {1, 2});
  }
}

TEST_F(BadModels, OperandsWhoseSumsWrap) {
  for (const int64_t numel : {int64_t{1} << 58, int64_t{1} << 44}) {
    std::vector<std::string> nodes = {node("ReduceSum", {"x"}, {"s"}, "all") +
                                      int_attribute("keepdims", 0)};
    std::vector<std::string> initializers = {ints("n", {numel})}, terms;
    for (int i = 0; i < 33; ++i) {
      const std::string k = format_text("k{}", i), m = format_text("m{}", i);
      initializers.push_back(tensor(k, kFloat, {}, raw<float>({1.5f + static_cast<float>(i)})));
      nodes.push_back(node("Mul", {"s", k}, {m}, ""));
      terms.push_back(format_text("e{}", i));
      nodes.push_back(node("Expand", {m, "n"}, {terms.back()}, terms.back()));
    }
    nodes.push_back(node("Sum", terms, {"big"}, "sum_all"));
    const std::string path = write(with_big(nodes, initializers));
    const std::set<int> ends = numel > (int64_t{1} << 50) ? std::set{2} : std::set{0, 1, 2};
    expect_ends({"plan", path, "--loss", "mse"}, {path}, ends);
    expect_ends({path, "--loss", "mse", "--steps", "1"}, {}, {1, 2});
  }
}

TEST_F(BadModels, AColumnThatNoMachineHolds) {
  for (const int64_t numel : {int64_t{1} << 59, int64_t{1} << 38}) {
    SmallModel model = with_big({node("Identity", {"z"}, {"big"}, "same")}, {});
    model.inputs.push_back(declared("z", {-1, numel}));
    const std::string path = write(model);
    const std::set<int> ends = numel > (int64_t{1} << 50) ? std::set{2} : std::set{0, 1, 2};
    expect_ends({"plan", path, "--loss", "mse"}, {}, ends);
    expect_ends({path, "--loss", "mse", "--steps", "1"}, {}, {1, 2});
  }
}

TEST_F(BadModels, IndicesOfMoreLinesThanATableHas) {
  const int64_t lines = int64_t{1} << 36;
  SmallModel model = with_big(
      {node("GatherElements", {"z", "z_index"}, {"big"}, "gather") + int_attribute("axis", 2)}, {});
  model.inputs.push_back(declared("z", {-1, lines, 1}));
  model.inputs.push_back(declared("z_index", {-1, lines, 1}, kInt64));
  expect_refused_model(model, {"'gather'", "GatherElements", "table"});
}

// The rule that looks for Gelu takes products apart.
TEST_F(BadModels, AProductOfTenThousandFactors) {
  constexpr int kFactors = 10'000;
  std::vector<std::string> nodes = {node("Identity", {"x"}, {"p0"}, "")};
  for (int i = 0; i < kFactors; ++i) {
    nodes.push_back(node("Mul", {format_text("p{}", i), "x"},
                         {i + 1 == kFactors ? "extra" : format_text("p{}", i + 1)}, ""));
  }
  expect_ends({"plan", write(with_extra(nodes, {})), "--loss", "mse"}, {}, {0});
}

}  // namespace bad_models_test
}  // namespace ofsdp
