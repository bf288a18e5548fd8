// --wrap-layers: a name is tried as a class, then as the path of a module, then as a glob of
// either.
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "fsdp/plan/blocks.h"
#include "kernels/base/nearest_name.h"

namespace ofsdp::fsdp {
namespace {

std::string short_class(const std::string& type) { return type.substr(type.rfind('.') + 1); }

// Paths of nodes may be written as exporters do: "/encoder/layer.*".
std::string dotted(std::string text) {
  std::ranges::replace(text, '/', '.');
  return text.substr(std::min(text.find_first_not_of('.'), text.size()));
}

bool glob(const std::string& pattern, const std::string& text) {
  return !text.empty() && fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

bool is_class(const Module& module, const std::string& name) {
  return !module.type.empty() && (module.type == name || short_class(module.type) == name);
}

std::vector<int> where(const ModuleTree& tree, const auto& wanted) {
  std::vector<int> found;
  for (int m = 1; m < static_cast<int>(tree.modules().size()); ++m) {
    if (wanted(tree[m])) found.push_back(m);
  }
  return found;
}

// A glob means its outermost matches: "encoder.layer.*" matches what is in the layers, too.
std::vector<int> outermost(const ModuleTree& tree, const std::vector<int>& modules) {
  const std::set<int> all(modules.begin(), modules.end());
  std::vector<int> result;
  for (const int module : modules) {
    int above = tree[module].parent;
    while (above >= 0 && !all.contains(above)) above = tree[above].parent;
    if (above < 0) result.push_back(module);
  }
  return result;
}

std::vector<int> matches(const ModuleTree& tree, const std::string& layer) {
  auto found = where(tree, [&](const Module& m) { return is_class(m, layer); });
  if (!found.empty()) return found;
  const std::string path = dotted(layer);
  found = where(tree, [&](const Module& m) { return m.path == path; });
  if (!found.empty()) return found;
  found = where(tree, [&](const Module& m) {
    return glob(path, m.path) || glob(layer, m.type) || glob(layer, short_class(m.type));
  });
  return outermost(tree, found);
}

Status nothing_matches(const ModuleTree& tree, const std::string& layer) {
  std::set<std::string> names;
  bool classes = false;
  for (const Module& module : tree.modules()) {
    names.insert(module.path);
    if (!module.type.empty()) names.insert(short_class(module.type));
    classes = classes || !module.type.empty();
  }
  names.erase("");
  const std::string hint = did_you_mean(layer, {names.begin(), names.end()});
  return input_error("--wrap-layers {}: expected {} in {}, found none{}", layer,
                     classes ? "a class or module of that name"
                             : "a module of that name (the file names no classes)",
                     tree.graph().file, hint);
}

}  // namespace

Result<std::vector<Block>> requested_blocks(const ModuleTree& tree,
                                            const std::vector<std::string>& layers) {
  std::set<int> modules;
  for (const std::string& layer : layers) {
    const std::vector<int> found = matches(tree, layer);
    if (found.empty()) return nothing_matches(tree, layer);
    modules.insert(found.begin(), found.end());
  }
  return blocks_of(tree, {modules.begin(), modules.end()});
}

}  // namespace ofsdp::fsdp
