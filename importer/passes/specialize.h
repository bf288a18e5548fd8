// specialize returns the graph for concrete input shapes: every value gets its desc. Nodes that
// depend only on shapes and constants (chains of Shape, Gather, Concat, Reshape) are computed here,
// once, and never in a step. The bodies of operators without a kernel take their place
// (kernels/core/lowered.h). In evaluation, Dropout becomes Identity and BatchNormalization uses its
// running statistics.
//
// bind_inputs finds the shapes. The first axis of every input is the micro-batch. Other symbolic
// axes take the size of the data column and must agree for equal symbols.
//
// Errors: kInput naming file, node or input, expected and found.
#pragma once

#include <map>

#include "importer/graph/graph.h"
#include "kernels/base/names.h"

namespace ofsdp::importer {

enum class Mode { kTrain, kEval };

// Returns the shapes of the inputs for micro-batches of `batch` samples. `rows`: a sample's shape
// by input name.
Result<std::map<std::string, Shape>> bind_inputs(const Graph& graph,
                                                 const std::map<std::string, Shape>& rows,
                                                 int64_t batch);

// Returns the number of samples if the graph fixes the first axis, or -1 if it is symbolic.
int64_t fixed_batch(const Graph& graph);

// `lowering`: the one of the import, or null.
Result<Graph> specialize(const Graph& graph, const std::map<std::string, Shape>& shapes, Mode mode,
                         const Lowering* lowering = nullptr);

// The order of the weights of NhwcConv and NhwcFusedConv, which their shape may not tell: [M,
// kernel..., C / group] (last), as ONNX Runtime's `transformers` tool writes them, or [M, C /
// group, kernel...] (first). A file has one order. find_nhwc_order infers the shapes of the whole
// graph with each; a node that fits only one decides for all. If both fit, the order is `last`.
//
// Errors: kInput, those of `specialize` with `last`, if neither order fits.

enum class NhwcWeights { kAuto, kLast, kFirst };
OFSDP_ENUM_NAMES(NhwcWeights, {kAuto, "auto"}, {kLast, "last"}, {kFirst, "first"})

// Returns whether the graph has a node with weights in an undecided order.
bool lacks_nhwc_order(const Graph& graph);

// Gives the order to all such nodes. REQUIRES: not kAuto.
Graph with_nhwc_order(const Graph& graph, NhwcWeights order);

struct NhwcOrder {
  NhwcWeights order = NhwcWeights::kLast;
  bool decided = true;  // a node of the file fits only one
};

// Finds the order of a symbolic graph. `shapes`: of the inputs. `lowering`: as for specialize.
Result<NhwcOrder> find_nhwc_order(const Graph& graph, const std::map<std::string, Shape>& shapes,
                                  Mode mode, const Lowering* lowering);

}  // namespace ofsdp::importer
