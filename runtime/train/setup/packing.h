// --pack N: documents share rows of N entries, and none sees another.
//
// Every input and label column must have one entry for each token. The graph gets the documents'
// numbers and positions (importer/passes/passes.h, separate_documents), masks the columns 1, and
// the input `position_ids`, if the data lack it, the positions. Before the first step the outputs
// of two documents in a row are compared with those of each in a row of its own, in the graph as
// the file has it. Errors: kInput naming --pack: the column, or the first output that differs.
#pragma once

#include "runtime/train/setup/model_setup.h"

namespace ofsdp::runtime {

// Returns the column whose rows tell the lengths: the first padded one, else one of whole numbers.
Result<std::string> packed_by(const Options& options, const DataSpec& spec, const Graph& graph);

// Returns true for the input `position_ids` if the data have no such column.
bool is_made_up(const ColumnSet& set, const std::string& input);

// Sets the rows of the graph. REQUIRES: GraphSettings::rows has all columns.
Status plan_packed_rows(int64_t length, const Graph& graph, GraphSettings& settings);

// Makes DataSetup::packed_train and packed_eval. REQUIRES: the data are bound as `finished` says.
Status pack_data(const Options& options, const Graph& finished, ModelSetup& setup);

// Runs the forward passes. If they take too long, ModelSetup::bucket_notice says so.
Status check_packed(const Options& options, ModelSetup& setup);

}  // namespace ofsdp::runtime
