#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "fsdp/plan/blocks.h"
#include "kernels/base/names.h"

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

std::vector<std::string> ModuleTree::shapes(int module) const {
  std::vector<std::string> shapes;
  for (const int index : parameters_under(module)) {
    const Parameter& p = graph_.parameters[static_cast<size_t>(index)];
    const TensorDesc& desc = graph_.value(p.value).desc;
    if (p.trained || desc.numel() != 1) shapes.push_back(desc.text());
  }
  std::ranges::sort(shapes);
  return shapes;
}

std::string ModuleTree::signature(int module) const { return joined(shapes(module), " "); }

bool ModuleTree::extends(int module, int other) const {
  const int64_t numel = trained_numel(other);
  return numel > 0 && 10 * trained_numel(module) <= 11 * numel &&
         std::ranges::includes(shapes(module), shapes(other));
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

namespace {

// Assigns each parameter to the innermost module in `modules` that contains it, and leaves out the
// others.
std::vector<Block> assign_parameters(const ModuleTree& tree, const std::vector<int>& modules) {
  std::map<int, Block> blocks;
  for (const int module : modules) blocks[module].name = tree[module].path;
  const auto& parameters = tree.graph().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trained) continue;
    int module = tree.owner(static_cast<int>(i));
    while (module >= 0 && !blocks.contains(module)) module = tree[module].parent;
    if (module >= 0) blocks[module].parameters.push_back(static_cast<int>(i));
  }
  std::vector<Block> result;
  for (auto& [module, block] : blocks) {
    if (!block.parameters.empty()) result.push_back(std::move(block));
  }
  return result;
}

constexpr const char* kDigits = "0123456789";

// Returns "layer_" for "layer_12", "" for "12", and the name itself if it ends in no digit.
std::string stem(const std::string& name) {
  const size_t last = name.find_last_not_of(kDigits);
  return last == std::string::npos ? "" : name.substr(0, last + 1);
}

// Returns "layers.#.blocks.#" for "layers.0.blocks.1".
std::string pattern(const std::string& path) {
  std::string result;
  for (const char c : path) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) result += c;
    if (digit && (result.empty() || result.back() != '#')) result += '#';
  }
  return result;
}

// Containers hold blocks, so their class does not make modules alike.
bool is_telling(const std::string& type) {
  return !type.empty() && !type.starts_with("torch.nn.modules.container.");
}

class BlockFinder {
 public:
  explicit BlockFinder(const ModuleTree& tree) : tree_(tree) {}

  std::vector<int> run() {
    search(0);
    const std::set<int> found = chosen_;
    for (const int block : found) {
      patterns_.insert(pattern(tree_[block].path));
      if (is_telling(tree_[block].type)) types_.insert(tree_[block].type);
    }
    extend(0);
    return {chosen_.begin(), chosen_.end()};
  }

 private:
  void search(int module) {
    std::map<std::string, std::vector<int>> lists;  // numbered children by stem
    for (const int child : tree_[module].children) {
      const std::string& name = tree_[child].name;
      if (const std::string list = stem(name); list != name) lists[list].push_back(child);
    }
    for (const auto& [name, members] : lists) choose(members);
    for (const int child : tree_[module].children) {
      if (!chosen_.contains(child)) search(child);
    }
  }

  void choose(const std::vector<int>& members) {
    std::map<std::string, std::vector<int>> alike, alike_leaves;
    for (const int member : members) {
      const int owners = tree_.owners(member);
      if (owners == 0) continue;
      (owners > 1 ? alike : alike_leaves)[tree_.signature(member)].push_back(member);
    }
    const bool repeated =
        std::ranges::any_of(alike, [](const auto& entry) { return entry.second.size() > 1; }) ||
        has_extended(alike);
    for (const auto& [signature, same] : alike) {
      if (repeated) chosen_.insert(same.begin(), same.end());
    }
    for (const auto& [signature, same] : alike_leaves) {
      int64_t numel = 0;
      for (const int member : same) numel += tree_.trained_numel(member);
      const bool most = same.size() > 2 && 2 * numel >= tree_.trained_numel(0);
      if (most) chosen_.insert(same.begin(), same.end());
    }
  }

  // Returns true if one of two modules has all that the other has and little more: the first block
  // of a T5 has the table of positions for all.
  bool has_extended(const std::map<std::string, std::vector<int>>& alike) const {
    for (const auto& [signature, modules] : alike) {
      for (const auto& [shorter, others] : alike) {
        if (signature != shorter && tree_.extends(modules[0], others[0])) return true;
      }
    }
    return false;
  }

  // Returns true if the module is chosen or contains a chosen one.
  bool extend(int module) {
    if (chosen_.contains(module)) return true;
    bool inside = false;
    for (const int child : tree_[module].children) inside = extend(child) || inside;
    const Module& m = tree_[module];
    const bool like_others = types_.contains(m.type) || patterns_.contains(pattern(m.path));
    if (inside || !like_others || m.parent < 0 || tree_.owners(module) == 0) return inside;
    chosen_.insert(module);
    return true;
  }

  const ModuleTree& tree_;
  std::set<int> chosen_;
  std::set<std::string> patterns_;
  std::set<std::string> types_;
};

}  // namespace

std::vector<Block> module_blocks(const ModuleTree& tree) {
  return assign_parameters(tree, BlockFinder(tree).run());
}

namespace {

std::string short_class(const std::string& type) { return type.substr(type.rfind('.') + 1); }

// Accepts paths as exporters write them: "/encoder/layer.*".
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

std::vector<int> find_modules(const ModuleTree& tree, const auto& wanted) {
  std::vector<int> found;
  for (int m = 1; m < static_cast<int>(tree.modules().size()); ++m) {
    if (wanted(tree[m])) found.push_back(m);
  }
  return found;
}

// A glob selects only the outermost matches: "encoder.layer.*" also matches modules in the layers.
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

// Splits a class's name at its capitals; the words are in lower case.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words;
  for (const char c : name) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper || words.empty()) words.emplace_back();
    words.back() += upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return words;
}

// Guesses the modules of a class where the file names no classes: numbered ones in a list named
// after the last word ("layer" or "layers"), under the encoder or decoder if the class says which.
std::vector<int> guess_class(const ModuleTree& tree, const std::string& name) {
  const std::vector<std::string> words = words_of(short_class(name));
  if (words.size() < 2 || !tree.graph().classes.empty()) return {};
  const auto of_part = [&](const std::string& path, const std::string& part) {
    const bool wanted = std::ranges::find(words, part) != words.end();
    const std::string other = part == "encoder" ? "decoder" : "encoder";
    return !wanted || path.find(other) == std::string::npos;
  };
  return find_modules(tree, [&](const Module& m) {
    if (m.parent < 0 || !stem(m.name).empty()) return false;
    const std::string& list = tree[m.parent].name;
    const bool named = list == words.back() || list == words.back() + "s";
    return named && of_part(m.path, "encoder") && of_part(m.path, "decoder");
  });
}

// Tries a name as a class, then as a module path, then as a glob over either, then as a class that
// the file does not name.
std::vector<int> matches(const ModuleTree& tree, const std::string& layer) {
  auto found = find_modules(tree, [&](const Module& m) { return is_class(m, layer); });
  if (!found.empty()) return found;
  const std::string path = dotted(layer);
  found = find_modules(tree, [&](const Module& m) { return m.path == path; });
  if (!found.empty()) return found;
  found = find_modules(tree, [&](const Module& m) {
    return glob(path, m.path) || glob(layer, m.type) || glob(layer, short_class(m.type));
  });
  if (found.empty()) found = guess_class(tree, layer);
  return outermost(tree, found);
}

// Returns "encoder.layer.*" for "encoder.layer.0".
std::string globbed(const std::string& path) {
  std::string result = pattern(path);
  std::ranges::replace(result, '#', '*');
  return result;
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
  std::string hint = did_you_mean(layer, {names.begin(), names.end()});
  const std::vector<int> numbered = find_modules(
      tree, [&](const Module& m) { return stem(m.name).empty() && !m.children.empty(); });
  if (hint.empty() && !numbered.empty()) {
    hint = format_text("; numbered ones are {}", globbed(tree[numbered.front()].path));
  }
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
  return assign_parameters(tree, {modules.begin(), modules.end()});
}

}  // namespace ofsdp::fsdp
