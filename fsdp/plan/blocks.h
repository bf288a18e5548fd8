// Blocks: the parts of a model that are worth a unit each, such as the layers of a transformer.
//
//   module_blocks     from the modules that exporters name: modules numbered under one parent of
//                     which at least two are alike ("h.0", "h.1", ...), the outermost such; then
//                     all others of the same class or the same path but for its numbers
//   repeated_blocks   if names say nothing: the longest stretch of forward nodes that is followed
//                     by copies of itself, node for node, with parameters of the same shapes, wired
//                     alike
//   requested_blocks  what --wrap-layers says: classes by name, modules by glob
//
// A module that owns all its parameters itself (one Linear) is a block only where there are three
// alike and they hold half of what is trained; the same for stretches with a single matrix.
// Frozen parameters count for being alike, but blocks list trained ones only.
//
// Follows PyTorch FSDP's transformer_auto_wrap_policy, with blocks found instead of named.
// Errors: requested_blocks: kInput naming flag and nearest name.
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/module_tree.h"

namespace ofsdp::fsdp {

struct Block {
  std::string name;
  std::vector<int> parameters;  // trained ones; indices in Graph::parameters
};

std::vector<Block> module_blocks(const ModuleTree& tree);
std::vector<Block> repeated_blocks(const Graph& graph);
Result<std::vector<Block>> requested_blocks(const ModuleTree& tree,
                                            const std::vector<std::string>& layers);

// Assigns each parameter to the innermost of `modules` that contains it; others are left out.
std::vector<Block> blocks_of(const ModuleTree& tree, const std::vector<int>& modules);

}  // namespace ofsdp::fsdp
