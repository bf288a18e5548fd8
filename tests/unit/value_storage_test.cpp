// Values that share bytes: a sum of gradients begins in the slot of the parameter's gradient.

#include <gtest/gtest.h>

#include <algorithm>

#include "importer/passes/loss.h"
#include "importer/passes/passes.h"
#include "runtime/compile/program/arena_map.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace value_storage_test {

// A language model with one table: some rows go in, and each is compared with all rows.
Graph tied_graph(const Registry& registry) {
  testing::GraphMaker maker(registry);
  const ValueId tokens = maker.input("tokens", {DType::kInt64, {4}});
  const ValueId table = maker.parameter("table", {32, 8});
  const ValueId scale = maker.parameter("scale", {8});
  const ValueId rows = maker.node("Gather", "embedding", {table, tokens});
  const ValueId scaled = maker.node("Mul", "scaled", {rows, scale});
  maker.graph.outputs = {maker.node("Gemm", "scores", {scaled, table}, {{"transB", int64_t{1}}})};
  LossSpec loss;
  loss.kind = LossKind::kCrossEntropy;
  loss.prediction = maker.graph.value(maker.graph.outputs[0]).name;
  loss.labels = "labels";
  return *autodiff(*attach_loss(maker.graph, loss, {4}, false));
}

const Node& last_part(const Graph& graph) {
  const auto is_sum = [](const Node& n) { return n.op->full_name() == "ofsdp.GatherGrad"; };
  return *std::ranges::find_if(graph.nodes, is_sum);
}

int step_of(const Schedule& schedule, const Step& step) {
  return static_cast<int>(std::ranges::find(schedule.steps, step) - schedule.steps.begin());
}

TEST(ValueStorage, ASumBeginsInTheGradientsSlot) {
  const Registry registry = make_registry();
  const Graph graph = tied_graph(registry);
  const Node& sum = last_part(graph);
  ASSERT_EQ(sum.inputs.size(), 3u);
  const ValueId part = sum.inputs[2], gradient = graph.parameters[0].gradient;
  EXPECT_EQ(sum.outputs[0], gradient);
  EXPECT_EQ(storage_of(graph)[static_cast<size_t>(part)], gradient);

  const Plan plan = *make_plan(graph, {.world = 2});
  const Schedule schedule = make_schedule(graph, plan, {});
  const ArenaMap memory =
      map_arena(graph, plan, schedule, std::vector<size_t>(graph.nodes.size(), 0));
  EXPECT_EQ(memory.value_offset[static_cast<size_t>(part)], -1);
  const auto writes = [&](const Node& n) { return std::ranges::count(n.outputs, part) > 0; };
  const auto first = std::ranges::find_if(graph.nodes, writes) - graph.nodes.begin();
  EXPECT_LT(step_of(schedule, {StepKind::kAcquire, 0}),
            step_of(schedule, {StepKind::kRun, static_cast<int>(first)}));
}

TEST(ValueStorage, APartThatIsReadLaterStaysApart) {
  const Registry registry = make_registry();
  Graph graph = tied_graph(registry);
  const ValueId part = last_part(graph).inputs[2];
  graph.outputs.push_back(part);
  EXPECT_EQ(storage_of(graph)[static_cast<size_t>(part)], part);
}

}  // namespace value_storage_test
}  // namespace ofsdp
