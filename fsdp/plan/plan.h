// Plan: the partition of a graph's trained parameters into units, and how ranks shard each unit. A
// pure function of the graph's shapes and dtypes; equal on every rank.
//
//   full_shard          shards parameters, gradients and optimizer states; unshards for forward and
//                       again for backward (ZeRO-3)
//   shard_grad_op       keeps parameters unsharded from forward until backward ends (ZeRO-2)
//   zero1               shards only optimizer states; owners update their parameter spans
//   no_shard            replicates everything and all-reduces gradients (DDP)
//   hybrid_shard        full_shard inside groups (shard_size neighbouring ranks), and all-reduces
//                       gradient shards between the groups; hybrid_shard_zero2 does the
//                       same with shard_grad_op
//
// WrapPolicy chooses the units. The root unit has the parameters outside every other unit; it is
// unsharded once and not resharded after forward. A replicated unit (--ignore) is no_shard with
// every strategy.
//
// [Note: mixed precision and offload] If param_dtype is below float32, a rank owns float32 masters
// and a gather converts them: even a whole unit is then "gathered", unless updates write both
// (`updates_round`). With an offload the masters are in host memory, and gathers start from values
// in param_dtype: on the device with kOptimizer; on the host with kParams, so that every unit is
// "gathered".
//
// [Note: the same bits on any number of ranks] With `across_ranks` a global batch is cut into
// slices with a fixed size; slice j is micro-batch j / world on rank j % world. After each
// micro-batch all ranks' gradients are added to the sum so far, in rank order. This is slice order
// for every world size. So every strategy reduces after every micro-batch, ranks in a hybrid
// strategy's groups read all slots instead of partial sums, and nothing is all-reduced.
//
// [Note: in place] Ranks that share a unit and have memory in common (all ranks on a host, or one
// group on it) keep the shards side by side there, in the compute dtype. Nodes read them without a
// gather. An owner writes a shard after all ranks have posted the unit's gradients, which follows
// their last read (runtime/compile/program/schedule.cpp); they read it again after the exchange
// that ends the update. Float32 masters are the shards themselves; with fewer bits the update
// writes the shards anew. Frozen parameters are sharded with their neighbours if parameters are
// sharded at rest; small ones, running statistics and other dtypes stay whole.
//
// Follows Zhao et al., "PyTorch FSDP", 2023 (https://arxiv.org/abs/2304.11277) and Rajbhandari et
// al., "ZeRO", 2020 (https://arxiv.org/abs/1910.02054).
#pragma once

#include <cstdint>
#include <optional>
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
//   size         parameters in first-use order; a group is closed once it has at least
//                min_params elements, never between one node's parameters
//   none         only the root
//
// A teacher's parameters get groups by the same policy; the remainder is a unit too, freed after
// the last use in forward. Parameters that `ignore` names form the replicated group: whole on every
// rank, with averaged gradients. All other parameters belong to the root.
//
// If `bucket_mb` is set, neighbouring groups are joined as long as they have at most that many MiB
// together, so that one collective serves all of them. The replicated group and the root are never
// joined.
//
// `auto` is chosen before planning (runtime/compile/choice.cpp).
//
// If `divides_root` is set, the root is divided: one group has the parameters that forward reads
// before every block (embeddings), another the parameters that it reads after every block (the last
// normalization and the head), unless one is read in both places (a tied table). Recomputation
// treats them as the root.
//
// Groups are in the order in which forward first uses them, then the replicated one, then the root,
// and so are the parameters in a group.
enum class WrapPolicy { kTransformer, kSize, kNone, kAuto };
OFSDP_ENUM_NAMES(WrapPolicy, {kTransformer, "transformer"}, {kSize, "size"}, {kNone, "none"},
                 {kAuto, "auto"})

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
// parameter shards.
enum class CpuOffload { kNone, kOptimizer, kParams };
OFSDP_ENUM_NAMES(CpuOffload, {kNone, "none"}, {kParams, "params"}, {kOptimizer, "optimizer"})

// --shard-weights: ranks that share a copy own parts of each unit in this proportion.
struct ShardWeights {
  bool automatic = false;             // by memory; chosen before planning
  std::vector<double> of_ranks = {};  // empty: equal parts
};

// The options of the command line that decide units and shards; the run adds the last members.
struct PlanOptions {
  Strategy strategy = Strategy::kFullShard;
  std::optional<int64_t> shard_size{};  // for hybrid strategies; none: the world size
  ShardWeights shard_weights{};         // at most one for each rank that shares a copy
  WrapPolicy wrap = WrapPolicy::kTransformer;
  // For kTransformer: classes, modules or globs; if empty, blocks are found in the graph.
  std::vector<std::string> wrap_layers{};
  int64_t min_params = 100000;
  double bucket_mb = 0;  // in param_dtype; 0: joins no units
  // full_shard: so many units, the last in forward, stay gathered until their backward.
  int64_t keep_gathered = 0;
  std::vector<std::string> ignore{};  // names of initializers or globs
  DType param_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  CpuOffload cpu_offload = CpuOffload::kNone;  // for a device

  int world = 1;
  bool across_ranks = false;
  bool wide_slots = false;
  bool updates_round = false;
  bool divides_root = false;
  int common_ranks = 1;
  int64_t alignment = kParamAlignment;  // for trained parameters: a multiple of kParamAlignment
};

struct ParameterGroup {
  enum class Kind { kUnit, kReplicated, kRoot };
  Kind kind = Kind::kUnit;
  std::string name;
  bool outer = false;           // divided from the root
  std::vector<int> parameters;  // indices in Graph::parameters
};

struct Partition {
  std::vector<ParameterGroup> groups;
  std::string notice;  // a line for the user, or empty
};

// Returns kInput if a name in wrap_layers or ignore does not exist.
Result<Partition> partition(const Graph& graph, const PlanOptions& options);

// Returns, by parameter, the nodes that read it: only forward ones, or all.
std::vector<std::vector<int>> readers(const Graph& graph, bool forward_only);

// Elements in the flat array of a unit.
struct Span {
  int64_t begin = 0;
  int64_t numel = 0;
};

// The blocks of a unit for norms: the squares of a block are summed, and these sums are added
// exactly, so that a norm does not depend on the bounds of shards. Each equal part of the unit
// (padded_numel / world) is cut into blocks; its last one may be shorter.
struct NormBlocks {
  static constexpr int64_t kNumel = 1024;

  int64_t part = 0;        // elements in an equal part
  int64_t numel = kNumel;  // in a block

  int64_t of_part() const { return (part + numel - 1) / numel; }
  // Returns the first element of block `index`, counted over all parts.
  int64_t begin(int64_t index) const {
    return index / of_part() * part + index % of_part() * numel;
  }
  // Returns the end of the block that contains the element.
  int64_t end(int64_t element) const;
  // Returns the block that begins nearest to the element.
  int64_t nearest(int64_t element) const;
};

struct Plan {
  Strategy strategy = Strategy::kFullShard;
  int world = 1;
  int shard_size = 1;                    // ranks that share one copy: the world, unless hybrid
  DType param_dtype = DType::kFloat32;   // the compute dtype; masters are float32
  DType reduce_dtype = DType::kFloat32;  // sums over ranks are rounded to it
  // The shards' dtype, from which units are unsharded.
  DType rest_dtype = DType::kFloat32;
  bool across_ranks = false;  // sums in slice order, see above
  // Gradients wait for the reduction in float32, for an engine that sums in the dtype that it
  // finds.
  bool wide_slots = false;
  // If a rank owns a whole unit, an update also writes it in param_dtype, so that nothing must be
  // converted before nodes read it.
  bool updates_round = false;
  CpuOffload offload = CpuOffload::kNone;
  int64_t alignment = kParamAlignment;  // for trained parameters and their shards
  int common_ranks = 1;     // as many neighbouring ranks have memory in common; 1: none have
  std::vector<Unit> units;  // the root, if there is one, is the last
  int root = -1;            // the root's id, or -1
  std::string notice;       // a line for the user, or empty

  // Returns the ranks that share the copy with `rank`; the ranks that hold the same shard.
  RankGroup shard_group(const Unit& unit, int rank) const;
  RankGroup replica_group(const Unit& unit, int rank) const;
  // Returns the ranks that add gradient slots for the span that `rank` owns.
  RankGroup summing_group(const Unit& unit, int rank) const;

  // Returns the span that the rank owns and updates: parameters and optimizer state.
  Span owned(const Unit& unit, int rank) const;
  Span owned_frozen(const Unit& unit, int rank) const;
  // Returns the elements of the rank that owns most.
  int64_t most_owned(const Unit& unit) const;
  NormBlocks norm_blocks(const Unit& unit) const { return {unit.padded_numel / world}; }
  // Returns the rank's unique span, a part in the owned one: in norms and files every element must
  // count once over all ranks.
  Span represented(const Unit& unit, int rank) const;
  // Returns true if ranks own unequal parts.
  bool weighted() const;
};

bool is_hybrid(Strategy strategy);

// Returns partition()'s errors. REQUIRES: at least one parameter is trained; there are no weights,
// or one for each rank that shares a copy.
Result<Plan> make_plan(const Graph& graph, const PlanOptions& options);

// Returns the unit table: name, parameters, bytes, and the nodes that read them.
std::string text(const Plan& plan);

// recompute: activation checkpointing. Backward does not read a block's activations; it computes
// them again from the block's inputs, which are saved.
//
// Forward is cut into segments: a segment ends before a node that reads another unit's parameters.
// The root's segments do not change. In other segments the nodes that backward needs are cloned;
// the clones are backward nodes before the first node that reads any of them. Values that other
// segments, the loss or running statistics read are saved as before. `kCheap` clones only nodes
// that cost little (not OpDef::costly: products, convolutions, attention and recurrences), which
// run again from saved products.
//
// A clone has the node's name, attributes and operands, and so the same seed and kernel: the bits
// do not change. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; Korthikanti et
// al., "Reducing Activation Recomputation in Large Transformer Models", 2022 (the cheap ones).

enum class SegmentRecompute : uint8_t { kNone, kCheap, kAll };

// A stretch of forward nodes, `last` inclusive, that reads one unit's parameters.
struct Segment {
  int unit = -1;  // -1: only the root's parameters, or none
  int first = 0;
  int last = 0;
};

// Returns how many nodes come before the first backward one.
int forward_end(const Graph& graph);

std::vector<Segment> segments(const Graph& training, const Plan& plan);

// Returns the choice for a recomputation level; each level needs less memory than the one before.
// 0: none; 1: the cheap nodes in all segments; 1 + k: also all nodes in the first k segments
// outside the root.
std::vector<SegmentRecompute> recompute_choice(const std::vector<Segment>& segments, int level);
// Returns the highest level.
int max_recomputation(const std::vector<Segment>& segments);

// Returns the graph with the clones. `choice` has an entry for each segment.
Graph recompute(const Graph& training, const std::vector<Segment>& segments,
                const std::vector<SegmentRecompute>& choice);

}  // namespace ofsdp::fsdp
