// Repeated stretches of forward nodes. A node is a letter (operator, attributes, output and
// parameter shapes) and the forward is a word, since exporters write layers one after the other.
// Blocks are the tandem repeat in this word with the most parameters: for every period p one pass
// counts the runs in which letter i equals letter i + p, so n nodes cost n^2 / 2 integer
// comparisons. The wiring inside every copy must be equal, and the cut between copies is moved to
// the place that the fewest values cross.
#include <algorithm>
#include <map>
#include <set>

#include "fsdp/plan/blocks.h"
#include "importer/graph/graph.h"

namespace ofsdp::fsdp {
namespace {

struct Repeat {
  int begin = 0;   // the first node in the first copy
  int period = 0;  // nodes in a copy
  int copies = 0;
  int slack = 0;  // nodes by which `begin` may move on
  int64_t numel = 0;
};

class RepeatFinder {
 public:
  explicit RepeatFinder(const Graph& graph) : graph_(graph), owner_(graph.values.size(), -1) {
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      owner_[static_cast<size_t>(graph.parameters[i].value)] = static_cast<int>(i);
    }
    for (const Node& node : graph.nodes) {
      if (node.backward) break;
      spell(node);
    }
  }

  std::vector<Block> run() {
    std::vector<Repeat> repeats = find();
    std::ranges::stable_sort(repeats,
                             [](const Repeat& a, const Repeat& b) { return a.numel > b.numel; });
    for (size_t i = 0; i < std::min(repeats.size(), kTried); ++i) {
      if (!wired_alike(repeats[i])) continue;
      std::vector<Block> found = blocks(cut(repeats[i]));
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  static constexpr size_t kTried = 32;

  int size() const { return static_cast<int>(letters_.size()); }
  const Node& node(int n) const { return graph_.nodes[static_cast<size_t>(n)]; }
  int parameter(ValueId id) const { return owner_[static_cast<size_t>(id)]; }

  void spell(const Node& node) {
    std::string word = node.op->full_name() + " " + node.attributes.text();
    int64_t numel = 0;
    int matrices = 0;
    for (const ValueId id : node.inputs) {
      const Value& value = graph_.value(id);
      word += id == 0 ? "; -" : "; " + value.desc.text();
      if (parameter(id) < 0) continue;
      word += " parameter";
      const Parameter& p = graph_.parameters[static_cast<size_t>(parameter(id))];
      if (p.trained) numel += value.desc.numel();
      if (value.desc.shape.rank() > 1) ++matrices;
    }
    for (const ValueId id : node.outputs) {
      word += id == 0 ? " > -" : " > " + graph_.value(id).desc.text();
    }
    const int letter = static_cast<int>(alphabet_.size());
    letters_.push_back(alphabet_.try_emplace(std::move(word), letter).first->second);
    numel_.push_back(numel_.back() + numel);
    matrices_.push_back(matrices_.back() + matrices);
  }

  std::vector<Repeat> find() const {
    std::vector<Repeat> found;
    for (int period = 1; 2 * period <= size(); ++period) {
      int run = 0;
      for (int i = 0; i + period <= size(); ++i) {
        const bool equal = i + period < size() && letters_[at(i)] == letters_[at(i + period)];
        if (equal) ++run;
        if (equal) continue;
        if (run >= period) consider(found, i - run, period, run + period);
        run = 0;
      }
    }
    return found;
  }

  // Adds the repeat over nodes [begin, begin + length) if it is worth it.
  void consider(std::vector<Repeat>& found, int begin, int period, int length) const {
    const int copies = length / period;
    const Repeat repeat{begin, period, copies, length % period,
                        numel_[at(begin + copies * period)] - numel_[at(begin)]};
    const int matrices = matrices_[at(begin + period)] - matrices_[at(begin)];
    if (worth_it(copies, matrices, repeat.numel)) found.push_back(repeat);
  }

  bool wired_alike(const Repeat& r) const {
    for (int n = r.begin; n < r.begin + r.period * r.copies; ++n) {
      const int copy = (n - r.begin) / r.period * r.period;
      const Node& one = node(n);
      const Node& first = node(n - copy);
      for (size_t i = 0; i < one.inputs.size(); ++i) {
        const int from = maker(one.inputs[i]) - copy, model = maker(first.inputs[i]);
        const bool inside = from >= r.begin, model_inside = model >= r.begin;
        if (inside != model_inside || (inside && from != model)) return false;
      }
    }
    return true;
  }

  int maker(ValueId id) const { return uses_.maker(id); }
  static size_t at(int i) { return static_cast<size_t>(i); }

  // Counts the values that are made in [begin, place) and read in [place, end).
  size_t crossing(int begin, int place, int end) const {
    std::set<ValueId> values;
    for (int n = place; n < end; ++n) {
      for (const ValueId id : node(n).inputs) {
        if (maker(id) >= begin && maker(id) < place) values.insert(id);
      }
    }
    return values.size();
  }

  Repeat cut(Repeat r) const {
    int best = 0;
    size_t fewest = SIZE_MAX;
    for (int shift = 0; shift <= r.slack; ++shift) {
      const int begin = r.begin + shift, middle = begin + r.period;
      Repeat moved = r;
      moved.begin = begin;
      const size_t values = crossing(begin, middle, middle + r.period);
      if (values >= fewest || !wired_alike(moved)) continue;
      fewest = values;
      best = shift;
    }
    r.begin += best;
    return r;
  }

  // Maps each parameter to the only copy that reads it, or to -1.
  std::map<int, int> copies_of_parameters(const Repeat& r) const {
    std::map<int, int> copy_of;
    for (int n = 0; n < size(); ++n) {
      const bool inside = n >= r.begin && n < r.begin + r.period * r.copies;
      const int copy = inside ? (n - r.begin) / r.period : -1;
      for (const ValueId id : node(n).inputs) {
        if (parameter(id) < 0) continue;
        const auto [it, first] = copy_of.try_emplace(parameter(id), copy);
        if (!first && it->second != copy) it->second = -1;
      }
    }
    return copy_of;
  }

  // Returns no blocks if the copies have too few parameters that they do not share.
  std::vector<Block> blocks(const Repeat& r) const {
    std::vector<Block> list(at(r.copies));
    int matrices = 0;
    int64_t numel = 0;
    for (const auto& [index, copy] : copies_of_parameters(r)) {
      const Parameter& p = graph_.parameters[at(index)];
      const Shape& shape = graph_.value(p.value).desc.shape;
      if (copy == 0 && shape.rank() > 1) ++matrices;
      if (copy < 0 || !p.trained) continue;
      numel += shape.numel();
      list[at(copy)].parameters.push_back(index);
    }
    if (!worth_it(r.copies, matrices, numel)) return {};
    name(list);
    std::erase_if(list, [](const Block& block) { return block.parameters.empty(); });
    return list;
  }

  bool worth_it(int copies, int matrices, int64_t numel) const {
    const bool most = copies > 2 && 2 * numel >= numel_.back();
    return numel > 0 && (matrices > 1 || (matrices == 1 && most));
  }

  // Names a block by the module that the parameters have in common, or all blocks by number if that
  // does not tell them apart.
  void name(std::vector<Block>& list) const {
    std::set<std::string> names;
    for (Block& block : list) names.insert(block.name = common_module(block));
    const bool told_apart = names.size() == list.size() && !names.contains("");
    for (size_t i = 0; i < list.size() && !told_apart; ++i)
      list[i].name = format_text("block.{}", i);
  }

  std::string common_module(const Block& block) const {
    std::string common;
    for (const int index : block.parameters) {
      const std::string& module = graph_.parameters[at(index)].module;
      if (module.empty()) continue;
      if (common.empty()) common = module;
      while (!(module + ".").starts_with(common + ".")) {
        const size_t dot = common.rfind('.');
        if (dot == std::string::npos) return "";
        common.resize(dot);
      }
    }
    return common;
  }

  const Graph& graph_;
  std::vector<int> owner_;  // by value: the parameter, or -1
  const GraphUses uses_{graph_};
  std::map<std::string, int> alphabet_;
  std::vector<int> letters_;
  std::vector<int64_t> numel_{0};  // trained parameters read before node n
  std::vector<int> matrices_{0};
};

}  // namespace

std::vector<Block> repeated_blocks(const Graph& graph) { return RepeatFinder(graph).run(); }

}  // namespace ofsdp::fsdp
