// Columns of images meet the graph: keys that the data leave out come from its inputs.
#pragma once

#include <vector>

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

// Names a column of a plain folder after the one input that takes images; adds columns of the
// subfolders' classes for labels that have none; takes layout, size and depth from the declared
// axes where the data say nothing. `threads` decode. Returns kInput if no input, or several, may
// take the images.
Status fit_images(ColumnSet& set, const Graph& graph, const std::vector<LossSpec>& losses,
                  int threads);

}  // namespace ofsdp::runtime
