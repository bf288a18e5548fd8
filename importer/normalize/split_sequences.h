// SplitToSequence, resolved: a Split where the sizes of the pieces are known, else an OpenSplit
// (graph_rewriter.h), whose pieces are Slices.
//
// Threads: one at a time. Errors: kInput for an axis that the tensor does not have; what cannot be
// resolved is refused (GraphRewriter::refuse).
#pragma once

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

Status split_to_sequence(GraphRewriter& rewriter, const onnx::NodeProto& node);

// `node` is a SequenceAt of `from`.
Status piece_of_open_split(GraphRewriter& rewriter, const onnx::NodeProto& node,
                           const OpenSplit& from);

// Refusals.
Status unknown_sequence(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status unknown_position(GraphRewriter& rewriter, const onnx::NodeProto& node);

}  // namespace ofsdp::importer
