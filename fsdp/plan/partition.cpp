#include "fsdp/plan/partition.h"

#include <fnmatch.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fsdp/plan/blocks.h"
#include "kernels/base/nearest_name.h"

namespace ofsdp::fsdp {
namespace {

using Kind = ParameterGroup::Kind;

int64_t numel(const Graph& graph, int parameter) {
  return graph.value(graph.parameters[static_cast<size_t>(parameter)].value).desc.numel();
}

int64_t numel(const Graph& graph, const std::vector<Block>& blocks) {
  int64_t sum = 0;
  for (const Block& block : blocks) {
    for (const int parameter : block.parameters) sum += numel(graph, parameter);
  }
  return sum;
}

class Partitioner {
 public:
  Partitioner(const Graph& graph, const PartitionOptions& options)
      : graph_(graph), options_(options), readers_(readers(graph, true)) {
    const auto& parameters = graph.parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].trained) order_.push_back(static_cast<int>(i));
    }
    std::ranges::stable_sort(order_, {}, [&](int p) { return first_use(p); });
    group_.assign(parameters.size(), 0);
  }

  Result<Partition> run() {
    groups_.push_back({Kind::kRoot, "root", {}});
    OFSDP_RETURN_IF_ERROR(ignore());
    OFSDP_RETURN_IF_ERROR(wrap());
    for (const int p : order_) groups_[at(group_[at(p)])].parameters.push_back(p);
    std::erase_if(groups_, [](const ParameterGroup& group) { return group.parameters.empty(); });
    std::ranges::stable_sort(groups_, {}, [&](const ParameterGroup& group) {
      return std::pair(group.kind, first_use(group.parameters.front()));
    });
    join_small();
    return Partition{std::move(groups_), std::move(notice_)};
  }

 private:
  // First come, first joined: the order of use, in which units are gathered, stays.
  void join_small() {
    std::vector<ParameterGroup> joined;
    int64_t filled = 0;
    for (ParameterGroup& group : groups_) {
      int64_t size = 0;
      for (const int p : group.parameters) size += numel(graph_, p);
      const bool fits =
          !joined.empty() && group.kind == Kind::kUnit && filled + size <= options_.bucket_numel;
      filled = fits ? filled + size : size;
      if (!fits) {
        joined.push_back(std::move(group));
        continue;
      }
      ParameterGroup& last = joined.back();
      last.name = last.name.substr(0, last.name.find(" .. ")) + " .. " + group.name;
      last.parameters.insert(last.parameters.end(), group.parameters.begin(),
                             group.parameters.end());
      std::ranges::stable_sort(last.parameters, {}, [&](int p) { return first_use(p); });
    }
    groups_ = std::move(joined);
  }

  static size_t at(int i) { return static_cast<size_t>(i); }

  // Past all nodes where nothing in the forward reads it.
  int first_use(int p) const {
    return readers_[at(p)].empty() ? std::numeric_limits<int>::max() : readers_[at(p)].front();
  }

  int open(Kind kind, std::string name) {
    groups_.push_back({kind, std::move(name), {}});
    return static_cast<int>(groups_.size()) - 1;
  }

  Status ignore() {
    if (options_.ignore.empty()) return {};
    const int group = open(Kind::kReplicated, "ignored");
    for (const std::string& pattern : options_.ignore) {
      const std::vector<int> found = named(pattern);
      if (found.empty()) return nothing_named(pattern);
      for (const int p : found) group_[at(p)] = group;
    }
    return {};
  }

  // The parameters of that name, else those that the glob matches.
  std::vector<int> named(const std::string& pattern) const {
    std::vector<int> matched;
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      const std::string& name = graph_.parameters[i].name;
      if (name == pattern) return {static_cast<int>(i)};
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) matched.push_back(static_cast<int>(i));
    }
    return matched;
  }

  Status nothing_named(const std::string& pattern) const {
    std::vector<std::string> names;
    for (const Parameter& p : graph_.parameters) names.push_back(p.name);
    return input_error("--ignore {}: matches no floating-point initializer of {}{}", pattern,
                       graph_.file, did_you_mean(pattern, names));
  }

  Status wrap() {
    if (options_.wrap == WrapPolicy::kSize) by_size();
    if (options_.wrap != WrapPolicy::kTransformer) {
      if (!options_.wrap_layers.empty())
        notice_ = "--wrap-layers is only of use with --wrap transformer";
      return {};
    }
    const ModuleTree tree(graph_);
    if (!options_.wrap_layers.empty()) {
      OFSDP_ASSIGN_OR_RETURN(const auto blocks, requested_blocks(tree, options_.wrap_layers));
      by_block(blocks);
      return {};
    }
    std::vector<Block> blocks = module_blocks(tree);
    // Names that cover less than half of what repeats are those of biases and norms alone.
    if (2 * numel(graph_, blocks) < tree.trained_numel(0)) {
      std::vector<Block> repeated = repeated_blocks(graph_);
      if (2 * numel(graph_, blocks) < numel(graph_, repeated)) blocks = std::move(repeated);
    }
    by_block(blocks);
    if (!blocks.empty()) return {};
    notice_ =
        format_text("wrap transformer: no repeated block found, units by size (--min-params {})",
                    options_.min_params);
    by_size();
    return {};
  }

  void by_size() {
    std::vector<int> left = order_;
    std::erase_if(left, [&](int p) { return group_[at(p)] != 0; });
    std::vector<int> open_group;
    int64_t filled = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      open_group.push_back(left[i]);
      filled += numel(graph_, left[i]);
      const bool node_goes_on = i + 1 < left.size() && first_use(left[i + 1]) == first_use(left[i]);
      if (node_goes_on || filled < options_.min_params) continue;
      const int group = open(Kind::kUnit, graph_.parameters[at(open_group.front())].name);
      for (const int p : open_group) group_[at(p)] = group;
      open_group.clear();
      filled = 0;
    }
  }

  void by_block(const std::vector<Block>& blocks) {
    struct Span {
      int first = std::numeric_limits<int>::max();
      int last = -1;
    };
    std::vector<Span> spans(blocks.size());  // of the parameters that one node reads
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (const int p : blocks[b].parameters) {
        if (readers_[at(p)].size() != 1) continue;
        spans[b].first = std::min(spans[b].first, readers_[at(p)].front());
        spans[b].last = std::max(spans[b].last, readers_[at(p)].front());
      }
    }
    auto shared = [&](int p, size_t own) {
      for (size_t b = 0; b < blocks.size(); ++b) {
        const bool elsewhere = b != own && std::ranges::any_of(readers_[at(p)], [&](int n) {
                                 return n >= spans[b].first && n <= spans[b].last;
                               });
        if (elsewhere) return true;
      }
      return false;
    };
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int group = open(Kind::kUnit, blocks[b].name);
      for (const int p : blocks[b].parameters) {
        if (group_[at(p)] != 0) continue;
        if (readers_[at(p)].size() < 2 || !shared(p, b)) group_[at(p)] = group;
      }
    }
  }

  const Graph& graph_;
  const PartitionOptions& options_;
  std::vector<std::vector<int>> readers_;
  std::vector<int> order_;  // trained parameters by first use
  std::vector<int> group_;  // of each parameter; 0 is the root
  std::vector<ParameterGroup> groups_;
  std::string notice_;
};

}  // namespace

std::vector<std::vector<int>> readers(const Graph& graph, bool forward_only) {
  std::vector<int> owner(graph.values.size(), -1);
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    owner[static_cast<size_t>(graph.parameters[i].value)] = static_cast<int>(i);
  }
  owner[0] = -1;
  std::vector<std::vector<int>> result(graph.parameters.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (forward_only && graph.nodes[n].backward) continue;
    for (const ValueId id : graph.nodes[n].inputs) {
      const int p = owner[static_cast<size_t>(id)];
      if (p < 0) continue;
      auto& list = result[static_cast<size_t>(p)];
      if (list.empty() || list.back() != static_cast<int>(n)) list.push_back(static_cast<int>(n));
    }
  }
  return result;
}

namespace {

// Returns which nodes read parameters of that kind, or what such nodes make.
std::vector<bool> dependent(const Graph& graph, bool of_teacher) {
  std::vector<bool> values(graph.values.size()), nodes(graph.nodes.size());
  for (const Parameter& p : graph.parameters) {
    values[static_cast<size_t>(p.value)] = p.of_teacher == of_teacher;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    nodes[n] = std::ranges::any_of(
        node.inputs, [&](ValueId id) { return id != 0 && values[static_cast<size_t>(id)]; });
    for (const ValueId id : node.outputs) {
      if (nodes[n]) values[static_cast<size_t>(id)] = true;
    }
  }
  return nodes;
}

// The graph as one of teacher and student sees it: without the other's nodes and with none of its
// parameters trained.
Graph part_of(const Graph& graph, bool teacher) {
  Graph part = graph;
  const std::vector<bool> others = dependent(graph, !teacher), own = dependent(graph, teacher);
  part.nodes.clear();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool drop = others[n] && (teacher || !own[n]);
    if (!drop) part.nodes.push_back(graph.nodes[n]);
  }
  for (Parameter& p : part.parameters) p.trained = p.trained && p.of_teacher == teacher;
  return part;
}

}  // namespace

Result<Partition> partition(const Graph& graph, const PartitionOptions& options) {
  const bool taught = std::ranges::any_of(graph.parameters, &Parameter::of_teacher);
  if (!taught) return Partitioner(graph, options).run();
  const Graph student = part_of(graph, false), teacher = part_of(graph, true);
  OFSDP_ASSIGN_OR_RETURN(Partition parts, Partitioner(student, options).run());
  const PartitionOptions found{options.wrap, options.min_params, {}, {}};
  OFSDP_ASSIGN_OR_RETURN(Partition others, Partitioner(teacher, found).run());
  for (ParameterGroup& group : others.groups) {
    if (group.kind == Kind::kRoot) group.name = "teacher";
    group.kind = Kind::kUnit;
  }
  parts.groups.insert(parts.groups.begin(), std::make_move_iterator(others.groups.begin()),
                      std::make_move_iterator(others.groups.end()));
  return parts;
}

}  // namespace ofsdp::fsdp
