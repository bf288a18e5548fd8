// --bucket-by COLUMN: batches of rows of like length.
//
// The column's lengths order the samples of an epoch (runtime/data/row_lengths.h). If the graph
// lets the axis of the rows be shorter, whole micro-batches are cut to one of at most
// kMostCuts lengths, each with programs of its own. Otherwise rows stay whole, and the notice says
// why. REQUIRES for the same losses: the graph masks padding.
#pragma once

#include "runtime/train/setup/model_setup.h"

namespace ofsdp::runtime {

inline constexpr int64_t kMostCuts = 8;
// The column that open_data adds for a padded column; no name of a graph has blanks.
inline constexpr const char* kLengthsColumn = "lengths of --bucket-by";

// Adds the column of lengths, and to `names` what must be opened. Returns kInput without `column`.
Status add_lengths(const std::string& column, ColumnSet& set, std::vector<std::string>& names);

// Sets ModelSetup::cuts and bucket_notice. REQUIRES: the data are bound.
Status order_by_length(const Options& options, int ranks, ModelSetup& setup);

}  // namespace ofsdp::runtime
