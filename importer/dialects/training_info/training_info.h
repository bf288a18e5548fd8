// Reads ModelProto.training_info.
//
// Threads: any. Errors: kInput naming file, training_info, binding or node.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

// ModelProto.training_info, the standard's own way to say how a model is trained, taken apart into
//
//   forward  the model's graph followed by the nodes of the algorithm's loss; the loss is an output
//   update   a model of one update: from gradients, parameters and other initializers to the values
//            that update_binding gives them
//
// Several TrainingInfoProto are several steps of an update, in their order: a later one reads the
// values that an earlier one has bound. Gradient nodes are cut out: their outputs are inputs of
// `update`, and autodiff computes them. The optimizers of ai.onnx.preview.training are taken tensor
// by tensor.
//
// Follows TrainingInfoProto and Gradient of the ONNX IR (onnx.proto, ai.onnx.preview.training).
// All members are values. Threads: any. Errors: kInput naming file, training_info, binding or node.
// An input of `update`.
struct UpdateLeaf {
  enum class Kind : uint8_t { kGradient, kParameter, kState };
  Kind kind = Kind::kState;
  std::string value;        // its name in `update`
  std::string initializer;  // kGradient: whose gradient
  int training_info = -1;   // whose algorithm has the initializer; -1: the model's graph
  std::string next;         // the output of `update` that is bound to it; empty: none
};

struct SplitTraining {
  onnx::ModelProto forward;
  std::string loss;
  std::vector<std::string> trained;  // named by Gradient and bound
  onnx::ModelProto update;
  std::vector<UpdateLeaf> leaves;
};

// Whether the model says how it is trained.
bool has_training_info(const onnx::ModelProto& model);

// `model` is the parsed skeleton of `file`.
Result<SplitTraining> split_training_info(const OnnxFile& file, const onnx::ModelProto& model);

inline constexpr const char* kTrainingDomain = "ai.onnx.preview.training";

// The values that nodes of an algorithm may refer to, by name.
struct AlgorithmGraph {
  const onnx::GraphProto* graph = nullptr;
  std::map<std::string, const onnx::NodeProto*> makers;
  std::map<std::string, std::string> gradients;  // output of a Gradient -> the initializer
};

// The second half of split_training_info: the nodes between the known values of an update
// (gradients, initializers) and the values that update_binding names, as a model of their own.
//
// Fills in `split`. Threads: any. Errors: kInput without the path.
// `forward`: every name that the loss depends on.
Status build_update_model(const OnnxFile& file, const onnx::ModelProto& model,
                          const std::vector<AlgorithmGraph>& algorithms,
                          const std::set<std::string>& forward, SplitTraining& split);

}  // namespace ofsdp::importer
