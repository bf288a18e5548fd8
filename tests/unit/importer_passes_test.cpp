// The importer's passes on small graphs: specialization, loss, trained set, autodiff, layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/passes/fusion/fusion.h"
#include "importer/passes/loss.h"
#include "importer/passes/model_inputs.h"
#include "importer/passes/passes.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "importer/training_source.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace importer_passes_test {

using ::testing::ElementsAre;
using testing::GraphMaker;
using ::testing::HasSubstr;
using testing::operators;

const TensorDesc kImage{DType::kFloat32, {2, 3, 8, 8}};

class Passes : public ::testing::Test {
 protected:
  // A scalar loss: the mean over `x` against zeros.
  ValueId mean_loss(ValueId x) {
    const ValueId target =
        maker.input("target", {DType::kFloat32, maker.graph.value(x).desc.shape});
    return maker.node("ofsdp.MseLoss", "loss", {x, target});
  }

  ValueId angle_constants() {
    const float values[] = {-3.4e38f, 0.5f, 1.0f};
    return GraphEditor(maker.graph)
        .add_constant("angles", make_constant<float>(DType::kFloat32, {3}, values));
  }

  Registry registry = make_registry();
  GraphMaker maker{registry};
};

TEST_F(Passes, SpecializeFoldsWhatDependsOnShapesAlone) {
  const ValueId x = maker.input("x", {DType::kFloat32, {}});
  maker.graph.value(x).declared = {{-1, "batch"}, {3, ""}, {4, ""}};
  GraphEditor editor(maker.graph);
  // Shape and the Reshape that reads it are added without inference: the input has no shape yet.
  auto raw = [&](const char* op, std::vector<ValueId> inputs, Attributes attributes, DType dtype) {
    const ValueId out = editor.add_value({op, ValueKind::kActivation, {dtype, {}}});
    maker.graph.nodes.push_back(
        {&registry.get(op), op, attributes, std::move(inputs), {out}, false});
    return out;
  };
  const ValueId first = raw("Shape", {x}, {{"end", int64_t{1}}}, DType::kInt64);
  const ValueId shape =
      raw("Concat", {first, maker.ints({-1})}, {{"axis", int64_t{0}}}, DType::kInt64);
  const ValueId flat = raw("Reshape", {x, shape}, {}, DType::kFloat32);
  const ValueId out = raw("Relu", {flat}, {}, DType::kFloat32);
  const auto shapes = bind_inputs(maker.graph, {{"x", {3, 4}}}, 5);
  ASSERT_TRUE(shapes.ok());
  const auto graph = specialize(maker.graph, *shapes, Mode::kTrain);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_THAT(operators(*graph), ElementsAre("Reshape", "Relu"));
  EXPECT_EQ(graph->value(out).desc.shape, (Shape{5, 12}));
}

// Masks and positions stay float32 until they meet activations; the loss is float32 again.
TEST_F(Passes, LowerPrecisionConvertsWhereTypesMeet) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 3}});
  const ValueId w = maker.parameter("w", {3, 3});
  const ValueId y = maker.node("MatMul", "product", {x, w});
  const ValueId angles = maker.node("Cos", "cos", {angle_constants()});
  maker.graph.terms = {{mean_loss(maker.node("Add", "sum", {y, angles}))}};
  const auto graph = lower_precision(maker.graph, DType::kBFloat16);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_THAT(operators(*graph),
              ElementsAre("Cast", "MatMul", "Cos", "Cast", "Add", "Cast", "ofsdp.MseLoss"));
  EXPECT_EQ(graph->value(w).desc.dtype, DType::kBFloat16);
  EXPECT_EQ(graph->value(y).desc.dtype, DType::kBFloat16);
  EXPECT_EQ(graph->value(angles).desc.dtype, DType::kFloat32);
  EXPECT_EQ(graph->value(graph->terms[0].value).desc.dtype, DType::kFloat32);
  for (ValueId id : graph->inputs) EXPECT_EQ(graph->value(id).desc.dtype, DType::kFloat32);
}

// A past goes with its present; if another operator reads it too, it is an ordinary input.
TEST_F(Passes, APastOfAttentionIsFedEmpty) {
  const TensorDesc heads{DType::kFloat32, {2, 1, 3, 4}};
  const ValueId q = maker.input("q", heads);
  const ValueId key = maker.input("key", heads), value = maker.input("value", heads);
  for (const ValueId past : {key, value}) {
    maker.graph.value(past).declared = {{-1, "b"}, {1, ""}, {-1, "p"}, {4, ""}};
  }
  const std::vector<ValueId> made =
      *GraphEditor(maker.graph).add("Attention", "a", {q, q, q, 0, key, value}, {}, 3);
  maker.graph.outputs = made;
  const auto without = without_past(maker.graph, {"q"});
  ASSERT_TRUE(without.ok()) << without.error().message();
  EXPECT_THAT(without->fed_empty, ElementsAre("key", "value"));
  EXPECT_THAT(without->graph.inputs, ElementsAre(q));
  EXPECT_THAT(without->graph.outputs, ElementsAre(made[0]));
  EXPECT_THAT(without->graph.nodes[0].inputs, ElementsAre(q, q, q, 0, 0, 0));
  EXPECT_THAT(without_past(maker.graph, {"value"}).error().message(), HasSubstr("input 'value'"));
  const ValueId shape = maker.node("Shape", "shape", {key});
  const Graph shaped =
      *specialize(without_past(maker.graph, {})->graph, {{"q", heads.shape}}, Mode::kTrain);
  ASSERT_NE(shaped.value(shape).constant, nullptr);
  EXPECT_THAT(*int_values(*shaped.value(shape).constant), ElementsAre(2, 1, 0, 4));
  maker.node("Relu", "r", {key});
  EXPECT_THAT(without_past(maker.graph, {})->fed_empty, ElementsAre("value"));
}

// Scores [N, C] are read in 16 bits; labels are still counted, log-probabilities not kept.
TEST_F(Passes, LowerPrecisionLeavesScoresNarrow) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 3}});
  const ValueId labels = maker.input("labels", {DType::kInt64, {2}});
  const ValueId scores = maker.node("MatMul", "scores", {x, maker.parameter("w", {3, 4})});
  maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "loss", {scores, labels})}};
  const auto graph = lower_precision(maker.graph, DType::kBFloat16);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_THAT(operators(*graph), ElementsAre("Cast", "MatMul", "ofsdp.NarrowCrossEntropyLoss"));
  EXPECT_EQ(graph->value(graph->terms[0].value).desc.dtype, DType::kFloat32);
  EXPECT_EQ(loss_count(*graph).labels, "labels");
  const Graph trained = *autodiff(*graph);
  EXPECT_EQ(trained.value(trained.parameters[0].gradient).desc.dtype, DType::kBFloat16);
}

TEST_F(Passes, AFiniteConstantStaysFinite) {
  const float values[] = {-3.4028235e38f, 1e6f, 0.1f};
  const auto constant = make_constant<float>(DType::kFloat32, {3}, values);
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const ConstantPtr made = narrowed(*constant, dtype);
    const auto found = to_doubles(made->desc, made->bytes.data());
    EXPECT_TRUE(std::isfinite(found[0]) && found[0] < -60000) << found[0];
    EXPECT_TRUE(std::isfinite(found[1]));
    EXPECT_NEAR(found[2], 0.1, 1e-3);
  }
}

TEST_F(Passes, BindNamesAxisAndBothNumbers) {
  const ValueId x = maker.input("x", {DType::kFloat32, {}});
  const ValueId y = maker.input("y", {DType::kFloat32, {}});
  maker.graph.value(x).declared = {{-1, "batch"}, {-1, "length"}};
  maker.graph.value(y).declared = {{-1, "batch"}, {-1, "length"}};
  const auto shapes = bind_inputs(maker.graph, {{"x", {7}}, {"y", {9}}}, 2);
  ASSERT_FALSE(shapes.ok());
  EXPECT_THAT(shapes.error().message(),
              HasSubstr("axis 'length' is 7 in column 'x' and 9 in column 'y'"));
}

TEST_F(Passes, DropoutIsIdentityInEvaluation) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  GraphEditor editor(maker.graph);
  const float ratio = 0.5f;
  const bool training = true;
  const ValueId r =
      editor.add_constant("ratio", make_constant<float>(DType::kFloat32, Shape{}, {&ratio, 1}));
  const ValueId t =
      editor.add_constant("training", make_constant<bool>(DType::kBool, Shape{}, {&training, 1}));
  maker.node("Dropout", "drop", {x, r, t});
  const std::map<std::string, Shape> shapes{{"x", {2, 4}}};
  EXPECT_THAT(operators(*specialize(maker.graph, shapes, Mode::kTrain)), ElementsAre("Dropout"));
  EXPECT_THAT(operators(*specialize(maker.graph, shapes, Mode::kEval)), ElementsAre("Identity"));
}

// Statistics of weights hold no batch; for samples, evaluation takes running statistics.
TEST_F(Passes, StatisticsOfWeightsAreTakenInEvaluationToo) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  const ValueId w = maker.node("Relu", "positive", {maker.parameter("w", {2, 4})});
  std::vector<ValueId> of_channels;
  for (const char* name : {"scale", "bias", "mean", "variance"}) {
    of_channels.push_back(maker.parameter(name, {4}));
  }
  for (const ValueId values : {x, w}) {
    std::vector<ValueId> inputs{values};
    inputs.insert(inputs.end(), of_channels.begin(), of_channels.end());
    maker.node("BatchNormalization", values == x ? "of_x" : "of_w", inputs,
               {{"training_mode", int64_t{1}}});
  }
  const auto graph = specialize(maker.graph, {{"x", {2, 4}}}, Mode::kEval);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  std::vector<int64_t> trains;
  for (const Node& node : graph->nodes) {
    if (node.op->full_name() != "BatchNormalization") continue;
    trains.push_back(node.attributes.i("training_mode", 0));
  }
  EXPECT_THAT(trains, ElementsAre(0, 1));
}

TEST_F(Passes, LossIsFoundOrTheCandidatesAreNamed) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  const ValueId y = maker.node("Relu", "y", {x});
  maker.graph.outputs = {y};
  auto none = resolve_loss(maker.graph, {});
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message(), HasSubstr("found 0 in y float32[2, 4]"));
  maker.graph.outputs.push_back(mean_loss(y));
  const auto found = resolve_loss(maker.graph, {});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->kind, LossKind::kOutput);
  EXPECT_EQ(found->output, "loss");
}

TEST_F(Passes, LabelsAreTheOnlySpareColumn) {
  maker.input("x", {DType::kFloat32, {2, 4}});
  LossSpec spec;
  spec.kind = LossKind::kCrossEntropy;
  EXPECT_EQ(resolve_labels(maker.graph, spec, {"x", "digit"})->labels, "digit");
  const auto two = resolve_labels(maker.graph, spec, {"x", "a", "b"});
  ASSERT_FALSE(two.ok());
  EXPECT_THAT(two.error().message(), HasSubstr("found 2 (columns: x, a, b)"));
  spec.labels = "c";
  EXPECT_THAT(resolve_labels(maker.graph, spec, {"x", "a"}).error().message(),
              HasSubstr("--labels c"));
}

TEST_F(Passes, LossCountsKeptLabelsWhereTheyAreAColumn) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 3, 4}});
  const ValueId labels = maker.input("labels", {DType::kInt64, {2, 3}});
  const ValueId rows = maker.node("Reshape", "rows", {x, maker.ints({-1, 4})});
  const ValueId flat = maker.node("Reshape", "flat", {labels, maker.ints({-1})});
  maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "sce", {rows, flat},
                                   {{"ignore_index", int64_t{-1}}})}};
  const LossCount count = loss_count(maker.graph);
  EXPECT_TRUE(count.by_label);
  EXPECT_EQ(count.labels, "labels");
  EXPECT_EQ(count.ignore_index, -1);
  EXPECT_EQ(count.classes, 4);
  maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "sum", {rows, flat},
                                   {{"reduction", std::string("sum")}})}};
  EXPECT_TRUE(loss_count(maker.graph).by_label && loss_count(maker.graph).form == TermForm::kSum);
  maker.graph.terms = {{maker.node("Identity", "same", {maker.graph.terms[0].value})}};
  EXPECT_TRUE(loss_count(maker.graph).form == TermForm::kSum);
  // A scaled sum counts as any scalar.
  maker.graph.terms = {
      {maker.node("Mul", "scaled", {maker.graph.terms[0].value, maker.parameter("scale", {1})})}};
  EXPECT_FALSE(loss_count(maker.graph).by_label || loss_count(maker.graph).form == TermForm::kSum);
  maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "each", {rows, flat},
                                   {{"reduction", std::string("none")}})}};
  EXPECT_FALSE(loss_count(maker.graph).by_label || loss_count(maker.graph).form == TermForm::kSum);
}

// Returns the names that a run without --train and --freeze trains.
std::set<std::string> trained_names(const Graph& graph) {
  const Graph chosen = *choose_candidates(graph, {});
  std::set<std::string> names;
  for (const Parameter& p : chosen.parameters) {
    if (p.trained) names.insert(p.name);
  }
  return names;
}

TEST_F(Passes, TrainedSetFollowsNamesThenRules) {
  for (const auto& [name, shape] : {std::pair<const char*, Shape>{"fc.weight", {4, 4}},
                                    {"scale", {}},
                                    {"rope.inv_freq", {8}},
                                    {"w[0]", {4}}}) {
    maker.node("Relu", std::string("reads ") + name, {maker.parameter(name, shape)});
  }
  maker.parameter("unread", {4});
  auto chosen = [&](const TrainedRules& rules) {
    std::string names;
    const Graph graph = *choose_candidates(maker.graph, rules);
    for (const Parameter& p : graph.parameters) names += p.trained ? p.name + " " : "";
    return names;
  };
  EXPECT_EQ(chosen({}), "fc.weight w[0] ");
  EXPECT_EQ(chosen({{"w[0]"}, {}}), "fc.weight ") << "the literal name comes before the pattern";
  EXPECT_EQ(chosen({{}, {"scale", "*inv_freq"}}), "scale rope.inv_freq ");
  EXPECT_EQ(chosen({{"sc*"}, {"scale", "fc*"}}), "fc.weight ") << "freeze beats train";
  EXPECT_EQ(chosen({{"scale"}, {}}), "fc.weight w[0] ")
      << "freezing what is not trained is no error";
  const auto unmatched = choose_candidates(maker.graph, {{"nothing*"}, {}});
  ASSERT_FALSE(unmatched.ok());
  EXPECT_THAT(unmatched.error().message(), HasSubstr("--freeze nothing*"));
}

// Limits, fills and choices are numbers in the graph, not weights.
TEST_F(Passes, OneNumberThatABoundReadsIsNotTrained) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  const ValueId chosen = maker.input("chosen", {DType::kBool, {2, 4}});
  const auto number = [&](const char* name) { return maker.parameter(name, {1, 1}); };
  maker.node("Max", "y1", {x, number("max")});
  maker.node("Min", "y2", {x, number("min")});
  maker.node("Where", "y3", {chosen, x, number("where")});
  maker.node("Expand", "y4", {number("expand"), maker.ints({2, 4})});
  const ValueId limit = maker.node("Reshape", "limit", {number("clip"), maker.ints({})});
  maker.node("Clip", "y5", {x, limit});
  maker.node("Mul", "y6", {x, number("mul")});                // a learned scale
  maker.node("Max", "y7", {x, maker.parameter("row", {4})});  // not one number
  const Graph graph = *choose_candidates(maker.graph, {});
  std::string names;
  for (const Parameter& p : graph.parameters) names += p.trained ? p.name + " " : "";
  EXPECT_EQ(names, "mul row ");
  EXPECT_EQ(graph.parameters[0].reason, "one number that Max reads");
  const Graph named = *choose_candidates(maker.graph, {{}, {"max", "clip"}});
  EXPECT_TRUE(named.parameters[0].trained) << "--train takes it";
}

// The scale for queries and keys, as PyTorch's exporter writes attention with a mask.
TEST_F(Passes, OneNumberThatScalesBothFactorsIsNotTrained) {
  const ValueId q = maker.input("q", {DType::kFloat32, {2, 4}});
  const ValueId k = maker.input("k", {DType::kFloat32, {3, 4}});
  const auto product = [&](const std::string& name, ValueId of_q, ValueId of_k) {
    const ValueId scaled = maker.node("Mul", name + ".k", {k, of_k});
    const ValueId columns = maker.node("Transpose", name + ".t", {scaled});
    maker.node("MatMul", name, {maker.node("Mul", name + ".q", {q, of_q}), columns});
  };
  const auto number = [&](const char* name) { return maker.parameter(name, {1}); };
  const ValueId both = number("both");
  product("y1", both, both);
  product("y2", number("left"), number("right"));  // scales that are learned
  const ValueId square = number("square");
  maker.node("MatMul", "y3", {maker.node("Mul", "s", {q, square}), maker.parameter("w", {4, 4})});
  maker.node("Mul", "y4", {q, number("val_7")});
  maker.node("Mul", "y5", {q, number("val_scale")});
  EXPECT_EQ(trained_names(maker.graph),
            (std::set<std::string>{"left", "right", "square", "val_scale", "w"}));
}

// x cos + half(x) sin, as PyTorch's exporter folds rotary tables.
TEST_F(Passes, TablesOfARotationAreNotTrained) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 3, 4}});
  const auto cut = [&](const char* name, int64_t from, int64_t to) {
    return maker.node("Slice", name, {x, maker.ints({from}), maker.ints({to}), maker.ints({2})});
  };
  const auto rotate = [&](const std::string& name, ValueId half, ValueId cos, ValueId sin) {
    maker.node("Add", name,
               {maker.node("Mul", name + ".cos", {x, cos}),
                maker.node("Mul", name + ".sin", {half, sin})});
  };
  const auto table = [&](const char* name) { return maker.parameter(name, {1, 3, 4}); };
  const ValueId negative = maker.node("Neg", "n", {cut("b", 2, 4)});
  const ValueId half =
      maker.node("Concat", "half", {negative, cut("a", 0, 2)}, {{"axis", int64_t{2}}});
  rotate("y1", half, table("cos"), table("sin"));
  rotate("y2", x, table("scale"), table("other"));  // no rotation
  EXPECT_EQ(trained_names(maker.graph), (std::set<std::string>{"other", "scale"}));
}

// Integers that no whole weight was made of, times a scale, before or after a product.
TEST_F(Passes, ScalesOfStoredIntegersAreNotTrained) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  const Attributes to_float{{"to", int64_t{1}}};
  const auto integers = [&](const std::string& name) {
    return maker.node("Cast", name + ".floats", {maker.ints({3, -5, 7, 1})}, to_float);
  };
  const auto times = [&](const std::string& name, ValueId other) {
    return maker.node("Mul", name + ".mul", {maker.parameter(name, {4}), other});
  };
  times("of_vector", integers("a"));
  const ValueId zero = maker.node("Cast", "zero", {maker.ints({2})}, to_float);
  times("with_zero_point", maker.node("Sub", "centred", {integers("b"), zero}));
  const ValueId matrix = maker.node("Reshape", "matrix", {integers("c"), maker.ints({4, 1})});
  times("of_product", maker.node("MatMul", "product", {x, matrix}));
  times("of_data", x);
  times("of_float_product", maker.node("MatMul", "dense", {x, maker.parameter("w", {4, 4})}));
  const ValueId both = maker.parameter("of_both", {4});
  maker.node("Mul", "one", {both, integers("d")});
  maker.node("Add", "two", {both, x});
  EXPECT_EQ(trained_names(maker.graph),
            (std::set<std::string>{"of_data", "of_float_product", "w", "of_both"}));
}

// Scores plus slopes times positions, as PyTorch's exporter writes Bloom; near misses are weights.
TEST_F(Passes, SlopesOfPositionsAreNotTrained) {
  const ValueId q = maker.input("q", {DType::kFloat32, {2, 2, 3, 4}});
  const ValueId k = maker.input("k", {DType::kFloat32, {2, 2, 4, 3}});
  const ValueId mask = maker.input("attention_mask", {DType::kInt64, {2, 1, 1, 3}});
  const ValueId distance = maker.input("distance", {DType::kInt64, {2, 1, 1, 3}});
  const Attributes to_float{{"to", int64_t{1}}};
  const auto as_float = [&](const std::string& name, ValueId x) {
    return maker.node("Cast", name, {x}, to_float);
  };
  const auto attend = [&](const std::string& name, ValueId bias) {
    const ValueId scores = maker.node("MatMul", name + ".qk", {q, k});
    maker.node("Softmax", name, {maker.node("Add", name + ".sum", {scores, bias})});
  };
  const auto times = [&](const std::string& name, Shape shape, ValueId other) {
    return maker.node("Mul", name + ".mul", {maker.parameter(name, shape), other});
  };
  const ValueId last = maker.ints({-1});
  const ValueId positions = as_float("p", maker.node("CumSum", "sums", {mask, last}));
  const ValueId kept = as_float("m", mask);
  attend("y1", times("slopes", {2, 1, 1}, positions));
  attend("y2", maker.node("Sub", "masked", {times("more", {1, 2, 1, 1}, positions), kept}));
  attend("y3", times("table_kept", {1, 2, 3, 3}, positions));  // a table of positions
  attend("y4", times("of_mask", {2, 1, 1}, kept));
  attend("y5", times("of_data", {2, 1, 1}, as_float("d", distance)));
  attend("y6", maker.node("Gather", "row", {maker.parameter("table", {3}), mask}));
  attend("y7", maker.node("Exp", "e", {times("logs", {2, 1, 1}, positions)}));
  attend("y8", maker.parameter("bias", {2, 1, 1}));
  const ValueId feature = times("of_feature", {2, 1, 1}, positions);
  maker.node("Softmax", "y9", {maker.node("Add", "f", {k, feature})});
  const ValueId both = times("of_both", {2, 1, 1}, positions);
  attend("y10", both);
  maker.node("Relu", "y11", {both});
  EXPECT_EQ(trained_names(maker.graph),
            (std::set<std::string>{"table_kept", "of_mask", "of_data", "table", "logs", "bias",
                                   "of_feature", "of_both"}));
}

// Values of an operator that are no weights, whatever their size.
TEST_F(Passes, SettingsOfAnOperatorAreNotTrained) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 8, 1}});
  const ValueId classes = maker.input("classes", {DType::kInt64, {2}});
  const ValueId off_on = maker.parameter("off_on", {2});
  maker.node("OneHot", "y1", {classes, maker.ints({7}), off_on});
  maker.node("STFT", "y2", {x, maker.ints({2}), maker.parameter("window", {4})});
  const auto groups = [&](const std::string& name) {
    const ValueId in = maker.node("Reshape", name + ".in", {x, maker.ints({2, 2, -1})});
    const ValueId normal = maker.node(
        "InstanceNormalization", name + ".norm",
        {in, maker.parameter(name + ".ones", {2}), maker.parameter(name + ".zeros", {2})});
    return maker.node("Reshape", name + ".out", {normal, maker.ints({2, 8})});
  };
  maker.node("Mul", "y3", {groups("group"), maker.parameter("weight", {8})});
  maker.node("Relu", "y4", {groups("instance")});  // its own scale and shift
  const ValueId gated = groups("gated");
  maker.node("Mul", "y5", {gated, maker.input("gate", {DType::kFloat32, {2, 8}})});
  groups("last");
  EXPECT_EQ(trained_names(maker.graph),
            (std::set<std::string>{"instance.ones", "instance.zeros", "weight", "gated.ones",
                                   "gated.zeros", "last.ones", "last.zeros"}));
}

TEST_F(Passes, NothingToTrainAndAnUnreachedLossAreErrors) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  const ValueId w = maker.parameter("w", {4, 4});
  maker.node("MatMul", "beside", {x, w});
  maker.graph.terms = {{mean_loss(maker.node("Relu", "y", {x}))}};
  const auto unreached = keep_reached(maker.graph, *autodiff(maker.graph));
  ASSERT_FALSE(unreached.ok());
  EXPECT_THAT(unreached.error().message(),
              HasSubstr("the loss 'loss' reaches no trainable initializer"));
  maker.graph.parameters[0].trained = false;
  const auto nothing = keep_reached(maker.graph, *autodiff(maker.graph));
  EXPECT_THAT(nothing.error().message(), HasSubstr("nothing to train"));
}

TEST_F(Passes, AParameterUsedTwiceGetsOneSum) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  const ValueId w = maker.parameter("w", {4, 4});
  const ValueId once = maker.node("MatMul", "once", {x, w});
  maker.graph.terms = {{mean_loss(maker.node("MatMul", "twice", {once, w}))}};
  const Graph graph = *autodiff(maker.graph);
  const auto names = operators(graph);
  EXPECT_EQ(std::ranges::count(names, "Add"), 1);
  EXPECT_EQ(graph.nodes.back().outputs[0], graph.parameters[0].gradient);
}

// A tied embedding adds a few rows onto the other gradient.
TEST_F(Passes, ATiedLookupAddsOntoTheOtherGradient) {
  const ValueId tokens = maker.input("tokens", {DType::kInt64, {5}});
  const ValueId table = maker.parameter("table", {7, 4});
  const ValueId rows = maker.node("Gather", "rows", {table, tokens});
  maker.graph.terms = {
      {mean_loss(maker.node("Gemm", "scores", {rows, table}, {{"transB", int64_t{1}}}))}};
  const Graph graph = *autodiff(maker.graph);
  const auto names = operators(graph);
  EXPECT_EQ(std::ranges::count(names, "Add"), 0);
  ASSERT_EQ(graph.nodes.back().op->full_name(), "ofsdp.GatherGrad");
  EXPECT_EQ(graph.nodes.back().inputs.size(), 3u);
  EXPECT_EQ(graph.nodes.back().outputs[0], graph.parameters[0].gradient);
}

// With one gradient for two parameters, the same bytes would have two owners.
TEST_F(Passes, TwoParametersNeverShareAGradient) {
  const ValueId a = maker.parameter("a", {2, 4});
  const ValueId b = maker.parameter("b", {2, 4});
  maker.graph.terms = {{mean_loss(maker.node("Add", "sum", {a, b}))}};
  const Graph graph = *autodiff(maker.graph);
  EXPECT_NE(graph.parameters[0].gradient, graph.parameters[1].gradient);
  EXPECT_THAT(operators(graph), ::testing::Contains("ofsdp.Copy"));
}

TEST_F(Passes, FrozenParametersCostNoGradient) {
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 4}});
  const ValueId frozen = maker.parameter("frozen", {4, 4}, false);
  const ValueId w = maker.parameter("w", {4, 4});
  const ValueId below = maker.node("MatMul", "below", {x, frozen});
  maker.graph.terms = {{mean_loss(maker.node("MatMul", "above", {below, w}))}};
  const Graph graph = *autodiff(maker.graph);
  EXPECT_EQ(graph.parameters[0].gradient, 0);
  int backward = 0;
  for (const Node& node : graph.nodes) backward += node.backward && !node.op->view;
  EXPECT_LE(backward, 3) << text(graph);  // loss gradient and one product (and at most a transpose)
}

TEST_F(Passes, OperatorsWithoutGradientAreListedTogether) {
  const ValueId w = maker.parameter("w", {2, 4});
  const ValueId a = maker.node("ofsdp.ReluGrad", "odd1", {w, w});
  maker.graph.terms = {{mean_loss(maker.node("ofsdp.ReluGrad", "odd2", {a, w}))}};
  const auto graph = autodiff(maker.graph);
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().message(), HasSubstr("ofsdp.ReluGrad (odd1, odd2)"));
}

TEST_F(Passes, AGradientOperatorOfOnnxRuntimeHasTheOutputsOfItsRule) {
  const OpDef op{.domain = "com.microsoft", .name = "ReluGrad", .min_inputs = 2};
  const ValueId x = maker.input("x", {DType::kFloat32, {2, 3}});
  const Node slope{&op, "slope", {}, {x, x}, {x, x}, true};
  const Status status = replace_gradient(maker.graph, slope);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("output 1 is no gradient of Relu"));
}

TEST_F(Passes, ChannelsLastChainsNeedNoReorderInside) {
  const ValueId x = maker.input("x", kImage);
  const ValueId w1 = maker.parameter("w1", {16, 3, 3, 3});
  const ValueId w2 = maker.parameter("w2", {16, 16, 3, 3});
  const ValueId c1 = maker.node("Conv", "c1", {x, w1});
  const ValueId c2 = maker.node("Conv", "c2", {maker.node("Relu", "r1", {c1}), w2});
  maker.node("ofsdp.CollapseAll", "flat", {maker.node("Relu", "r2", {c2})});
  const Graph graph = *assign_layouts(maker.graph);
  EXPECT_THAT(operators(graph), ElementsAre("ofsdp.Reorder", "Conv", "Relu", "Conv", "Relu",
                                            "ofsdp.Reorder", "ofsdp.CollapseAll"));
  EXPECT_EQ(graph.value(graph.find("r1")).desc.layout, Layout::kChannelsLast);
  EXPECT_EQ(graph.value(graph.find("flat")).desc.layout, Layout::kPlain);
}

TEST_F(Passes, MaxPoolTakesTheReluBeforeItUnlessSomebodyElseReadsIt) {
  const ValueId x = maker.input("x", kImage);
  const ValueId r = maker.node("Relu", "r", {x});
  const Attributes window{{"kernel_shape", std::vector<int64_t>{2, 2}}};
  maker.graph.outputs = {maker.node("MaxPool", "pool", {r}, window)};
  const auto& wanted = maker.graph.outputs;
  EXPECT_THAT(operators(fuse(maker.graph, wanted)), ElementsAre("MaxPool"));
  EXPECT_EQ(fuse(maker.graph, wanted).nodes[0].attributes.s("ofsdp_activation", ""), "relu");
  EXPECT_THAT(operators(fuse(maker.graph, wanted, {{"max_pool_relu"}})),
              ElementsAre("Relu", "MaxPool"));
  maker.graph.outputs.push_back(r);
  EXPECT_THAT(operators(fuse(maker.graph, wanted)), ElementsAre("Relu", "MaxPool"));
}

TEST_F(Passes, GradientsOfParametersArePlain) {
  const ValueId x = maker.input("x", kImage);
  const ValueId shift = maker.parameter("shift", {2, 16, 6, 6});
  const ValueId w = maker.parameter("w", {16, 3, 3, 3});
  const ValueId y = maker.node("Add", "y", {maker.node("Conv", "c", {x, w}), shift});
  maker.graph.terms = {{mean_loss(maker.node("Relu", "r", {y}))}};
  const Graph graph = *assign_layouts(*autodiff(maker.graph));
  for (const Parameter& p : graph.parameters) {
    EXPECT_EQ(graph.value(p.gradient).desc.layout, Layout::kPlain) << p.name;
  }
}

// --- TrainingSource: the graph for each batch and mode once, and again when settings change ---

// y = x w, compared with a data column.
class TrainingSources : public ::testing::Test {
 protected:
  TrainingSources() {
    const ValueId x = maker.input("x", {DType::kFloat32, {4, 3}});
    maker.graph.value(x).declared = {{-1, "batch"}, {3, ""}};
    const ValueId w = maker.parameter("w", {3, 2});
    maker.graph.outputs = {maker.node("MatMul", "y", {x, w})};
  }

  GraphSettings settings(LossKind kind) const {
    return {.losses = {{.kind = kind, .output = {}, .prediction = "y", .labels = "labels"}},
            .rows = {{"x", {3}}, {"labels", {2}}}};
  }

  std::string built(const TrainingSource& source, int64_t batch, Mode mode) {
    const auto graph = source.graph(batch, mode);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    return graph.ok() ? text(*graph) : "";
  }

  Registry registry = make_registry();
  testing::GraphMaker maker{registry};
};

TEST_F(TrainingSources, BuildsEachGraphOnce) {
  TrainingSource source(OnnxFile::of_model("model.onnx", ""), maker.graph, nullptr);
  source.configure(settings(LossKind::kMse));
  const std::string first = built(source, 4, Mode::kTrain);
  EXPECT_EQ(source.graphs_built(), 1);
  EXPECT_EQ(built(source, 4, Mode::kTrain), first);
  EXPECT_EQ(source.graphs_built(), 1);
  const std::string evaluation = built(source, 4, Mode::kEval);
  const std::string short_batch = built(source, 2, Mode::kTrain);
  EXPECT_NE(evaluation, first);
  EXPECT_NE(short_batch, first);
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(built(source, 4, Mode::kTrain), first);
    EXPECT_EQ(built(source, 4, Mode::kEval), evaluation);
    EXPECT_EQ(built(source, 2, Mode::kTrain), short_batch);
  }
  EXPECT_EQ(source.graphs_built(), 3);
}

TEST_F(TrainingSources, BuildsAgainWhenSettingsOrParametersChange) {
  TrainingSource source(OnnxFile::of_model("model.onnx", ""), maker.graph, nullptr);
  source.configure(settings(LossKind::kMse));
  const std::string squares = built(source, 4, Mode::kTrain);
  source.configure(settings(LossKind::kBceWithLogits));
  EXPECT_NE(built(source, 4, Mode::kTrain), squares);
  source.configure(settings(LossKind::kMse));
  EXPECT_EQ(built(source, 4, Mode::kTrain), squares);
  source.set_symbolic(maker.graph);
  EXPECT_EQ(built(source, 4, Mode::kTrain), squares);
  EXPECT_EQ(source.graphs_built(), 4);
}

}  // namespace importer_passes_test
}  // namespace ofsdp
