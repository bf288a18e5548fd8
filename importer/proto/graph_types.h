// GraphTypes: the types of an ONNX graph's values while the graph is being rewritten, from ONNX's
// own shape inference. Nodes are inferred when somebody asks, those added since the last time only.
//
// Ownership: refers to the model, which must outlive it and only ever gets more nodes. Threads: one
// at a time. Errors: none; what cannot be inferred has no type.
#pragma once

#include <onnx/onnx_pb.h>

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/core/tensor.h"

namespace ofsdp::importer {

class GraphTypes {
 public:
  // `known` gives values of small integer tensors (shapes, axes), or null.
  GraphTypes(const onnx::ModelProto& model, std::function<ConstantPtr(const std::string&)> known);

  const onnx::TypeProto* find(const std::string& name);
  // Returns the axes of a tensor, -1 for an unknown one; none when not even their number is known.
  std::optional<std::vector<int64_t>> axes(const std::string& name);

  // Counts what was learnt: values that were not known before may be now.
  int generation() const { return generation_; }

 private:
  void infer();
  void add(const std::string& name, const onnx::TypeProto& type);
  void declare(onnx::ModelProto& part, const std::string& name);
  onnx::ModelProto part_from(int first);
  void infer(onnx::ModelProto& part);
  bool add_known(onnx::ModelProto& part);

  const onnx::ModelProto& model_;
  std::function<ConstantPtr(const std::string&)> known_;
  std::unordered_map<std::string, onnx::TypeProto> types_;
  int inferred_ = 0;  // nodes of the model
  int generation_ = 0;
  bool busy_ = false;
};

}  // namespace ofsdp::importer
