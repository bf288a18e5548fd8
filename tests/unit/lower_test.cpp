// The lowered program: the operations in it, and that every operand is inside its region.
#include "runtime/compile/program/lower.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "runtime/engine/watch.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace lower_test {

struct Lowered {
  Registry registry = make_registry();
  KernelCache kernels;
  Plan plan;
  StepProgram program;
  GradientSlots slots;
  KeptValues kept;
  MemoryMap memory;
  LoweredProgram made;
};

std::unique_ptr<Lowered> lowered(const PlanOptions& options, const CompileOptions& compile,
                                 int rank, bool on_device = false,
                                 const std::vector<int64_t>& widths = {8, 8, 2}) {
  auto l = std::make_unique<Lowered>();
  Graph graph = testing::mlp_training_graph(l->registry, 4, widths);
  l->plan = *make_plan(graph, options);
  l->program = *compile_program(std::move(graph), l->plan, compile, l->kernels);
  l->slots = map_gradient_slots(l->plan, {&l->program.schedule});
  l->kept.add(l->program, l->plan);
  MemoryNeeds needs;
  for (const Unit& unit : l->plan.units) needs.states.push_back({l->plan.owned(unit, rank).numel});
  needs.accumulate = !compile.first_micro || !compile.last_micro;
  needs.keep = compile.clip;
  needs.arena = l->program.memory.arena_bytes;
  needs.kept = l->kept.bytes();
  if (compile.watch) needs.watch_slot = Watch::slot_bytes(l->plan);
  l->memory = map_memory(l->plan, rank, l->slots, needs);
  l->made = lower(l->program, {l->plan, rank, l->memory, l->slots, l->kept, on_device});
  return l;
}

struct Counts {
  explicit Counts(const Lowered& l) : units(l.plan.units.size()) {
    for (const Operation& op : l.made.operations) {
      ++of[op.kind];
      norms += op.stages.norm ? 1 : 0;
      fused += op.stages.update ? 1 : 0;
    }
    for (const Operation& op : l.made.host) ++of_host[op.kind];
  }

  size_t units, norms = 0, fused = 0;
  std::map<OpKind, size_t> of, of_host;
};

PlanOptions options(Strategy strategy, int world) {
  return {.strategy = strategy, .wrap = WrapPolicy::kSize, .min_params = 72, .world = world};
}

TEST(Lower, FullShardReducesAndUpdatesInOnePass) {
  const auto l = lowered(options(Strategy::kFullShard, 2), {}, 1);
  Counts counts(*l);
  EXPECT_EQ(counts.of[OpKind::kPost], counts.units);
  EXPECT_EQ(counts.of[OpKind::kReduce], counts.units);
  EXPECT_EQ(counts.fused, counts.units);
  EXPECT_EQ(counts.norms, counts.units);
  EXPECT_EQ(counts.of[OpKind::kUpdate], 0u);
  EXPECT_EQ(counts.of[OpKind::kCopyUp], 0u);
  EXPECT_NE(text(l->made).find("Unshard u0 communication ranks 0:2:1"), std::string::npos);
}

// Each unit's bytes are free before it clears them, and a wait is not repeated.
TEST(Lower, WaitsForTheUnitsThatHadTheBytesOnce) {
  const auto l = lowered(options(Strategy::kFullShard, 2), {}, 1, false,
                         {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 2});
  Counts counts(*l);
  ASSERT_GT(counts.units, 8u);
  EXPECT_LE(counts.of[OpKind::kAwait], counts.units + counts.of[OpKind::kPost]);
  std::vector<bool> awaited(counts.units, false);
  size_t shared = 0;
  for (const Operation& op : l->made.operations) {
    if (op.kind == OpKind::kAwait) {
      EXPECT_FALSE(awaited[static_cast<size_t>(op.channel)]) << text(op);
      awaited[static_cast<size_t>(op.channel)] = true;
    }
    if (op.kind == OpKind::kPost) awaited[static_cast<size_t>(op.unit)] = false;
    if (op.kind != OpKind::kClear) continue;
    for (const int other : l->slots.shares_bytes[static_cast<size_t>(op.unit)]) {
      EXPECT_TRUE(awaited[static_cast<size_t>(other)]) << text(op);
      shared += other != op.unit ? 1 : 0;
    }
  }
  EXPECT_GT(shared, 0u);
}

TEST(Lower, NoShardWithClippingAddsUpUnitsAndThenUpdates) {
  const auto l = lowered(options(Strategy::kNoShard, 2), {.first_micro = false, .clip = true}, 0);
  Counts counts(*l);
  EXPECT_EQ(counts.of[OpKind::kUnshard], 0u);
  EXPECT_EQ(counts.of[OpKind::kAdd], counts.units);
  EXPECT_EQ(counts.of[OpKind::kAllReduce], counts.units);
  EXPECT_EQ(counts.of[OpKind::kClip], 1u);
  EXPECT_EQ(counts.of[OpKind::kUpdate], counts.units);
  EXPECT_EQ(counts.norms, counts.units);
}

TEST(Lower, AnOffloadOfParametersCopiesUpAndDownAndUpdatesOnTheHost) {
  PlanOptions plan = options(Strategy::kFullShard, 2);
  plan.cpu_offload = CpuOffload::kParams;
  const auto l = lowered(plan, {.first_micro = false}, 0, true);
  Counts counts(*l);
  EXPECT_EQ(counts.of[OpKind::kCopyUp], counts.of[OpKind::kUnshard] + counts.units);
  EXPECT_EQ(counts.of[OpKind::kCopyDown], counts.units);
  EXPECT_EQ(counts.of[OpKind::kSignal], counts.units);
  EXPECT_EQ(counts.fused, 0u);
  EXPECT_EQ(counts.of_host[OpKind::kAwait], counts.units);
  EXPECT_EQ(counts.of_host[OpKind::kHostUpdate], counts.units);
}

// Once an update, over all ranks, after the norms' operands, on a separate channel; ranks with
// different settings for it do not begin.
TEST(Lower, WatchedNormsAreOneCollectiveAtTheEnd) {
  const auto l = lowered(options(Strategy::kFullShard, 2), {.watch = true}, 1);
  const Operation& last = l->made.operations.back();
  EXPECT_EQ(Counts(*l).of[OpKind::kWatch], 1u);
  EXPECT_EQ(last.kind, OpKind::kWatch);
  EXPECT_EQ(last.group, (RankGroup{0, 2, 1}));
  EXPECT_EQ(last.dst.count, static_cast<int64_t>(2 * l->plan.units.size() * Watch::kNumbers));
  EXPECT_EQ(last.part.numel * 2, last.dst.count);
  for (const Operation& op : l->made.operations) {
    EXPECT_TRUE(&op == &last || op.channel != last.channel) << text(op);
  }
  const auto without = lowered(options(Strategy::kFullShard, 2), {}, 1);
  EXPECT_EQ(Counts(*without).of[OpKind::kWatch], 0u);
  EXPECT_NE(collective_hash(l->program.schedule, l->plan),
            collective_hash(without->program.schedule, without->plan));
  const auto first =
      lowered(options(Strategy::kFullShard, 2), {.last_micro = false, .watch = true}, 1);
  EXPECT_EQ(Counts(*first).of[OpKind::kWatch], 0u);
}

int64_t bytes_of(const MemoryMap& memory, Area area) {
  switch (area) {
    case Area::kArena:
      return static_cast<int64_t>(memory.arena);
    case Area::kKept:
      return static_cast<int64_t>(memory.kept);
    case Area::kState:
      return static_cast<int64_t>(memory.state);
    case Area::kShared:
      return static_cast<int64_t>(memory.shared);
    case Area::kHost:
      return static_cast<int64_t>(memory.offload.bytes);
    default:
      return INT64_MAX;
  }
}

// No operand passes the end of a region, and each unit is updated once.
TEST(Lower, OperandsAreInsideTheirRegions) {
  constexpr std::array kStrategies{Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard,
                                   Strategy::kZero1, Strategy::kHybridShard};
  for (const Strategy strategy : kStrategies) {
    for (const int world : {1, 2, 4}) {
      for (const bool first : {true, false}) {
        for (const bool clip : {true, false}) {
          PlanOptions plan = options(strategy, world);
          plan.shard_size = std::max(1, world / 2);
          const auto l =
              lowered(plan, {.first_micro = first, .clip = clip, .watch = true}, world - 1);
          size_t updates = 0;
          for (const Operation& op : l->made.operations) {
            std::vector<Operand> all{op.src, op.dst, op.onto};
            all.insert(all.end(), op.operands.begin(), op.operands.end());
            for (const Operand& o : all) {
              EXPECT_LE(o.offset + static_cast<int64_t>(o.bytes()), bytes_of(l->memory, o.area))
                  << text(op);
            }
            updates += op.stages.update || op.kind == OpKind::kUpdate ? 1 : 0;
          }
          EXPECT_EQ(updates, l->plan.units.size());
        }
      }
    }
  }
}

}  // namespace lower_test
}  // namespace ofsdp
