// ModelSetup: a model ready to be compiled: imported, edited, with losses, trained parameters and
// open data. TrainingSource makes the finished graph for any micro-batch size.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "importer/edit/model_edits.h"
#include "importer/training_source.h"
#include "runtime/train/setup/data_setup.h"

namespace ofsdp::runtime {

// Returns the changes of the model that the options ask for.
ModelEdits edits_of(const Options& options);

// `eval` of a checkpoint: edits and trained parameters of the run that saved it.
struct SavedRun {
  std::set<std::string> trained;
  ModelEdits edits;
};

// Owns the source. The registry must outlive it.
struct ModelSetup {
  explicit ModelSetup(std::unique_ptr<TrainingSource> opened)
      : source(std::move(opened)), file(source->file()), graph(source->symbolic()) {}

  // Imports the model, opens the data, and resolves losses, trained parameters and batch sizes.
  // Collective. `given`: data of the library's caller, in place of --data. `saved`: replaces the
  // trained parameters of the options, and the edits if the options name none. Errors: kInput.
  static Result<ModelSetup> make(const Options& options, const ModelOrigin& origin,
                                 const Registry& registry, Communicator& communicator,
                                 MemoryLedger& ledger, const DataSpec* given = nullptr,
                                 const SavedRun* saved = nullptr);

  Result<Graph> training_graph(int64_t batch) const { return source->graph(batch, Mode::kTrain); }
  Result<Graph> evaluation_graph(int64_t batch) const { return source->graph(batch, Mode::kEval); }

  std::unique_ptr<TrainingSource> source;
  const OnnxFile& file;                // the source's
  const Graph& graph;                  // the source's, symbolic; Parameter::trained is set
  std::vector<std::string> fed_empty;  // inputs for a decoder's past, which are fed empty
  std::vector<LossCount> counts;       // one a loss
  std::string nhwc_notice;             // the assumed order of NhwcConv's weights, or empty
  DataSetup data;
  BatchSizes batch;
};

}  // namespace ofsdp::runtime
