// Builds the algorithm graph of a TrainingInfoProto node by node, for a model file without one.
// Names are fresh in the model; operators have the opset of the model.
//
// `add` returns the names of a node's outputs. `scalar`, `ints` and `zeros` add initializers.
// `bind` names the next value of an initializer. `finish` returns bytes to append to the model
// file, which then has this training_info (protobuf merges two pieces of a message).
//
// Errors: kInput from `make` if the model already has a training_info, or an opset older than
// kMinOpset.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/core/attributes.h"

namespace ofsdp::importer {

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
  // Declares a column of the data: the batch axis, then `row`.
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

// The initialization graphs of a model's training_info. Each is a model without inputs, together
// with the initializers to which the outputs are bound. Errors: kInput naming file, training_info
// and binding.

struct InitialBinding {
  Initializer initializer;
  int training_info = -1;  // index of the algorithm that has it; -1: the model's graph has it
  std::string output;
};

struct Initialization {
  OnnxFile model;
  std::vector<InitialBinding> bindings;
};

Result<std::vector<Initialization>> read_initializations(const OnnxFile& file);

}  // namespace ofsdp::importer
