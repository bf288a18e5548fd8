// ModelSetup: a model file made ready to train: imported, with its loss settled and its trained set
// chosen. training_graph and evaluation_graph then give the finished graph of any micro-batch size.
//
// Ownership: owns the file and the graph; the registry outlives it. Threads: one; `make` is
// collective (it opens data). Errors: kInput.
#pragma once

#include <memory>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/dialects/training_info/update_rules.h"
#include "importer/file/onnx_file.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "runtime/plan/data_setup.h"

namespace ofsdp::runtime {

struct ModelSetup {
  OnnxFile file;
  Graph graph;  // symbolic; its parameters say what is trained
  LossSpec loss;
  LossCount count;
  DType param_dtype = DType::kFloat32;  // what nodes compute in
  std::map<std::string, Shape> rows;    // a sample of each input, and of the label column
  DataSetup data;
  std::shared_ptr<const OrtArtifacts> artifacts = {};  // of a folder of them, else null
  std::optional<UpdateRules> rules = {};  // of a model that says itself how it is trained

  // Imports, opens the data, settles loss and trained set; settles options.batch for the world.
  static Result<ModelSetup> make(Options& options, const Registry& registry,
                                 Communicator& communicator, MemoryLedger& ledger);

  Result<Graph> training_graph(int64_t batch) const;
  Result<Graph> evaluation_graph(int64_t batch) const;
  // The same as training_graph, for others to read: nothing fused, float32, no layouts.
  Result<Graph> gradient_graph(int64_t batch) const;

 private:
  Result<Graph> fused_graph(const Graph& graph, const std::vector<ValueId>& wanted) const;
};

}  // namespace ofsdp::runtime
