// The folder that onnxruntime.training.artifacts.generate_artifacts writes, opened for training;
// open_ort_source makes it a TrainingSource.
//
//   PREFIXtraining_model.onnx   forward, loss and backward; parameters and accumulators are inputs
//   PREFIXeval_model.onnx       forward and loss; may be absent
//   PREFIXoptimizer_model.onnx  OrtOptimizer; may be absent
//   PREFIXcheckpoint            parameters and optimizer state: OrtCheckpoint
//
// `training` is the training model as an ordinary file. It reads the weights from the checkpoint in
// place. Accumulators (InPlaceAccumulatorV2) are gone, and their gradients are outputs. The
// constant 1 where backward starts is an input. The files stay open.
//
// Errors: kInput naming file and tensor or node.
// https://onnxruntime.ai/docs/api/python/on_device_training/training_artifacts.html
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/training_source.h"
#include "kernels/base/status.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

// The file `checkpoint` of ONNX Runtime's training API: everything except tensor bytes, which are
// at known offsets. A FlatBuffer with the identifier ODTC:
//
//   Checkpoint      0 version i32 | 1 ModuleState | 2 [OptimizerGroup] | 3 PropertyBag
//   ModuleState     0 [Tensor] trained | 1 [Tensor] frozen | 2 nominal u8 | 3 external data u8
//   OptimizerGroup  0 name | 1 step i64 | 2 learning rate f32 | 3 [ParameterState]
//   ParameterState  0 parameter's name | 1 [Tensor]: "momentum0", "momentum1"
//   PropertyBag     0 [Int] | 1 [Float] | 2 [String], each 0 name | 1 value (i64, f32, text)
//   Tensor          0 name | 2 dims [i64] | 3 ONNX type i32 | 4 data [u8] | 6 external offset i64
//
// describe_ort_checkpoint begins such a file: the text, and each tensor's offset; the length is in
// the four bytes before.
//
// Errors: kInput, without the file's name: damaged or foreign bytes, an unknown version, a tensor
// with bytes that do not match the shape, two tensors with one name.

struct OrtTensor {
  std::string name;
  int onnx_type = 1;  // TensorProto.DataType
  Shape shape;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
};

struct OrtParameterState {
  std::string parameter;
  std::vector<OrtTensor> moments;
};

struct OrtOptimizerState {
  std::string group;
  int64_t step = 0;  // updates so far
  float learning_rate = 1e-3f;
  std::vector<OrtParameterState> parameters;
};

struct OrtProperty {
  std::string name;
  std::variant<int64_t, float, std::string> value;
};

struct OrtCheckpoint {
  int version = 2;
  std::vector<OrtTensor> trained, frozen;
  std::optional<OrtOptimizerState> optimizer;
  std::vector<OrtProperty> properties;

  // Returns the tensor with that name, trained or frozen, or null.
  const OrtTensor* tensor(const std::string& name) const;
  // Returns the optimizer's state of a parameter, or null.
  const OrtParameterState* state_of(const std::string& parameter) const;
};

Result<OrtCheckpoint> read_ort_checkpoint(std::span<const std::byte> bytes);

// Returns how a file with these tensors begins, and sets their `offset`s. kInput if a FlatBuffer
// cannot hold them.
Result<std::string> describe_ort_checkpoint(OrtCheckpoint& checkpoint);

// The artifacts' optimizer_model.onnx: one AdamWOptimizer or SGDOptimizerV2 over all parameters,
// possibly after an InplaceClipGradNorm. Any other node is refused: it could mix parameters, which
// are sharded here.
//
// Errors: kInput naming file, node, expected and found.

struct OrtOptimizer {
  enum class Kind { kAdamW, kSgd };
  Kind kind = Kind::kAdamW;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.01f;
  bool bias_correction = true;
  bool transformers = false;  // adam_mode 1: AdamW as in Hugging Face Transformers
  std::optional<float> clip_norm;
};

Result<OrtOptimizer> read_ort_optimizer(const std::string& path);

struct OrtPaths {
  std::string training, eval, optimizer, checkpoint;  // eval, optimizer: empty if absent
};

// Returns whether `folder` holds artifacts, judged by the training model.
bool is_ort_folder(const std::string& folder);
// Returns the folder of the artifacts if `file` is their training or optimizer model, else "".
std::string ort_folder_of(const std::string& file);
Result<OrtPaths> ort_paths(const std::string& folder);

struct OrtGradient {
  std::string parameter;
  std::string value;  // in the training graph
};

struct OrtArtifacts {
  OrtPaths paths;
  OnnxFile training;
  OrtCheckpoint checkpoint;
  std::string seed;  // the loss gradient
  std::vector<OrtGradient> gradients;

  static Result<OrtArtifacts> open(const std::string& folder);
};

// Returns a checkpoint tensor as a weight in data file number `file`.
Initializer as_initializer(const OrtTensor& tensor, int file = 0);

Result<OrtCheckpoint> open_ort_checkpoint(const std::string& path);

// --- operators in ONNX Runtime's gradient graphs ---

// Operators in ONNX Runtime's gradient graphs without a kernel here (com.microsoft 1; older files
// have some in the default domain), as a Lowering:
//
//   ReluGrad(dY, Y), ConvGrad(dY, X, W), ...   the nodes that the forward operator's gradient
//                                              rule emits
//   ConcatTraining, ReduceSumTraining, ...     the equal ONNX operator
//   Scale, BroadcastGradientArgs               their results
//
// So each has our own backward's kernels, layouts and tests. Errors: kInput with file, node,
// expected and found.
//
// [Note: sums left out] ONNX Runtime's gradient builder may not know a shape (a sequence's symbolic
// axis). It then takes an Add for one without broadcasting and writes Identity as the gradient.
// Here shapes are known: a smaller x's gradient "x_grad" is summed to x's shape.
//
// https://github.com/microsoft/onnxruntime/blob/v1.19.2/orttraining/orttraining/core/graph/training_op_defs.cc
const Lowering& ort_operators();

// Marks the Identity nodes for `lower` in a graph that brings its own backward. `ids`: values by
// name.
void mark_gradient_sums(Graph& graph, const std::map<std::string, ValueId>& ids);

// ONNX Runtime's gradient operators, expressed by ours. A table has each one's forward operator,
// and what the inputs and outputs mean for that operator. replace_gradient asks the forward
// operator's gradient rule for the nodes, as autodiff does.
// docs/internals/onnxruntime-artifacts.md has the list.
std::vector<std::string> ort_gradient_names();  // in the table

// Adds nodes in place of `node`. REQUIRES: the table has the operator.
Status replace_gradient(Graph& graph, const Node& node);

// --- the artifacts as a TrainingSource ---
//
// The training model brings its own backward; the optimizer continues from the states in the
// checkpoint.
//
// A parameter's state k is the tensor "momentum<k>": AdamW's averages of the gradient and the
// squared gradient; SGD's momentum, which SGDOptimizerV2 keeps but does not use.
//
// The trained model is a folder with the input's names: unchanged training and optimizer model, the
// checkpoint with the optimizer's states, the eval model with weights inside. ONNX Runtime's own
// Module feeds the weights to the eval model, so an unchanged one exists too, as
// module_eval_model.onnx. All ranks write at once; no rank gathers a weight.
//
// Errors: kInput from check_output for an impossible path or if the formats cannot hold so many
// bytes; kInput from load_state for states that do not fit; kFault for the disk.

Result<std::unique_ptr<TrainingSource>> open_ort_source(const std::string& folder,
                                                        const Operators& operators);

}  // namespace ofsdp::importer
