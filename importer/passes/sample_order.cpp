#include "importer/passes/sample_order.h"

#include <algorithm>
#include <set>

#include "importer/graph/graph_uses.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

int64_t product(const Shape& shape, int begin, int end) {
  int64_t count = 1;
  for (int i = begin; i < end; ++i) count *= shape[i];
  return count;
}

std::string axes_text(const Value& value) { return value.desc.shape.text(); }

// Elements keep their order from input 0 to the output.
bool keeps_order(const Node& node) { return node.op->view || node.op->full_name() == "Cast"; }

}  // namespace

Result<int64_t> SampleOrder::outer(ValueId id, int width_axes, const std::string& flag) {
  const Value& value = graph_.value(id);
  const Shape& shape = value.desc.shape;
  const int places = std::max(shape.rank() - width_axes, 0);
  if (const auto given = given_.find(value.name); given != given_.end()) {
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
  if (said && (alone || twice() == nullptr)) return *said;  // else a wrong symbol would fit too
  return outer_by_size(id, places, flag);
}

Result<int64_t> SampleOrder::outer_given(const Value& value, int64_t axis) const {
  const Shape& shape = value.desc.shape;
  const int64_t at = axis < 0 ? axis + shape.rank() : axis;
  OFSDP_REJECT_IF(at < 0 || at >= shape.rank() || shape[static_cast<int>(at)] % batch_ != 0,
                  "--batch-axis {}={}: {}: expected an axis with batches of {}, found {}",
                  value.name, axis, graph_.file, batch_, axes_text(value));
  return product(shape, 0, static_cast<int>(at));
}

// The file's own words hold if the sizes agree.
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
  if (axes.empty()) return 1;  // no sample: the sizes do not fit
  if (!known) {
    std::erase_if(axes, [&](int axis) { return shape[axis] != batch_; });
    if (batch_ == 1 || axes.empty()) return 1;
  }
  if (axes.size() > 1) {
    if (known && axes[0] == 0 && shape[0] == batch_) return 1;  // pairs of samples
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

// Null if the graph takes no other batch, or is not the same one then.
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

// Returns the axis of an input from which the node takes the rows along the axis of its output.
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

// Whether the node puts batches of samples one after another along the axis.
bool SampleOrder::joins_batches(const Node& node, const Spot& spot) const {
  const int rank = graph_.value(spot.id).desc.shape.rank();
  if (node.op->full_name() != "Concat") return false;
  if ((node.attributes.i("axis", 0) + rank) % rank != spot.axis) return false;
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    return graph_.value(id).desc.shape[spot.axis] == batch_ && scales(id, spot.axis);
  });
}

// Returns how many of the places that `axis` merges with the samples stand before them.
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
