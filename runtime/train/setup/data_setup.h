// DataSetup: the samples of a run, opened and bound to the graph's inputs.
//
// find_data reads which columns there are, open_data opens them for training and evaluation,
// input_rows returns the shapes with which the importer specializes the graph, and bind_data
// decides the conversions. Synthetic data take shapes and kinds from the graph. Errors: kInput.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "importer/passes/model_inputs.h"
#include "runtime/data/data_spec.h"
#include "runtime/data/dataset.h"
#include "runtime/data/packed_rows.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

struct DataSetup {
  DataSpec spec;
  std::unique_ptr<Dataset> train;        // null: synthetic
  std::unique_ptr<Dataset> eval;         // null: no evaluation data
  std::unique_ptr<RowSource> synthetic;  // after bind
  std::set<std::string> taught = {};     // columns that only a teacher reads: `eval` lacks them
  // --pack: rows of `train` and `eval` that share a row; else null
  std::unique_ptr<PackedRows> packed_train, packed_eval;

  RowSource& train_rows() const {
    if (packed_train) return *packed_train;
    return train ? static_cast<RowSource&>(*train) : *synthetic;
  }
  // REQUIRES: evaluation data.
  RowSource& eval_rows() const {
    return packed_eval ? static_cast<RowSource&>(*packed_eval) : *eval;
  }
};

// Reads the specification of the data, with the columns' names, and opens nothing. For `eval`, both
// parts are the rows to evaluate.
Result<DataSpec> find_data(const Options& options);

// Completes columns of images by the graph's inputs (image_inputs.h).
Status fit_data(DataSpec& spec, const Options& options, const Graph& graph,
                const Communicator& communicator);

// `labels`: columns besides the graph's inputs; `known` orders the classes of text; `taught`: as in
// the result. Collective.
Result<DataSetup> open_data(DataSpec spec, const Options& options, const Graph& graph,
                            const std::set<std::string>& labels, const ClassNames& known,
                            std::set<std::string> taught, Communicator& communicator,
                            MemoryLedger& ledger);

// Reads the values of --input. Collective.
// Returns the inputs to which --input gives one number.
std::map<std::string, double> input_numbers(const Options& options);
// Returns the sizes of the columns' rows as those of inputs, with the batch's axis open; empty if
// the data cannot be opened, which is refused later. Collective.
InputSizes column_sizes(const DataSpec& spec, const Options& options, Communicator& communicator,
                        MemoryLedger& ledger);
Result<InputValues> input_values(const Options& options, const Graph& graph,
                                 Communicator& communicator, MemoryLedger& ledger);

// Returns the shape of one sample for each graph input.
Result<std::map<std::string, Shape>> input_rows(const DataSetup& data, const Graph& graph,
                                                const Options& options);

// Binds columns to the inputs of the finished graph, in order. `counts` and `losses`: one for each
// loss of the run, or empty.
Status bind_data(DataSetup& data, const Graph& finished, uint64_t seed,
                 std::span<const LossCount> counts, std::span<const LossSpec> losses);

}  // namespace ofsdp::runtime
