#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "importer/normalize/graph_rewriter.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

using Names = std::vector<std::string>;
using Resolve = Status (*)(GraphRewriter&, const onnx::NodeProto&);

const Names* sequence(const GraphRewriter& rewriter, const std::string& name) {
  const auto found = rewriter.sequences.find(name);
  return found == rewriter.sequences.end() ? nullptr : &found->second;
}

Status unknown_sequence(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  return rewriter.refuse(node, "the sequence is not known before the run");
}

Status unknown_position(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  return rewriter.refuse(node, "the position is not known before the run");
}

// Returns the size that all pieces but the last have; 0: sizes differ.
int64_t piece_size(const ConstantPtr& split) {
  if (split == nullptr) return 1;
  if (split->desc.shape.rank() == 1) return 0;
  const auto given = int_values(*split);
  return given.ok() && given->size() == 1 ? (*given)[0] : 1;
}

// Returns the piece sizes along an axis; empty: unknown.
Result<std::vector<int64_t>> piece_sizes(const ConstantPtr& split, int64_t axis_size) {
  const int64_t size = piece_size(split);
  if (size == 0) {
    const auto sizes = int_values(*split);
    return sizes.ok() ? *sizes : std::vector<int64_t>{};
  }
  OFSDP_REJECT_IF(size > 0 && axis_size / size > kMaxIterations,
                  "expected a sequence of at most {} tensors, found {} of {}", kMaxIterations,
                  axis_size, size);
  std::vector<int64_t> sizes;
  for (int64_t rest = size > 0 ? axis_size : 0; rest > 0; rest -= size) {
    sizes.push_back(std::min(size, rest));
  }
  return sizes;
}

// A piece from a split with unknown length is a Slice. A piece beyond the end is empty, and the
// next node refuses it.
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
    OFSDP_ASSIGN_OR_RETURN(Names pieces, rewriter.unstack(name, axis, axis_size));
    return rewriter.hold(node.output(0), std::move(pieces));
  }
  OFSDP_ASSIGN_OR_RETURN(const auto sizes, piece_sizes(split, axis_size));
  OFSDP_REJECT_IF(sizes.size() > static_cast<size_t>(kMaxIterations),
                  "expected a sequence of at most {} tensors, found {}", kMaxIterations,
                  sizes.size());
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
  return rewriter.hold(node.output(0), std::move(pieces));
}

Status construct(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  return rewriter.hold(node.output(0), {node.input().begin(), node.input().end()});
}

// The place of index `position` in a sequence with `length` places; `otherwise` if it is absent.
struct Place {
  bool known = false;
  int64_t at = 0;
};

Result<Place> place(GraphRewriter& rewriter, const std::string& position, int64_t length,
                    int64_t otherwise) {
  if (position.empty()) return Place{true, otherwise};
  const auto given = rewriter.known().scalar(position);
  if (!given) return Place{};
  const int64_t at = *given < 0 ? *given + length : *given;
  OFSDP_REJECT_IF(at < 0 || at > length, "position {} is outside of a sequence of {}", *given,
                  length);
  return Place{true, at};
}

Status insert(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const Names* from = sequence(rewriter, node.input(0));
  if (from == nullptr) return unknown_sequence(rewriter, node);
  Names names = *from;
  const auto length = static_cast<int64_t>(names.size());
  OFSDP_ASSIGN_OR_RETURN(const Place where,
                         place(rewriter, input_or_none(node, 2), length, length));
  if (!where.known) return unknown_position(rewriter, node);
  names.insert(names.begin() + where.at, node.input(1));
  return rewriter.hold(node.output(0), std::move(names));
}

Status erase(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const Names* from = sequence(rewriter, node.input(0));
  if (from == nullptr) return unknown_sequence(rewriter, node);
  Names names = *from;
  const auto length = static_cast<int64_t>(names.size());
  OFSDP_ASSIGN_OR_RETURN(const Place where,
                         place(rewriter, input_or_none(node, 1), length, length - 1));
  if (!where.known) return unknown_position(rewriter, node);
  OFSDP_REJECT_IF(where.at < 0 || where.at == length, "position {} is outside of a sequence of {}",
                  where.at, length);
  names.erase(names.begin() + where.at);
  return rewriter.hold(node.output(0), std::move(names));
}

Status at(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const auto open = rewriter.open_splits.find(node.input(0));
  if (open != rewriter.open_splits.end()) return piece_of_open_split(rewriter, node, open->second);
  const Names* from = sequence(rewriter, node.input(0));
  if (from == nullptr) return unknown_sequence(rewriter, node);
  const auto length = static_cast<int64_t>(from->size());
  OFSDP_ASSIGN_OR_RETURN(const Place where, place(rewriter, node.input(1), length, 0));
  if (!where.known) return unknown_position(rewriter, node);
  OFSDP_REJECT_IF(where.at == length, "position {} is outside of a sequence of {}", where.at,
                  length);
  return rewriter.alias((*from)[static_cast<size_t>(where.at)], node.output(0));
}

Status length(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const Names* from = sequence(rewriter, node.input(0));
  if (from == nullptr) return unknown_sequence(rewriter, node);
  rewriter.scalar(node.output(0), onnx::TensorProto::INT64, static_cast<int64_t>(from->size()));
  return {};
}

Status concat(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const Names* from = sequence(rewriter, node.input(0));
  if (from == nullptr || from->empty()) return unknown_sequence(rewriter, node);
  const Names names = *from;
  const int64_t axis = int_attribute(node, "axis", 0);
  if (int_attribute(node, "new_axis", 0) != 0) return rewriter.stack(names, axis, node.output(0));
  return rewriter.add("Concat", names, {node.output(0)}, {{"axis", axis}});
}

// Adds the body once for each element; an input that is not a sequence is the same each time.
Status map(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const auto* body = find_attribute(node, "body");
  const Names* first = sequence(rewriter, node.input(0));
  if (first == nullptr || body == nullptr) return unknown_sequence(rewriter, node);
  const size_t count = first->size();
  std::vector<Names> results(static_cast<size_t>(node.output_size()));
  for (size_t i = 0; i < count; ++i) {
    Names inputs;
    for (const std::string& input : node.input()) {
      const Names* list = sequence(rewriter, input);
      OFSDP_REJECT_IF(list != nullptr && list->size() != count,
                      "expected sequences of {} elements, found one of {}", count, list->size());
      inputs.push_back(list == nullptr ? input : (*list)[i]);
    }
    OFSDP_ASSIGN_OR_RETURN(const Names outputs, rewriter.process_body(body->g(), inputs));
    for (size_t k = 0; k < results.size() && k < outputs.size(); ++k) {
      results[k].push_back(outputs[k]);
    }
  }
  for (int i = 0; i < node.output_size(); ++i) {
    OFSDP_RETURN_IF_ERROR(
        rewriter.hold(node.output(i), std::move(results[static_cast<size_t>(i)])));
  }
  return {};
}

// An optional has the element's name; without an element it has only a name.
Status copy(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const std::string& from = node.input(0);
  const std::string& to = node.output(0);
  if (const auto found = rewriter.optionals.find(from); found != rewriter.optionals.end()) {
    rewriter.optionals[to] = found->second;
  }
  if (const Names* names = sequence(rewriter, from); names != nullptr) {
    OFSDP_RETURN_IF_ERROR(rewriter.hold(to, Names(*names)));
  }
  if (const auto open = rewriter.open_splits.find(from); open != rewriter.open_splits.end()) {
    rewriter.open_splits[to] = OpenSplit(open->second);
  }
  return {};
}

Status optional(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const std::string element = input_or_none(node, 0);
  if (!element.empty()) OFSDP_RETURN_IF_ERROR(rewriter.alias(element, node.output(0)));
  rewriter.optionals[node.output(0)] = !element.empty();
  return {};
}

bool has_element(const GraphRewriter& rewriter, const std::string& name) {
  const auto found = rewriter.optionals.find(name);
  return !name.empty() && (found == rewriter.optionals.end() || found->second);
}

Status optional_has(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  rewriter.scalar(node.output(0), onnx::TensorProto::BOOL,
                  has_element(rewriter, input_or_none(node, 0)) ? 1 : 0);
  return {};
}

Status optional_get(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  if (!has_element(rewriter, node.input(0))) return input_error("the optional has no element");
  return rewriter.alias(node.input(0), node.output(0));
}

const std::map<std::string, Resolve>& table() {
  static const std::map<std::string, Resolve> kTable = {
      {"SequenceConstruct", construct},
      {"SequenceEmpty", construct},
      {"SequenceInsert", insert},
      {"SequenceErase", erase},
      {"SequenceAt", at},
      {"SequenceLength", length},
      {"SequenceMap", map},
      {"SplitToSequence", split_to_sequence},
      {"ConcatFromSequence", concat},
      {"Optional", optional},
      {"OptionalHasElement", optional_has},
      {"OptionalGetElement", optional_get},
  };
  return kTable;
}

bool copies(const GraphRewriter& rewriter, const onnx::NodeProto& node) {
  if (operator_name(node) != "Identity" || node.input_size() != 1) return false;
  const std::string& name = node.input(0);
  return rewriter.sequences.contains(name) || rewriter.open_splits.contains(name) ||
         !has_element(rewriter, name);
}

}  // namespace

bool is_sequence_node(const GraphRewriter& rewriter, const onnx::NodeProto& node) {
  return copies(rewriter, node) || table().contains(operator_name(node));
}

Status resolve_sequences(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  return copies(rewriter, node) ? copy(rewriter, node)
                                : table().at(operator_name(node))(rewriter, node);
}

}  // namespace ofsdp::importer
