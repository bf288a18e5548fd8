// Branches, loops, sequences, functions: the importer resolves these before it looks up operators.
// And the messages where it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importer/normalize/onnx_import.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace importer_rewrite_test {

using namespace onnx_bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::operators;

enum : int { kString = 8, kBool = 9 };

// Attributes; the caller appends them to a node.
std::string attribute(const std::string& name, int field, const std::string& body, int type) {
  return message(5,
                 message(1, name) + message(field, body) + number(20, static_cast<uint64_t>(type)));
}
std::string graph_attribute(const std::string& name, const std::string& graph) {
  return attribute(name, 6, graph, 5);
}
std::string tensor_attribute(const std::string& tensor) { return attribute("value", 5, tensor, 4); }
std::string int_attribute(const std::string& name, uint64_t value) {
  return message(5, message(1, name) + number(3, value) + number(20, 2));
}

std::string constant(const std::string& name, const std::string& tensor) {
  return node("Constant", {}, {name}, name) + tensor_attribute(tensor);
}
std::string known_bool(const std::string& name, bool value) {
  return constant(name, tensor("", kBool, {}, raw<uint8_t>({value})));
}
std::string known_int(const std::string& name, int64_t value) {
  return constant(name, tensor("", kInt64, {}, raw<int64_t>({value})));
}

std::string body(const std::vector<std::string>& nodes, const std::vector<std::string>& inputs,
                 const std::vector<std::string>& outputs) {
  std::string graph;
  for (const std::string& one : nodes) graph += message(1, one);
  graph += message(2, "body");
  for (const std::string& one : inputs) graph += message(11, one);
  for (const std::string& one : outputs) graph += message(12, one);
  return graph;
}

// x [2, 3] to y [2, 3].
SmallModel image_model(std::vector<std::string> nodes) {
  SmallModel model;
  model.nodes = std::move(nodes);
  model.inputs = {declared("x", {2, 3})};
  model.outputs = {declared("y", {2, 3})};
  return model;
}

class Rewrite : public ::testing::Test {
 protected:
  Result<Graph> imported(const SmallModel& model) {
    auto file = OnnxFile::open(folder.write("model.onnx", model.bytes()));
    if (!file.ok()) return std::move(file).status();
    return import_onnx(*file, registry);
  }
  std::vector<std::string> operators_of(const SmallModel& model) {
    const auto graph = imported(model);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    return graph.ok() ? operators(*graph) : std::vector<std::string>{};
  }
  std::string error_of(const SmallModel& model) {
    const auto graph = imported(model);
    return graph.ok() ? "" : graph.error().message();
  }

  // If(condition): y = Relu(x), else y = Tanh(x).
  static std::string either() {
    const auto out = declared("out", {2, 3});
    return node("If", {"condition"}, {"y"}, "choice") +
           graph_attribute("then_branch", body({node("Relu", {"x"}, {"out"}, "")}, {}, {out})) +
           graph_attribute("else_branch", body({node("Tanh", {"x"}, {"out"}, "")}, {}, {out}));
  }

  Folder folder;
  Registry registry = make_registry();
};

TEST_F(Rewrite, TheBranchOfAKnownConditionTakesThePlaceOfIf) {
  EXPECT_THAT(operators_of(image_model({known_bool("condition", true), either()})),
              ElementsAre("Constant", "Relu", "Identity"));
  EXPECT_THAT(operators_of(image_model({known_bool("condition", false), either()})),
              ElementsAre("Constant", "Tanh", "Identity"));
}

TEST_F(Rewrite, NodesOutOfOrderAreSortedAndOthersKeepTheirPlaces) {
  const auto late = node("Relu", {"x"}, {"a"}, "late");
  EXPECT_THAT(
      operators_of(image_model({node("Exp", {"x"}, {"c"}, ""), node("Tanh", {"a"}, {"b"}, ""),
                                node("Mul", {"b", "c"}, {"y"}, ""), late})),
      ElementsAre("Exp", "Relu", "Tanh", "Mul"));
  // A branch reads a value that comes after the If.
  EXPECT_THAT(operators_of(image_model({either(), known_bool("condition", false)})),
              ElementsAre("Constant", "Tanh", "Identity"));
}

TEST_F(Rewrite, ACycleOfNodesIsRefused) {
  EXPECT_THAT(error_of(image_model({node("Tanh", {"b"}, {"a"}, ""), node("Relu", {"a"}, {"b"}, ""),
                                    node("Add", {"a", "x"}, {"y"}, "")})),
              HasSubstr("topologically sorted"));
}

TEST_F(Rewrite, AConditionOnAStaticAxisIsKnown) {
  const auto ops =
      operators_of(image_model({node("Shape", {"x"}, {"shape"}, "") + int_attribute("start", 1),
                                known_int("three", 3), node("Squeeze", {"shape"}, {"axis"}, ""),
                                node("Equal", {"axis", "three"}, {"condition"}, ""), either()}));
  ASSERT_FALSE(ops.empty());
  EXPECT_THAT(ops, ::testing::Contains("Relu"));
  EXPECT_THAT(ops, Not(::testing::Contains("Tanh")));
}

std::string known_ints(const std::string& name, const std::vector<int64_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  return constant(name, tensor("", kInt64, {count}, raw(values)));
}

// Pads as PyTorch's older exporter computes them; ONNX's shape inference does not see through
// them.
TEST_F(Rewrite, AConditionBehindComputedPadsIsKnown) {
  const auto ops = operators_of(
      image_model({known_ints("given", {0, 0, 1, 1}), known_ints("pairs", {2, 2}),
                   known_ints("flat", {-1}), node("Reshape", {"given", "pairs"}, {"by_axis"}, ""),
                   node("Transpose", {"by_axis"}, {"by_side"}, ""),
                   node("Reshape", {"by_side", "flat"}, {"pads"}, ""),
                   node("Pad", {"x", "pads"}, {"padded"}, ""),
                   node("Shape", {"padded"}, {"shape"}, "") + int_attribute("start", 1),
                   known_int("five", 5), node("Squeeze", {"shape"}, {"axis"}, ""),
                   node("Equal", {"axis", "five"}, {"condition"}, ""), either()}));
  EXPECT_THAT(ops, ::testing::Contains("Relu"));
  EXPECT_THAT(ops, Not(::testing::Contains("Tanh")));
}

// Until opset 13 BatchNormalization has no training_mode: five outputs mean training.
TEST_F(Rewrite, BatchNormalizationOfOpset13KeepsTraining) {
  SmallModel model =
      image_model({node("BatchNormalization", {"x", "scale", "bias", "mean", "variance"},
                        {"y", "next_mean", "next_variance", "kept", "kept_too"}, "norm")});
  for (const char* name : {"scale", "bias", "mean", "variance"}) {
    model.initializers.push_back(tensor(name, kFloat, {3}, raw<float>({1, 1, 1})));
  }
  model.opset = 13;
  const auto graph = imported(model);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  ASSERT_EQ(graph->nodes.size(), 1u);
  EXPECT_EQ(graph->nodes[0].attributes.i("training_mode", 0), 1);
  EXPECT_EQ(graph->nodes[0].outputs.size(), 3u);
}

// y = Cast(x) w: with float16 weights all of it is float32, like parameters.
TEST_F(Rewrite, AModelWithWeightsOfFloat16ComputesInFloat32) {
  constexpr int kHalf = 10;
  SmallModel model = image_model({node("Cast", {"x"}, {"half"}, "") + int_attribute("to", kHalf),
                                  node("MatMul", {"half", "w"}, {"y"}, "")});
  model.initializers = {tensor("w", kHalf, {3, 8}, raw(std::vector<uint16_t>(24, 0x3c00)))};
  model.outputs = {declared("y", {2, 8}, kHalf)};
  const auto graph = imported(model);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_EQ(graph->value(graph->find("w")).desc.dtype, DType::kFloat32);
  EXPECT_EQ(graph->nodes[0].attributes.i("to", 0), 1);
}

TEST_F(Rewrite, AConditionThatDependsOnDataIsNamed) {
  SmallModel model = image_model({either()});
  model.inputs.push_back(declared("condition", {}, kBool));
  EXPECT_THAT(error_of(model), AllOf(HasSubstr("If (1 node: choice;"),
                                     HasSubstr("condition is not known before the run")));
}

// Three iterations of s = s + x.
std::string loop(const std::string& limit) {
  const auto state = declared("s", {2, 3});
  const auto one =
      body({node("Add", {"s", "x"}, {"sum"}, "add"), node("Identity", {"go"}, {"still"}, "")},
           {declared("i", {}, kInt64), declared("go", {}, kBool), state},
           {declared("still", {}, kBool), declared("sum", {2, 3})});
  return node("Loop", {limit, "", "x"}, {"y"}, "repeat") + graph_attribute("body", one);
}

TEST_F(Rewrite, ALoopOfAKnownNumberOfIterationsIsUnrolled) {
  const auto ops = operators_of(image_model({known_int("three", 3), loop("three")}));
  EXPECT_EQ(std::ranges::count(ops, "Add"), 3);
}

TEST_F(Rewrite, ALoopOfAnUnknownNumberOfIterationsIsNamed) {
  SmallModel model = image_model({loop("times")});
  model.inputs.push_back(declared("times", {}, kInt64));
  EXPECT_THAT(error_of(model), AllOf(HasSubstr("Loop (1 node: repeat;"),
                                     HasSubstr("number of iterations is not known")));
}

// ONNX's inference cannot tell how many rows Compress keeps; the file can.
TEST_F(Rewrite, AScanTakesTheNumberOfItsIterationsFromTheFileIfInferenceCannotTell) {
  const auto row = declared("row", {3});
  const auto one = body({node("Add", {"before", "row"}, {"after"}, "add")},
                        {declared("before", {3}), row}, {declared("after", {3})});
  const std::string scan = node("Scan", {"start", "kept"}, {"y"}, "scan") +
                           graph_attribute("body", one) + int_attribute("num_scan_inputs", 1);
  const std::string compress =
      node("Compress", {"x", "keep"}, {"kept"}, "") + int_attribute("axis", 0);
  SmallModel model = image_model({compress, scan});
  model.inputs.push_back(declared("keep", {2}, kBool));
  model.inputs.push_back(declared("start", {3}));
  model.infos.push_back(declared("kept", {2, 3}));
  model.outputs = {declared("y", {3})};
  EXPECT_EQ(std::ranges::count(operators_of(model), "Add"), 2);
}

TEST_F(Rewrite, SequencesBecomeTheirTensors) {
  EXPECT_THAT(operators_of(image_model(
                  {node("Relu", {"x"}, {"a"}, ""), node("Tanh", {"x"}, {"b"}, ""),
                   node("SequenceConstruct", {"a", "b"}, {"s"}, ""), known_int("last", -1),
                   node("SequenceAt", {"s", "last"}, {"y"}, "")})),
              ElementsAre("Relu", "Tanh", "Constant", "Identity"));
}

TEST_F(Rewrite, SplitToSequenceAndBackAreSplitAndConcat) {
  const auto ops = operators_of(
      image_model({known_int("two", 2),
                   node("SplitToSequence", {"x", "two"}, {"s"}, "") + int_attribute("axis", 1),
                   node("ConcatFromSequence", {"s"}, {"y"}, "") + int_attribute("axis", 1)}));
  EXPECT_THAT(ops, ElementsAre("Constant", "Constant", "Split", "Concat"));
}

TEST_F(Rewrite, APieceOfASplitOfAnUnknownAxisIsASlice) {
  SmallModel model = image_model(
      {known_int("two", 2), known_int("first", 0), node("SplitToSequence", {"x", "two"}, {"s"}, ""),
       node("Identity", {"s"}, {"same"}, ""), node("SequenceAt", {"same", "first"}, {"y"}, "")});
  model.inputs = {declared("x", {-1, 3})};
  EXPECT_THAT(operators_of(model), ::testing::Contains("Slice"));
}

TEST_F(Rewrite, APositionOutsideOfASequenceIsAnError) {
  EXPECT_THAT(
      error_of(image_model({node("SequenceConstruct", {"x"}, {"s"}, ""), known_int("second", 1),
                            node("SequenceAt", {"s", "second"}, {"y"}, "take")})),
      AllOf(HasSubstr("node 'take' (SequenceAt)"),
            HasSubstr("position 1 is outside of a sequence of 1")));
}

TEST_F(Rewrite, AnOperatorWithoutAKernelBecomesItsFunction) {
  Registry fewer;
  for (const auto& [key, op] : registry.all()) {
    if (op.name != "Celu") fewer.add(op);
  }
  registry = fewer;
  const auto graph = imported(image_model({node("Celu", {"x"}, {"y"}, "")}));
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_THAT(operators(*graph), ElementsAre("Constant", "CastLike", "Div", "Elu", "Mul"));
  // The default for the attribute that the node lacks.
  const auto alpha = graph->nodes[0].attributes.get<ConstantPtr>("value", nullptr);
  const float given =
      alpha != nullptr ? alpha->as<float>()[0] : graph->nodes[0].attributes.f("value_float", 0);
  EXPECT_EQ(given, 1.0f);
}

TEST_F(Rewrite, OneListOfOperatorsSaysWhichAPluginMaySupply) {
  SmallModel model = image_model({node("Fancy", {"x"}, {"a"}, "one", "com.acme"),
                                  node("Fancy", {"a"}, {"b"}, "two", "com.acme"),
                                  node("ImageDecoder", {"b"}, {"y"}, "three")});
  model.domains = {"com.acme"};
  EXPECT_THAT(error_of(model),
              HasSubstr("operators without a kernel: ImageDecoder (1 node: three); "
                        "com.acme.Fancy (2 nodes: one, two; a plug-in may "
                        "supply it)"));
}

TEST_F(Rewrite, AnInitializerOfAnUnsupportedTypeMattersWhenANodeReadsIt) {
  SmallModel model = image_model({node("Relu", {"x"}, {"y"}, "clamp")});
  model.initializers = {tensor("words", kString, {1}, message(6, "hello"))};
  EXPECT_THAT(operators_of(model), ElementsAre("Relu"));
  model.nodes = {node("Add", {"x", "words"}, {"y"}, "join")};
  EXPECT_THAT(error_of(model), AllOf(HasSubstr("join"), HasSubstr("words")));
}

TEST_F(Rewrite, ExternalDataOfAnAttributeIsAnError) {
  const auto far = tensor("far", kFloat, {2, 3}, external("weights.bin", "0", "24"));
  EXPECT_THAT(error_of(image_model({constant("c", far), node("Add", {"x", "c"}, {"y"}, "")})),
              AllOf(HasSubstr("far"), HasSubstr("weights.bin")));
}

TEST_F(Rewrite, OldOpsetsAreConverted) {
  SmallModel model = image_model({node("Relu", {"x"}, {"y"}, "")});
  for (const uint64_t opset : {7, 9, 12, 28}) {
    model.opset = opset;
    EXPECT_THAT(operators_of(model), ElementsAre("Relu")) << opset;
  }
  EXPECT_EQ(oldest_opset("Relu"), 1);
  EXPECT_EQ(oldest_opset("LayerNormalization"), 17);
}

}  // namespace importer_rewrite_test
}  // namespace ofsdp
