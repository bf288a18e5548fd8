// ModuleTree: the modules that the parameters of a graph belong to (Parameter::module), as a tree.
// Module 0 is the model itself, path "". A module comes before its children, and children are in
// the order of the file's initializers.
//
// Ownership: values; the graph must outlive the tree. Threads: any. Errors: none.
#pragma once

#include <algorithm>
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
  explicit ModuleTree(const Graph& graph) : graph_(graph) {
    find_or_add("");
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      const int module = find_or_add(graph.parameters[i].module);
      modules_[static_cast<size_t>(module)].parameters.push_back(static_cast<int>(i));
      owner_.push_back(module);
    }
  }

  const std::vector<Module>& modules() const { return modules_; }
  const Module& operator[](int module) const { return modules_[static_cast<size_t>(module)]; }
  const Graph& graph() const { return graph_; }
  int of_parameter(int parameter) const { return owner_[static_cast<size_t>(parameter)]; }

  std::vector<int> parameters_under(int module) const {
    std::vector<int> all = (*this)[module].parameters;
    for (const int child : (*this)[module].children) {
      const std::vector<int> inner = parameters_under(child);
      all.insert(all.end(), inner.begin(), inner.end());
    }
    return all;
  }

  // Returns those of the module and of the modules in it.
  int64_t trained_numel(int module) const {
    int64_t numel = 0;
    for (const int index : parameters_under(module)) {
      const Parameter& p = graph_.parameters[static_cast<size_t>(index)];
      if (p.trained) numel += graph_.value(p.value).desc.numel();
    }
    return numel;
  }

  // How many modules in it, itself included, have parameters of their own.
  int owners(int module) const {
    int count = (*this)[module].parameters.empty() ? 0 : 1;
    for (const int child : (*this)[module].children) count += owners(child);
    return count;
  }

  // Equal for modules that hold parameters of the same shapes under it.
  std::string signature(int module) const {
    std::vector<std::string> shapes;
    for (const int index : parameters_under(module)) {
      const Parameter& p = graph_.parameters[static_cast<size_t>(index)];
      shapes.push_back(graph_.value(p.value).desc.text());
    }
    std::ranges::sort(shapes);
    return format_text("{}", joined(shapes, " "));
  }

 private:
  int find_or_add(const std::string& path) {
    if (const auto it = index_.find(path); it != index_.end()) return it->second;
    Module module{path, path, {}, -1, {}, {}};
    if (const auto it = graph_.classes.find(path); it != graph_.classes.end())
      module.type = it->second;
    if (!path.empty()) {
      const size_t dot = path.rfind('.');
      module.parent = find_or_add(dot == std::string::npos ? "" : path.substr(0, dot));
      module.name = dot == std::string::npos ? path : path.substr(dot + 1);
    }
    const int id = static_cast<int>(modules_.size());
    if (module.parent >= 0) modules_[static_cast<size_t>(module.parent)].children.push_back(id);
    index_[path] = id;
    modules_.push_back(std::move(module));
    return id;
  }

  const Graph& graph_;
  std::vector<Module> modules_;
  std::map<std::string, int> index_;
  std::vector<int> owner_;
};

}  // namespace ofsdp::fsdp
