// A model with a training_info as a TrainingSource. The optimizer is the update in the file; states
// are initializers in the algorithm or in the model's graph. The trained model is the file with
// trained weights, states and scalars.
//
// Errors: kInput naming file and initializer or node; kFault for the disk.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/training_source.h"
#include "kernels/core/kernel.h"

namespace ofsdp::importer {

// A model's training_info: the update, checked to run on shards ([Note: what an update may be] in
// importer/training_source.h), and the model's graph with the loss. The registry must outlive it.
// Errors: kInput naming file, node and tensors.

struct TrainingInfo {
  UpdateRules rules;
  std::string forward;  // the model with the loss nodes, serialized
};

// Returns nothing if the model has no training_info.
Result<std::optional<TrainingInfo>> read_training_info(const OnnxFile& file,
                                                       const Operators& operators);

// `freeze`: name patterns for frozen weights.
Result<std::unique_ptr<TrainingSource>> open_rules_source(OnnxFile file, TrainingInfo info,
                                                          const std::vector<std::string>& freeze,
                                                          const Operators& operators);

// Checks that the trained file has a place for every state.
Status check_places(const OnnxFile& file, const UpdateRules& rules);

// Builds a TrainingInfoProto's algorithm graph node by node, for a model file without one. Names
// are fresh in the model; operators have the model's opset.
//
// `add` returns the node's output names. `scalar`, `ints` and `zeros` add initializers. `bind`
// names an initializer's next value. `finish` returns bytes to append to the model file, which then
// has this training_info (protobuf merges a message's pieces).
//
// Errors: kInput from `make` if the model already has a training_info, or an opset older than
// kMinOpset.

class AlgorithmBuilder {
 public:
  static constexpr int kMinOpset = 13;
  static constexpr const char* kDomain = "ai.onnx.preview.training";
  using Names = std::vector<std::string>;

  static Result<AlgorithmBuilder> make(const OnnxFile& file);
  AlgorithmBuilder(AlgorithmBuilder&&) noexcept;
  ~AlgorithmBuilder();

  Names add(const std::string& op, const Names& inputs, const Attributes& attributes = {},
            const Names& wished = {"value"}, const std::string& domain = "");
  std::string add1(const std::string& op, const Names& inputs, const Attributes& attributes = {},
                   const std::string& wished = "value") {
    return add(op, inputs, attributes, {wished})[0];
  }
  std::string scalar(const std::string& wished, DType dtype, double value);
  std::string ints(const std::string& wished, const std::vector<int64_t>& values);
  std::string zeros(const std::string& wished, const Shape& shape);  // float32
  // Declares a data column: the batch axis, then `row`.
  void input(const std::string& name, DType dtype, const Shape& row);
  void output(const std::string& name, const TensorDesc& desc);
  void bind(const std::string& initializer, const std::string& value, const TensorDesc& desc);

  const Names& model_inputs() const;  // without initializers
  std::string finish() const;

 private:
  struct State;
  AlgorithmBuilder();
  std::string fresh(const std::string& wished);

  std::unique_ptr<State> state_;
};

// Initialization graphs in a model's training_info. Each is a model without inputs, together with
// the initializers to which the outputs are bound. Errors: kInput naming file, training_info and
// binding.

struct InitialBinding {
  Initializer initializer;
  int training_info = -1;  // the algorithm that has it; -1: the model's graph has it
  std::string output;
};

struct Initialization {
  OnnxFile model;
  std::vector<InitialBinding> bindings;
};

Result<std::vector<Initialization>> read_initializations(const OnnxFile& file);

}  // namespace ofsdp::importer
