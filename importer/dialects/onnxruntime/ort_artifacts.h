// The folder that onnxruntime.training.artifacts.generate_artifacts writes, opened for training.
//
//   PREFIXtraining_model.onnx   forward, loss and backward; parameters and accumulators are inputs
//   PREFIXeval_model.onnx       forward and loss
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

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/status.h"
#include "kernels/core/shape.h"

namespace ofsdp::importer {

// The file `checkpoint` of ONNX Runtime's training API: everything except the bytes of tensors,
// which are at known offsets. A FlatBuffer with the identifier ODTC:
//
//   Checkpoint      0 version i32 | 1 ModuleState | 2 [OptimizerGroup] | 3 PropertyBag
//   ModuleState     0 [Tensor] trained | 1 [Tensor] frozen | 2 nominal u8 | 3 external data u8
//   OptimizerGroup  0 name | 1 step i64 | 2 learning rate f32 | 3 [ParameterState]
//   ParameterState  0 parameter's name | 1 [Tensor]: "momentum0", "momentum1"
//   PropertyBag     0 [Int] | 1 [Float] | 2 [String], each 0 name | 1 value (i64, f32, text)
//   Tensor          0 name | 2 dims [i64] | 3 ONNX type i32 | 4 data [u8] | 6 external offset i64
//
// describe_ort_checkpoint begins such a file: the text, and the offset of each tensor's bytes, with
// their number in the four bytes before them.
//
// Errors: kInput, without the name of the file: damaged or foreign bytes, an unknown version, a
// tensor with bytes that do not match its shape, two tensors of one name.

struct OrtTensor {
  std::string name;
  int onnx_type = 1;  // TensorProto.DataType
  Shape shape;
  int64_t offset = 0;  // of its bytes in the file
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

  // Returns the tensor of that name, trained or frozen, or null.
  const OrtTensor* tensor(const std::string& name) const;
  // Returns the optimizer's state of a parameter, or null.
  const OrtParameterState* state_of(const std::string& parameter) const;
};

Result<OrtCheckpoint> read_ort_checkpoint(std::span<const std::byte> bytes);

// Returns the beginning of a file with these tensors and sets their `offset`s. kInput if a
// FlatBuffer cannot hold them.
Result<std::string> describe_ort_checkpoint(OrtCheckpoint& checkpoint);

// The file optimizer_model.onnx of training artifacts: one AdamWOptimizer or SGDOptimizerV2 over
// all parameters, possibly after an InplaceClipGradNorm. Any other node is refused: it could mix
// parameters, which are sharded here.
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
  bool transformers = false;  // adam_mode 1: AdamW of Hugging Face Transformers
  std::optional<float> clip_norm;
};

Result<OrtOptimizer> read_ort_optimizer(const std::string& path);

struct OrtPaths {
  std::string training, eval, optimizer, checkpoint;  // optimizer: empty if absent
};

// Returns whether `folder` holds artifacts, judged by the training model.
bool is_ort_folder(const std::string& folder);
Result<OrtPaths> ort_paths(const std::string& folder);

struct OrtGradient {
  std::string parameter;
  std::string value;  // of the training graph
};

struct OrtArtifacts {
  OrtPaths paths;
  OnnxFile training;
  OrtCheckpoint checkpoint;
  std::string seed;  // the gradient of the loss
  std::vector<OrtGradient> gradients;

  static Result<OrtArtifacts> open(const std::string& folder);
};

// Returns a tensor of the checkpoint as a weight in data file number `file`.
Initializer as_initializer(const OrtTensor& tensor, int file = 0);

Result<OrtCheckpoint> open_ort_checkpoint(const std::string& path);

}  // namespace ofsdp::importer
