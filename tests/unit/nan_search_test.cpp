// The nodes that the search for a NaN executes and the message it gives, on a list of executed
// steps of two nodes.
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

  std::string first(bool here, bool together) {
    NanSearch search;
    search.execute = [this](const Operation& op) {
      const bool runs = op.kind == OpKind::kRun;
      executed += format_text("{}{} ", runs ? "R" : "G", runs ? op.run : op.unit);
      return ok_status();
    };
    search.has_nan = [](const TensorView& view) { return any_nan({view.as<const float>(), 2}); };
    search.here = here;
    search.together = together;
    return *first_nan(program, search);
  }

  const Registry registry = make_registry();
  float values[3][2] = {};  // of x and of each node
  ProgramPlan plan;
  BoundProgram program;
  std::string executed;
};

TEST(NanSearchTest, EndsWithTheNodeThatMakesTheFirst) {
  TwoNodes nodes;
  nodes.values[1][1] = nodes.values[2][0] = std::nanf("");
  EXPECT_EQ(nodes.first(true, false), "first made by node 'first' (Relu)");
  EXPECT_EQ(nodes.executed, "G0 R0 ");
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
  ProgramPlan plan;
  plan.graph.file = "m.onnx";
  plan.options.training = true;
  EXPECT_EQ(loss_fault(plan, std::nanf(""), 7, 1, "first made by node 'a' (Log)").message(),
            "m.onnx: loss is NaN at step 7, rank 1: first made by node 'a' (Log)");
  plan.options.training = false;
  EXPECT_EQ(loss_fault(plan, HUGE_VALF, 7, 1).message(),
            "m.onnx: evaluation loss is infinite after step 7, rank 1");
}

}  // namespace nan_search_test
}  // namespace ofsdp
