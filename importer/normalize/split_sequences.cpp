#include "importer/normalize/split_sequences.h"

#include <algorithm>
#include <limits>

namespace ofsdp::importer {
namespace {

// The one size of all pieces but the last; 0: they have sizes of their own.
int64_t piece_size(const ConstantPtr& split) {
  if (split == nullptr) return 1;
  if (split->desc.shape.rank() == 1) return 0;
  const auto given = int_values(*split);
  return given.ok() && given->size() == 1 ? (*given)[0] : 1;
}

// The sizes of the pieces of an axis; empty: not known.
std::vector<int64_t> piece_sizes(const ConstantPtr& split, int64_t axis_size) {
  const int64_t size = piece_size(split);
  if (size == 0) {
    const auto sizes = int_values(*split);
    return sizes.ok() ? *sizes : std::vector<int64_t>{};
  }
  std::vector<int64_t> sizes;
  for (int64_t rest = size > 0 ? axis_size : 0; rest > 0; rest -= size) {
    sizes.push_back(std::min(size, rest));
  }
  return sizes;
}

}  // namespace

Status unknown_sequence(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  return rewriter.refuse(node, "the sequence is not known before the run");
}

Status unknown_position(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  return rewriter.refuse(node, "the position is not known before the run");
}

// A piece of a split whose length is not known: a Slice. One beyond the end is empty, which shows
// at the next node.
Status piece_of_open_split(GraphRewriter& rewriter, const onnx::NodeProto& node,
                           const OpenSplit& from) {
  const auto position = rewriter.known().scalar(node.input(1));
  if (!position || (*position < 0 && from.size > 1)) return unknown_position(rewriter, node);
  const int64_t last = std::numeric_limits<int64_t>::max();
  const int64_t end = *position == -1 ? last : (*position + 1) * from.size;
  const std::string starts = rewriter.ints({*position * from.size});
  const std::string axes = rewriter.ints({from.axis});
  const std::string piece =
      from.squeezed ? rewriter.names().fresh(node.output(0) + "_piece") : node.output(0);
  OFSDP_RETURN_IF_ERROR(
      rewriter.add("Slice", {from.tensor, starts, rewriter.ints({end}), axes}, {piece}));
  return from.squeezed ? rewriter.add("Squeeze", {piece, axes}, {node.output(0)}) : ok_status();
}

Status split_to_sequence(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const std::string& name = node.input(0);
  const std::string split_name = input_or_none(node, 1);
  const ConstantPtr split = rewriter.known().find(split_name);
  const auto shape = rewriter.types().axes(name);
  if (!shape || (!split_name.empty() && split == nullptr)) return unknown_sequence(rewriter, node);
  OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(int_attribute(node, "axis", 0),
                                                        static_cast<int>(shape->size())));
  const int64_t axis_size = (*shape)[static_cast<size_t>(axis)];
  const bool squeezed = split_name.empty() && int_attribute(node, "keepdims", 1) == 0;
  if (squeezed && axis_size >= 0) {
    OFSDP_ASSIGN_OR_RETURN(rewriter.sequences[node.output(0)],
                           rewriter.unstack(name, axis, axis_size));
    return {};
  }
  const auto sizes = piece_sizes(split, axis_size);
  if (sizes.empty()) {
    const int64_t size = piece_size(split);
    if (axis_size >= 0 || size <= 0) return unknown_sequence(rewriter, node);
    rewriter.open_splits[node.output(0)] = {name, axis, size, squeezed};
    return {};
  }
  std::vector<std::string> pieces;
  for (size_t i = 0; i < sizes.size(); ++i) {
    pieces.push_back(rewriter.names().fresh(node.output(0) + "_piece"));
  }
  OFSDP_RETURN_IF_ERROR(
      rewriter.add("Split", {name, rewriter.ints(sizes)}, pieces, {{"axis", axis}}));
  rewriter.sequences[node.output(0)] = std::move(pieces);
  return {};
}

}  // namespace ofsdp::importer
