// partition: the trained parameters of a graph in groups, each of which becomes a unit
// (fsdp/plan/plan.h).
//
//   transformer  a group for each block (fsdp/plan/blocks.h); where none is found, as `size`, with
//                a notice. A parameter that nodes of another block read as well belongs to the root
//   size         parameters in the order of their first use; a group is closed when it has at least
//                min_params of them, never between parameters of one node
//   none         the root alone
// A teacher's parameters have groups of their own, by the same policy: its remainder is a unit too,
// freed after its last use in forward.
// Parameters that `ignore` names are a group of their own, `replicated`: whole on every rank, its
// gradients averaged. All other parameters are the root: those outside of blocks, the remainder of
// `size`.
//
// With `bucket_numel` neighbouring groups are joined while they have at most so many parameters
// together: a unit's collectives are one. Neither the replicated group nor the root joins.
//
// Groups stand in the order of their first use in forward, then the replicated one, then the root;
// so do the parameters in them. Pure; the same on every rank.
// Errors: kInput: a name in wrap_layers or ignore that nothing has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "importer/graph/graph.h"
#include "kernels/base/names.h"

namespace ofsdp::fsdp {

enum class WrapPolicy { kTransformer, kSize, kNone };
OFSDP_ENUM_NAMES(WrapPolicy, {kTransformer, "transformer"}, {kSize, "size"}, {kNone, "none"})

struct PartitionOptions {
  WrapPolicy wrap = WrapPolicy::kTransformer;
  int64_t min_params = 100000;
  // For kTransformer: classes, modules or globs; empty: found from the graph.
  std::vector<std::string> wrap_layers;
  std::vector<std::string> ignore;  // names of initializers or globs
  int64_t bucket_numel = 0;         // 0: none are joined
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

Result<Partition> partition(const Graph& graph, const PartitionOptions& options);

// Per parameter the nodes that read it, forward ones or all.
std::vector<std::vector<int>> readers(const Graph& graph, bool forward_only);

}  // namespace ofsdp::fsdp
