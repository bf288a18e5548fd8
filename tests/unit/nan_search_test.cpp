// The nodes that the search for a NaN executes, the message and the ranges, on a list of executed
// steps for two nodes.
#include "runtime/engine/nan_search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace nan_search_test {

struct TwoNodes {
  TwoNodes() {
    testing::GraphMaker maker(registry);
    const ValueId x = maker.input("x", {DType::kFloat32, {2}});
    maker.node("Tanh", "second", {maker.node("Relu", "first", {x})});
    plan.graph = std::move(maker.graph);
    program.plan = &plan;
    for (size_t n = 0; n < 2; ++n) {
      const TensorDesc desc{DType::kFloat32, {2}};
      const auto view = [&](size_t i) {
        return TensorView{reinterpret_cast<std::byte*>(values[i]), desc};
      };
      program.runs.push_back({nullptr, {view(n)}, {view(n + 1)}, nullptr, &plan.graph.nodes[n]});
      program.operations.push_back({.kind = OpKind::kUnshard, .unit = static_cast<int>(n)});
      program.operations.push_back({.kind = OpKind::kRun, .run = static_cast<int>(n)});
    }
    program.operations.push_back({.kind = OpKind::kCheckLoss});
    program.operations.push_back({.kind = OpKind::kUnshard, .unit = 2});
  }

  std::string first(bool here, bool together) { return search(here, together).first; }

  NanFound search(bool here, bool together) {
    NanSearch search;
    search.execute = [this](const Operation& op) {
      const bool runs = op.kind == OpKind::kRun;
      executed += format_text("{}{} ", runs ? "R" : "G", runs ? op.run : op.unit);
      return ok_status();
    };
    search.range = [](const TensorView& view) {
      ValueRange range;
      range.add(view.desc.dtype, {view.data, view.desc.bytes()});
      return range;
    };
    search.here = here;
    search.together = together;
    return *first_nan(program, search);
  }

  const Registry registry = make_registry();
  float values[3][2] = {};  // for x and for each node
  StepProgram plan;
  BoundProgram program;
  std::string executed;
};

TEST(NanSearchTest, EndsWithTheNodeThatMakesTheFirst) {
  TwoNodes nodes;
  nodes.values[1][1] = nodes.values[2][0] = std::nanf("");
  EXPECT_EQ(nodes.first(true, false), "first made by node 'first' (Relu)");
  EXPECT_EQ(nodes.executed, "G0 R0 ");
}

TEST(NanSearchTest, SaysTheRangesOfTheNodesOperands) {
  TwoNodes nodes;
  nodes.values[0][0] = -1.5f;
  nodes.values[0][1] = HUGE_VALF;
  nodes.values[1][0] = 0.25f;
  nodes.values[1][1] = std::nanf("");
  const std::string out = nodes.plan.graph.value(nodes.plan.graph.nodes[0].outputs[0]).name;
  const std::string pad(out.size() - 1, ' ');
  EXPECT_EQ(nodes.search(true, false).operands,
            "operands of 'first' (Relu):\n"
            "  input   'x'" +
                pad +
                "  float32[2]  -1.5 to -1.5, 1 infinite\n"
                "  output  '" +
                out + "'  float32[2]  0.25 to 0.25, 1 NaN");
  EXPECT_EQ(TwoNodes().search(true, false).operands, "");
}

TEST(NanSearchTest, NamesWhatIsRead) {
  TwoNodes nodes;
  nodes.values[0][0] = std::nanf("");
  EXPECT_EQ(nodes.first(true, false), "first in 'x', which node 'first' (Relu) reads");
}

TEST(NanSearchTest, TogetherEveryGatherIsMade) {
  TwoNodes nodes;
  nodes.values[1][1] = std::nanf("");
  EXPECT_EQ(nodes.first(true, true), "first made by node 'first' (Relu)");
  EXPECT_EQ(nodes.executed, "G0 R0 G1 ");
}

TEST(NanSearchTest, ARankWithoutOneOnlyGathers) {
  TwoNodes nodes;
  nodes.values[1][1] = std::nanf("");
  nodes.first(false, true);
  EXPECT_EQ(nodes.executed, "G0 G1 ");
}

TEST(NanSearchTest, OtherTypesAndAbsentValuesAreNotLookedAt) {
  TwoNodes nodes;
  nodes.values[1][1] = std::nanf("");
  nodes.program.runs[0].outputs[0].desc.dtype = DType::kInt32;
  nodes.program.runs[1].inputs[0].data = nullptr;
  EXPECT_EQ(nodes.first(true, false), "none found when run again");
  EXPECT_EQ(nodes.executed, "G0 R0 G1 R1 ");
}

TEST(NanSearchTest, TheFaultSaysWhichLossAndWhere) {
  StepProgram plan;
  plan.graph.file = "m.onnx";
  plan.options.training = true;
  const NanFound found{"first made by node 'a' (Log)", "operands of 'a':\n  more"};
  EXPECT_EQ(with_table(loss_fault(plan, 7, 1, found), "norms").message(),
            "m.onnx: loss is NaN at step 7, rank 1: first made by node 'a' (Log)\n"
            "operands of 'a':\n  more\nnorms");
  plan.options.training = false;
  EXPECT_EQ(loss_fault(plan, 7, 1).message(),
            "m.onnx: evaluation loss is NaN after step 7, rank 1");
}

template <typename T>
std::string range_of(DType dtype, const std::vector<T>& values) {
  ValueRange range;
  range.add(dtype, std::as_bytes(std::span(values)));
  return text(range);
}

TEST(ValueRangeTest, OfEveryKindOfNumber) {
  const float nan = std::nanf("");
  EXPECT_EQ(range_of<float>(DType::kFloat32, {3, nan, -HUGE_VALF, -2.5f, nan}),
            "-2.5 to 3, 2 NaN, 1 infinite");
  EXPECT_EQ(range_of<float>(DType::kFloat32, {nan}), "no finite value, 1 NaN");
  EXPECT_EQ(range_of<float>(DType::kFloat32, {}), "no values");
  EXPECT_EQ(range_of<double>(DType::kFloat64, {1e300, -1e300}), "-1e+300 to 1e+300");
  EXPECT_EQ(range_of<int64_t>(DType::kInt64, {-100, 7}), "-100 to 7");
  EXPECT_EQ(range_of<uint8_t>(DType::kUInt8, {255, 0}), "0 to 255");
  EXPECT_EQ(range_of<int8_t>(DType::kInt8, {-128, 127}), "-128 to 127");
  // 1, -2, infinity, NaN.
  EXPECT_EQ(range_of<uint16_t>(DType::kFloat16, {0x3c00, 0xc000, 0x7c00, 0x7e00}),
            "-2 to 1, 1 NaN, 1 infinite");
  EXPECT_EQ(range_of<uint16_t>(DType::kBFloat16, {0x3f80, 0xc000, 0x7f80, 0x7fc0}),
            "-2 to 1, 1 NaN, 1 infinite");
  EXPECT_EQ(range_of<float>(DType::kFloat32, std::vector<float>(1234567, nan)),
            "no finite value, 1,234,567 NaN");
}

}  // namespace nan_search_test
}  // namespace ofsdp
