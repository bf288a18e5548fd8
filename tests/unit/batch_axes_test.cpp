// Places of samples: in inputs, by the file's symbols; in predictions, whatever nodes did to the
// batch. The order of NhwcConv's weights, by the file as a whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importer/normalize/onnx_import.h"
#include "importer/passes/loss.h"
#include "importer/passes/sample_order.h"
#include "importer/passes/specialize.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace batch_axes_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Dims = std::vector<Dim>;

Dim named(const std::string& symbol) { return {-1, symbol}; }
Dim of(int64_t size) { return {size, ""}; }

class Inputs {
 public:
  void add(const std::string& name, Dims dims) {
    std::vector<int64_t> axes;
    for (const Dim& dim : dims) axes.push_back(std::max<int64_t>(dim.size, 1));
    const ValueId id = maker.input(name, {DType::kFloat32, Shape(axes)});
    maker.graph.value(id).declared = std::move(dims);
  }

  // A column's axis sizes, symbols by name: "batch 2 4".
  std::string column(const std::string& name, const BatchAxes& given = {}) const {
    const auto made = with_samples_first(maker.graph, given);
    if (!made.ok()) return made.error().message();
    for (const ValueId id : made->inputs) {
      if (made->value(id).name != name) continue;
      std::vector<std::string> axes;
      for (const Dim& d : made->value(id).declared) {
        axes.push_back(d.size < 0 ? d.symbol : std::to_string(d.size));
      }
      return joined(axes, " ");
    }
    return "none";
  }

  Registry registry = make_registry();
  testing::GraphMaker maker{registry};
};

std::string column_of(const Dims& dims, const Dims& beside, const BatchAxes& given = {}) {
  Inputs inputs;
  inputs.add("x", beside);
  inputs.add("state", dims);
  return inputs.column("state", given);
}

TEST(BatchAxes, ASymbolSaysWhereTheSamplesAre) {
  const Dims x{named("batch"), of(5)};
  EXPECT_EQ(column_of({of(2), named("batch"), of(4)}, x), "batch 2 4");
  EXPECT_EQ(column_of({of(2), of(3), named("batch_size")}, x), "batch_size 2 3");
  EXPECT_EQ(column_of({of(2), named("s0"), of(4)}, {named("s0"), of(5)}), "s0 2 4");
  EXPECT_EQ(column_of({named("seq"), named("batch"), of(4)}, x), "batch seq 4");
  EXPECT_EQ(column_of({named("T"), named("N"), of(4)}, {named("T"), named("N"), of(1)}), "N T 4");
  EXPECT_EQ(column_of({named("B"), named("N"), of(3)}, {named("B"), of(5)}), "B N 3");
  EXPECT_EQ(column_of({named("batch"), named("seq")}, x), "batch seq");
  EXPECT_EQ(column_of({named("graphs"), named("N")}, {named("graphs"), of(5)}), "graphs N");
  EXPECT_EQ(column_of({of(2), of(6), of(4)}, x), "2 6 4") << "nothing says";
  EXPECT_EQ(column_of({of(2), of(6), of(4)}, x, {{"state", 1}}), "6 2 4");
  EXPECT_EQ(column_of({of(2), of(6), of(4)}, x, {{"state", -1}}), "4 2 6");
  EXPECT_EQ(column_of({of(2), named("batch")}, x, {{"state", 0}}), "2 batch");
}

TEST(BatchAxes, RefusesSymbolsThatContradictEachOther) {
  const std::string refused =
      column_of({named("seq"), named("seq")}, {named("batch"), named("seq")});
  EXPECT_THAT(refused, HasSubstr("input 'state' [seq, seq]"));
  EXPECT_THAT(refused, HasSubstr("--batch-axis state=AXIS"));
  EXPECT_EQ(column_of({named("N"), named("N")}, {named("N"), of(3)}), "N N") << "a graph's nodes";
  EXPECT_THAT(column_of({of(2), of(4)}, {named("batch"), of(5)}, {{"state", 2}}),
              HasSubstr("--batch-axis state=2"));
}

TEST(BatchAxes, RefusesAColumnThatFitsTwoWays) {
  Inputs inputs;
  inputs.add("x", {named(""), of(5)});
  inputs.add("state", {of(2), named(""), of(4)});
  const auto refused = [&](const Shape& row, const BatchAxes& given) {
    const Status status = check_batch_axes(inputs.maker.graph, {{"x", {5}}, {"state", row}}, given);
    return status.ok() ? std::string() : status.message();
  };
  EXPECT_THAT(refused({2, 4}, {}), HasSubstr("--batch-axis state=AXIS"));
  EXPECT_EQ(refused({2, 4}, {{"state", 0}}), "");
  EXPECT_EQ(refused({3, 4}, {}), "");  // [2, 3, 4] alone
}

// Nodes read a state [2, batch, 3] in the file's order.
TEST(BatchAxes, NodesReadTheFilesOrder) {
  Inputs inputs;
  inputs.add("state", {of(2), named("batch"), of(3)});
  inputs.maker.graph.outputs = {inputs.maker.node("Relu", "y", {inputs.maker.graph.inputs[0]})};
  const Graph first = *with_samples_first(inputs.maker.graph, {});
  const auto graph = specialize(first, {{"state", {5, 2, 3}}}, Mode::kTrain);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_THAT(testing::operators(*graph), ElementsAre("Transpose", "Relu"));
  EXPECT_EQ(graph->nodes[0].attributes.ints("perm"), (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(graph->value(graph->outputs[0]).desc.shape, (Shape{2, 5, 3}));
}

TEST(BatchAxes, AQuestionMarkIsAnAxisOfItsOwn) {
  onnx_bytes::SmallModel model = onnx_bytes::linear_model();
  std::string shape;
  for (const char* symbol : {"?", "?", "len"}) {
    shape += onnx_bytes::message(1, onnx_bytes::message(2, symbol));
  }
  const std::string type =
      onnx_bytes::number(1, onnx_bytes::kFloat) + onnx_bytes::message(2, shape);
  model.inputs.push_back(onnx_bytes::message(1, "image") +
                         onnx_bytes::message(2, onnx_bytes::message(1, type)));
  const Registry registry = make_registry();
  const OnnxFile file = OnnxFile::of_model("model.onnx", model.bytes());
  const auto graph = import_onnx(file, registry);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  const auto shapes = bind_inputs(*graph, {{"x", {4}}, {"image", {7, 3}}}, 2);
  ASSERT_TRUE(shapes.ok()) << shapes.error().message();
  EXPECT_EQ(shapes->at("image"), (Shape{2, 7, 3}));
}

// Predictions from x [batch, 3, 4]. Each is made for 6 samples and for 12.
class Orders {
 public:
  using Build = std::function<ValueId(testing::GraphMaker&, ValueId x, int64_t batch)>;
  explicit Orders(Build build) : build_(std::move(build)) {}

  std::string outer(int64_t batch, int width_axes = 1, const BatchAxes& given = {}) const {
    const Graph graph = made(batch);
    SampleOrder order(graph, batch, given, [&] { return Result<Graph>(made(2 * batch)); });
    const auto outer = order.outer(graph.outputs[0], width_axes, "--prediction");
    return outer.ok() ? std::to_string(*outer) : outer.error().message();
  }

 private:
  Graph made(int64_t batch) const {
    testing::GraphMaker maker(registry_);
    const ValueId x = maker.input("x", {DType::kFloat32, {batch, 3, 4}});
    maker.graph.outputs = {build_(maker, x, batch)};
    return maker.graph;
  }

  Registry registry_ = make_registry();
  Build build_;
};

ValueId turned(testing::GraphMaker& maker, ValueId x, const std::vector<int64_t>& perm) {
  return maker.node("Transpose", "t", {x}, {{"perm", perm}});
}

ValueId shaped(testing::GraphMaker& maker, ValueId x, const std::vector<int64_t>& shape) {
  return maker.node("Reshape", "r", {x, maker.ints(shape)});
}

TEST(SampleOrders, OfAWholeAxis) {
  const Orders first([](auto& m, ValueId x, int64_t) { return m.node("Relu", "y", {x}); });
  const Orders second([](auto& m, ValueId x, int64_t) { return turned(m, x, {1, 0, 2}); });
  const Orders last([](auto& m, ValueId x, int64_t) { return turned(m, x, {1, 2, 0}); });
  for (const int64_t batch : {1, 2, 3, 4, 6}) {
    SCOPED_TRACE(batch);
    EXPECT_EQ(first.outer(batch), "1");
    EXPECT_EQ(second.outer(batch), "3") << "also where batch and time have one size";
    EXPECT_EQ(last.outer(batch, 0), "12");
    EXPECT_THAT(last.outer(batch), HasSubstr("before the last axis"));
  }
}

TEST(SampleOrders, OfRowsMergedWithTheSamples) {
  const Orders first([](auto& m, ValueId x, int64_t b) {
    return m.node("Relu", "y", {shaped(m, x, {3 * b, 4})});
  });
  const Orders second([](auto& m, ValueId x, int64_t b) {
    const ValueId rows = shaped(m, turned(m, x, {1, 0, 2}), {3 * b, 4});
    return m.node("MatMul", "y", {rows, m.parameter("w", {4, 5})});
  });
  const Orders between([](auto& m, ValueId x, int64_t b) {  // [2, batch, 6] as rows of 3
    const ValueId apart = turned(m, shaped(m, x, {b, 2, 6}), {1, 0, 2});
    return shaped(m, apart, {2 * b * 2, 3});
  });
  const Orders joined([](auto& m, ValueId x, int64_t b) {
    const ValueId a = shaped(m, x, {b, 12});
    return m.node("Concat", "y", {a, m.node("Relu", "a", {a})}, {{"axis", int64_t{0}}});
  });
  for (const int64_t batch : {1, 2, 3, 4, 6}) {
    SCOPED_TRACE(batch);
    EXPECT_EQ(first.outer(batch), "1");
    EXPECT_EQ(second.outer(batch), "3");
    EXPECT_EQ(between.outer(batch), "2");
    EXPECT_EQ(joined.outer(batch), "2") << "one view of all samples, then the other";
  }
}

TEST(SampleOrders, TheFlagDecidesWhereNodesDoNot) {
  const Orders odd([](auto& m, ValueId x, int64_t b) {
    const ValueId twice = m.node("Tile", "y", {shaped(m, x, {b, 12}), m.ints({3, 1})});
    return twice;
  });
  EXPECT_THAT(odd.outer(6), HasSubstr("--batch-axis y=AXIS"));
  EXPECT_EQ(odd.outer(6, 1, {{"y", 0}}), "1");
  EXPECT_THAT(odd.outer(6, 1, {{"y", 2}}), HasSubstr("--batch-axis y=2"));
}

// [2, batch, 3] from [batch, 6], and back.
TEST(SampleOrders, LabelsAreBroughtIntoAnOrder) {
  const Registry registry = make_registry();
  testing::GraphMaker maker(registry);
  const ValueId labels = maker.input("labels", {DType::kInt64, {5, 6}});
  EXPECT_EQ(*reordered(maker.graph, labels, 5, 2, 2), labels);
  const ValueId moved = *reordered(maker.graph, labels, 5, 1, 2);
  EXPECT_EQ(maker.graph.value(moved).desc.shape, (Shape{2, 5, 3}));
  const ValueId back = *reordered(maker.graph, moved, 5, 2, 1);
  EXPECT_EQ(maker.graph.value(back).desc.shape, (Shape{5, 2, 3}));
}

// Two convolutions: x [2, 9, 9, 3] with w1, then w2.
class Convolutions {
 public:
  Result<NhwcOrder> order(const Shape& w1, const Shape& w2, const Attributes& attributes = {}) {
    testing::GraphMaker maker(registry_);
    const ValueId x = maker.input("x", {DType::kFloat32, {2, 9, 9, 3}});
    add(maker, x, "w1", w1, attributes);
    const ValueId y = maker.graph.nodes.back().outputs[0];
    add(maker, y, "w2", w2, {});
    return find_nhwc_order(maker.graph, {{"x", {2, 9, 9, 3}}}, Mode::kTrain, nullptr);
  }

 private:
  static void add(testing::GraphMaker& maker, ValueId x, const std::string& w, const Shape& shape,
                  const Attributes& attributes) {
    const ValueId weights = maker.parameter(w, shape);
    const ValueId y = GraphEditor(maker.graph)
                          .add_value({w + ".y", ValueKind::kActivation, {DType::kFloat32, {}}});
    maker.graph.nodes.push_back(
        {&registry_.get("com.microsoft.NhwcConv"), w, attributes, {x, weights}, {y}});
  }

  static inline const Registry registry_ = make_registry();
};

TEST(NhwcWeights, ANodeThatFitsOneOrderDecidesForAll) {
  Convolutions c;
  const auto last = c.order({12, 3, 3, 3}, {5, 3, 3, 12});
  ASSERT_TRUE(last.ok()) << last.error().message();
  EXPECT_EQ(last->order, NhwcWeights::kLast);
  EXPECT_TRUE(last->decided);
  const auto first = c.order({12, 3, 3, 3}, {5, 12, 3, 3});
  EXPECT_EQ(first->order, NhwcWeights::kFirst);
  EXPECT_TRUE(first->decided);
  const auto open = c.order({3, 3, 3, 3}, {5, 3, 3, 3});
  EXPECT_EQ(open->order, NhwcWeights::kLast);
  EXPECT_FALSE(open->decided);
  const auto kernel =  // says [3, 2] taps
      c.order({3, 3, 2, 3}, {5, 3, 3, 3}, {{"kernel_shape", std::vector<int64_t>{3, 2}}});
  EXPECT_EQ(kernel->order, NhwcWeights::kLast);
  EXPECT_TRUE(kernel->decided);
  EXPECT_FALSE(c.order({12, 3, 3, 4}, {5, 3, 3, 12}).ok()) << "neither fits";
  EXPECT_FALSE(c.order({4, 2, 2, 3}, {5, 4, 3, 3}).ok()) << "one of each";
}

}  // namespace batch_axes_test
}  // namespace ofsdp
