// Axes with a size that only the run knows: results of the padded graph against plain loops over
// the real elements; and the models that are refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "importer/passes/specialize.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"
#include "tests/support/run_graph.h"

namespace ofsdp {
namespace bounded_axes_test {

using ::testing::ElementsAre;
using testing::GraphMaker;
using ::testing::HasSubstr;
using testing::operators;

const int64_t kFloat = 1;  // ONNX's number for float32

class BoundedAxesTest : public ::testing::Test {
 protected:
  // Without inference: specialize does it.
  ValueId raw(const char* op, std::vector<ValueId> inputs, Attributes attributes = {},
              DType dtype = DType::kFloat32) {
    const std::string name = format_text("{}{}", op, ++count_);
    const ValueId out =
        GraphEditor(maker.graph).add_value({name, ValueKind::kActivation, {dtype, {}}});
    maker.graph.nodes.push_back(
        {&registry.get(op), name, std::move(attributes), std::move(inputs), {out}, false});
    return out;
  }
  ValueId zero() {
    const float value = 0;
    return GraphEditor(maker.graph)
        .add_constant("zero", make_constant<float>(DType::kFloat32, Shape{}, {&value, 1}));
  }
  ValueId positive(ValueId v) { return raw("Greater", {v, zero()}, {}, DType::kBool); }
  // The rows of x with a positive flag, as exporters write it.
  ValueId found(ValueId flags) {
    const ValueId indices = raw("NonZero", {positive(flags)}, {}, DType::kInt64);
    return raw("Squeeze", {indices, maker.ints({0})}, {}, DType::kInt64);
  }
  ValueId rows(ValueId from, ValueId at) {
    return raw("Gather", {from, at}, {{"axis", int64_t{0}}});
  }
  // Y, indices, inverse_indices, counts.
  std::vector<ValueId> unique(ValueId of, Attributes attributes) {
    raw("Unique", {of}, std::move(attributes));
    std::vector<ValueId>& outputs = maker.graph.nodes.back().outputs;
    for (const char* name : {"first", "inverse", "counts"}) {
      outputs.push_back(GraphEditor(maker.graph)
                            .add_value({format_text("{}{}", name, ++count_),
                                        ValueKind::kActivation,
                                        {DType::kInt64, {}}}));
    }
    return outputs;
  }
  Result<Graph> made(ValueId output) {
    maker.graph.outputs = {output};
    return specialize(maker.graph, {{"x", {4, 2}}, {"flags", {4}}, {"others", {4}}}, Mode::kTrain);
  }
  testing::Floats run(ValueId output, const std::vector<float>& flag_values) {
    const auto graph = made(output);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    if (!graph.ok()) return {};
    const testing::Floats values{1, 2, 3, 4, 5, 6, 7, 8};
    auto results = testing::run_graph(
        *graph, {{"x", values}, {"flags", flag_values}, {"others", flag_values}});
    EXPECT_TRUE(results.ok()) << results.error().message();
    return results.ok() ? results->at(output) : testing::Floats{};
  }
  void expect_refused(ValueId output, const char* why) {
    const auto graph = made(output);
    ASSERT_FALSE(graph.ok());
    EXPECT_THAT(graph.error().message(), HasSubstr(why));
  }

  int count_ = 0;
  Registry registry = make_registry();
  GraphMaker maker{registry};
  ValueId x = maker.input("x", {DType::kFloat32, {4, 2}});
  ValueId flags = maker.input("flags", {DType::kFloat32, {4}});
  ValueId others = maker.input("others", {DType::kFloat32, {4}});
};

TEST_F(BoundedAxesTest, ASumSeesWhatIsThere) {
  const ValueId y = raw("ReduceSum", {rows(x, found(flags)), maker.ints({0})});
  EXPECT_THAT(run(y, {1, 0, 1, 0}), ElementsAre(6, 8));
  EXPECT_THAT(run(y, {0, 0, 0, 0}), ElementsAre(0, 0));
  EXPECT_THAT(run(y, {1, 1, 1, 1}), ElementsAre(16, 20));
}

TEST_F(BoundedAxesTest, AScatterWritesWhatIsThere) {
  const ValueId at = found(flags);
  const ValueId index = raw("Unsqueeze", {at, maker.ints({-1})}, {}, DType::kInt64);
  const ValueId doubled = raw("Add", {rows(x, at), rows(x, at)});
  for (const char* reduction : {"none", "add"}) {
    const ValueId y =
        raw("ScatterND", {x, index, doubled}, {{"reduction", std::string(reduction)}});
    const float more = std::string(reduction) == "add" ? 1 : 0;
    EXPECT_THAT(run(y, {0, 1, 0, 0}), ElementsAre(1, 2, 6 + more * 3, 8 + more * 4, 5, 6, 7, 8));
    EXPECT_THAT(run(y, {0, 0, 0, 0}), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  }
}

TEST_F(BoundedAxesTest, CompressPicksSlices) {
  const ValueId y = raw("Compress", {x, positive(flags)}, {{"axis", int64_t{-2}}});
  EXPECT_THAT(run(raw("ReduceSum", {y, maker.ints({0})}), {0, 1, 1, 0}), ElementsAre(8, 10));
}

// Unique of {2, 1, 2, 5}: each output through a node that may follow it.
TEST_F(BoundedAxesTest, UniqueFindsWhatIsDifferent) {
  const testing::Floats values{2, 1, 2, 5};
  for (const bool sorted : {true, false}) {
    const auto different = unique(flags, {{"sorted", int64_t{sorted}}});
    const ValueId y = raw("ReduceSum", {different[0], maker.ints({0})});
    EXPECT_THAT(run(y, values), ElementsAre(8));
    const ValueId inverse = raw("Cast", {different[2]}, {{"to", kFloat}});
    EXPECT_THAT(run(inverse, values), sorted ? ElementsAre(1, 0, 1, 2) : ElementsAre(0, 1, 0, 2));
    const ValueId counts = raw("Cast", {different[3]}, {{"to", kFloat}});
    const ValueId all = raw("Mul", {counts, different[0]});
    EXPECT_THAT(run(raw("ReduceSum", {all, maker.ints({0})}), values), ElementsAre(10));
    const ValueId firsts = raw("ReduceSum", {rows(x, different[1]), maker.ints({0})});
    EXPECT_THAT(run(firsts, values), ElementsAre(11, 14));
    const auto nan = std::nanf("");
    EXPECT_THAT(run(inverse, {nan, 1, nan, 1}),
                sorted ? ElementsAre(1, 0, 1, 0) : ElementsAre(0, 1, 0, 1));
  }
}

// Values computed once for each different input go back to the inputs' places, and addends for the
// same value are added.
TEST_F(BoundedAxesTest, UniqueIsUndoneByItsInverse) {
  const auto different = unique(flags, {});
  const ValueId doubled = raw("Add", {different[0], different[0]});
  const ValueId back = raw("Gather", {doubled, different[2]});
  EXPECT_THAT(run(back, {2, 1, 2, 5}), ElementsAre(4, 2, 4, 10));
  const ValueId zeros = raw("Sub", {different[0], different[0]});
  const Attributes add{{"reduction", std::string("add")}};
  const ValueId sums = raw("ScatterElements", {zeros, different[2], flags}, add);
  EXPECT_THAT(run(raw("Gather", {sums, different[2]}), {2, 1, 2, 5}), ElementsAre(4, 1, 4, 5));
  const ValueId column = raw("Unsqueeze", {different[2], maker.ints({-1})}, {}, DType::kInt64);
  const ValueId tuples = raw("ScatterND", {zeros, column, flags}, add);
  EXPECT_THAT(run(raw("ReduceSum", {tuples, maker.ints({0})}), {2, 1, 2, 5}), ElementsAre(10));
  const auto of_others = unique(others, {});
  expect_refused(raw("Gather", {doubled, of_others[2]}), "works along axis 0");
}

TEST_F(BoundedAxesTest, UniqueAlongAnAxis) {
  const ValueId twice = rows(x, maker.ints({1, 0, 1, 0}));
  const ValueId y = unique(twice, {{"axis", int64_t{-2}}})[0];
  EXPECT_THAT(run(raw("ReduceSum", {y, maker.ints({0})}), {0, 0, 0, 0}), ElementsAre(4, 6));
  expect_refused(y, "depends on the data");
  expect_refused(raw("Add", {y, rows(x, found(flags))}), "combines two sizes");
}

TEST_F(BoundedAxesTest, ASplitByANumberInTheFileWantsThatNumber) {
  const ValueId sizes = maker.ints({1, 1});
  const auto pieces = raw("Split", {rows(x, found(flags)), sizes}, {{"axis", int64_t{0}}});
  maker.graph.nodes.back().outputs.push_back(
      GraphEditor(maker.graph).add_value({"rest", ValueKind::kActivation, {DType::kFloat32, {}}}));
  EXPECT_THAT(run(pieces, {0, 1, 0, 1}), ElementsAre(3, 4));
  const auto graph = made(pieces);
  const auto results = testing::run_graph(
      *graph, {{"x", testing::Floats(8)}, {"flags", {1, 1, 1, 0}}, {"others", {1, 1, 1, 0}}});
  ASSERT_FALSE(results.ok());
  EXPECT_THAT(results.error().message(), HasSubstr("written for 2 elements"));
}

TEST_F(BoundedAxesTest, AShapeOfItServesAsAShape) {
  const ValueId picked = rows(x, found(flags));
  const ValueId shape = raw("Shape", {picked}, {}, DType::kInt64);
  const ValueId length = raw("Slice", {shape, maker.ints({0}), maker.ints({1})}, {}, DType::kInt64);
  const ValueId ones = raw("Expand", {raw("Unsqueeze", {zero(), maker.ints({0})}), length});
  const ValueId column = raw("Unsqueeze", {ones, maker.ints({1})});
  const ValueId flat = raw("Reshape", {raw("Add", {picked, column}), maker.ints({-1})});
  EXPECT_THAT(run(raw("ReduceSum", {flat, maker.ints({0})}), {1, 0, 1, 0}), ElementsAre(14));
}

TEST_F(BoundedAxesTest, WhatPaddingCouldReachIsRefused) {
  const ValueId picked = rows(x, found(flags));
  expect_refused(picked, "of output 'Gather4' depends on the data");
  expect_refused(raw("Softmax", {picked}, {{"axis", int64_t{0}}}), "works along axis 0");
  expect_refused(raw("ReduceMax", {picked, maker.ints({0})}), "works along axis 0");
}

TEST_F(BoundedAxesTest, TwoCountsDoNotMeet) {
  expect_refused(raw("Add", {rows(x, found(flags)), rows(x, found(others))}), "combines two sizes");
}

TEST_F(BoundedAxesTest, WithoutACountDoesNotMeetIt) {
  expect_refused(raw("Add", {rows(x, found(flags)), x}), "combines 'x' with an axis");
}

TEST_F(BoundedAxesTest, NumbersComeFromNoSuchAxis) {
  for (const char* op : {"Expand", "Split", "ReduceSum"}) {
    expect_refused(raw(op, {x, found(flags)}), "takes its numbers from");
  }
  const ValueId numbers = found(others);
  expect_refused(raw("Slice", {x, numbers, numbers}), "takes its numbers from");
}

TEST_F(BoundedAxesTest, ACountIsNoNumber) {
  const ValueId shape = raw("Shape", {rows(x, found(flags))}, {}, DType::kInt64);
  expect_refused(raw("Cast", {shape}, {{"to", kFloat}}), "a number of elements that only the run");
}

}  // namespace bounded_axes_test
}  // namespace ofsdp
