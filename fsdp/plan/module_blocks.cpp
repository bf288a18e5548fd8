#include <algorithm>
#include <map>
#include <set>

#include "fsdp/plan/blocks.h"

namespace ofsdp::fsdp {
namespace {

constexpr const char* kDigits = "0123456789";

// "layer_" of "layer_12", "" of "12"; the name itself where it ends in no number.
std::string stem(const std::string& name) {
  const size_t last = name.find_last_not_of(kDigits);
  return last == std::string::npos ? "" : name.substr(0, last + 1);
}

// "layers.#.blocks.#" of "layers.0.blocks.1".
std::string pattern(const std::string& path) {
  std::string result;
  for (const char c : path) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) result += c;
    if (digit && (result.empty() || result.back() != '#')) result += '#';
  }
  return result;
}

// Containers hold blocks; their class says nothing.
bool says_something(const std::string& type) {
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
      if (says_something(tree_[block].type)) types_.insert(tree_[block].type);
    }
    extend(0);
    return {chosen_.begin(), chosen_.end()};
  }

 private:
  void search(int module) {
    std::map<std::string, std::vector<int>> lists;  // of numbered children
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
        std::ranges::any_of(alike, [](const auto& entry) { return entry.second.size() > 1; });
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

  // Whether there is a chosen one in it.
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

std::vector<Block> blocks_of(const ModuleTree& tree, const std::vector<int>& modules) {
  std::map<int, Block> blocks;
  for (const int module : modules) blocks[module].name = tree[module].path;
  const auto& parameters = tree.graph().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trained) continue;
    int module = tree.of_parameter(static_cast<int>(i));
    while (module >= 0 && !blocks.contains(module)) module = tree[module].parent;
    if (module >= 0) blocks[module].parameters.push_back(static_cast<int>(i));
  }
  std::vector<Block> result;
  for (auto& [module, block] : blocks) {
    if (!block.parameters.empty()) result.push_back(std::move(block));
  }
  return result;
}

std::vector<Block> module_blocks(const ModuleTree& tree) {
  return blocks_of(tree, BlockFinder(tree).run());
}

}  // namespace ofsdp::fsdp
