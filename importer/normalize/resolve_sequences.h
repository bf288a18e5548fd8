// Sequences and optional values, which exporters leave around tensors, are resolved while importing:
// a sequence is a list of names, a position in it must be known. SequenceConstruct, SequenceEmpty,
// SequenceInsert, SequenceErase, SequenceAt, SequenceLength, SequenceMap, SplitToSequence,
// ConcatFromSequence, Optional, OptionalHasElement, OptionalGetElement, and Identity of either.
// https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html
#pragma once

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

bool is_sequence_node(const GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_sequences(GraphRewriter& rewriter, const onnx::NodeProto& node);

}  // namespace ofsdp::importer
