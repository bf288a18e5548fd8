// SmallModel: an .onnx file with a few nodes, put together from bytes; a test can change it before
// it is written. linear_model() is a good one: logits [batch, 3] = x [batch, 4] * w [4, 3] + b [3].
//
// No errors.
#pragma once

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp::onnx_bytes {

inline std::string node(const std::string& op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs, const std::string& name,
                        const std::string& domain = "") {
  std::string body;
  for (const std::string& input : inputs) body += message(1, input);
  for (const std::string& output : outputs) body += message(2, output);
  body += message(3, name) + message(4, op);
  return body + (domain.empty() ? "" : message(7, domain));
}

constexpr int64_t kLengthAxis = -2;

// A graph input or output; axis -1 is the symbol `batch`, kLengthAxis the symbol `length`.
inline std::string declared(const std::string& name, const std::vector<int64_t>& dims,
                            int type = kFloat) {
  std::string shape;
  for (const int64_t dim : dims) {
    const std::string size = dim < 0 ? message(2, dim == kLengthAxis ? "length" : "batch")
                                     : number(1, static_cast<uint64_t>(dim));
    shape += message(1, size);
  }
  const std::string tensor_type = number(1, static_cast<uint64_t>(type)) + message(2, shape);
  return message(1, name) + message(2, message(1, tensor_type));
}

struct SmallModel {
  std::vector<std::string> nodes;
  std::vector<std::string> initializers;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> infos;    // value_info
  std::vector<std::string> domains;  // besides ONNX's own
  uint64_t opset = 20;

  std::string bytes() const {
    std::string graph;
    for (const std::string& one : nodes) graph += message(1, one);
    graph += message(2, "small");
    for (const std::string& one : initializers) graph += message(5, one);
    for (const std::string& one : inputs) graph += message(11, one);
    for (const std::string& one : outputs) graph += message(12, one);
    for (const std::string& one : infos) graph += message(13, one);
    std::string model = number(1, 8) + message(2, "test") + message(7, graph);
    model += message(8, number(2, opset));
    for (const std::string& domain : domains)
      model += message(8, message(1, domain) + number(2, 1));
    return model + message(14, message(1, "key") + message(2, "value"));
  }
};

// A Constant node; `data` are the tensor's data fields.
inline std::string constant_node(const std::string& output, int type,
                                 const std::vector<int64_t>& dims, const std::string& data) {
  constexpr uint64_t kTensorAttribute = 4;
  return message(2, output) + message(4, "Constant") +
         message(5, message(1, "value") + number(20, kTensorAttribute) +
                        message(5, tensor("", type, dims, data)));
}

inline std::vector<float> linear_weights() {
  return {0.5f, -0.25f, 0.75f, 0.125f, -0.5f, 0.25f, 1.f, -1.f, 0.5f, -0.75f, 0.25f, 0.125f};
}

inline SmallModel linear_model() {
  SmallModel model;
  model.nodes = {node("MatMul", {"x", "w"}, {"products"}, "multiply"),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  model.initializers = {tensor("w", kFloat, {4, 3}, raw(linear_weights())),
                        tensor("b", kFloat, {3}, raw<float>({0.5f, 0.f, -0.5f}))};
  model.inputs = {declared("x", {-1, 4})};
  model.outputs = {declared("logits", {-1, 3})};
  return model;
}

// The same with weights in Constant nodes.
inline SmallModel linear_model_of_constants() {
  SmallModel model = linear_model();
  model.initializers.clear();
  model.nodes.insert(model.nodes.begin(),
                     {constant_node("w", kFloat, {4, 3}, raw(linear_weights())),
                      constant_node("b", kFloat, {3}, unpacked_floats({0.5f, 0.f, -0.5f}))});
  return model;
}

// Twelve samples for linear_model(), as .npy files.
inline std::string linear_inputs(size_t samples = 12) {
  std::vector<float> values(samples * 4);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 7) % 11) / 8 - 0.5f;
  }
  return testing_data::npy("<f4", format_text("({}, 4)", samples), values);
}

inline std::string linear_labels(size_t samples = 12) {
  std::vector<int64_t> values(samples);
  for (size_t i = 0; i < samples; ++i) values[i] = static_cast<int64_t>(i * i % 3);
  return testing_data::npy("<i8", format_text("({},)", samples), values);
}

}  // namespace ofsdp::onnx_bytes
