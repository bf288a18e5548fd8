// Decoders with a given shape, for plans of models that nobody could load: the weights are external
// data, in a file of full length without blocks on the disk.
//
// Errors: none; a file that cannot be written shows in the test that reads.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {

struct DecoderShape {
  int64_t layers = 1, width = 8, heads = 1, kv_heads = 1, hidden = 32, vocabulary = 16;
  int64_t sequence = 8;
  bool gated =
      false;          // Llama's SwiGLU and RMSNormalization; else GPT's GELU and LayerNormalization
  bool tied = false;  // the head is the embedding
  bool positions = false;  // learned
};

// Writes model.onnx and weights.bin, and counts parameters.
class ShapedDecoder {
 public:
  explicit ShapedDecoder(const DecoderShape& shape) : shape_(shape) {
    embed();
    for (int64_t i = 0; i < shape.layers; ++i) layer("h." + std::to_string(i));
    head();
    write();
  }

  std::string path() const { return folder_ / "model.onnx"; }
  int64_t parameters() const { return parameters_; }

 private:
  using Names = std::vector<std::string>;

  static std::string integer(const std::string& name, int64_t value) {
    return onnx_bytes::message(5, onnx_bytes::message(1, name) +
                                      onnx_bytes::number(3, static_cast<uint64_t>(value)) +
                                      onnx_bytes::number(20, 2));
  }

  // Adds a node with one output, and returns it.
  std::string node(const std::string& op, const Names& inputs, const std::string& scope,
                   const std::string& attributes = "") {
    std::string body;
    for (const std::string& input : inputs) body += onnx_bytes::message(1, input);
    body += onnx_bytes::message(2, scope) + onnx_bytes::message(3, "/" + scope) +
            onnx_bytes::message(4, op) + attributes;
    nodes_ += onnx_bytes::message(1, body);
    return scope;
  }

  std::string weight(const std::string& name, const std::vector<int64_t>& dims) {
    int64_t numel = 1;
    for (const int64_t dim : dims) numel *= dim;
    const std::string place = onnx_bytes::external("weights.bin", std::to_string(4 * parameters_),
                                                   std::to_string(4 * numel));
    weights_ += onnx_bytes::message(5, onnx_bytes::tensor(name, onnx_bytes::kFloat, dims, place));
    parameters_ += numel;
    return name;
  }

  std::string product(const std::string& x, const std::string& scope, int64_t in, int64_t out) {
    return node("MatMul", {x, weight(scope + ".weight", {in, out})}, scope);
  }

  std::string norm(const std::string& x, const std::string& scope) {
    Names inputs{x, weight(scope + ".weight", {shape_.width})};
    if (!shape_.gated) inputs.push_back(weight(scope + ".bias", {shape_.width}));
    return node(shape_.gated ? "RMSNormalization" : "LayerNormalization", inputs, scope);
  }

  void embed() {
    x_ = node("Gather", {weight("wte", {shape_.vocabulary, shape_.width}), "tokens"}, "embed");
    if (!shape_.positions) return;
    x_ = node("Add", {x_, weight("wpe", {shape_.sequence, shape_.width})}, "placed");
  }

  void layer(const std::string& name) {
    const int64_t width = shape_.width, narrow = width / shape_.heads * shape_.kv_heads;
    const std::string n = norm(x_, name + ".norm1");
    const Names qkv{product(n, name + ".attn.q", width, width),
                    product(n, name + ".attn.k", width, narrow),
                    product(n, name + ".attn.v", width, narrow)};
    const std::string attended =
        node("Attention", qkv, name + ".attn.core",
             integer("q_num_heads", shape_.heads) + integer("kv_num_heads", shape_.kv_heads) +
                 integer("is_causal", 1));
    x_ = node("Add", {x_, product(attended, name + ".attn.out", width, width)}, name + ".sum1");
    const std::string inner = activation(norm(x_, name + ".norm2"), name);
    x_ =
        node("Add", {x_, product(inner, name + ".mlp.down", shape_.hidden, width)}, name + ".sum2");
  }

  std::string activation(const std::string& x, const std::string& name) {
    const std::string up = product(x, name + ".mlp.up", shape_.width, shape_.hidden);
    if (!shape_.gated) return node("Gelu", {up}, name + ".mlp.gelu");
    const std::string gate = product(x, name + ".mlp.gate", shape_.width, shape_.hidden);
    const std::string sigmoid = node("Sigmoid", {gate}, name + ".mlp.sigmoid");
    const std::string swish = node("Mul", {gate, sigmoid}, name + ".mlp.swish");
    return node("Mul", {swish, up}, name + ".mlp.product");
  }

  void head() {
    const std::string last = norm(x_, "norm");
    if (!shape_.tied) {
      product(last, "logits", shape_.width, shape_.vocabulary);
    } else {
      node("MatMul", {last, node("Transpose", {"wte"}, "turned")}, "logits");
    }
  }

  // A value [batch, ...].
  static std::string batched(const std::string& name, int type, const std::vector<int64_t>& axes) {
    std::string shape = onnx_bytes::message(1, onnx_bytes::message(2, "batch"));
    for (const int64_t axis : axes) {
      shape += onnx_bytes::message(1, onnx_bytes::number(1, static_cast<uint64_t>(axis)));
    }
    const std::string tensor =
        onnx_bytes::number(1, static_cast<uint64_t>(type)) + onnx_bytes::message(2, shape);
    return onnx_bytes::message(1, name) + onnx_bytes::message(2, onnx_bytes::message(1, tensor));
  }

  void write() const {
    const std::string tokens = batched("tokens", onnx_bytes::kInt64, {shape_.sequence});
    const std::string logits =
        batched("logits", onnx_bytes::kFloat, {shape_.sequence, shape_.vocabulary});
    const std::string graph = nodes_ + onnx_bytes::message(2, "decoder") + weights_ +
                              onnx_bytes::message(11, tokens) + onnx_bytes::message(12, logits);
    folder_.write("model.onnx", onnx_bytes::number(1, 10) + onnx_bytes::message(7, graph) +
                                    onnx_bytes::message(8, onnx_bytes::number(2, 23)));
    folder_.write("weights.bin", "");
    std::filesystem::resize_file(folder_ / "weights.bin", 4 * static_cast<uint64_t>(parameters_));
  }

  const DecoderShape shape_;
  const onnx_bytes::Folder folder_;
  std::string nodes_, weights_, x_;
  int64_t parameters_ = 0;
};

}  // namespace ofsdp
