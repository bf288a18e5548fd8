// Bounds of unequal shards: they divide each unit in proportion, at the norm's blocks, and copies
// in a hybrid strategy divide a shard without gap or overlap.
#include <gtest/gtest.h>

#include "fsdp/plan/plan.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace unit_shard_weights_test {

const std::vector<int64_t> kWidths = {300, 70, 500, 40, 7};

Plan planned(int world, const std::vector<double>& weights, int shard_size = 0,
             int64_t alignment = kParamAlignment) {
  const Registry registry = make_registry();
  PlanOptions options;
  options.wrap = WrapPolicy::kSize;
  options.min_params = 1000;
  options.world = world;
  options.alignment = alignment;
  options.shard_weights.of_ranks = weights;
  if (shard_size > 0) {
    options.strategy = Strategy::kHybridShard;
    options.shard_size = shard_size;
  }
  return *make_plan(testing::mlp_training_graph(registry, 4, kWidths), options);
}

TEST(ShardWeights, PartsAreInProportionToABlock) {
  const std::vector<double> weights = {5, 1, 2};
  for (const int64_t alignment : {int64_t{16}, int64_t{256}}) {
    const Plan plan = planned(3, weights, 0, alignment);
    ASSERT_GT(plan.units.size(), 2u);
    EXPECT_TRUE(plan.weighted());
    std::vector<int64_t> owned(3);
    int64_t all = 0;
    for (const Unit& unit : plan.units) {
      int64_t end = 0;
      for (int rank = 0; rank < 3; ++rank) {
        const Span span = plan.owned(unit, rank);
        EXPECT_EQ(span.begin, end);
        EXPECT_GT(span.numel, 0) << "every rank owns a part of every unit";
        EXPECT_EQ(span.begin % alignment, 0);
        end = span.begin + span.numel;
        owned[static_cast<size_t>(rank)] += span.numel;
        EXPECT_LE(span.numel, plan.most_owned(unit));
      }
      EXPECT_EQ(end, unit.padded_numel);
      all += unit.padded_numel;
    }
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_NEAR(static_cast<double>(owned[r]), static_cast<double>(all) * weights[r] / 8,
                  NormBlocks::kNumel)
          << r;
    }
  }
}

TEST(ShardWeights, EqualWeightsAreEqualShards) {
  const Plan equal = planned(4, {}), weighted = planned(4, {2, 2, 2, 2});
  for (size_t u = 0; u < equal.units.size(); ++u) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(weighted.owned(weighted.units[u], rank).begin,
                equal.owned(equal.units[u], rank).begin);
    }
  }
}

// Each block has one rank that counts it.
TEST(ShardWeights, UniqueSpansAreWholeBlocks) {
  for (const int shard_size : {6, 3, 2}) {
    std::vector<double> weights(static_cast<size_t>(shard_size), 1);
    weights[1] = 3.7;
    const Plan plan = planned(6, weights, shard_size);
    for (const Unit& unit : plan.units) {
      const NormBlocks blocks = plan.norm_blocks(unit);
      std::vector<int> counted(static_cast<size_t>(unit.padded_numel));
      for (int rank = 0; rank < 6; ++rank) {
        const Span span = plan.represented(unit, rank), owned = plan.owned(unit, rank);
        EXPECT_GE(span.begin, owned.begin);
        EXPECT_LE(span.begin + span.numel, owned.begin + owned.numel);
        for (int64_t at = span.begin; at < span.begin + span.numel; at = blocks.end(at)) {
          EXPECT_LE(blocks.end(at), span.begin + span.numel);
        }
        for (int64_t i = 0; i < span.numel; ++i) ++counted[static_cast<size_t>(span.begin + i)];
      }
      EXPECT_EQ(std::ranges::count(counted, 1), unit.padded_numel) << unit.name;
    }
  }
}

TEST(NormBlocks, EqualPartsAreCutByThemselves) {
  const NormBlocks blocks{2064};  // two whole blocks and one with 16
  EXPECT_EQ(blocks.of_part(), 3);
  EXPECT_EQ(blocks.end(0), 1024);
  EXPECT_EQ(blocks.end(2047), 2048);
  EXPECT_EQ(blocks.end(2048), 2064);
  EXPECT_EQ(blocks.end(2064), 2064 + 1024);
  EXPECT_EQ(blocks.begin(3), 2064);
  EXPECT_EQ(blocks.begin(blocks.nearest(2064)), 2064);
  EXPECT_EQ(blocks.begin(blocks.nearest(2050)), 2048);
  EXPECT_EQ(blocks.begin(blocks.nearest(2064 + 600)), 2064 + 1024);
}

}  // namespace unit_shard_weights_test
}  // namespace ofsdp
