// DataSetup: where the samples of a run come from, opened and bound to what the graph wants.
//
// open_columns finds the columns that the options name and opens them (train, and evaluation where
// there is one); rows() tells the shapes that the importer specializes the graph with; bind settles
// the conversions. Synthetic data take shapes and kinds from the graph instead.
//
// Ownership: owns datasets. Threads: one; `open` is collective over the ranks. Errors: kInput.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "runtime/data/data_spec.h"
#include "runtime/data/dataset.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

struct DataSetup {
  DataSpec spec;
  std::unique_ptr<Dataset> train;        // null: synthetic
  std::unique_ptr<Dataset> eval;         // null: no evaluation data
  std::unique_ptr<RowSource> synthetic;  // after bind

  RowSource& train_rows() const { return train ? *train : *synthetic; }
};

// Only reads the specification, so that columns have names.
Result<DataSpec> find_data(const Options& options);

// `labels`: columns that are no graph inputs.
Result<DataSetup> open_data(DataSpec spec, const Options& options, const Graph& graph,
                            const std::set<std::string>& labels, Communicator& communicator,
                            MemoryLedger& ledger);

// A sample's shape for each graph input.
Result<std::map<std::string, Shape>> input_rows(const DataSetup& data, const Graph& graph);

// Binds the columns of the finished graph's inputs, in their order. `counts` and `losses` are those
// of the run's losses, one each; both may be empty.
Status bind_data(DataSetup& data, const Graph& finished, uint64_t seed,
                 std::span<const LossCount> counts, std::span<const LossSpec> losses);

}  // namespace ofsdp::runtime
