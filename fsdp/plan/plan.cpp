#include "fsdp/plan/plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "fsdp/plan/blocks.h"
#include "kernels/base/names.h"
#include "kernels/base/text.h"

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

int64_t bucket_numel(const PlanOptions& options) {
  const double bytes = options.bucket_mb * (1 << 20);
  return static_cast<int64_t>(bytes / static_cast<double>(dtype_size(options.param_dtype)));
}

class Partitioner {
 public:
  Partitioner(const Graph& graph, const PlanOptions& options)
      : graph_(graph), options_(options), readers_(readers(graph, true)) {
    const auto& parameters = graph.parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].trained) order_.push_back(static_cast<int>(i));
    }
    std::ranges::stable_sort(order_, {}, [&](int p) { return first_use(p); });
    group_.assign(parameters.size(), 0);
  }

  Result<Partition> run() {
    groups_.push_back({Kind::kRoot, "root", false, {}});
    OFSDP_RETURN_IF_ERROR(ignore());
    OFSDP_RETURN_IF_ERROR(wrap());
    if (options_.divides_root) divide_root();
    for (const int p : order_) groups_[at(group_[at(p)])].parameters.push_back(p);
    std::erase_if(groups_, [](const ParameterGroup& group) { return group.parameters.empty(); });
    std::ranges::stable_sort(groups_, {}, [&](const ParameterGroup& group) {
      return std::pair(group.kind, first_use(group.parameters.front()));
    });
    join_small();
    return Partition{std::move(groups_), std::move(notice_)};
  }

 private:
  // Joins only neighbours, so that the use order, in which units are gathered, stays.
  void join_small() {
    std::vector<ParameterGroup> joined;
    int64_t filled = 0;
    for (ParameterGroup& group : groups_) {
      int64_t size = 0;
      for (const int p : group.parameters) size += numel(graph_, p);
      const bool fits = !joined.empty() && group.kind == Kind::kUnit && !group.outer &&
                        !joined.back().outer && filled + size <= bucket_numel(options_);
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

  // Returns the largest int if no forward node reads the parameter.
  int first_use(int p) const {
    return readers_[at(p)].empty() ? std::numeric_limits<int>::max() : readers_[at(p)].front();
  }

  int open(Kind kind, std::string name, bool outer = false) {
    groups_.push_back({kind, std::move(name), outer, {}});
    return static_cast<int>(groups_.size()) - 1;
  }

  Status ignore() {
    if (options_.ignore.empty()) return {};
    const int group = open(Kind::kReplicated, "ignored");
    for (const std::string& pattern : options_.ignore) {
      const std::vector<int> found = find_parameters(pattern);
      if (found.empty()) return nothing_named(pattern);
      for (const int p : found) group_[at(p)] = group;
    }
    return {};
  }

  // Returns the parameter with that name, else all parameters that match the glob.
  std::vector<int> find_parameters(const std::string& pattern) const {
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
    // If names cover less than half the repeated elements, only biases and norms have names.
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

  // [Note: the root's two ends] The root is gathered before the first node and stays for the
  // micro-batch, and its reduction begins after the embeddings' gradient, the very last. As units
  // of their own, the head is gathered while the last block computes and reduced while the last
  // block's gradients are made, and the embeddings are free in between.
  void divide_root() {
    int first = std::numeric_limits<int>::max(), last = -1;
    for (const int p : order_) {
      if (groups_[at(group_[at(p)])].kind != Kind::kUnit || readers_[at(p)].empty()) continue;
      first = std::min(first, readers_[at(p)].front());
      last = std::max(last, readers_[at(p)].back());
    }
    std::vector<int> before, after;
    for (const int p : order_) {
      if (group_[at(p)] != 0 || readers_[at(p)].empty()) continue;
      const bool early = readers_[at(p)].front()<first, late = readers_[at(p)].back()> last;
      if (early && late) return;
      if (early && readers_[at(p)].back() < first) before.push_back(p);
      if (late && readers_[at(p)].front() > last) after.push_back(p);
    }
    if (before.empty() || after.empty()) return;
    for (const auto& [name, list] : {std::pair("before blocks", before), {"after blocks", after}}) {
      const int group = open(Kind::kUnit, name, true);
      for (const int p : list) group_[at(p)] = group;
    }
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
    std::vector<Span> spans(blocks.size());  // node ranges, by parameters that only one node reads
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
  const PlanOptions& options_;
  std::vector<std::vector<int>> readers_;
  std::vector<int> order_;  // trained parameters by first use
  std::vector<int> group_;  // by parameter; 0 is the root
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

// Returns, by node, whether it depends on the teacher's parameters, or on the student's.
std::vector<bool> find_dependent(const Graph& graph, bool of_teacher) {
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

// Returns the teacher's or the student's graph: without the other one's nodes, and with the other
// one's parameters marked as not trained.
Graph keep_part(const Graph& graph, bool teacher) {
  Graph part = graph;
  const std::vector<bool> others = find_dependent(graph, !teacher),
                          own = find_dependent(graph, teacher);
  part.nodes.clear();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool drop = others[n] && (teacher || !own[n]);
    if (!drop) part.nodes.push_back(graph.nodes[n]);
  }
  for (Parameter& p : part.parameters) p.trained = p.trained && p.of_teacher == teacher;
  return part;
}

}  // namespace

Result<Partition> partition(const Graph& graph, const PlanOptions& options) {
  const bool taught = std::ranges::any_of(graph.parameters, &Parameter::of_teacher);
  if (!taught) return Partitioner(graph, options).run();
  const Graph student = keep_part(graph, false), teacher = keep_part(graph, true);
  OFSDP_ASSIGN_OR_RETURN(Partition parts, Partitioner(student, options).run());
  const PlanOptions found{.wrap = options.wrap, .min_params = options.min_params};
  OFSDP_ASSIGN_OR_RETURN(Partition others, Partitioner(teacher, found).run());
  for (ParameterGroup& group : others.groups) {
    if (group.kind == Kind::kRoot) group.name = "teacher";
    group.kind = Kind::kUnit;
  }
  parts.groups.insert(parts.groups.begin(), std::make_move_iterator(others.groups.begin()),
                      std::make_move_iterator(others.groups.end()));
  return parts;
}

namespace {

int64_t align(int64_t numel, int64_t to) { return (numel + to - 1) / to * to; }

// Raw data take as many elements in the flat array as their bytes need.
void add_param(Unit& unit, const Graph& graph, int index, const PlanOptions& options) {
  const Parameter& p = graph.parameters[static_cast<size_t>(index)];
  const TensorDesc& desc = graph.value(p.value).desc;
  const auto element = static_cast<int64_t>(dtype_size(options.param_dtype));
  const int64_t numel =
      p.raw ? align(static_cast<int64_t>(desc.bytes()), element) / element : desc.numel();
  int64_t& padded = p.trained ? unit.padded_numel : unit.frozen_padded_numel;
  (p.trained ? unit.params : unit.frozen).push_back({index, p.name, padded, numel});
  if (p.trained) unit.numel += numel;
  padded = align(padded + numel, p.trained ? options.alignment : kParamAlignment);
}

// Smaller frozen parameters stay whole, since planning may need their values.
constexpr int64_t kMinFrozen = 17;

// Returns the graph with every parameter marked as trained that must go into a unit.
Graph mark_frozen(const Graph& graph, const PlanOptions& options) {
  const bool sharded = options.strategy != Strategy::kNoShard &&
                       options.strategy != Strategy::kZero1 && options.world > 1;
  Graph marked = graph;
  if (!sharded) return marked;
  const auto nodes = readers(graph, true);
  for (size_t i = 0; i < marked.parameters.size(); ++i) {
    Parameter& p = marked.parameters[i];
    const TensorDesc& desc = graph.value(p.value).desc;
    const bool carried = std::ranges::any_of(
        graph.carried, [&](const Carried& c) { return c.parameter == static_cast<int>(i); });
    const bool fits = (p.raw || desc.dtype == options.param_dtype) && desc.numel() >= kMinFrozen;
    if (fits && !carried && !nodes[i].empty()) p.trained = true;
  }
  return marked;
}

// Returns the units that --keep-gathered can keep: neither the root nor replicated.
int64_t ordinary_units(const Plan& plan) {
  return std::ranges::count_if(
      plan.units, [&](const Unit& unit) { return unit.id != plan.root && !unit.replicated; });
}

Span span_of(const std::vector<int64_t>& bounds, int64_t numel, int shards, int rank) {
  const int place = rank % shards;
  if (bounds.empty()) return {place * (numel / shards), numel / shards};
  const auto i = static_cast<size_t>(place);
  return {bounds[i], bounds[i + 1] - bounds[i]};
}

// Divides units in proportion to weights, at the blocks of the norm. The distance of a bound from
// its place is made up in the next unit. Every rank gets at least one block.
class Divider {
 public:
  explicit Divider(const std::vector<double>& weights) : before_{0}, missed_(weights.size() + 1) {
    for (const double weight : weights) before_.push_back(before_.back() + weight);
  }

  std::vector<int64_t> bounds(const NormBlocks& blocks, int64_t numel) {
    if (numel == 0) return {};
    const auto shards = static_cast<int64_t>(before_.size()) - 1;
    const int64_t count = numel / blocks.part * blocks.of_part();
    std::vector<int64_t> made{0};
    int64_t index = 0;
    for (int64_t k = 1; k < shards; ++k) {
      double& missed = missed_[static_cast<size_t>(k)];
      const double share = before_[static_cast<size_t>(k)] / before_.back();
      const double wanted = share * static_cast<double>(numel) + missed;
      const auto element = std::clamp<int64_t>(std::llround(wanted), 0, numel - 1);
      index = std::clamp(blocks.nearest(element), index + 1, count - (shards - k));
      made.push_back(blocks.begin(index));
      missed = wanted - static_cast<double>(made.back());
    }
    made.push_back(numel);
    return made;
  }

 private:
  std::vector<double> before_;  // the sum of the weights before each place, and of all
  std::vector<double> missed_;
};

void divide_unequally(const std::vector<double>& weights, Plan& plan) {
  if (weights.empty()) return;
  Divider trained(weights), frozen(weights);
  for (Unit& unit : plan.units) {
    if (unit.plan.shards == 1) continue;
    unit.plan.bounds = trained.bounds(plan.norm_blocks(unit), unit.padded_numel);
    unit.plan.frozen_bounds = frozen.bounds(
        {unit.frozen_padded_numel / plan.world, kParamAlignment}, unit.frozen_padded_numel);
  }
}

// `kept`: the unit stays gathered between forward and backward.
UnitPlan plan_unit(const Plan& plan, const Unit& unit, bool kept) {
  const bool whole = unit.replicated || plan.strategy == Strategy::kNoShard;
  const bool resharded =
      plan.strategy == Strategy::kFullShard || plan.strategy == Strategy::kHybridShard;
  UnitPlan made;
  made.shards = whole ? 1 : plan.shard_size;
  made.copies = plan.world / made.shards;
  if (plan.offload == CpuOffload::kParams) {
    made.unshard = Unshard::kFetch;
  } else if (made.shards > 1) {
    made.unshard = Unshard::kGather;
  } else if (plan.rest_dtype != plan.param_dtype) {
    made.rounded = plan.updates_round && unit.frozen_padded_numel == 0;
    made.unshard = made.rounded ? Unshard::kNone : Unshard::kConvert;
  }
  if (!whole && plan.strategy == Strategy::kZero1 && made.unshard != Unshard::kNone) {
    made.residency = Residency::kUpdate;
  } else if (resharded && !kept && unit.id != plan.root &&
             (made.shards > 1 || made.unshard == Unshard::kFetch)) {
    made.residency = Residency::kPass;
  }
  made.common = made.shards > 1 && plan.common_ranks % made.shards == 0 &&
                made.residency != Residency::kUpdate;
  if (made.common) made.unshard = Unshard::kNone;
  made.shards_gradients = plan.across_ranks || (!whole && plan.strategy != Strategy::kZero1);
  if (made.shards_gradients && !plan.wide_slots) made.gradient_dtype = plan.param_dtype;
  if (plan.across_ranks) {
    made.sum_over = SumOver::kWorld;
  } else if (made.shards == 1 && !made.shards_gradients) {
    made.sum_over = SumOver::kCopies;
  }
  made.sums_copies = !plan.across_ranks && made.copies > 1;
  return made;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> gaps(const Unit& unit) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  int64_t end = 0;
  for (const UnitParam& p : unit.params) {
    if (p.offset > end) spans.emplace_back(end, p.offset);
    end = p.offset + p.numel;
  }
  if (unit.padded_numel > end) spans.emplace_back(end, unit.padded_numel);
  return spans;
}

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridShardZero2;
}

RankGroup Plan::shard_group(const Unit& unit, int rank) const {
  const int count = unit.plan.shards;
  return {rank / count * count, count, 1};
}

RankGroup Plan::replica_group(const Unit& unit, int rank) const {
  const int count = unit.plan.shards;
  return {rank % count, world / count, count};
}

RankGroup Plan::summing_group(const Unit& unit, int rank) const {
  if (unit.plan.sum_over == SumOver::kWorld) return {0, world, 1};
  return unit.plan.sum_over == SumOver::kShards ? shard_group(unit, rank)
                                                : replica_group(unit, rank);
}

int64_t NormBlocks::end(int64_t element) const {
  const int64_t first = element / part * part;
  return first + std::min(part, ((element - first) / numel + 1) * numel);
}

int64_t NormBlocks::nearest(int64_t element) const {
  const int64_t index = element / part * of_part() + element % part / numel;
  return element - begin(index) <= begin(index + 1) - element ? index : index + 1;
}

Span Plan::owned(const Unit& unit, int rank) const {
  return span_of(unit.plan.bounds, unit.padded_numel, unit.plan.shards, rank);
}

Span Plan::owned_frozen(const Unit& unit, int rank) const {
  return span_of(unit.plan.frozen_bounds, unit.frozen_padded_numel, unit.plan.shards, rank);
}

int64_t Plan::most_owned(const Unit& unit) const {
  int64_t most = owned(unit, 0).numel;
  for (size_t i = 1; i < unit.plan.bounds.size(); ++i) {
    most = std::max(most, unit.plan.bounds[i] - unit.plan.bounds[i - 1]);
  }
  return most;
}

// Copies divide a shard at blocks of the norm.
Span Plan::represented(const Unit& unit, int rank) const {
  const Span mine = owned(unit, rank);
  const int64_t copy = rank / unit.plan.shards, copies = unit.plan.copies;
  if (unit.plan.bounds.empty()) {
    return {mine.begin + copy * (mine.numel / copies), mine.numel / copies};
  }
  const NormBlocks blocks = norm_blocks(unit);
  const auto bound = [&](int64_t k) {
    return blocks.begin(blocks.nearest(mine.begin + mine.numel * k / copies));
  };
  return {bound(copy), bound(copy + 1) - bound(copy)};
}

bool Plan::weighted() const {
  return std::ranges::any_of(units, [](const Unit& unit) {
    return !unit.plan.bounds.empty() || !unit.plan.frozen_bounds.empty();
  });
}

Result<Plan> make_plan(const Graph& graph, const PlanOptions& options) {
  OFSDP_ASSIGN_OR_RETURN(Partition parts, partition(mark_frozen(graph, options), options));
  const int64_t shard_size = options.shard_size.value_or(options.world);
  Plan plan{
      .strategy = options.strategy,
      .world = options.world,
      .shard_size = is_hybrid(options.strategy) ? static_cast<int>(shard_size) : options.world,
      .param_dtype = options.param_dtype,
      .reduce_dtype = options.reduce_dtype,
      .rest_dtype =
          options.cpu_offload == CpuOffload::kNone ? DType::kFloat32 : options.param_dtype,
      .across_ranks = options.across_ranks,
      .wide_slots = options.wide_slots,
      .updates_round = options.updates_round,
      .offload = options.cpu_offload,
      .alignment = options.alignment,
      .common_ranks = options.common_ranks,
      .units = {},
      .notice = std::move(parts.notice)};
  const auto nodes = readers(graph, false);
  for (const ParameterGroup& group : parts.groups) {
    Unit unit;
    unit.id = static_cast<int>(plan.units.size());
    unit.name = group.name;
    std::set<int> reading;
    unit.replicated = group.kind == ParameterGroup::Kind::kReplicated;
    unit.outer = group.outer;
    for (const int index : group.parameters) {
      const bool trained = graph.parameters[static_cast<size_t>(index)].trained;
      if (!trained && unit.replicated) continue;  // whole anyway
      add_param(unit, graph, index, options);
      const auto& some = nodes[static_cast<size_t>(index)];
      reading.insert(some.begin(), some.end());
    }
    unit.nodes = static_cast<int>(reading.size());
    unit.padded_numel = align(unit.padded_numel, options.alignment * options.world);
    unit.frozen_padded_numel = align(unit.frozen_padded_numel, kParamAlignment * options.world);
    if (unit.params.empty() && unit.frozen.empty()) continue;
    if (group.kind == ParameterGroup::Kind::kRoot) plan.root = unit.id;
    plan.units.push_back(std::move(unit));
  }
  const int64_t first_kept = ordinary_units(plan) - options.keep_gathered;
  for (Unit& unit : plan.units) unit.plan = plan_unit(plan, unit, unit.id >= first_kept);
  divide_unequally(options.shard_weights.of_ranks, plan);
  return plan;
}

std::string text(const Plan& plan) {
  std::string out = format_text("strategy {} world {}", strategy_name(plan.strategy), plan.world);
  if (is_hybrid(plan.strategy)) out += format_text(" shard-size {}", plan.shard_size);
  if (plan.param_dtype != DType::kFloat32)
    out += format_text(" parameters {}", dtype_name(plan.param_dtype));
  if (plan.reduce_dtype != DType::kFloat32) {
    out += format_text(" reduction {}", dtype_name(plan.reduce_dtype));
  }
  if (plan.across_ranks) out += " across_ranks";
  out += "\n";
  size_t widest = 4;
  for (const Unit& unit : plan.units) widest = std::max(widest, escaped(unit.name).size());
  const auto padded = [widest](std::string name) {
    name.resize(widest, ' ');
    return name;
  };
  constexpr const char* kRow = "{:<5} {} {:>6} {:>13} {:>9} {:>13} {:>13} {:>5}";
  out += format_text(kRow, "unit", padded("name"), "params", "elements", "float32", "padded",
                     "a rank's", "nodes") +
         "\n";
  for (const Unit& unit : plan.units) {
    const int64_t bytes = unit.numel * static_cast<int64_t>(sizeof(float));
    out += format_text(
        kRow, "u" + std::to_string(unit.id), padded(escaped(unit.name)), unit.params.size(),
        readable_count(unit.numel), readable_bytes(static_cast<uint64_t>(bytes)),
        readable_count(unit.padded_numel), readable_count(plan.most_owned(unit)), unit.nodes);
    if (unit.replicated) out += " replicated";
    if (!unit.frozen.empty()) {
      out += format_text(" frozen {} of {} elements", unit.frozen.size(),
                         readable_count(unit.frozen_padded_numel));
    }
    out += "\n";
  }
  return out;
}

}  // namespace ofsdp::fsdp
