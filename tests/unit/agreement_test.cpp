// Ranks exchange descriptions of their schedules; they come back as text.
#include <gtest/gtest.h>

#include "runtime/compile/compile.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace agreement_test {

TEST(Agreement, CodesTellStepUnitAndSize) {
  const Registry registry = make_registry();
  const Graph graph = testing::mlp_training_graph(registry, 4, {8, 8, 2});
  const Plan plan = *make_plan(
      graph,
      {.strategy = Strategy::kFullShard, .wrap = WrapPolicy::kSize, .min_params = 72, .world = 2});
  EXPECT_EQ(step_code_text(step_code({StepKind::kGather, 1}, plan)),
            format_text("Gather u1 of {} elements", plan.units[1].padded_numel));
  EXPECT_EQ(step_code_text(step_code({StepKind::kClip, -1}, plan)), "Clip");
  EXPECT_EQ(step_code_text(step_code({StepKind::kJoinRows, 7}, plan)), "JoinRows n7");
  EXPECT_EQ(step_code_text(-1), "nothing more");
}

TEST(Agreement, LargeUnitsFitIntoADouble) {
  Plan plan;
  plan.units.resize(2048);
  plan.units.back().padded_numel = (int64_t{1} << 35) - 16;
  const double code = step_code({StepKind::kUpdate, 2047}, plan);
  EXPECT_EQ(step_code_text(code), "Update u2047 of 34359738352 elements");
}

}  // namespace agreement_test
}  // namespace ofsdp
