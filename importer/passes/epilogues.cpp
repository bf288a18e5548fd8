#include <algorithm>
#include <optional>
#include <set>

#include "importer/graph/graph.h"
#include "importer/passes/joined_nodes.h"

namespace ofsdp::importer {
namespace {

enum Operand : size_t { kA, kB, kBias, kAddend, kX };

bool is_tanh(const Node& node) { return node.attributes.s("approximate", "none") == "tanh"; }

void trim(Node& node) {
  while (!node.inputs.empty() && node.inputs.back() == 0) node.inputs.pop_back();
  while (!node.outputs.empty() && node.outputs.back() == 0) node.outputs.pop_back();
}

// A graph copy in which products take over their neighbours. Nodes keep their indices while rules
// look around; finish() drops the nodes that were taken over. Nodes that `takes` refuses stay
// apart.
class EpilogueGraph {
 public:
  EpilogueGraph(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), dropped_(source.nodes.size()), before_(source.nodes.size()) {
    index();
  }

  const Graph& graph() const { return graph_; }
  size_t size() const { return graph_.nodes.size(); }
  const Node& node(size_t i) const { return graph_.nodes[i]; }
  bool dropped(size_t i) const { return dropped_[i]; }
  const TensorDesc& desc(ValueId id) const { return graph_.value(id).desc; }
  int maker(ValueId id) const { return uses_.maker(id); }
  const std::vector<size_t>& readers(ValueId id) const { return uses_.readers(id); }

  // Returns the value under this view, or the value itself.
  ValueId root(ValueId id) const {
    while (maker(id) >= 0 && node(static_cast<size_t>(maker(id))).op->view) {
      id = node(static_cast<size_t>(maker(id))).inputs[0];
    }
    return id;
  }

  // Returns the view under which `id`'s only reader (views aside) reads it; 0 if there are others.
  ValueId only_view(ValueId id) const {
    while (!wanted_.contains(id) && readers(id).size() == 1) {
      const Node& reader = node(readers(id)[0]);
      if (!reader.op->view) return id;
      id = reader.outputs[0];
    }
    return 0;
  }

  // Replaces product `i` by `made`, which makes node `taken`'s output.
  bool replace(size_t i, Node made, size_t taken) {
    const ValueId result = graph_.nodes[taken].outputs[0];
    const ValueId product = graph_.nodes[i].outputs[0];
    const bool direct = desc(result) == desc(product);
    if (!direct && wanted_.contains(result)) return false;
    if (!direct && desc(result).layout != Layout::kPlain) return false;
    const ValueId whole = direct ? result : new_value(i, desc(product));
    made.outputs[0] = whole;
    trim(made);
    if (!fits(made)) {
      if (!direct) graph_.values.pop_back();
      return false;
    }
    if (direct) {
      dropped_[taken] = true;
    } else {
      change(taken, reshaped(graph_.nodes[taken], whole, result));
    }
    accept(i, std::move(made));
    return true;
  }

  // The same, with `value`, seen as a matrix, as one more operand.
  bool replace_with(size_t i, Node made, size_t operand, ValueId value, size_t taken) {
    const size_t views = before_[i].size(), values = graph_.values.size();
    made.inputs[operand] = as_matrix(i, value);
    if (made.inputs[operand] != 0 && replace(i, std::move(made), taken)) return true;
    before_[i].resize(views);
    graph_.values.resize(values);
    return false;
  }

  // Replaces product `i` by `made`, which also makes node `taken`'s result.
  bool take_over(size_t i, Node made, size_t taken) {
    made.outputs[1] = graph_.nodes[taken].outputs[0];
    trim(made);
    if (!fits(made)) return false;
    dropped_[taken] = true;
    accept(i, std::move(made));
    return true;
  }

  // REQUIRES: no call follows.
  Graph finish() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (Node& view : before_[i]) graph_.nodes.push_back(std::move(view));
      if (!dropped_[i]) graph_.nodes.push_back(std::move(nodes[i]));
    }
    wanted_.erase(0);
    prune(graph_, {wanted_.begin(), wanted_.end()});
    return std::move(graph_);
  }

 private:
  // If node i reads a view, it counts as a reader of the value under it.
  void index() {
    uses_ = GraphUses(graph_, dropped_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (const Node& view : before_[i]) {
        uses_.add_reader(view.inputs[0], i);
        uses_.add_maker(view.outputs[0], i);
      }
    }
    wanted_ = {graph_.matches};
    for (const LossTerm& term : graph_.terms) wanted_.insert(term.value);
    for (const Measured& m : graph_.measured) wanted_.insert(m.rows);
    wanted_.insert(graph_.outputs.begin(), graph_.outputs.end());
    for (const Parameter& p : graph_.parameters) wanted_.insert(p.gradient);
    for (const Carried& c : graph_.carried) wanted_.insert(c.next);
  }

  // Asks the device and the operator.
  bool fits(const Node& made) const {
    return takes_(graph_, made) && check_outputs(graph_, made).ok();
  }

  // REQUIRES: the operator gives the outputs' descs.
  void change(size_t i, Node made) {
    const Status changed = GraphEditor(graph_).change(graph_.nodes[i], std::move(made));
    OFSDP_CHECK(changed.ok(), "{}", changed.message());
  }

  void accept(size_t i, Node made) {
    change(i, std::move(made));
    ++graph_.fused["epilogue"];
    index();
  }

  ValueId new_value(size_t i, const TensorDesc& as) {
    return GraphEditor(graph_).add_value(
        {graph_.nodes[i].name + ".epilogue", ValueKind::kActivation, as});
  }

  Node reshaped(const Node& like, ValueId from, ValueId to) {
    const std::vector<int64_t>& axes = desc(to).shape.axes();
    const ValueId shape = add_ints(graph_, like.name + ".shape", axes);
    return {
        graph_.registry->find("", "Reshape"), like.name, {}, {from, shape}, {to}, like.backward};
  }

  // Returns the value, or its view before node `i`, in product `i`'s shape; 0: there is none.
  ValueId as_matrix(size_t i, ValueId id) {
    const TensorDesc wanted = desc(graph_.nodes[i].outputs[0]);
    if (desc(id).layout != Layout::kPlain || desc(id).dtype != wanted.dtype) return 0;
    if (desc(id) == wanted) return id;
    if (desc(root(id)) == wanted) return root(id);
    const ValueId view = new_value(i, wanted);
    before_[i].push_back(reshaped(graph_.nodes[i], id, view));
    return view;
  }

  Graph graph_;
  const TakesNode& takes_;
  std::vector<bool> dropped_;              // per node
  std::vector<std::vector<Node>> before_;  // per node: views that it reads
  GraphUses uses_;
  std::set<ValueId> wanted_;
};

class Joiner {
 public:
  Joiner(const Graph& source, const TakesNode& takes) : graph_(source, takes) {}

  Graph run() {
    const size_t count = graph_.size();
    for (size_t i = 0; i < count; ++i) {
      while (is_product(graph_.node(i)) && (join_activation(i) || join_addend(i))) {
      }
    }
    for (size_t i = 0; i < count; ++i) {
      if (is_operator(graph_.node(i), "ofsdp.SumTo")) join_sum(i);
    }
    return graph_.finish();
  }

 private:
  // --- products ---
  // A Gemm with a C that is no row stays as it is.
  bool is_product(const Node& node) const {
    if (is_operator(node, "ofsdp.GemmEpilogue")) return true;
    if (!is_operator(node, "Gemm") || node.attributes.has("ofsdp_activation")) return false;
    if (node.inputs.size() < 3 || node.inputs[kBias] == 0) return true;
    const Shape& c = graph_.desc(node.inputs[kBias]).shape;
    return node.attributes.f("beta", 1.0f) == 1.0f && c.rank() == 1 &&
           c[0] == graph_.desc(node.outputs[0]).shape[1];
  }

  Node as_epilogue(const Node& node) const {
    Node made = node;
    made.op = graph_.graph().registry->find(kOwnDomain, "GemmEpilogue");
    made.inputs.resize(kX + 1, 0);
    made.outputs.resize(2, 0);
    return made;
  }

  bool plain(const Node& node) const {  // neither an activation nor a bias gradient
    return node.attributes.s("activation", "").empty() &&
           node.attributes.s("bias_grad", "").empty();
  }

  // --- the rules ---
  bool join_activation(size_t i) {
    const Node& node = graph_.node(i);
    if (!plain(node) || (node.inputs.size() > kAddend && node.inputs[kAddend] != 0)) return false;
    return join_gelu(i) || join_gelu_grad(i);
  }

  // Returns the only Gelu (tanh) that reads the product, directly or through a view.
  std::optional<size_t> gelu_of(ValueId id) const {
    for (ValueId view : with_views(graph_, id)) {
      for (size_t reader : graph_.readers(view)) {
        const Node& node = graph_.node(reader);
        if (is_operator(node, "Gelu") && is_tanh(node) && node.backward == made_backward(view))
          return reader;
      }
    }
    return std::nullopt;
  }
  bool made_backward(ValueId id) const {
    return graph_.node(static_cast<size_t>(graph_.maker(id))).backward;
  }

  bool join_gelu(size_t i) {
    const ValueId z = graph_.node(i).outputs[0];
    const auto gelu = gelu_of(z);
    if (!gelu) return false;
    const bool others = graph_.only_view(z) != graph_.node(*gelu).inputs[0];
    Node made = as_epilogue(graph_.node(i));
    made.attributes.set("activation", std::string("gelu_tanh"));
    if (others) made.outputs[1] = z;
    return graph_.replace(i, std::move(made), *gelu);
  }

  bool join_gelu_grad(size_t i) {
    const ValueId product = graph_.only_view(graph_.node(i).outputs[0]);
    if (product == 0) return false;
    const size_t reader = graph_.readers(product)[0];
    const Node& slope = graph_.node(reader);
    if (!is_operator(slope, "ofsdp.GeluGrad") || !is_tanh(slope) || slope.inputs[0] != product)
      return false;
    if (graph_.desc(slope.inputs[1]).shape != graph_.desc(product).shape ||
        graph_.maker(slope.inputs[1]) >= int(i)) {
      return false;
    }
    return with_operand(i, kX, slope.inputs[1], reader, "gelu_tanh_grad");
  }

  bool join_addend(size_t i) {
    const Node& node = graph_.node(i);
    if (!plain(node) || (node.inputs.size() > kAddend && node.inputs[kAddend] != 0)) return false;
    const ValueId product = graph_.only_view(node.outputs[0]);
    if (product == 0) return false;
    const size_t reader = graph_.readers(product)[0];
    const Node& sum = graph_.node(reader);
    if (!is_operator(sum, "Add") || sum.inputs[0] == sum.inputs[1]) return false;
    const ValueId other = sum.inputs[sum.inputs[0] == product ? 1 : 0];
    if (graph_.desc(other) != graph_.desc(product)) return false;
    // A product that took over a sum keeps its place; the view stands where the sum was.
    const ValueId root = graph_.root(other);
    const ValueId addend = graph_.desc(root) == graph_.desc(node.outputs[0]) ? root : other;
    return graph_.maker(addend) < int(i) && with_operand(i, kAddend, addend, reader, "");
  }

  bool with_operand(size_t i, Operand operand, ValueId value, size_t taken,
                    const char* activation) {
    Node made = as_epilogue(graph_.node(i));
    if (activation[0] != 0) made.attributes.set("activation", std::string(activation));
    return graph_.replace_with(i, std::move(made), operand, value, taken);
  }

  // Joins an operand's sum over the axis along which the product sums.
  bool join_sum(size_t s) {
    const Node& sum = graph_.node(s);
    const ValueId to = sum.outputs[0];
    const Shape& from = graph_.desc(sum.inputs[0]).shape;
    if (from.rank() < 2 || graph_.desc(to).shape != Shape{from[from.rank() - 1]}) return false;
    const auto is_summed = [&](ValueId id) {
      return graph_.root(id) == graph_.root(sum.inputs[0]) &&
             graph_.desc(id).shape[1] == graph_.desc(to).shape[0];
    };
    size_t first = graph_.size();  // the sum's reader
    for (size_t reader : graph_.readers(to)) first = std::min(first, reader);
    for (size_t i = 0; i < first; ++i) {
      const Node& node = graph_.node(i);
      if (graph_.dropped(i) || !is_product(node) || !sums_may_join(node)) continue;
      const bool of_a = node.attributes.i("transA", 0) != 0 && is_summed(node.inputs[kA]);
      const bool of_b = node.attributes.i("transB", 0) == 0 && is_summed(node.inputs[kB]);
      if ((of_a || of_b) && take_sum(i, s, of_a ? "a" : "b")) return true;
    }
    const int made = graph_.maker(graph_.root(sum.inputs[0]));
    if (made < 0) return false;
    const Node& node = graph_.node(static_cast<size_t>(made));
    const bool slope = node.attributes.s("activation", "") == "gelu_tanh_grad";
    return slope && is_product(node) && is_summed(node.outputs[0]) &&
           node.attributes.s("bias_grad", "").empty() &&
           take_sum(static_cast<size_t>(made), s, "y");
  }

  bool sums_may_join(const Node& node) const {
    const bool more =
        node.inputs.size() > 2 &&
        std::any_of(node.inputs.begin() + 2, node.inputs.end(), [](ValueId id) { return id != 0; });
    return plain(node) && !more && node.attributes.f("alpha", 1.0f) == 1.0f;
  }

  bool take_sum(size_t i, size_t s, const char* operand) {
    Node made = as_epilogue(graph_.node(i));
    made.attributes.set("bias_grad", std::string(operand));
    return graph_.take_over(i, std::move(made), s);
  }

  EpilogueGraph graph_;
};

}  // namespace

Graph join_epilogues(const Graph& graph, const TakesNode& takes) {
  if (graph.registry->find(kOwnDomain, "GemmEpilogue") == nullptr) return graph;
  return Joiner(graph, takes).run();
}

namespace {

constexpr size_t kWideAccess = 16;      // bytes that a device's fast kernels move at once
constexpr int64_t kPitchMultiple = 64;  // elements: 128 bytes in 16-bit floats
constexpr int64_t kRowOverRoom = 8;     // a row is at least that many times as long as the padding

// Returns the pitch if rows do not begin at multiples of 16 bytes; 0 if they do, or if padding
// would cost too much.
int64_t wanted_pitch(const TensorDesc& desc) {
  const int64_t row = desc.row();
  if (desc.layout != Layout::kPlain || desc.shape.rank() < 2 || desc.numel() == 0) return 0;
  if (static_cast<size_t>(row) * dtype_size(desc.dtype) % kWideAccess == 0) return 0;
  const int64_t pitch = (row + kPitchMultiple - 1) / kPitchMultiple * kPitchMultiple;
  return (pitch - row) * kRowOverRoom <= row ? pitch : 0;
}

bool is_matrix_product(const Node& node) {
  return node.op->product && is_operator(node, node.op->full_name());
}

class RowPitcher {
 public:
  RowPitcher(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source) {
    for (ValueId id : trained_values(graph_)) fixed_.insert(id);
    fixed_.insert(graph_.matches);
    for (const Measured& m : graph_.measured) fixed_.insert(m.rows);
  }

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (is_matrix_product(node)) pitch(node.outputs[0]);
    }
    return std::move(graph_);
  }

 private:
  TensorDesc& desc(ValueId id) { return graph_.value(id).desc; }

  void pitch(ValueId product) {
    const int64_t wanted = product == 0 ? 0 : wanted_pitch(desc(product));
    if (wanted == 0 || desc(product).pitch != 0) return;
    const std::vector<ValueId> rows = same_rows(product);
    if (!std::ranges::all_of(rows, [&](ValueId id) { return may_have_pitch(id, product); })) return;
    for (ValueId id : rows) desc(id).pitch = wanted;
    if (all_take(rows)) return;
    for (ValueId id : rows) desc(id).pitch = 0;
  }

  // A view may divide the elements into other rows than the product does.
  bool may_have_pitch(ValueId id, ValueId product) {
    return !fixed_.contains(id) && desc(id).row() == desc(product).row();
  }

  // Returns the value, the views, and results that nodes may write over them.
  std::vector<ValueId> same_rows(ValueId id) {
    std::vector<ValueId> found{id};
    for (size_t at = 0; at < found.size(); ++at) {
      for (size_t reader : uses_.readers(found[at])) {
        const ValueId more = in_place_of(graph_.nodes[reader], found[at]);
        if (more != 0 && std::ranges::find(found, more) == found.end()) found.push_back(more);
      }
    }
    return found;
  }

  // Returns the output that the node may write over `id`; 0: none.
  ValueId in_place_of(const Node& node, ValueId id) {
    if (node.op->view) return node.inputs[0] == id ? node.outputs[0] : 0;
    const auto output = static_cast<size_t>(node.op->inplace_output);
    const bool over = std::ranges::any_of(node.op->inplace_inputs, [&](int k) {
      const auto input = static_cast<size_t>(k);
      return input < node.inputs.size() && node.inputs[input] == id;
    });
    const ValueId made = over && output < node.outputs.size() ? node.outputs[output] : 0;
    return made != 0 && desc(made) == desc(id) ? made : 0;
  }

  // Asks every node that makes or reads any of the values.
  bool all_take(const std::vector<ValueId>& rows) {
    std::set<size_t> nodes;
    for (ValueId id : rows) {
      nodes.insert(static_cast<size_t>(uses_.maker(id)));
      nodes.insert(uses_.readers(id).begin(), uses_.readers(id).end());
    }
    return std::ranges::all_of(nodes, [&](size_t i) {
      const Node& node = graph_.nodes[i];
      return node.op->view || takes_(graph_, node);
    });
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::set<ValueId> fixed_;
};

}  // namespace

Graph pitch_rows(const Graph& graph, const TakesNode& takes) {
  return RowPitcher(graph, takes).run();
}

}  // namespace ofsdp::importer
