// The axis of an input that holds the samples. Columns have it first; a file may have it elsewhere:
// a state [layers, batch, hidden], a sequence [time, batch, width].
//
// It is, in this order: the one that --batch-axis names; an axis whose symbol says batch, or N or B
// after a first axis of time; the axis with the symbol of another input's samples, if that symbol
// says batch or the first axis is a number; the first.
//
// Threads: any. Errors: kInput naming file and input.
#pragma once

#include <map>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

using BatchAxes = std::map<std::string, int64_t>;  // name of an input or output -> axis

// Refuses names that are neither inputs nor outputs of the graph.
Status check_names(const Graph& graph, const BatchAxes& given);

// Puts the samples of every input first: an input with its batch elsewhere gets its axes in the
// order of a column, and a Transpose that gives its readers the file's order. Refuses files whose
// symbols contradict each other. The graph is symbolic.
Result<Graph> with_samples_first(const Graph& graph, const BatchAxes& given);

// Refuses an input that fits its column in two ways: its first axis is a number, other inputs have
// batches of any size, and the column fits as well with the samples on another axis.
// `graph`: as with_samples_first gives it. `rows`: a sample of each input.
Status check_batch_axes(const Graph& graph, const std::map<std::string, Shape>& rows,
                        const BatchAxes& given);

}  // namespace ofsdp::importer
