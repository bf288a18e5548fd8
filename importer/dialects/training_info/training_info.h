// Reads ModelProto.training_info, the standard's description of a training run.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

// split_training_info makes two models of it:
//
//   forward  the model's graph, then the nodes for the algorithm's loss; the loss is an output
//   update   a model for one update: from gradients, parameters and other initializers to the
//            values that update_binding gives them
//
// Several TrainingInfoProto are consecutive steps in an update: a later one reads values that an
// earlier one has bound. Gradient nodes are cut out: their outputs become inputs of `update`, and
// autodiff computes them. ai.onnx.preview.training's optimizers are split into one node per tensor.
//
// Follows TrainingInfoProto and Gradient in the ONNX IR (onnx.proto, ai.onnx.preview.training).
// Errors: kInput naming file, training_info, binding or node.
//
// UpdateLeaf: an input to `update`.
struct UpdateLeaf {
  enum class Kind : uint8_t { kGradient, kParameter, kState };
  Kind kind = Kind::kState;
  std::string value;        // name in `update`
  std::string initializer;  // kGradient: this initializer's gradient
  int training_info = -1;   // the algorithm that has the initializer; -1: the model's graph
  std::string next;         // `update`'s output that is bound to it; empty: none
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

// The values that an algorithm's nodes may refer to, by name.
struct AlgorithmGraph {
  const onnx::GraphProto* graph = nullptr;
  std::map<std::string, const onnx::NodeProto*> makers;
  std::map<std::string, std::string> gradients;  // a Gradient's output -> the initializer
};

// The second half of split_training_info. Makes a model from the nodes between an update's known
// values (gradients, initializers) and the values that update_binding names, and fills in `split`.
// `forward`: every name that the loss depends on. Errors: kInput without the path.
Status build_update_model(const OnnxFile& file, const onnx::ModelProto& model,
                          const std::vector<AlgorithmGraph>& algorithms,
                          const std::set<std::string>& forward, SplitTraining& split);

}  // namespace ofsdp::importer
