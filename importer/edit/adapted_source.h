// A TrainingSource of an edited model. With adapters, the trained model is two files: the model
// with merged adapters, and the adapters alone.
//
//   --output FILE.onnx           W + alpha/rank * B A in the type of the file; weights that --train
//                                names
//   --adapter FILE.safetensors   A and B in float32 under PEFT's names; FILE.onnx_adapter: the same
//                                as ONNX Runtime's adapter file
//
// Every rank writes its elements of A and B to a temporary adapter file; rank 0 merges after all
// have finished (`commit`). Errors: kInput naming --adapter if adapters cannot be merged.
#pragma once

#include "importer/edit/model_edits.h"
#include "importer/graph/graph.h"
#include "importer/training_source.h"

namespace ofsdp::importer {

// `adapter`: path of the adapter file; empty: none. `rules` may name the weights of adapters as
// NAME.lora_A.weight.
Result<std::unique_ptr<TrainingSource>> open_edited_source(EditedModel model,
                                                           const Operators& operators,
                                                           TrainedRules rules,
                                                           const std::string& adapter);

// Adds the product of an adapter, from the checkpoint or file, to elements `first` ... of a weight.
// `read` returns all elements of A or B.
using ReadTensor = std::function<Status(const std::string& name, std::span<float> dst)>;
class AdapterMerge {
 public:
  static Result<AdapterMerge> make(const Adapter& adapter, const ReadTensor& read);
  void add_to(int64_t first, std::span<float> weights) const;

 private:
  explicit AdapterMerge(const Adapter& adapter) : adapter_(adapter) {}
  Adapter adapter_;
  std::vector<float> a_, b_;
};

// Returns kInput if an adapter cannot be merged into the file of `flag`.
Status check_mergeable(const std::vector<Adapter>& adapters, const std::string& flag);

}  // namespace ofsdp::importer
