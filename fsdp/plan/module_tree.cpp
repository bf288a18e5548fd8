#include "fsdp/plan/module_tree.h"

#include <algorithm>

namespace ofsdp::fsdp {

ModuleTree::ModuleTree(const Graph& graph) : graph_(graph) {
  find_or_add("");
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const int module = find_or_add(graph.parameters[i].module);
    modules_[static_cast<size_t>(module)].parameters.push_back(static_cast<int>(i));
    owner_.push_back(module);
  }
}

std::vector<int> ModuleTree::parameters_under(int module) const {
  std::vector<int> all = (*this)[module].parameters;
  for (const int child : (*this)[module].children) {
    const std::vector<int> inner = parameters_under(child);
    all.insert(all.end(), inner.begin(), inner.end());
  }
  return all;
}

int64_t ModuleTree::trained_numel(int module) const {
  int64_t numel = 0;
  for (const int index : parameters_under(module)) {
    const Parameter& p = graph_.parameters[static_cast<size_t>(index)];
    if (p.trained) numel += graph_.value(p.value).desc.numel();
  }
  return numel;
}

int ModuleTree::owners(int module) const {
  int count = (*this)[module].parameters.empty() ? 0 : 1;
  for (const int child : (*this)[module].children) count += owners(child);
  return count;
}

std::string ModuleTree::signature(int module) const {
  std::vector<std::string> shapes;
  for (const int index : parameters_under(module)) {
    const Parameter& p = graph_.parameters[static_cast<size_t>(index)];
    shapes.push_back(graph_.value(p.value).desc.text());
  }
  std::ranges::sort(shapes);
  return format_text("{}", joined(shapes, " "));
}

int ModuleTree::find_or_add(const std::string& path) {
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

}  // namespace ofsdp::fsdp
