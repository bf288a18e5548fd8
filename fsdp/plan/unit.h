// Unit: parameters that are gathered, reduced and resharded together (FSDP: a flat parameter).
//
// The trained parameters lie one after another in a flat float32 array, each at a multiple of
// PlanOptions::alignment elements. The end is padded: padded_numel / world is a multiple of the
// alignment too. UnitPlan::shards ranks divide the array into equal spans. Rank r owns span r %
// shards, so ranks with the same span hold copies. With --shard-weights the spans have other bounds
// (UnitPlan::bounds). Gaps hold zeros, in gradients too, so norms may run over them. The layout
// depends only on the parameters and the world size, not on strategy or weights.
//
// Follows PyTorch FSDP's FlatParameter (VLDB 2023, section 3.2).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"

namespace ofsdp::fsdp {

inline constexpr int64_t kParamAlignment = 16;  // elements: 64 bytes, for vector kernels

// Ranks at equal distances: ranks that share a unit's copy (stride 1), or ranks that hold the same
// shard in different copies (stride: ranks per copy).
struct RankGroup {
  int first = 0;
  int count = 1;
  int stride = 1;

  int rank(int index) const { return first + index * stride; }
  int index_of(int rank) const { return (rank - first) / stride; }
  bool operator==(const RankGroup&) const = default;
};

struct UnitParam {
  int parameter = 0;  // index in Graph::parameters
  std::string name;
  int64_t offset = 0;  // in elements from the start of the array, the trained or the frozen one
  int64_t numel = 0;
};

// How nodes get a whole unit: the rank already holds it (none); the rank converts it to the compute
// dtype; it is gathered from all shards; it is gathered after the rank's part has come from the
// host.
enum class Unshard : uint8_t { kNone, kConvert, kGather, kFetch };

// How long a unit stays unsharded: from the first use until the next update; until the last use in
// the micro-batch; until the last use in forward, and then again in backward.
enum class Residency : uint8_t { kUpdate, kMicroBatch, kPass };

// The ranks that add gradients for the elements that a rank owns: all ranks; the ranks that share
// the unit's copy; the ranks that hold the same shard in other copies.
enum class SumOver : uint8_t { kWorld, kShards, kCopies };

// How a strategy treats a unit.
struct UnitPlan {
  int shards = 1;  // ranks that divide the optimizer state; 1: each has it whole
  int copies = 1;  // world / shards
  Unshard unshard = Unshard::kNone;
  bool common = false;  // shards are adjacent in memory that all the ranks map
  // Each rank has the whole unit in the compute dtype too, and updates write both.
  bool rounded = false;
  Residency residency = Residency::kMicroBatch;
  DType gradient_dtype = DType::kFloat32;  // while a gradient waits for the reduction
  bool shards_gradients = false;  // reduce to the shard after every micro-batch, not every update
  SumOver sum_over = SumOver::kShards;
  bool sums_copies = false;  // sum once more, over the copies
  // With --shard-weights rank r owns elements [bounds[i], bounds[i + 1]) of the trained array, with
  // i = r % shards. frozen_bounds count in the same way from the start of the frozen array. Empty:
  // all shards are equal.
  std::vector<int64_t> bounds{}, frozen_bounds{};
};

struct Unit {
  int id = 0;
  std::string name;
  std::vector<UnitParam> params;
  int64_t numel = 0;         // without gaps and padding
  int64_t padded_numel = 0;  // with gaps and padding
  // Frozen parameters, if parameters are sharded: a second flat array without gradient or optimizer
  // state, in the compute dtype. In a gathered unit it follows the first. Raw data (Parameter::raw)
  // are a file's bytes; they take as many elements of the compute dtype as they need.
  std::vector<UnitParam> frozen;
  int64_t frozen_padded_numel = 0;
  int nodes = 0;            // forward and backward nodes that read any of the parameters
  bool outer = false;       // read only before or only after all blocks, so split off the root
  bool replicated = false;  // whole on every rank with every strategy (--ignore)
  UnitPlan plan;
};

// Returns the spans [begin, end) of the trained array that belong to no parameter, in order; the
// padding at the end is one.
std::vector<std::pair<int64_t, int64_t>> gaps(const Unit& unit);

}  // namespace ofsdp::fsdp
