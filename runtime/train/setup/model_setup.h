// ModelSetup: a model that is ready to be compiled. It is imported and edited (adapters, a new
// head), its data is open, and losses, trained parameters and batch sizes are decided. The run
// makes one (runtime/train/prepared_run.cpp) before it compiles, and keeps it to the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "importer/training_source.h"
#include "runtime/data/row_lengths.h"
#include "runtime/train/setup/checkpoint_values.h"
#include "runtime/train/setup/data_setup.h"

namespace ofsdp::runtime {

// Owns the source, and may be moved but not assigned. The registry must outlive it.
struct ModelSetup {
  explicit ModelSetup(std::unique_ptr<TrainingSource> training_source)
      : source(std::move(training_source)), file(source->file()), graph(source->symbolic()) {}

  // Imports the model, opens the data, and resolves losses, trained parameters and batch sizes.
  // Collective: all ranks call it with equal arguments. Returns kInput if model, data or options do
  // not fit together, and the communicator's errors. If one rank fails, the others wait in the next
  // collective until its caller reports the error (Communicator::fail).
  //
  // `origin`: facts about the model file that parsing the options has found. `ledger`: counts the
  // memory of opened data. `library_data`: data that the library's caller passes, instead of
  // --data. `saved`: of --resume, for eval, check and doctor; its trained parameters replace those
  // of the options, and its edits apply if the options ask for none.
  static Result<ModelSetup> make(const Options& options, const ModelOrigin& origin,
                                 const Registry& registry, Communicator& communicator,
                                 MemoryLedger& ledger, const DataSpec* library_data = nullptr,
                                 const SavedRun* saved = nullptr);

  // Return the finished graph for `batch` samples per rank and micro-batch, with loss and, for
  // training, gradients. `length`: of cut rows; 0: whole rows. Return kInput if the model cannot be
  // specialized for that batch.
  Result<Graph> training_graph(int64_t batch, int64_t length = 0) const {
    return source->graph(batch, Mode::kTrain, length);
  }
  Result<Graph> evaluation_graph(int64_t batch) const { return source->graph(batch, Mode::kEval); }

  // Returns the texts of the labels' classes, by number; empty if the data has numbers.
  std::vector<std::string> class_names() const;

  std::unique_ptr<TrainingSource> source;
  const OnnxFile& file;  // source->file()
  const Graph& graph;    // source->symbolic(): open batch axis; says which parameters are trained
  // Inputs for a decoder's KV cache that the data lacks; the graph gets empty tensors for them.
  std::vector<std::string> fed_empty;
  InputValues inputs;                     // of --input: no columns
  std::vector<std::string> whole_inputs;  // found to have no batch axis: a batch is one sample
  int64_t opened_batch = 0;               // --free-batch: the batch that the file fixes
  // Per term of the training graph, first of each loss: how to count the samples or labels of its
  // mean.
  std::vector<LossCount> counts;
  // The notice for the user if no node of the file shows which axis order the weights of ONNX
  // Runtime's NhwcConv have; or empty.
  std::string nhwc_notice;
  DataSetup data;
  std::shared_ptr<RowCuts> cuts;  // of --bucket-by; null without it
  std::string bucket_notice;      // about --bucket-by, one line; or empty
  BatchSizes batch;               // samples per micro-batch and update, micro-batches per update
};

// Returns kInput if a label of the training or evaluation data is out of range (dataset.h).
Status check_labels(const ModelSetup& setup, Dataset& data);

}  // namespace ofsdp::runtime
