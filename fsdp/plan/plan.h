// Plan: the partition of a graph's trained parameters into units, and how ranks shard each unit. A
// pure function of the graph's shapes and dtypes; equal on every rank.
//
//   full_shard          shards parameters, gradients and optimizer states; unshards for forward and
//                       again for backward (ZeRO-3)
//   shard_grad_op       keeps parameters unsharded from forward to the end of backward (ZeRO-2)
//   zero1               shards only optimizer states; owners update their spans of the parameters
//   no_shard            replicates everything and all-reduces gradients (DDP)
//   hybrid_shard        full_shard inside groups of shard_size neighbouring ranks, and all-reduces
//                       gradient shards between the groups; hybrid_shard_zero2 does the
//                       same with shard_grad_op
//
// WrapPolicy chooses the units. The root unit has the parameters outside of every other unit; it
// is unsharded once and not resharded after forward. A replicated unit (--ignore) is no_shard with
// every strategy.
//
// [Note: mixed precision and offload] If param_dtype is below float32, a rank owns float32 masters
// and a gather converts them: even a whole unit is then "gathered", unless updates write both
// (`updates_round`). With an offload the masters are in host memory, and gathers start from values
// in param_dtype: on the device with kOptimizer; on the host with kParams, so that every unit is
// "gathered".
//
// [Note: the same bits on any number of ranks] With `across_ranks` a global batch is cut into
// slices of a fixed size; slice j is micro-batch j / world of rank j % world. After each
// micro-batch the gradients of all ranks are added to the sum so far, in rank order. This is the
// order of the slices for every world size. So every strategy reduces after every micro-batch,
// ranks in a hybrid strategy's groups read all slots instead of partial sums, and nothing is
// all-reduced.
//
// [Note: in place] Ranks that share a unit and have memory in common (all ranks on a host, or one
// group on it) keep the shards side by side there, in the compute dtype. Nodes read them without a
// gather. An owner writes a shard after all ranks have posted the unit's gradients, which follows
// their last read (runtime/program/schedule.cpp); they read it again after the exchange
// that ends the update. Float32 masters are the shards themselves; with fewer bits the update
// writes the shards anew. Frozen parameters are sharded with their neighbours if parameters are
// sharded at rest; small ones, running statistics and other dtypes stay whole.
//
// Follows Zhao et al., "PyTorch FSDP", 2023 (https://arxiv.org/abs/2304.11277) and Rajbhandari et
// al., "ZeRO", 2020 (https://arxiv.org/abs/1910.02054).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/plan/unit.h"
#include "importer/graph/graph.h"
#include "kernels/base/names.h"

namespace ofsdp::fsdp {

// How trained parameters are divided into groups, each of which becomes a unit:
//
//   transformer  a group for each block (fsdp/plan/blocks.h); if none is found, as `size`, with a
//                notice. A parameter that nodes in another block also read belongs to the root
//   size         parameters in the order of first use; a group is closed once it has at least
//                min_params elements, never between parameters of one node
//   none         only the root
//
// A teacher's parameters get groups by the same policy; the remainder is a unit too, freed after
// the last use in forward. Parameters that `ignore` names form the replicated group: whole on every
// rank, with averaged gradients. All other parameters belong to the root.
//
// If `bucket_numel` is set, neighbouring groups are joined as long as they have at most that many
// elements together, so that one collective serves all of them. The replicated group and the root
// are never joined.
//
// Groups are in the order of first use in forward, then the replicated one, then the root, and so
// are the parameters in a group.
enum class WrapPolicy { kTransformer, kSize, kNone };
OFSDP_ENUM_NAMES(WrapPolicy, {kTransformer, "transformer"}, {kSize, "size"}, {kNone, "none"})

struct PartitionOptions {
  WrapPolicy wrap = WrapPolicy::kTransformer;
  int64_t min_params = 100000;
  // For kTransformer: classes, modules or globs; if empty, blocks are found in the graph.
  std::vector<std::string> wrap_layers;
  std::vector<std::string> ignore;  // names of initializers or globs
  int64_t bucket_numel = 0;         // 0: joins no groups
};

struct ParameterGroup {
  enum class Kind { kUnit, kReplicated, kRoot };
  Kind kind = Kind::kUnit;
  std::string name;
  std::vector<int> parameters;  // indices in Graph::parameters
};

struct Partition {
  std::vector<ParameterGroup> groups;
  std::string notice;  // a line for the user, or empty
};

// Returns kInput if a name in wrap_layers or ignore does not exist.
Result<Partition> partition(const Graph& graph, const PartitionOptions& options);

// Returns, by parameter, the nodes that read it: only forward ones, or all.
std::vector<std::vector<int>> readers(const Graph& graph, bool forward_only);

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

// Kept in host memory while a device computes: nothing; masters and optimizer state; also the
// shards of the parameters.
enum class CpuOffload { kNone, kOptimizer, kParams };
OFSDP_ENUM_NAMES(CpuOffload, {kNone, "none"}, {kParams, "params"}, {kOptimizer, "optimizer"})

// When backward gathers the next unit: before the gradients of the current one, after them, or when
// the first node needs it.
enum class BackwardPrefetch { kPre, kPost, kNone };
OFSDP_ENUM_NAMES(BackwardPrefetch, {kPre, "pre"}, {kPost, "post"}, {kNone, "none"})

struct PlanOptions {
  Strategy strategy = Strategy::kFullShard;
  WrapPolicy wrap = WrapPolicy::kTransformer;
  int64_t min_params = 100000;
  double bucket_mb = 0;  // in param_dtype; 0: joins no units
  int world = 1;
  std::vector<std::string> wrap_layers{};
  std::vector<std::string> ignore{};
  int shard_size = 0;  // for hybrid strategies; 0: the world size
  DType param_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  bool across_ranks = false;
  bool wide_slots = false;
  bool updates_round = false;
  CpuOffload offload = CpuOffload::kNone;  // for a device
  int common_ranks = 1;
  int64_t alignment = kParamAlignment;  // of trained parameters: a multiple of kParamAlignment
};

// Elements in the flat array of a unit.
struct Span {
  int64_t begin = 0;
  int64_t numel = 0;
};

struct Plan {
  Strategy strategy = Strategy::kFullShard;
  int world = 1;
  int shard_size = 1;                    // ranks that share one copy: the world, unless hybrid
  DType param_dtype = DType::kFloat32;   // the compute dtype; masters are float32
  DType reduce_dtype = DType::kFloat32;  // sums over ranks are rounded to it
  // The dtype of the shards from which units are unsharded.
  DType rest_dtype = DType::kFloat32;
  bool across_ranks = false;  // sums in the order of slices, see above
  // Gradients wait for the reduction in float32, for an engine that sums in the dtype that it
  // finds.
  bool wide_slots = false;
  // If a rank owns a whole unit, an update also writes it in param_dtype, so that nothing must be
  // converted before nodes read it.
  bool updates_round = false;
  CpuOffload offload = CpuOffload::kNone;
  int64_t alignment = kParamAlignment;  // of trained parameters and their shards
  int common_ranks = 1;     // as many neighbouring ranks have memory in common; 1: none have
  std::vector<Unit> units;  // the root, if there is one, is the last
  int root = -1;            // id of the root, or -1
  std::string notice;       // a line for the user, or empty

  // Returns the ranks that share the copy with `rank`; the ranks that hold the same shard.
  RankGroup shard_group(const Unit& unit, int rank) const;
  RankGroup replica_group(const Unit& unit, int rank) const;
  // Returns the ranks that add gradient slots for the span that `rank` owns.
  RankGroup summing_group(const Unit& unit, int rank) const;

  // Returns the span that the rank owns and updates: parameters and optimizer state.
  Span owned(const Unit& unit, int rank) const;
  int64_t owned_numel(const Unit& unit) const { return unit.padded_numel / unit.plan.shards; }
  Span owned_frozen(const Unit& unit, int rank) const;
  // Returns the rank's unique span, a part of the owned one: in norms and files every element must
  // count once over all ranks.
  Span represented(const Unit& unit, int rank) const;
};

bool is_hybrid(Strategy strategy);

// Returns the errors of partition(). REQUIRES: at least one parameter is trained.
Result<Plan> make_plan(const Graph& graph, const PlanOptions& options);

// Returns the table of units: name, parameters, bytes, and the nodes that read them.
std::string text(const Plan& plan);

}  // namespace ofsdp::fsdp
