// Sequences and optional values, which exporters leave around tensors, are resolved while
// importing: a sequence is a list of names, and a position in it must be known. SplitToSequence
// becomes a Split when the sizes of the pieces are known, else an OpenSplit (graph_rewriter.h),
// whose pieces are Slices.
//
// Resolves SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase, SequenceAt,
// SequenceLength, SequenceMap, SplitToSequence, ConcatFromSequence, Optional, OptionalHasElement,
// OptionalGetElement, and Identity of either.
//
// Threads: one at a time. Errors: kInput for an axis or a position that does not exist. A node that
// cannot be resolved is refused (GraphRewriter::refuse).
// https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html
#pragma once

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

bool is_sequence_node(const GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_sequences(GraphRewriter& rewriter, const onnx::NodeProto& node);

}  // namespace ofsdp::importer
