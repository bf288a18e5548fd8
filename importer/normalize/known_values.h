// KnownValues: what an ONNX graph computes from constants and static shapes alone, found while the
// graph is being rewritten: conditions of `If`, numbers of iterations, positions in sequences.
// Evaluates with the registry's own kernels. Floating-point initializers are weights, so nothing
// that is made of them is known.
//
// Ownership: refers to the model (which only ever gets more nodes) and the registry. Threads: one
// at a time. Errors: none; null is "not known".
#pragma once

#include <onnx/onnx_pb.h>

#include <optional>
#include <string>
#include <unordered_map>

#include "importer/proto/graph_types.h"
#include "kernels/core/registry.h"

namespace ofsdp::importer {

class KnownValues {
 public:
  KnownValues(const onnx::ModelProto& model, const Registry& registry);

  void set_types(GraphTypes& types) { types_ = &types; }
  ConstantPtr find(const std::string& name);
  // Returns the one element of an integer or bool.
  std::optional<int64_t> scalar(const std::string& name);

 private:
  void index();
  ConstantPtr evaluate(const std::string& name);
  ConstantPtr shape_part(const onnx::NodeProto& node);
  ConstantPtr one_axis(const onnx::NodeProto& node);
  ConstantPtr folded(const onnx::NodeProto& node, const std::string& name);

  const onnx::ModelProto& model_;
  const Registry& registry_;
  GraphTypes* types_ = nullptr;
  std::unordered_map<std::string, int> makers_;        // value -> its node
  std::unordered_map<std::string, int> initializers_;  // not floating-point
  // A value that was looked up; null: not known from the types of that generation.
  struct Found {
    ConstantPtr value;
    int generation = 0;
  };
  std::unordered_map<std::string, Found> values_;
  int indexed_ = 0;
};

}  // namespace ofsdp::importer
