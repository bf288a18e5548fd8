// Reads ModelProto.training_info. Errors: kInput naming file, training_info, binding or node.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

// ModelProto.training_info, the standard's description of the training of a model, split into
//
//   forward  the model's graph followed by the nodes of the algorithm's loss; the loss is an output
//   update   a model of one update: from gradients, parameters and other initializers to the values
//            that update_binding gives them
//
// Several TrainingInfoProto are consecutive steps of an update: a later one reads values that an
// earlier one has bound. Gradient nodes are cut out: their outputs become inputs of `update`, and
// autodiff computes them. The optimizers of ai.onnx.preview.training are split into one node a
// tensor.
//
// Follows TrainingInfoProto and Gradient of the ONNX IR (onnx.proto, ai.onnx.preview.training).
// Errors: kInput naming file, training_info, binding or node.
//
// UpdateLeaf: an input of `update`.
struct UpdateLeaf {
  enum class Kind : uint8_t { kGradient, kParameter, kState };
  Kind kind = Kind::kState;
  std::string value;        // name in `update`
  std::string initializer;  // kGradient: the gradient of this initializer
  int training_info = -1;  // index of the algorithm that has the initializer; -1: the model's graph
  std::string next;        // output of `update` that is bound to it; empty: none
};

struct SplitTraining {
  onnx::ModelProto forward;
  std::string loss;
  std::vector<std::string> trained;  // names in Gradient that are also bound
  onnx::ModelProto update;
  std::vector<UpdateLeaf> leaves;
};

// Returns whether the model describes its training.
bool has_training_info(const onnx::ModelProto& model);

// REQUIRES: `model` is the parsed skeleton of `file`.
Result<SplitTraining> split_training_info(const OnnxFile& file, const onnx::ModelProto& model);

inline constexpr const char* kTrainingDomain = "ai.onnx.preview.training";

// The values that nodes of an algorithm may refer to, by name.
struct AlgorithmGraph {
  const onnx::GraphProto* graph = nullptr;
  std::map<std::string, const onnx::NodeProto*> makers;
  std::map<std::string, std::string> gradients;  // output of a Gradient -> its initializer
};

// The second half of split_training_info. Makes a model of the nodes between the known values of an
// update (gradients, initializers) and the values that update_binding names, and fills in `split`.
// `forward`: every name that the loss depends on. Errors: kInput without the path.
Status build_update_model(const OnnxFile& file, const onnx::ModelProto& model,
                          const std::vector<AlgorithmGraph>& algorithms,
                          const std::set<std::string>& forward, SplitTraining& split);

}  // namespace ofsdp::importer
