// ModelSetup: a model file ready to be trained: imported, its loss resolved, its trained set
// chosen, its data open. The TrainingSource gives the finished graph of any micro-batch size.
//
// Owns the source; the registry outlives it. Threads: one. `make` is collective (it opens data).
// Errors: kInput.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "importer/edit/model_edits.h"
#include "importer/training_source.h"
#include "runtime/plan/data_setup.h"

namespace ofsdp::runtime {

// The changes of the model that the options ask for.
ModelEdits edits_of(const Options& options);

// The part of the run that made a checkpoint that an evaluation must know: the edits of the graph
// and the names of the values that the checkpoint has.
struct SavedRun {
  std::set<std::string> trained;
  ModelEdits edits;
};

struct ModelSetup {
  explicit ModelSetup(std::unique_ptr<TrainingSource> opened)
      : source(std::move(opened)), file(source->file()), graph(source->symbolic()) {}

  // Imports the model, opens the data, resolves loss and trained set, and the batch of the ranks.
  // `given`: data of a caller of the library, instead of those that the options name. `saved`: of a
  // checkpoint that is evaluated; its trained set replaces that of the options, its edits stand for
  // options that name none.
  static Result<ModelSetup> make(const Options& options, const ModelOrigin& origin,
                                 const Registry& registry, Communicator& communicator,
                                 MemoryLedger& ledger, const DataSpec* given = nullptr,
                                 const SavedRun* saved = nullptr);

  Result<Graph> training_graph(int64_t batch) const { return source->graph(batch, Mode::kTrain); }
  Result<Graph> evaluation_graph(int64_t batch) const { return source->graph(batch, Mode::kEval); }

  std::unique_ptr<TrainingSource> source;
  const OnnxFile& file;                // of the source, like the next
  const Graph& graph;                  // symbolic; its parameters say what is trained
  std::vector<std::string> fed_empty;  // inputs of the file that hold a decoder's past
  std::vector<LossCount> counts;       // of each loss
  std::string nhwc_notice;  // the order of NhwcConv's weights, if no node decides; else empty
  DataSetup data;
  BatchSizes batch;  // of the world
};

}  // namespace ofsdp::runtime
