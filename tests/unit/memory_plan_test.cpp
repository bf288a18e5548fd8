// Placement and the memory plan: values that live at the same time do not overlap.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/compile/program/arena_map.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace memory_plan_test {

bool overlap(const MemoryPiece& a, const MemoryPiece& b) {
  const bool together = a.first <= b.last && b.first <= a.last;
  return together && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST(Placement, RandomPiecesNeverOverlapAndDisjointLifetimesShare) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<MemoryPiece> pieces;
    size_t sum = 0, live_most = 0;
    for (int i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random() % 60);
      pieces.push_back(
          {64 * (1 + random() % 50), first, first + static_cast<int>(random() % 10), 0});
      sum += pieces.back().bytes;
    }
    const size_t total = place(pieces);
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_LE(pieces[i].offset + pieces[i].bytes, total);
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(pieces[i], pieces[j])) << i << " " << j;
    }
    for (int s = 0; s < 70; ++s) {
      size_t live = 0;
      for (const MemoryPiece& p : pieces) live += p.first <= s && s <= p.last ? p.bytes : 0;
      live_most = std::max(live_most, live);
    }
    EXPECT_GE(total, live_most);
    EXPECT_LT(total, sum);  // 40 pieces, each for at most 10 of 70 steps: some must share
  }
}

TEST(ArenaMap, FullShardNeedsLessArenaWithoutPrefetch) {
  const Registry registry = make_registry();
  const Graph graph = testing::mlp_training_graph(registry, 2, {64, 64, 64, 64, 64, 64, 2});
  const Plan plan = *make_plan(graph, {.strategy = Strategy::kFullShard,
                                       .wrap = WrapPolicy::kSize,
                                       .min_params = 4000,
                                       .world = 2});
  const std::vector<size_t> workspace(graph.nodes.size(), 0);
  size_t last = SIZE_MAX;
  for (int depth : {2, 1, 0}) {
    CompileOptions options;
    options.prefetch.prefetch_depth = depth;
    const ArenaMap memory = map_arena(graph, plan, make_schedule(graph, plan, options), workspace);
    EXPECT_LT(memory.arena_bytes, last) << depth;
    last = memory.arena_bytes;
  }
}

TEST(ArenaMap, GradientSlotsAreReusedWhereGradientsAreSharded) {
  const Registry registry = make_registry();
  const Graph graph = testing::mlp_training_graph(registry, 2, {64, 64, 64, 64, 64, 64, 2});
  size_t whole = 0, most = 0;
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kFullShard}) {
    const Plan plan = *make_plan(
        graph, {.strategy = strategy, .wrap = WrapPolicy::kSize, .min_params = 4000, .world = 2});
    const Schedule schedule = make_schedule(graph, plan, {});
    const GradientSlots slots = map_gradient_slots(plan, {&schedule});
    whole = most = 0;
    for (const Unit& unit : plan.units) {
      whole += static_cast<size_t>(unit.padded_numel) * sizeof(float);
      most = std::max(most, static_cast<size_t>(unit.padded_numel) * sizeof(float));
    }
    EXPECT_TRUE(strategy != Strategy::kNoShard || slots.bytes == whole);
    EXPECT_TRUE(strategy != Strategy::kFullShard || slots.bytes <= 2 * most);
    for (size_t u = 0; u < plan.units.size(); ++u) {
      EXPECT_NE(std::ranges::find(slots.shares_bytes[u], static_cast<int>(u)),
                slots.shares_bytes[u].end());
    }
  }
}

// A reduction that begins at once still reads while the next unit's gradients are written.
TEST(ArenaMap, ASlotOutlivesTheNextUnitsGradients) {
  const Registry registry = make_registry();
  const Graph graph = testing::mlp_training_graph(registry, 2, {64, 64, 64, 64, 64, 64, 2});
  const Plan plan = *make_plan(graph, {.strategy = Strategy::kFullShard,
                                       .wrap = WrapPolicy::kSize,
                                       .min_params = 4000,
                                       .world = 2});
  CompileOptions options;
  options.on_device = true;
  const Schedule schedule = make_schedule(graph, plan, options);
  const GradientSlots slots = map_gradient_slots(plan, {&schedule}, true);
  std::vector<int> order;
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::kReduceUpdate) order.push_back(step.index);
  }
  ASSERT_GT(order.size(), 3u);
  size_t most = 0, whole = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& shares = slots.shares_bytes[static_cast<size_t>(order[i])];
    const size_t bytes =
        static_cast<size_t>(plan.units[static_cast<size_t>(order[i])].padded_numel) * sizeof(float);
    most = std::max(most, bytes);
    whole += bytes;
    const int before = i > 0 ? order[i - 1] : -1;
    EXPECT_EQ(std::ranges::count(shares, before), 0) << i;
  }
  EXPECT_LE(slots.bytes, 2 * most);
  EXPECT_LT(slots.bytes, whole);
}

Plan two_units() {
  const Registry registry = make_registry();
  const Graph graph = testing::mlp_training_graph(registry, 2, {64, 64, 64});
  return *make_plan(graph, {.strategy = Strategy::kFullShard,
                            .wrap = WrapPolicy::kSize,
                            .min_params = 1000,
                            .world = 2});
}

// Slots that only Accumulate writes are free until then.
TEST(ArenaMap, ASlotLivesFromItsFirstWrite) {
  const Plan plan = two_units();
  ASSERT_EQ(plan.units.size(), 2u);
  using enum StepKind;
  const Schedule apart{{{kAcquire, 1},
                        {kAcquire, 0},
                        {kAccumulate, 1},
                        {kReduce, 1},
                        {kAccumulate, 0},
                        {kReduce, 0}}};
  const Schedule direct{{{kAcquire, 1}, {kAcquire, 0}, {kReduce, 1}, {kReduce, 0}}};
  EXPECT_EQ(map_gradient_slots(plan, {&apart}).shares_bytes[0].size(), 2u);
  EXPECT_EQ(map_gradient_slots(plan, {&direct}).shares_bytes[0].size(), 1u);
}

// Slots are disjoint if their lives meet in any schedule.
TEST(ArenaMap, SlotsFitEverySchedule) {
  const Plan plan = two_units();
  ASSERT_EQ(plan.units.size(), 2u);
  using enum StepKind;
  const Schedule early{{{kAcquire, 1}, {kReduce, 1}, {kAcquire, 0}, {kReduce, 0}}};
  const Schedule late{{{kAcquire, 1}, {kAcquire, 0}, {kReduce, 1}, {kReduce, 0}}};
  EXPECT_EQ(map_gradient_slots(plan, {&early}).shares_bytes[0].size(), 2u);
  EXPECT_EQ(map_gradient_slots(plan, {&early, &late}).shares_bytes[0].size(), 1u);
}

TEST(Unit, LayoutIsAlignedPaddedAndCoversEveryElementOnce) {
  const Registry registry = make_registry();
  const Graph graph = testing::mlp_training_graph(registry, 2, {7, 5, 3, 2});
  for (int world : {1, 2, 3, 5, 8}) {
    const Plan plan = *make_plan(graph, {.strategy = Strategy::kFullShard,
                                         .wrap = WrapPolicy::kSize,
                                         .min_params = 30,
                                         .world = world});
    int64_t parameters = 0;
    for (const Unit& unit : plan.units) {
      EXPECT_EQ(unit.padded_numel % (kParamAlignment * world), 0);
      std::vector<int> covered(static_cast<size_t>(unit.padded_numel), 0);
      for (const UnitParam& p : unit.params) {
        EXPECT_EQ(p.offset % kParamAlignment, 0);
        for (int64_t i = 0; i < p.numel; ++i) ++covered[static_cast<size_t>(p.offset + i)];
      }
      for (const auto& [begin, end] : gaps(unit)) {
        for (int64_t i = begin; i < end; ++i) ++covered[static_cast<size_t>(i)];
      }
      for (int count : covered) EXPECT_EQ(count, 1);
      parameters += unit.numel;
    }
    EXPECT_EQ(parameters, 7 * 5 + 5 + 5 * 3 + 3 + 3 * 2 + 2);
  }
}

}  // namespace memory_plan_test
}  // namespace ofsdp
