// specialize: the graph for concrete input shapes. Every value gets its desc. Nodes that depend on
// shapes and constants alone (chains of Shape, Gather, Concat, Reshape) are computed here, once,
// and never in a step. Operators without a kernel make room for their bodies
// (kernels/core/lowered.h). In evaluation the training switches are off: Dropout becomes Identity
// and BatchNormalization uses its running statistics.
//
// bind_inputs finds the shapes. The leading axis of every input is the micro-batch. Other symbolic
// axes take the size of the data column and must agree wherever the symbol is used.
//
// Threads: any. Errors: kInput naming file, node or input, expected and found.
#pragma once

#include <map>

#include "importer/graph/lowering.h"

namespace ofsdp::importer {

enum class Mode { kTrain, kEval };

// Shapes of the inputs for micro-batches of `batch` samples; `rows` holds a sample's shape per
// input name.
Result<std::map<std::string, Shape>> bind_inputs(const Graph& graph,
                                                 const std::map<std::string, Shape>& rows,
                                                 int64_t batch);

// The number of samples that a graph with a fixed leading axis takes, or -1 when it is symbolic.
int64_t fixed_batch(const Graph& graph);

// `lowering`: the one that the graph was imported with, or null.
Result<Graph> specialize(const Graph& graph, const std::map<std::string, Shape>& shapes, Mode mode,
                         const Lowering* lowering = nullptr);

}  // namespace ofsdp::importer
