#include "runtime/train/setup/text_lengths.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

bool is_text(const ColumnSpec& column) {
  const bool lengths = column.padding && column.padding->lengths;
  return column.tokenizer.has_value() && !lengths;
}

// Returns an index that a constant has and an axis of `size` entries has not; 0: none.
template <typename T>
int64_t index_outside(const Constant& indices, int64_t size) {
  std::vector<T> values(static_cast<size_t>(indices.desc.numel()));
  std::memcpy(values.data(), indices.bytes.data(), values.size() * sizeof(T));
  const auto found = std::ranges::find_if(values, [&](T i) { return i < -size || i >= size; });
  return found == values.end() ? 0 : static_cast<int64_t>(*found);
}

// Returns the length of the axis that the node indexes; 0: it indexes none. Its kernel refuses only
// indices outside of the axis.
int64_t indexed_axis(const Graph& graph, const Node& node) {
  const std::string op = node.op->full_name();
  if (op != "Gather" && op != "GatherElements") return 0;
  const Shape& shape = graph.value(node.inputs[0]).desc.shape;
  const int64_t axis = node.attributes.i("axis", 0);
  return shape.rank() == 0 ? 0 : shape[static_cast<int>(axis < 0 ? axis + shape.rank() : axis)];
}

// Positions that the length alone decides are constants. Kernels check them when they run.
Status check_indices(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    const int64_t size = indexed_axis(graph, node);
    if (size == 0) continue;
    const ConstantPtr& indices = graph.value(node.inputs[1]).constant;
    if (indices == nullptr) continue;
    const int64_t outside = indices->desc.dtype == DType::kInt32
                                ? index_outside<int32_t>(*indices, size)
                                : index_outside<int64_t>(*indices, size);
    OFSDP_REJECT_IF(outside != 0, "{}: index {} is outside -{}..{}", graph.describe(node), outside,
                    size, size - 1);
  }
  return {};
}

}  // namespace

TextFit::TextFit(const Graph& symbolic, const DataSetup& data, const RowShapes& rows,
                 std::function<Result<Graph>(const RowShapes&)> make)
    : symbolic_(symbolic), data_(data), rows_(rows), make_(std::move(make)) {
  for (const ValueId id : symbolic.inputs) {
    const Value& input = symbolic.value(id);
    const ColumnSpec* const column = data.spec.train.find(input.name);
    const auto row = rows.find(input.name);
    if (column == nullptr || !is_text(*column) || row == rows.end()) continue;
    if (row->second.rank() != 1 || (first_ != nullptr && row->second[0] != length_)) continue;
    if (first_ == nullptr) first_ = column;
    length_ = row->second[0];
    names_.push_back(input.name);
    if (input.declared.size() == 2) declared_ = std::max(declared_, input.declared[1].size);
  }
}

bool TextFit::takes(int64_t length) const {
  RowShapes rows = rows_;
  for (const std::string& name : names_) rows[name] = Shape{length};
  const Result<Graph> made = make_(rows);
  return made.ok() && check_indices(*made).ok();
}

// Returns the length that the file declares or the most that it takes; 0: none.
int64_t TextFit::most() const {
  if (declared_ > 0) return takes(declared_) ? declared_ : 0;
  int64_t good = 0, bad = length_;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (takes(middle) ? good : bad) = middle;
  }
  return good;
}

Status TextFit::explained(Status refusal) const {
  const int64_t most = refusal.ok() || first_ == nullptr ? 0 : this->most();
  if (most == 0) return refusal;
  const bool exact = declared_ > 0 || (first_->padding && first_->padding->to);
  const std::string remedy =
      first_->sequence_length ? format_text("`sequence_length: {}` makes rows of that length", most)
      : length_ < most        ? format_text("`pad_to: {}` fills shorter texts", most)
      : exact ? format_text("`max_length: {}` with `pad_to: {}` cuts longer texts", most, most)
              : format_text("`max_length: {}` cuts longer texts", most);
  return input_error("{}: column '{}': expected texts of {}{} tokens, as {} takes, found {}: {}",
                     data_.spec.train.origin, escaped(first_->name),
                     declared_ > 0 ? "" : "at most ", most, symbolic_.file, length_, remedy);
}

Status TextFit::check_positions(const Graph& made, const std::vector<ValueId>& outputs) const {
  if (first_ == nullptr) return {};
  Graph needed = made;
  prune(needed, outputs);
  return explained(check_indices(needed));
}

Status about_positions(Status fault, const RefusedNode& refused, const DataSetup& data) {
  if (fault.ok() || refused.node == nullptr || data.train == nullptr) return fault;
  const int64_t size = indexed_axis(*refused.graph, *refused.node);
  for (const ColumnSpec& column : data.spec.train.columns) {
    const ColumnLayout* const rows = data.train->stored(column.name);
    const bool longer = is_text(column) && rows != nullptr && rows->row.rank() == 1 && size > 0 &&
                        rows->row[0] > size;
    if (!longer) continue;
    return Status(fault.kind(),
                  format_text("{}; column '{}' has texts of up to {} tokens: if these are their "
                              "positions, `{}: {}` in {} cuts them",
                              fault.message(), escaped(column.name), rows->row[0],
                              column.sequence_length ? "sequence_length" : "max_length", size,
                              data.spec.train.origin));
  }
  return fault;
}

}  // namespace ofsdp::runtime
