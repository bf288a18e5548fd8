// The compiled schedule, as text (golden) and against rules.
#include "runtime/compile/program/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "importer/passes/loss.h"
#include "importer/passes/passes.h"
#include "runtime/compile/compile.h"
#include "runtime/compile/program/arena_map.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace schedule_test {

struct Compiled {
  Registry registry = make_registry();
  Graph graph;
  Plan plan;
  Schedule schedule;
};

// Four layers in separate units, and a root for the rest.
std::unique_ptr<Compiled> compiled(Strategy strategy, int world, const CompileOptions& options,
                                   int common_ranks = 1) {
  auto c = std::make_unique<Compiled>();
  c->graph = testing::mlp_training_graph(c->registry, 4, {8, 8, 8, 8, 2});
  PlanOptions plan{
      .strategy = strategy, .wrap = WrapPolicy::kSize, .min_params = 72, .world = world};
  plan.common_ranks = common_ranks;
  c->plan = *make_plan(c->graph, plan);
  c->schedule = make_schedule(c->graph, c->plan, options);
  return c;
}

// All steps except Run, as a letter and the unit.
std::string collectives(const Schedule& schedule) {
  std::string out;
  for (const Step& step : schedule.steps) {
    const char* name = nullptr;
    switch (step.kind) {
      case StepKind::kGather:
        name = "G";
        break;
      case StepKind::kFree:
        name = "F";
        break;
      case StepKind::kAcquire:
        name = "A";
        break;
      case StepKind::kAccumulate:
        name = "+";
        break;
      case StepKind::kPost:
        name = "P";
        break;
      case StepKind::kReduce:
        name = "R";
        break;
      case StepKind::kAllReduce:
        name = "AR";
        break;
      case StepKind::kReduceUpdate:
        name = "RU";
        break;
      case StepKind::kClip:
        name = "C";
        break;
      case StepKind::kUpdate:
        name = "U";
        break;
      case StepKind::kTrust:
        name = "T";
        break;
      case StepKind::kApply:
        name = "X";
        break;
      default:
        continue;
    }
    out += (out.empty() ? "" : " ") + std::string(name);
    if (step.index >= 0) out += std::to_string(step.index);
  }
  return out;
}

TEST(Schedule, FullShardGathersTwiceAndPrefetchesOne) {
  const auto c = compiled(Strategy::kFullShard, 2, {});
  EXPECT_EQ(collectives(c->schedule),
            "G0 G1 F0 G2 F1 G3 F2 G2 F3 A3 P3 G1 F2 A2 P2 RU3 F1 A1 P1 RU2 A0 P0 RU1 RU0");
}

TEST(Schedule, WithoutPrefetchEachGatherStandsBeforeItsUse) {
  CompileOptions options;
  options.prefetch.forward_prefetch = false;
  options.prefetch.backward_prefetch = BackwardPrefetch::kNone;
  const auto c = compiled(Strategy::kFullShard, 2, options);
  EXPECT_EQ(collectives(c->schedule),
            "G0 F0 G1 F1 G2 F2 G3 F3 A3 P3 G2 F2 A2 P2 RU3 G1 F1 A1 P1 RU2 A0 P0 RU1 RU0");
}

TEST(Schedule, ShardGradOpGathersOnceAndNoShardNever) {
  const auto zero2 = compiled(Strategy::kShardGradOp, 2, {});
  const std::string text = collectives(zero2->schedule);
  for (const char* once : {"G0", "G1", "G2", "G3"}) {
    EXPECT_NE(text.find(once), std::string::npos) << text;
    EXPECT_EQ(text.find(once), text.rfind(once)) << text;
  }
  const auto ddp = compiled(Strategy::kNoShard, 2, {});
  EXPECT_EQ(collectives(ddp->schedule), "A3 P3 A2 P2 AR3 U3 A1 P1 AR2 U2 A0 P0 AR1 U1 AR0 U0");
}

// No update begins before the unit's last use, although no gather marks it.
TEST(Schedule, RanksWithMemoryInCommonGatherNothing) {
  const auto c = compiled(Strategy::kFullShard, 2, {}, 2);
  EXPECT_EQ(collectives(c->schedule), "A3 P3 A2 P2 RU3 A1 P1 RU2 A0 P0 RU1 RU0");
}

TEST(Schedule, OneRankGathersNothing) {
  const auto c = compiled(Strategy::kFullShard, 1, {});
  EXPECT_EQ(collectives(c->schedule), "A3 P3 A2 P2 RU3 A1 P1 RU2 A0 P0 RU1 RU0");
}

TEST(Schedule, ClippingUpdatesAfterTheNorm) {
  CompileOptions options;
  options.clip = true;
  const auto c = compiled(Strategy::kFullShard, 1, options);
  EXPECT_EQ(collectives(c->schedule), "A3 P3 A2 P2 R3 A1 P1 R2 A0 P0 R1 R0 C U0 U1 U2 U3");
}

// On a device a reduction, and the sum over copies after it, follow the unit's post.
TEST(Schedule, ADeviceReducesAtOnce) {
  CompileOptions options;
  options.on_device = true;
  EXPECT_EQ(collectives(compiled(Strategy::kFullShard, 2, options)->schedule),
            "G0 G1 F0 G2 F1 G3 F2 G2 F3 A3 P3 RU3 G1 F2 A2 P2 RU2 F1 A1 P1 RU1 A0 P0 RU0");
  EXPECT_EQ(collectives(compiled(Strategy::kNoShard, 2, options)->schedule),
            "A3 P3 AR3 U3 A2 P2 AR2 U2 A1 P1 AR1 U1 A0 P0 AR0 U0");
  options.clip = true;
  EXPECT_EQ(collectives(compiled(Strategy::kFullShard, 1, options)->schedule),
            "A3 P3 R3 A2 P2 R2 A1 P1 R1 A0 P0 R0 C U0 U1 U2 U3");
}

// LAMB: the updates advance the averages as gradients come; the steps wait for all norms.
TEST(Schedule, StepsThatNeedNormsOfParametersComeLast) {
  CompileOptions options;
  options.parameter_norms = true;
  const auto c = compiled(Strategy::kFullShard, 1, options);
  EXPECT_EQ(collectives(c->schedule), "A3 P3 A2 P2 RU3 A1 P1 RU2 A0 P0 RU1 RU0 T X0 X1 X2 X3");
  options.clip = true;
  EXPECT_EQ(collectives(compiled(Strategy::kFullShard, 1, options)->schedule),
            "A3 P3 A2 P2 R3 A1 P1 R2 A0 P0 R1 R0 C U0 U1 U2 U3 T X0 X1 X2 X3");
  options.last_micro = false;
  const std::string first = collectives(compiled(Strategy::kFullShard, 1, options)->schedule);
  EXPECT_EQ(first.find_first_of("TX"), std::string::npos) << first;
}

TEST(Schedule, AccumulationCommunicatesOnlyWhereGradientsAreSharded) {
  CompileOptions first;
  first.last_micro = false;
  CompileOptions last;
  last.first_micro = false;
  EXPECT_EQ(collectives(compiled(Strategy::kNoShard, 2, first)->schedule), "A3 A2 A1 A0");
  EXPECT_EQ(collectives(compiled(Strategy::kNoShard, 2, last)->schedule),
            "A3 +3 P3 A2 +2 P2 AR3 U3 A1 +1 P1 AR2 U2 A0 +0 P0 AR1 U1 AR0 U0");
  const std::string sharded = collectives(compiled(Strategy::kShardGradOp, 2, first)->schedule);
  EXPECT_NE(sharded.find("R0"), std::string::npos) << sharded;
  EXPECT_EQ(sharded.find("RU"), std::string::npos) << sharded;
}

// Under every option: used units are resident, and an update never overtakes a use.
TEST(Schedule, UnitsAreResidentWhereTheyAreUsed) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
    for (const auto prefetch :
         {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
      for (int depth : {0, 1, 2, 5}) {
        CompileOptions options;
        options.prefetch.backward_prefetch = prefetch;
        options.prefetch.prefetch_depth = depth;
        const auto c = compiled(strategy, 3, options);
        const auto parameter = parameter_behind(c->graph);
        const auto unit = unit_of_parameter(c->graph, c->plan);
        std::vector<int> resident(c->plan.units.size(), 0), posted(c->plan.units.size(), 0);
        for (const Step& step : c->schedule.steps) {
          const auto u = static_cast<size_t>(std::max(step.index, 0));
          if (step.kind == StepKind::kGather) {
            EXPECT_EQ(resident[u]++, 0);
            EXPECT_EQ(posted[u], 0) << "gathered while peers may update";
          }
          if (step.kind == StepKind::kFree) {
            EXPECT_EQ(resident[u]--, 1);
          }
          if (step.kind == StepKind::kPost) posted[u] = 1;
          if (step.kind != StepKind::kRun) continue;
          for (ValueId id : c->graph.nodes[u].inputs) {
            const int p = parameter[static_cast<size_t>(id)];
            if (p < 0) continue;
            EXPECT_EQ(resident[static_cast<size_t>(unit[static_cast<size_t>(p)])], 1);
          }
        }
        for (int r : resident) EXPECT_EQ(r, 0);
      }
    }
  }
}

// x -> + a -> + b -> a loss; a and b have one shape, so one gradient, and separate units: the
// gradient of b is a copy of a's.
std::unique_ptr<Compiled> of_equal_gradients(Strategy strategy, int world) {
  auto c = std::make_unique<Compiled>();
  testing::GraphMaker maker(c->registry);
  const ValueId x = maker.input("x", {DType::kFloat32, {4, 8}});
  const ValueId z = maker.node("Add", "a", {x, maker.parameter("a", {4, 8})});
  maker.graph.outputs = {maker.node("Add", "b", {z, maker.parameter("b", {4, 8})})};
  LossSpec loss;
  loss.kind = LossKind::kCrossEntropy;
  loss.prediction = maker.graph.value(maker.graph.outputs[0]).name;
  loss.labels = "labels";
  c->graph = *autodiff(*attach_loss(maker.graph, loss, {4}, false));
  c->plan = *make_plan(
      c->graph, {.strategy = strategy, .wrap = WrapPolicy::kSize, .min_params = 1, .world = world});
  c->schedule = make_schedule(c->graph, c->plan, {});
  return c;
}

// A posted slot is reduced and used again, so no node may read it.
TEST(Schedule, NoNodeReadsAGradientThatIsPosted) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const int world : {1, 3}) {
      const auto c = of_equal_gradients(strategy, world);
      const auto storage = storage_of(c->graph);
      const auto unit = unit_of_parameter(c->graph, c->plan);
      std::vector<int> posts(c->plan.units.size(), -1), reads(c->plan.units.size(), -1);
      for (size_t at = 0; at < c->schedule.steps.size(); ++at) {
        const Step& step = c->schedule.steps[at];
        if (step.kind == StepKind::kPost)
          posts[static_cast<size_t>(step.index)] = static_cast<int>(at);
        if (step.kind != StepKind::kRun) continue;
        for (const ValueId id : c->graph.nodes[static_cast<size_t>(step.index)].inputs) {
          for (size_t p = 0; p < c->graph.parameters.size(); ++p) {
            if (c->graph.parameters[p].gradient != storage[static_cast<size_t>(id)]) continue;
            reads[static_cast<size_t>(unit[p])] = static_cast<int>(at);
          }
        }
      }
      EXPECT_GT(*std::ranges::max_element(reads), 0) << "no gradient is copied";
      for (size_t u = 0; u < posts.size(); ++u) EXPECT_LT(reads[u], posts[u]) << "unit " << u;
    }
  }
}

TEST(Schedule, HashSeesCommunicationOnly) {
  const auto a = compiled(Strategy::kFullShard, 2, {});
  const auto b = compiled(Strategy::kFullShard, 2, {});
  const auto c = compiled(Strategy::kShardGradOp, 2, {});
  EXPECT_EQ(collective_hash(a->schedule, a->plan), collective_hash(b->schedule, b->plan));
  EXPECT_NE(collective_hash(a->schedule, a->plan), collective_hash(c->schedule, c->plan));
}

TEST(Schedule, TheTableOfStepsStandsInTheDocuments) {
  std::ifstream file(OFSDP_SOURCE_DIR "/docs/internals/design.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string begin = "<!-- steps.inc: begin -->\n", end = "<!-- steps.inc: end -->";
  const size_t at = page.find(begin) + begin.size();
  EXPECT_EQ(page.substr(at, page.find(end) - at), step_table());
}

// Ranks exchange descriptions of their schedules; they come back as text.

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

}  // namespace schedule_test
}  // namespace ofsdp
