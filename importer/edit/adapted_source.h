// A TrainingSource of an edited model. With adapters, the trained model is two files: the model
// with the adapters merged into its weights, and the adapters by themselves.
//
//   --output FILE.onnx           W + alpha/rank * B A in the type of the file; what --train names
//   --adapter FILE.safetensors   A and B in float32 under PEFT's names; FILE.onnx_adapter: the same
//                                as ONNX Runtime's adapter file
//
// Every rank writes its elements of A and B to a temporary adapter file; rank 0 merges when all
// have (`commit`). Threads: one. Errors: kInput where adapters cannot be merged, naming --adapter.
#pragma once

#include "importer/edit/model_edits.h"
#include "importer/graph/lowering.h"
#include "importer/training_source.h"

namespace ofsdp::importer {

// `adapter`: the path for the adapter file; empty: none is wanted. `rules` may name the weights of
// adapters as NAME.lora_A.weight.
Result<std::unique_ptr<TrainingSource>> open_edited_source(EditedModel model,
                                                           const Operators& operators,
                                                           TrainedRules rules,
                                                           const std::string& adapter);

// Adds to elements `first` ... of a weight what its adapter in the checkpoint or file says. `read`
// gives all elements of A or B.
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

// kInput when an adapter cannot be merged into the file that `flag` names.
Status check_mergeable(const std::vector<Adapter>& adapters, const std::string& flag);

}  // namespace ofsdp::importer
