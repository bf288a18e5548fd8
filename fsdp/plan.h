// Plan: how the trained parameters of a graph are cut into units and what of them is sharded.
//
// make_plan is pure. fsdp/partition.h says which parameters form a unit. The root unit, of what
// belongs to no other, is gathered once and not resharded after forward.
//
//   full_shard     parameters, gradients and optimizer state are sharded; gathered for forward and
//                  again for backward (ZeRO-3)
//   shard_grad_op  gathered for forward, kept until backward is done with them (ZeRO-2)
//   no_shard       every rank has everything, gradients are all-reduced (DDP)
// With one rank a shard is the whole, so nothing is gathered under any strategy.
//
// Ownership: values. Threads: any. Errors: those of partition; the caller has made sure that
// something is trained.
#pragma once

#include "fsdp/partition.h"
#include "fsdp/unit.h"

namespace ofsdp {

enum class Strategy {
  kFullShard,
  kShardGradOp,
  kNoShard,
  kHybridShard,  // this one and those below: not built yet, refused by the command line
  kHybridShardZero2,
  kZero1,
  kAuto
};

struct PlanOptions {
  Strategy strategy = Strategy::kFullShard;
  WrapPolicy wrap = WrapPolicy::kTransformer;
  int64_t min_params = 100000;
  int world = 1;
  std::vector<std::string> wrap_layers{};
  std::vector<std::string> ignore{};
};

struct Plan {
  Strategy strategy = Strategy::kFullShard;
  int world = 1;
  std::vector<Unit> units;  // the root, when there is one, is the last
  int root = -1;            // its id
  std::string notice;       // a line for the user, or empty

  bool gathers() const { return strategy != Strategy::kNoShard && world > 1; }
  bool shards_gradients() const { return strategy != Strategy::kNoShard; }
  bool reshards_after_forward(int unit) const {
    return strategy == Strategy::kFullShard && unit != root;
  }
  // Elements of a unit's parameters and optimizer state that a rank owns.
  int64_t owned_numel(const Unit& unit) const {
    return shards_gradients() ? unit.shard_numel(world) : unit.padded_numel;
  }
};

std::string_view strategy_name(Strategy strategy);

Result<Plan> make_plan(const Graph& graph, const PlanOptions& options);

// The table of units: name, parameters, bytes, and the nodes that read them.
std::string text(const Plan& plan);

}  // namespace ofsdp
