// Plan: the units into which a graph's trained parameters are partitioned, and what of each unit is
// sharded over which ranks. Input: a graph with its parameters' shapes and dtypes. Output: spans in
// elements, the same on every rank.
//
//   full_shard          shards parameters, gradients and optimizer states; unshards for forward and
//                       again for backward (ZeRO-3)
//   shard_grad_op       keeps parameters unsharded from forward to the end of backward (ZeRO-2)
//   zero1               shards optimizer states alone; owners update their spans of the parameters
//   no_shard            replicates everything and all-reduces gradients (DDP)
//   hybrid_shard        full_shard inside groups of shard_size neighbouring ranks, and all-reduces
//                       gradient shards between the groups; hybrid_shard_zero2 does the
//                       same with shard_grad_op
//
// partition.h chooses the units. The root unit has the parameters outside of every other unit; it
// is unsharded once and not resharded after forward. A replicated unit (--ignore) is no_shard under
// every strategy.
//
// [Note: mixed precision and offload] With param_dtype below float32 a rank owns float32 masters,
// and a gather converts them: even a whole unit is then "gathered", unless updates write both
// (`updates_round`). With an offload the masters are
// in host memory. Gathers start from values in param_dtype: on the device with kOptimizer, on the
// host with kParams, where every unit is "gathered" therefore.
//
// [Note: the same bits on any number of ranks] With `across_ranks` a global batch is cut into
// slices of a fixed size; slice j is micro-batch j / world of rank j % world. After each
// micro-batch the gradients of all ranks are added to the sum so far, in rank order. That is the
// order of the slices, whatever the world. So every strategy reduces after every micro-batch, ranks
// of a hybrid's groups read all slots instead of partial sums, and nothing is all-reduced.
//
// [Note: in place] Ranks that share a unit and have memory in common (all ranks of a host, or those
// of one group on it) keep its shards side by side there, in the dtype that nodes compute in. Nodes
// read them without a gather. An owner writes its shard after all ranks have posted the unit's
// gradients, which follows their last read (runtime/program/schedule.cpp); they read it
// again after the exchange that ends the update. Float32 masters are the shards themselves; with
// fewer bits the update writes the shards anew. Frozen parameters are sharded with their neighbours
// where parameters are sharded at rest; small ones, running statistics and other dtypes stay whole.
//
// Pure. Owner: the caller, of a value. Thread: any. Errors: those of partition.
// REQUIRES: at least one parameter is trained.
// Follows Zhao et al., "PyTorch FSDP", 2023 (https://arxiv.org/abs/2304.11277) and Rajbhandari et
// al., "ZeRO", 2020 (https://arxiv.org/abs/1910.02054).
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

// Rests in host memory while a device computes: nothing; masters and optimizer state; the
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
  double bucket_mb = 0;  // of param_dtype; 0: no units are joined
  int world = 1;
  std::vector<std::string> wrap_layers{};
  std::vector<std::string> ignore{};
  int shard_size = 0;  // of hybrid strategies; 0: the world
  DType param_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  bool across_ranks = false;
  bool wide_slots = false;
  bool updates_round = false;
  CpuOffload offload = CpuOffload::kNone;  // of a device
  int common_ranks = 1;
  int64_t alignment = kParamAlignment;  // of trained parameters: a multiple of that
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
  // The dtype of the rank's shards, as unsharding reads them.
  DType rest_dtype = DType::kFloat32;
  bool across_ranks = false;  // sums in the order of slices, see above
  // Gradients wait in float32, whatever nodes write: for an engine that sums in the type it finds.
  bool wide_slots = false;
  // An update also writes what nodes read, in param_dtype, where a rank owns the whole of a unit:
  // nothing is converted before they do.
  bool updates_round = false;
  CpuOffload offload = CpuOffload::kNone;
  int64_t alignment = kParamAlignment;  // where trained parameters and shards of them begin
  int common_ranks = 1;                 // so many neighbouring ranks have memory in common; 1: none
  std::vector<Unit> units;              // the root, when there is one, is the last
  int root = -1;                        // its id
  std::string notice;                   // a line for the user, or empty

  // Ranks that share `rank`'s copy; ranks that hold the same shard of the other copies.
  RankGroup shard_group(const Unit& unit, int rank) const;
  RankGroup replica_group(const Unit& unit, int rank) const;
  // Ranks whose gradient slots are added to what the rank owns of the unit's gradient.
  RankGroup summing_group(const Unit& unit, int rank) const;

  // The span that the rank owns, and updates: parameters and optimizer state.
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
