// ModuleTree: the modules that the parameters of a graph belong to (Parameter::module), as a tree.
// Module 0 is the model itself, path "". A module comes before its children, and children are in
// the order of the file's initializers.
//
// Ownership: values; the graph must outlive the tree. Threads: any. Errors: none.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::fsdp {

struct Module {
  std::string path;  // "encoder.layer.0"
  std::string name;  // "0"
  std::string type;  // its class, or empty
  int parent = -1;
  std::vector<int> children;
  std::vector<int> parameters;  // its own, trained or not; indices in Graph::parameters
};

class ModuleTree {
 public:
  explicit ModuleTree(const Graph& graph);

  const std::vector<Module>& modules() const { return modules_; }
  const Module& operator[](int module) const { return modules_[static_cast<size_t>(module)]; }
  const Graph& graph() const { return graph_; }
  int of_parameter(int parameter) const { return owner_[static_cast<size_t>(parameter)]; }

  std::vector<int> parameters_under(int module) const;
  // Returns those of the module and of the modules in it.
  int64_t trained_numel(int module) const;
  // How many modules in it, itself included, have parameters of their own.
  int owners(int module) const;
  // Equal for modules that hold parameters of the same shapes under it.
  std::string signature(int module) const;

 private:
  int find_or_add(const std::string& path);

  const Graph& graph_;
  std::vector<Module> modules_;
  std::map<std::string, int> index_;
  std::vector<int> owner_;
};

}  // namespace ofsdp::fsdp
