// The nodes that a GraphRewriter resolves: control flow, sequences, functions.
//
// Threads: one at a time. Errors: kInput for a wrong node; one that cannot be resolved is refused.
#pragma once

#include <optional>

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

// Control flow that is resolved while importing, because what it depends on is known
// (known_values.h).
//
//   If          the branch that runs takes its place
//   Loop, Scan  unrolled; a Loop ends when its condition becomes false, which must be known in
//               every iteration
//
// Weights inside of a branch or body become constants: only those of the main graph are trained.
// https://onnx.ai/onnx/operators/onnx__If.html, https://onnx.ai/onnx/operators/onnx__Loop.html,
// https://onnx.ai/onnx/operators/onnx__Scan.html
Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_loop(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_scan(GraphRewriter& rewriter, const onnx::NodeProto& node);

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
bool is_sequence_node(const GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_sequences(GraphRewriter& rewriter, const onnx::NodeProto& node);

// Operators that ONNX defines as functions of others, where there is no kernel for them: the body
// in place of the node. Bodies of older opsets are converted to the model's where an operator in
// them has changed since.
//
// Ownership: values. Threads: one at a time. Errors: `function_body` gives none when the operator
// is no function or its body cannot be had (its input types are not known). Exceptions of the ONNX
// library end here.
std::optional<std::vector<onnx::NodeProto>> function_body(GraphRewriter& rewriter,
                                                          const onnx::NodeProto& node);

// Puts the model's own functions in place of their calls.
Status inline_local_functions(onnx::ModelProto& model);

}  // namespace ofsdp::importer
