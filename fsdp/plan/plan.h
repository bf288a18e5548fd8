// Plan: how the trained parameters of a graph are cut into units and what of them is sharded.
//
// make_plan is pure. fsdp/plan/partition.h says which parameters form a unit. The root unit, of
// what belongs to no other, is gathered once and not resharded after forward.
//
//   full_shard          parameters, gradients and optimizer state are sharded; gathered for forward
//                       and again for backward (ZeRO-3)
//   shard_grad_op       gathered for forward, kept until backward is done with them (ZeRO-2)
//   zero1               optimizer state alone is sharded; parameters are whole, their spans updated
//                       by their owners and fetched once an update
//   no_shard            every rank has everything, gradients are all-reduced (DDP)
//   hybrid_shard        full_shard among shard_size neighbouring ranks, which share one copy; the
//   hybrid_shard_zero2  copies' gradient shards are all-reduced; likewise with shard_grad_op
// [Note: the same bits on any number of ranks] With `across_ranks` a global batch is cut into fixed
// slices, micro-batches whose size does not depend on the world; slice j is micro-batch j / world
// of rank j % world. After each micro-batch the gradients of all ranks are added, in rank order, to
// the sum so far, which is the order of the slices whatever the world. So every strategy reduces
// after every micro-batch, the ranks of a hybrid's copies (and of no_shard) read all slots instead
// of summing partial sums, and nothing is all-reduced.
// A replicated unit (--ignore) is no_shard under every strategy. With param_dtype below float32 the
// rank owns float32 masters, and a gather also converts: then even a whole unit is "gathered".
// With an offload the masters are in host memory, and what gathers start from has param_dtype: with
// kOptimizer it is on the device, with kParams on the host, so that every unit is "gathered".
// [Note: in place] Ranks that share a unit's copy and have memory in common (all of a host, or
// those of a hybrid's copy on each) put its shards side by side in it, in the type that nodes
// compute in: what they read is there already, gathered by nobody.
// An owner may write its shard once all ranks have posted the unit's gradients, behind their last
// use of it (runtime/program/schedule_reductions.cpp), and they read it again after the exchange
// that ends the update. Float32 masters are the shards themselves; of fewer bits the update writes
// them anew. Where parameters are sharded at rest, frozen ones are as well, in the units of their
// neighbours; those of a few elements, running statistics and those of another type stay whole.
//
// Errors: those of partition; the caller has made sure that
// something is trained.
#pragma once

#include "fsdp/plan/partition.h"
#include "fsdp/plan/rank_group.h"
#include "fsdp/plan/unit.h"

namespace ofsdp::fsdp {

enum class Strategy {
  kFullShard,
  kShardGradOp,
  kNoShard,
  kHybridShard,
  kHybridShardZero2,
  kZero1,
  kAuto  // chosen before planning
};
OFSDP_ENUM_NAMES(Strategy, {kFullShard, "full_shard"}, {kShardGradOp, "shard_grad_op"},
                 {kNoShard, "no_shard"}, {kHybridShard, "hybrid_shard"},
                 {kHybridShardZero2, "hybrid_shard_zero2"}, {kZero1, "zero1"}, {kAuto, "auto"})
constexpr std::string_view strategy_name(Strategy strategy) { return name_of(strategy); }

// What rests in host memory while a device computes: nothing; masters and optimizer state; the
// parameters that nodes gather from as well.
enum class CpuOffload { kNone, kOptimizer, kParams };
OFSDP_ENUM_NAMES(CpuOffload, {kNone, "none"}, {kParams, "params"}, {kOptimizer, "optimizer"})

// When backward gathers the next unit: before the gradients of the present one, after them, or when
// its first node needs it.
enum class BackwardPrefetch { kPre, kPost, kNone };
OFSDP_ENUM_NAMES(BackwardPrefetch, {kPre, "pre"}, {kPost, "post"}, {kNone, "none"})

struct PlanOptions {
  Strategy strategy = Strategy::kFullShard;
  WrapPolicy wrap = WrapPolicy::kTransformer;
  int64_t min_params = 100000;
  int world = 1;
  std::vector<std::string> wrap_layers{};
  std::vector<std::string> ignore{};
  int shard_size = 0;  // of hybrid strategies; 0: the world
  DType param_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  bool across_ranks = false;
  bool wide_slots = false;
  CpuOffload offload = CpuOffload::kNone;  // of a device
  int common_ranks = 1;
};

// Elements of a unit's flat array.
struct Span {
  int64_t begin = 0;
  int64_t numel = 0;
};

struct Plan {
  Strategy strategy = Strategy::kFullShard;
  int world = 1;
  int shard_size = 1;                    // ranks that share one copy: the world, unless hybrid
  DType param_dtype = DType::kFloat32;   // what nodes compute with; masters are float32
  DType reduce_dtype = DType::kFloat32;  // what sums over ranks are rounded to
  // Of what the rank owns, where unsharding takes it from.
  DType rest_dtype = DType::kFloat32;
  bool across_ranks = false;  // sums in the order of slices, see above
  // Gradients wait in float32, whatever nodes write: for an engine that sums in the type it finds.
  bool wide_slots = false;
  CpuOffload offload = CpuOffload::kNone;
  int common_ranks = 1;     // so many neighbouring ranks have memory in common; 1: none
  std::vector<Unit> units;  // the root, when there is one, is the last
  int root = -1;            // its id
  std::string notice;       // a line for the user, or empty

  // Ranks that share `rank`'s copy; ranks that hold the same shard of the other copies.
  RankGroup shard_group(const Unit& unit, int rank) const;
  RankGroup replica_group(const Unit& unit, int rank) const;
  // Ranks whose gradient slots are added to what the rank owns of the unit's gradient.
  RankGroup summing_group(const Unit& unit, int rank) const;

  // What the rank owns, and updates: parameters and optimizer state.
  Span owned(const Unit& unit, int rank) const;
  int64_t owned_numel(const Unit& unit) const { return unit.padded_numel / unit.plan.shards; }
  Span owned_frozen(const Unit& unit, int rank) const;
  // The part of that which this rank stands for, where every element counts once: in norms, files.
  Span represented(const Unit& unit, int rank) const;
};

bool is_hybrid(Strategy strategy);

Result<Plan> make_plan(const Graph& graph, const PlanOptions& options);

// The table of units: name, parameters, bytes, and the nodes that read them.
std::string text(const Plan& plan);

}  // namespace ofsdp::fsdp
