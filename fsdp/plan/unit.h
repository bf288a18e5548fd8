// Unit: the parameters that are gathered, reduced and resharded together; what FSDP calls a flat
// parameter.
//
// A unit's trained parameters lie one after another in a flat array of float32, each at a multiple
// of PlanOptions::alignment elements; the end is padded so that every rank's shard is one span of
// padded_numel / world elements, itself a multiple of the alignment. A rank's shard is elements
// [rank * shard, (rank + 1) * shard). Gaps hold zeros, in gradients too, so norms may run over
// them. The layout depends on the parameters and the world size alone, not on the strategy.
//
// Follows PyTorch FSDP's FlatParameter (VLDB 2023, section 3.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace ofsdp::fsdp {

inline constexpr int64_t kParamAlignment = 16;  // elements: 64 bytes, what vector kernels want

struct UnitParam {
  int parameter = 0;  // index in Graph::parameters
  std::string name;
  int64_t offset = 0;  // elements from the start of the unit
  int64_t numel = 0;
};

// How nodes get the whole of a unit: what the rank holds is the whole already (none); it is
// converted to the type that nodes compute in; it is gathered from all shards; its part comes from
// the host first.
enum class Unshard : uint8_t { kNone, kConvert, kGather, kFetch };

// How long the unsharded unit lasts: from its first use in an update to the next update; to the
// last use in a micro-batch; to the last use in forward, and again in backward.
enum class Residency : uint8_t { kUpdate, kMicroBatch, kPass };

// The ranks whose gradient buffers are added to what this rank owns: all; those that share its copy
// of the unit; those that hold the same shard of the other copies.
enum class SumOver : uint8_t { kWorld, kShards, kCopies };

// How a strategy treats a unit. make_plan computes it once.
struct UnitPlan {
  int shards = 1;  // ranks that divide the optimizer state; 1: each has the whole
  int copies = 1;  // world / shards
  Unshard unshard = Unshard::kNone;
  bool common = false;  // shards are adjacent in memory that all their ranks map
  // The whole is there in the type that nodes compute in too, and updates write both.
  bool rounded = false;
  Residency residency = Residency::kMicroBatch;
  DType gradient_dtype = DType::kFloat32;  // in which a gradient waits to be summed over ranks
  bool shards_gradients =
      false;  // reduced to the shard after every micro-batch, not once an update
  SumOver sum_over = SumOver::kShards;
  bool sums_copies = false;  // that sum is summed once more, over the copies
};

struct Unit {
  int id = 0;
  std::string name;
  std::vector<UnitParam> params;
  int64_t numel = 0;         // of the parameters alone
  int64_t padded_numel = 0;  // with gaps and padding
  // Frozen parameters, where parameters are sharded: a flat array of their own, without gradient or
  // optimizer state, in the type that nodes compute in. In a gathered unit it follows the other.
  // Raw data (Parameter::raw) take whole elements of it.
  std::vector<UnitParam> frozen;
  int64_t frozen_padded_numel = 0;
  int nodes = 0;            // that read one of its parameters, forward and backward
  bool replicated = false;  // whole on every rank under every strategy (--ignore)
  UnitPlan plan;
};

// The spans [begin, end) of a unit that belong to no parameter, in order.
std::vector<std::pair<int64_t, int64_t>> gaps(const Unit& unit);

}  // namespace ofsdp::fsdp
