// Rotary embeddings in the exporters' spellings.
#include "tests/support/fusion_fixture.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace fusion_rotary_test {

class FusionRotary : public testing::Fusion {
 protected:
  ValueId last(ValueId x, int64_t begin, int64_t end) {
    const std::vector<ValueId> inputs{x, maker.ints({begin}), maker.ints({end}), maker.ints({-1}),
                                      maker.ints({1})};
    return op("Slice", inputs);
  }
  ValueId joined(ValueId a, ValueId b) { return op("Concat", {a, b}, {{"axis", int64_t{-1}}}); }

  // A table with rows that hold the same in both halves.
  ValueId doubled(const Shape& shape, double phase) {
    const int64_t d = shape[shape.rank() - 1];
    std::vector<float> values;
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const double angle = static_cast<double>(i / d + 1) * std::pow(0.3, i % d % (d / 2));
      values.push_back(static_cast<float>(std::cos(angle + phase)));
    }
    return table(shape, values);
  }
  ValueId sum(ValueId x, ValueId turned, ValueId cos, ValueId sin) {
    return op("Add", {op("Mul", {x, cos}), op("Mul", {turned, sin})});
  }
  // x cos + rotate_half(x) sin with slices
  ValueId rotated(ValueId x, int64_t d, ValueId cos, ValueId sin) {
    const ValueId low = last(x, 0, d / 2), high = last(x, d / 2, INT64_MAX);
    return sum(x, joined(op("Neg", {high}), low), cos, sin);
  }
  // Adds a trained value after x, so that a gradient passes through the rotation.
  ValueId scaled(const Shape& shape) {
    const ValueId x = maker.parameter("x", shape);
    return op("Mul", {x, number(1.5)});
  }
};

TEST_F(FusionRotary, SlicesAndKnownTables) {
  const ValueId x = scaled({2, 3, 5, 8});
  expect_same(rotated(x, 8, doubled({5, 8}, 0), doubled({5, 8}, 1)), {"rotary"});
}

TEST_F(FusionRotary, SplitAndTablesComputedForEverySample) {
  const ValueId x = scaled({2, 3, 5, 8});
  const ValueId angles = maker.input("angles", {DType::kFloat32, {2, 5, 4}});
  const ValueId both = joined(angles, angles);
  auto row = [&](const char* function) {
    const ValueId made = op("Mul", {op(function, {both}), number(1)});
    return op("Unsqueeze", {made, maker.ints({1})});
  };
  const auto halves = ops("Split", {x, maker.ints({4, 4})}, {{"axis", int64_t{3}}}, 2);
  const ValueId turned = joined(op("Neg", {halves[1]}), op("Identity", {halves[0]}));
  expect_same(sum(x, turned, row("Cos"), row("Sin")), {"rotary"});
}

TEST_F(FusionRotary, StepsBeforeHeads) {
  const ValueId x = scaled({2, 5, 3, 8});
  expect_same(rotated(x, 8, doubled({1, 5, 1, 8}, 0), doubled({1, 5, 1, 8}, 1)), {"rotary"});
}

TEST_F(FusionRotary, HalvesJoinedAtTheEnd) {
  const ValueId x = scaled({2, 3, 5, 8});
  const ValueId a = last(x, 0, 4), b = last(x, 4, 8);
  const ValueId cos = maker.input("cos", {DType::kFloat32, {1, 1, 5, 4}});
  const ValueId sin = maker.input("sin", {DType::kFloat32, {1, 1, 5, 4}});
  const ValueId first = op("Sub", {op("Mul", {a, cos}), op("Mul", {b, sin})});
  const ValueId second = op("Add", {op("Mul", {a, sin}), op("Mul", {cos, b})});
  expect_same(joined(first, second), {"rotary"});
}

TEST_F(FusionRotary, APartOfTheHead) {
  const ValueId x = scaled({2, 3, 5, 10});
  const ValueId turned = rotated(last(x, 0, 4), 4, doubled({5, 4}, 0), doubled({5, 4}, 1));
  expect_same(joined(turned, last(x, 4, 10)), {"rotary"});
  EXPECT_EQ(fuse(maker.graph, {maker.graph.terms[0].value}).fused.at("rotary"),
            2);  // whole, then the part
}

// Graphs that only look alike: no rule fires.
TEST_F(FusionRotary, LeavesOtherSumsAlone) {
  const ValueId x = scaled({2, 3, 5, 8});
  const ValueId cos = maker.input("cos", {DType::kFloat32, {5, 8}});  // halves may differ
  const ValueId trained = maker.parameter("trained", {5, 4});
  const ValueId learned = joined(trained, trained);  // equal halves that need a gradient
  const ValueId low = last(x, 0, 4), high = last(x, 4, 8);
  const ValueId table = doubled({5, 8}, 0);
  const ValueId swapped = sum(x, joined(op("Neg", {low}), high), table, table);
  const ValueId y = op("Add", {rotated(x, 8, cos, cos), rotated(x, 8, learned, learned)});
  const Graph fused = fuse(maker.graph, {y, swapped});
  EXPECT_FALSE(fused.fused.contains("rotary")) << text(fused);
}

}  // namespace fusion_rotary_test
}  // namespace ofsdp
