#include "importer/passes/sample_order.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "importer/graph/graph.h"
#include "kernels/base/names.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool says_batch(const Dim& dim) {
  return lower_case(dim.symbol).find("batch") != std::string::npos;
}

bool says_time(const Dim& dim) {
  const std::string symbol = lower_case(dim.symbol);
  if (symbol == "t" || symbol == "l" || symbol == "s") return true;
  return std::ranges::any_of(std::array{"time", "seq", "len", "frame", "step"},
                             [&](const char* w) { return symbol.find(w) != std::string::npos; });
}

bool is_batch_letter(const Dim& dim) {
  const std::string symbol = lower_case(dim.symbol);
  return symbol == "n" || symbol == "b" || symbol == "bs" || symbol == "bsz";
}

using Dims = std::vector<Dim>;

// Returns the axis that the value's own symbols name as the batch.
std::optional<size_t> axis_said(const Dims& dims) {
  const auto said = std::ranges::find_if(dims, says_batch);
  if (said != dims.end()) return said - dims.begin();
  if (dims.empty() || !says_time(dims[0])) return {};
  const auto letter = std::ranges::find_if(dims, is_batch_letter);
  if (letter != dims.end()) return letter - dims.begin();
  return {};
}

// Returns the axis with any such symbol, if there is exactly one.
std::optional<size_t> axis_among(const Dims& dims, const std::set<std::string>& symbols) {
  std::optional<size_t> found;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!symbols.contains(dims[i].symbol)) continue;
    if (found) return {};
    found = i;
  }
  return found;
}

std::string dims_text(const Dims& dims) {
  std::vector<std::string> axes;
  for (const Dim& dim : dims) {
    const bool open = dim.size < 0;
    axes.push_back(!open ? std::to_string(dim.size) : dim.symbol.empty() ? "?" : dim.symbol);
  }
  return "[" + joined(axes, ", ") + "]";
}

constexpr size_t kWhole = std::numeric_limits<size_t>::max();  // no axis: one sample is a batch

class AxisFinder {
 public:
  AxisFinder(const Graph& graph, const BatchAxes& given) : graph_(graph), given_(given) {
    for (const ValueId id : graph.inputs) {
      const Dims& dims = graph.value(id).declared;
      if (dims.empty()) continue;
      if (const auto axis = axis_said(dims)) said_.insert(dims[*axis].symbol);
      first_.insert(dims[0].symbol);
    }
    first_.insert(said_.begin(), said_.end());
    said_.erase("");
    first_.erase("");
  }

  Result<std::map<ValueId, size_t>> run() {
    for (const ValueId id : graph_.inputs) {
      OFSDP_ASSIGN_OR_RETURN(axes_[id], axis(graph_.value(id)));
    }
    for (const ValueId id : graph_.inputs) OFSDP_RETURN_IF_ERROR(check(id));
    return std::move(axes_);
  }

 private:
  Result<size_t> axis(const Value& input) const {
    const Dims& dims = input.declared;
    if (const auto given = given_.find(input.name); given != given_.end()) {
      if (given->second == kNoBatchAxis) return kWhole;
      const auto rank = static_cast<int64_t>(dims.size());
      const int64_t axis = given->second < 0 ? given->second + rank : given->second;
      OFSDP_REJECT_IF(axis < 0 || axis >= rank,
                      "--batch-axis {}={}: {}: expected an axis of input {}, found none",
                      input.name, given->second, graph_.file, dims_text(dims));
      return static_cast<size_t>(axis);
    }
    if (dims.empty()) return size_t{0};
    if (const auto own = axis_said(dims)) return *own;
    return axis_among(dims, dims[0].size >= 0 ? first_ : said_).value_or(0);
  }

  // Refuses a value that has the sample symbol on another axis.
  Status check(ValueId id) const {
    const Value& input = graph_.value(id);
    const std::string symbol = symbol_of(id);
    if (symbol.empty() || given_.contains(input.name)) return {};
    for (const ValueId other : graph_.inputs) {
      const std::string others = symbol_of(other);
      const Dims& dims = graph_.value(other).declared;
      if (others.empty() || others == symbol || !std::ranges::count(dims, symbol, &Dim::symbol)) {
        continue;
      }
      return input_error(
          "{}: input '{}' {}: axis {} is '{}', which is not the batch of input '{}' {}; "
          "--batch-axis {}=AXIS names the axis of the samples",
          graph_.file, input.name, dims_text(input.declared), axes_.at(id), symbol,
          graph_.value(other).name, dims_text(dims), input.name);
    }
    return {};
  }

  std::string symbol_of(ValueId id) const {
    const Dims& dims = graph_.value(id).declared;
    const size_t axis = axes_.at(id);
    return axis < dims.size() ? dims[axis].symbol : "";
  }

  const Graph& graph_;
  const BatchAxes& given_;
  std::set<std::string> said_;   // symbols that themselves mean batch
  std::set<std::string> first_;  // the same, and first axes' symbols
  std::map<ValueId, size_t> axes_;
};

// Replaces an input by a column; a Transpose over the column makes the input from now on.
Node read_moved(Graph& graph, ValueId& input, size_t axis) {
  Value column = graph.value(input);
  const auto at = column.declared.begin() + static_cast<std::ptrdiff_t>(axis);
  std::rotate(column.declared.begin(), at, at + 1);
  std::vector<int64_t> perm;
  for (size_t i = 0; i < column.declared.size(); ++i) {
    perm.push_back(static_cast<int64_t>(i < axis ? i + 1 : i == axis ? 0 : i));
  }
  const std::string name = column.name + ".batch_axis";
  Value& moved = graph.value(input);
  moved = {name, ValueKind::kActivation, {moved.desc.dtype, {}}};
  const ValueId made = GraphEditor(graph).add_value(std::move(column));
  return {&graph.registry->get("Transpose"),
          name,
          {{"perm", perm}},
          {made},
          {std::exchange(input, made)}};
}

// Replaces an input by a column of whole samples, of which a batch has one.
Node read_whole(Graph& graph, ValueId& input) {
  Value column = graph.value(input);
  column.declared.insert(column.declared.begin(), Dim{1, {}});
  const std::string name = column.name + ".sample";
  Value& whole = graph.value(input);
  whole = {name, ValueKind::kActivation, {whole.desc.dtype, {}}};
  const ValueId axes = add_ints(graph, name + ".axes", {0});
  const ValueId made = GraphEditor(graph).add_value(std::move(column));
  return {&graph.registry->get("Squeeze"), name, {}, {made, axes}, {std::exchange(input, made)}};
}

// Returns whether the column with `row` fits with the samples on axis `k`, in batches as long as
// the first axis.
bool fits_moved(const Dims& dims, const Shape& row, size_t k) {
  if (dims[k].size >= 0 && dims[k].size != dims[0].size) return false;
  for (size_t i = 0, at = 0; i < dims.size(); ++i) {
    if (i == k) continue;
    const int64_t size = row[static_cast<int>(at++)];
    if (dims[i].size >= 0 && dims[i].size != size) return false;
  }
  return true;
}

}  // namespace

Status check_names(const Graph& graph, const BatchAxes& given) {
  std::vector<std::string> names;
  for (const auto* ids : {&graph.inputs, &graph.outputs}) {
    for (const ValueId id : *ids) names.push_back(graph.value(id).name);
  }
  for (const auto& [name, axis] : given) {
    OFSDP_REJECT_IF(std::ranges::find(names, name) == names.end(),
                    "--batch-axis {}={}: {} has no such input or output; it has {}", name,
                    batch_axis_text(axis), graph.file, joined(names, ", "));
  }
  return {};
}

Result<Graph> with_samples_first(const Graph& graph, const BatchAxes& given) {
  OFSDP_ASSIGN_OR_RETURN(const auto axes, AxisFinder(graph, given).run());
  Graph made = graph;
  std::vector<Node> nodes;
  for (ValueId& input : made.inputs) {
    const size_t axis = axes.at(input);
    if (axis == kWhole) {
      nodes.push_back(read_whole(made, input));
    } else if (axis > 0) {
      nodes.push_back(read_moved(made, input, axis));
    }
  }
  made.nodes.insert(made.nodes.begin(), nodes.begin(), nodes.end());
  return made;
}

std::vector<std::string> whole_inputs(const Graph& graph,
                                      const std::map<std::string, Shape>& rows) {
  std::vector<std::string> names;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const Shape& row = rows.at(input.name);
    if (row.rank() != std::ssize(input.declared)) return {};
    for (int i = 0; i < row.rank(); ++i) {
      const Dim& dim = input.declared[static_cast<size_t>(i)];
      if (dim.size >= 0 && dim.size != row[i]) return {};
      if (says_batch(dim) || is_batch_letter(dim)) return {};
    }
    names.push_back(input.name);
  }
  return names;
}

Graph with_whole_samples(const Graph& graph, const std::vector<std::string>& inputs) {
  Graph made = graph;
  std::vector<Node> nodes;
  for (ValueId& input : made.inputs) {
    if (std::ranges::find(inputs, made.value(input).name) == inputs.end()) continue;
    nodes.push_back(read_whole(made, input));
  }
  made.nodes.insert(made.nodes.begin(), nodes.begin(), nodes.end());
  return made;
}

Result<OpenBatch> with_open_batch(const Graph& graph, const BatchAxes& given) {
  OFSDP_ASSIGN_OR_RETURN(const auto axes, AxisFinder(graph, given).run());
  Graph made = graph;
  std::vector<Dim*> batches;
  std::set<int64_t> sizes;
  std::vector<std::string> found;
  for (const ValueId id : made.inputs) {
    Dims& dims = made.value(id).declared;
    found.push_back(format_text("'{}' {}", made.value(id).name, dims_text(dims)));
    const size_t axis = axes.at(id);
    if (axis >= dims.size() || dims[axis].size < 1) continue;
    batches.push_back(&dims[axis]);
    sizes.insert(dims[axis].size);
  }
  const bool decided = sizes.size() == 1 || sizes.contains(1);
  OFSDP_REJECT_IF(!decided, "--free-batch: {}: expected inputs with one fixed batch, found {}",
                  graph.file, joined(found, ", "));
  const int64_t fixed = *sizes.begin();
  for (Dim* dim : batches) {
    if (dim->size == fixed) *dim = {-1, {}};
  }
  return OpenBatch{std::move(made), fixed};
}

Graph with_free_reshapes(const Graph& graph, const Graph& specialized, int64_t fixed) {
  Graph made = graph;
  for (Node& node : made.nodes) {
    if (node.op->full_name() != "Reshape" || node.attributes.i("allowzero", 0) != 0) continue;
    const Shape& from = specialized.value(node.inputs[0]).desc.shape;
    const Shape& to = specialized.value(node.outputs[0]).desc.shape;
    const ConstantPtr& target = specialized.value(node.inputs[1]).constant;
    if (target == nullptr || from.rank() == 0 || from[0] != fixed || to.rank() == 0) continue;
    const auto sizes = target->as<int64_t>();
    if (sizes.empty() || sizes[0] != fixed) continue;
    std::vector<int64_t> kept(sizes.begin(), sizes.end());
    kept[0] = 0;  // the size of the input's first axis
    Node free = node;
    free.inputs[1] = add_ints(made, node.name + ".free_batch", kept);
    GraphEditor::change_symbolic(node, std::move(free));
  }
  return made;
}

std::string batch_axis_text(int64_t axis) {
  return axis == kNoBatchAxis ? "none" : std::to_string(axis);
}

Status check_batch_axes(const Graph& graph, const std::map<std::string, Shape>& rows,
                        const BatchAxes& given) {
  const bool any_size = std::ranges::any_of(graph.inputs, [&](ValueId id) {
    const Dims& dims = graph.value(id).declared;
    return !dims.empty() && dims[0].size < 0;
  });
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const Dims& dims = input.declared;
    const Shape& row = rows.at(input.name);
    if (!any_size || given.contains(input.name) || dims.empty() || dims[0].size <= 1) continue;
    if (row.rank() + 1 != static_cast<int>(dims.size())) continue;
    for (size_t k = 1; k < dims.size(); ++k) {
      OFSDP_REJECT_IF(
          fits_moved(dims, row, k),
          "{}: input '{}' {}: its samples may lie on axis 0 or {}; --batch-axis {}=AXIS "
          "names the axis",
          graph.file, input.name, dims_text(dims), k, input.name);
    }
  }
  return {};
}

namespace {

int64_t product(const Shape& shape, int begin, int end) {
  int64_t count = 1;
  for (int i = begin; i < end; ++i) count *= shape[i];
  return count;
}

std::string axes_text(const Value& value) { return value.desc.shape.text(); }

// Returns whether the output's elements keep input 0's order.
bool keeps_order(const Node& node) { return node.op->view || node.op->full_name() == "Cast"; }

}  // namespace

Result<int64_t> SampleOrder::outer(ValueId id, int width_axes, const std::string& flag) {
  const Value& value = graph_.value(id);
  const Shape& shape = value.desc.shape;
  const int places = std::max(shape.rank() - width_axes, 0);
  if (const auto given = given_.find(value.name); given != given_.end()) {
    if (given->second == kNoBatchAxis && batch_ == 1) return 1;
    return outer_given(value, given->second);
  }
  if (product(shape, 0, places) == batch_ && shape.rank() > 0 && shape[0] == batch_) {
    const bool square =
        width_axes > 0 && shape[shape.rank() - 1] % std::max<int64_t>(batch_, 1) == 0;
    if (!square) return 1;
  }
  const auto said = outer_by_symbol(value, places);
  const auto& axes = shape.axes();
  const bool alone = std::count(axes.begin(), axes.begin() + places, batch_) == 1;
  if (said && (alone || twice() == nullptr))
    return *said;  // otherwise a wrong symbol would fit, too
  return outer_by_size(id, places, flag);
}

Result<int64_t> SampleOrder::outer_given(const Value& value, int64_t axis) const {
  const Shape& shape = value.desc.shape;
  const bool none = axis == kNoBatchAxis;
  const int64_t at = axis < 0 && !none ? axis + shape.rank() : axis;
  OFSDP_REJECT_IF(at < 0 || at >= shape.rank() || shape[static_cast<int>(at)] % batch_ != 0,
                  "--batch-axis {}={}: {}: expected an axis with batches of {}, found {}",
                  value.name, batch_axis_text(axis), graph_.file, batch_, axes_text(value));
  return product(shape, 0, static_cast<int>(at));
}

// Trusts the file's symbols if the sizes agree.
std::optional<int64_t> SampleOrder::outer_by_symbol(const Value& value, int places) const {
  std::set<std::string> samples, others;
  for (const ValueId id : graph_.inputs) {
    const auto& dims = graph_.value(id).declared;
    for (size_t i = 0; i < dims.size(); ++i) (i == 0 ? samples : others).insert(dims[i].symbol);
  }
  const Shape& shape = value.desc.shape;
  if (samples.size() != 1 || value.declared.size() != static_cast<size_t>(shape.rank())) return {};
  std::optional<int64_t> found;
  for (int i = 0; i < shape.rank(); ++i) {
    const Dim& dim = value.declared[static_cast<size_t>(i)];
    if (dim.size >= 0 && dim.size != shape[i]) return {};
    if (dim.symbol.empty() || !samples.contains(dim.symbol) || others.contains(dim.symbol))
      continue;
    if (found || i >= places || shape[i] != batch_) return {};
    found = product(shape, 0, i);
  }
  return found;
}

Result<int64_t> SampleOrder::outer_by_size(ValueId id, int places, const std::string& flag) {
  const Value& value = graph_.value(id);
  const Shape& shape = value.desc.shape;
  const bool known = twice() != nullptr;
  std::vector<int> axes = scaling_axes(id);
  const bool on_width = std::ranges::any_of(axes, [&](int axis) { return axis >= places; });
  std::erase_if(axes, [&](int axis) { return axis >= places; });
  OFSDP_REJECT_IF(known && axes.empty() && on_width,
                  "{}: output '{}' {}: expected its samples before the last axis, which has the "
                  "classes, found them there",
                  flag, value.name, axes_text(value));
  if (axes.empty()) return 1;  // no axis has samples: the sizes do not fit
  if (!known) {
    std::erase_if(axes, [&](int axis) { return shape[axis] != batch_; });
    if (batch_ == 1 || axes.empty()) return 1;
  }
  if (axes.size() > 1) {
    if (known && axes[0] == 0 && shape[0] == batch_) return 1;  // sample pairs
    return undecided(value, flag);
  }
  if (shape[axes[0]] == batch_) return product(shape, 0, axes[0]);
  const auto merged = merged_before(id, axes[0]);
  if (!merged) return undecided(value, flag);
  return product(shape, 0, axes[0]) * *merged;
}

Status SampleOrder::undecided(const Value& value, const std::string& flag) const {
  return input_error(
      "{}: output '{}' {}: its axes do not say where its samples are; --batch-axis "
      "{}=AXIS names their axis",
      flag, value.name, axes_text(value), value.name);
}

// Returns null if the graph takes no other batch size, or is then another graph.
const Graph* SampleOrder::twice() {
  if (!twice_) {
    twice_.emplace();
    Result<Graph> made = make_twice_();
    if (made.ok() && made->values.size() == graph_.values.size()) {
      *twice_ = std::make_unique<Graph>(*std::move(made));
    }
  }
  return twice_->get();
}

bool SampleOrder::scales(ValueId id, int axis) const {
  const int64_t size = graph_.value(id).desc.shape[axis];
  if (*twice_ == nullptr) return size % std::max<int64_t>(batch_, 1) == 0;
  const Shape& other = (*twice_)->value(id).desc.shape;
  return axis < other.rank() && size > 0 && other[axis] == 2 * size;
}

std::vector<int> SampleOrder::scaling_axes(ValueId id) const {
  std::vector<int> axes;
  for (int i = 0; i < graph_.value(id).desc.shape.rank(); ++i) {
    if (scales(id, i)) axes.push_back(i);
  }
  return axes;
}

// Returns the input axis that has the rows along the output axis.
std::optional<SampleOrder::Spot> SampleOrder::before(const Node& node, Spot spot) const {
  const Shape& shape = graph_.value(spot.id).desc.shape;
  const ValueId first = node.inputs.empty() ? 0 : node.inputs[0];
  if (node.op->full_name() == "Transpose") {
    const auto perm = node.attributes.ints("perm", {});
    const auto at = static_cast<size_t>(spot.axis);
    const auto axis = static_cast<int>(perm.empty() ? shape.rank() - 1 - spot.axis : perm[at]);
    return Spot{first, axis, spot.step, spot.of};
  }
  if (keeps_order(node)) {
    const std::vector<int> axes = scaling_axes(first);
    if (axes.size() != 1) return {};
    const Shape& from = graph_.value(first).desc.shape;
    return Spot{first, axes[0], spot.step * product(from, axes[0] + 1, from.rank()),
                spot.of * product(shape, spot.axis + 1, shape.rank())};
  }
  for (const ValueId input : node.inputs) {
    if (input == 0) continue;
    for (const int axis : scaling_axes(input)) {
      const bool alike = graph_.value(input).desc.shape[axis] == shape[spot.axis];
      if (alike) return Spot{input, axis, spot.step, spot.of};
    }
  }
  return {};
}

// Returns whether the node puts batches one after another along the axis.
bool SampleOrder::joins_batches(const Node& node, const Spot& spot) const {
  const int rank = graph_.value(spot.id).desc.shape.rank();
  if (node.op->full_name() != "Concat") return false;
  if ((node.attributes.i("axis", 0) + rank) % rank != spot.axis) return false;
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    return graph_.value(id).desc.shape[spot.axis] == batch_ && scales(id, spot.axis);
  });
}

// Returns how many places come before the samples among the ones that `axis` merges with them.
std::optional<int64_t> SampleOrder::merged_before(ValueId id, int axis) const {
  const int64_t merged = graph_.value(id).desc.shape[axis] / batch_;
  Spot spot{id, axis};
  while (graph_.value(spot.id).desc.shape[spot.axis] != batch_) {
    const Node* node = maker_of(graph_, spot.id);
    if (node == nullptr) return {};
    if (joins_batches(*node, spot)) break;
    const std::optional<Spot> next = before(*node, spot);
    if (!next) return {};
    spot = *next;
  }
  if (spot.step % spot.of != 0 || merged % (spot.step / spot.of) != 0) return {};
  return merged / (spot.step / spot.of);
}

Result<ValueId> reordered(Graph& graph, ValueId labels, int64_t batch, int64_t from, int64_t to) {
  const std::string name = graph.value(labels).name;
  const int64_t count = graph.value(labels).desc.numel();
  if (from == to || count == 0 || count % (batch * from) != 0 || count % (batch * to) != 0) {
    return labels;
  }
  const int64_t places = count / batch;
  GraphEditor editor(graph);
  const auto swap = [&](ValueId x, std::vector<int64_t> shape) -> Result<ValueId> {
    OFSDP_ASSIGN_OR_RETURN(
        const ValueId whole,
        editor.add1("Reshape", name + ".places", {x, add_ints(graph, name + ".shape", shape)}));
    return editor.add1("Transpose", name + ".order", {whole},
                       {{"perm", std::vector<int64_t>{1, 0, 2}}});
  };
  if (from > 1) {
    OFSDP_ASSIGN_OR_RETURN(labels, swap(labels, {from, batch, places / from}));
  }
  if (to == 1) return labels;
  return swap(labels, {batch, to, places / to});
}

}  // namespace ofsdp::importer
