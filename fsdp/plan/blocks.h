// Blocks: model parts that deserve a unit each, such as a transformer's layers.
//
//   module_blocks     from module names: modules numbered under one parent, if at least two
//                     are alike ("h.0", "h.1", ...) or one has little more than another, the
//                     outermost such; then all other modules with the same class, or the same
//                     path except for numbers
//   repeated_blocks   if names say nothing: the longest stretch in forward that is followed
//                     by copies, with equal nodes, wiring and parameter shapes
//   requested_blocks  from --wrap-layers: classes by name, modules by glob; if the file names no
//                     classes, numbered modules in a list with the class's last word ("BertLayer":
//                     "encoder.layer.0", ...)
//
// A module that owns all its parameters itself (one Linear) is a block only if three are alike and
// they hold half the trained elements; the same holds for stretches with a single matrix. Frozen
// parameters with more than one element count when modules are compared: an exporter may give a
// number to one of them only. Blocks list only trained parameters.
//
// Follows PyTorch FSDP's transformer_auto_wrap_policy, but finds the blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::fsdp {

struct Module {
  std::string path;  // "encoder.layer.0"
  std::string name;  // "0"
  std::string type;  // class, or empty
  int parent = -1;
  std::vector<int> children;
  std::vector<int> parameters;  // owned directly, trained or not; indices in Graph::parameters
};

// A graph's modules (Parameter::module) as a tree. Module 0 is the model, path "". A module
// precedes its children, which are in the file's initializer order. The graph must outlive the
// tree.
class ModuleTree {
 public:
  explicit ModuleTree(const Graph& graph);

  const std::vector<Module>& modules() const { return modules_; }
  const Module& operator[](int module) const { return modules_[static_cast<size_t>(module)]; }
  const Graph& graph() const { return graph_; }
  int owner(int parameter) const { return owner_[static_cast<size_t>(parameter)]; }

  std::vector<int> parameters_under(int module) const;
  // Counts the trained elements in the module and all modules below.
  int64_t trained_numel(int module) const;
  // Counts the modules that own parameters directly: the module and all modules in it.
  int owners(int module) const;
  // Equal for modules that hold the same parameter shapes, frozen numbers apart.
  std::string signature(int module) const;
  // True if the module holds all parameter shapes of the other, and at most a tenth more elements.
  bool extends(int module, int other) const;

 private:
  int find_or_add(const std::string& path);
  std::vector<std::string> shapes(int module) const;

  const Graph& graph_;
  std::vector<Module> modules_;
  std::map<std::string, int> index_;
  std::vector<int> owner_;
};

struct Block {
  std::string name;
  std::vector<int> parameters;  // trained ones; indices in Graph::parameters
};

std::vector<Block> module_blocks(const ModuleTree& tree);
std::vector<Block> repeated_blocks(const Graph& graph);
// Returns kInput with the flag and the nearest name if a layer does not exist.
Result<std::vector<Block>> requested_blocks(const ModuleTree& tree,
                                            const std::vector<std::string>& layers);

}  // namespace ofsdp::fsdp
