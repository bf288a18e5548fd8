// An ONNX file with another graph and other weights, trained and written like any file. Copies only
// the graph: weights are read from the edited file, and new ones have a ValueSource.
//
//   editor = ModelEditor::make(file)     the graph, without weights among the inputs
//   editor.graph(), add_weight(), ...    changes
//   editor.finish()                      the edited OnnxFile, which exists in memory alone
//
// External data stay in their files. Drops a training_info. From IR version 4 on, also drops inputs
// that only name weights.
//
// The edited file shares the one before. Errors: kInput if the model does not parse; kFault if
// memory for the graph is lacking.
#pragma once

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/hash.h"
#include "kernels/core/philox.h"

namespace ofsdp::importer {

// Each value's maker and readers in an ONNX graph, by node index. It is a snapshot: if nodes
// change, make it again.

struct ProtoUse {
  int node = 0;
  int input = 0;
};

class ProtoUses {
 public:
  explicit ProtoUses(const onnx::GraphProto& graph) {
    for (int i = 0; i < graph.node_size(); ++i) {
      const auto& node = graph.node(i);
      for (const std::string& name : node.output()) {
        if (!name.empty()) makers_[name] = i;
      }
      for (int k = 0; k < node.input_size(); ++k) {
        if (!node.input(k).empty()) readers_[node.input(k)].push_back({i, k});
      }
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) add_inner(attribute.g());
        for (const auto& inner : attribute.graphs()) add_inner(inner);
      }
    }
    for (const auto& output : graph.output()) outputs_.insert(output.name());
  }

  int maker(const std::string& value) const {  // -1: no node
    const auto found = makers_.find(value);
    return found == makers_.end() ? -1 : found->second;
  }
  const std::vector<ProtoUse>& readers(const std::string& value) const {
    static const std::vector<ProtoUse> kNone;
    const auto found = readers_.find(value);
    return found == readers_.end() ? kNone : found->second;
  }
  bool is_output(const std::string& value) const { return outputs_.contains(value); }
  // Returns whether a loop's or branch's body reads the value.
  bool in_body(const std::string& value) const { return inner_.contains(value); }

 private:
  void add_inner(const onnx::GraphProto& graph) {
    for (const auto& node : graph.node()) {
      inner_.insert(node.input().begin(), node.input().end());
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) add_inner(attribute.g());
        for (const auto& inner : attribute.graphs()) add_inner(inner);
      }
    }
    for (const auto& output : graph.output()) inner_.insert(output.name());
  }

  std::map<std::string, int> makers_;
  std::map<std::string, std::vector<ProtoUse>> readers_;
  std::set<std::string> outputs_, inner_;
};

// Returns "node 'fc1' (Gemm)".
std::string described(const onnx::NodeProto& node);

// New weights' values: drawn by PyTorch's rules from the seed, or zero. Each element depends on
// seed, name and index (Philox, kernels/core/philox.h), so all ranks draw the same, whichever part
// they read.

// Uniform in (-1/sqrt(fan_in), 1/sqrt(fan_in)), like torch.nn.Linear's weight and bias:
// Kaiming-uniform with a = sqrt(5), as PEFT draws lora_A.
class LinearDraw final : public ValueSource {
 public:
  LinearDraw(const std::string& name, uint64_t seed, int64_t fan_in)
      : key_(kernels::philox_key(seed, Fnv1a().add(name).value(), 0)),
        bound_(1 / std::sqrt(static_cast<double>(std::max<int64_t>(fan_in, 1)))) {}

  Status read(int64_t first, std::span<float> dst) const override {
    for (float& value : dst) {
      const uint32_t bits = kernels::philox_element(key_, 0, static_cast<uint64_t>(first++));
      value = static_cast<float>((bits * 0x1p-31 + 0x1p-32 - 1) * bound_);
    }
    return {};
  }

 private:
  kernels::PhiloxKey key_;
  double bound_;
};

class Zeros final : public ValueSource {
 public:
  Status read(int64_t /*first*/, std::span<float> dst) const override {
    std::ranges::fill(dst, 0.0f);
    return {};
  }
};

class ModelEditor {
 public:
  static Result<ModelEditor> make(std::shared_ptr<const OnnxFile> file);

  onnx::ModelProto& model() { return model_; }
  onnx::GraphProto& graph() { return *model_.mutable_graph(); }
  const OnnxFile& file() const { return *file_; }  // before the changes
  const std::string& path() const { return file_->path(); }

  // The file's floating-point initializers, and new ones. Pointers and references are valid until
  // the next change.
  const std::vector<Initializer>& weights() const { return weights_; }
  const Initializer* weight(const std::string& name) const;  // null: none

  // REQUIRES: no weight has the name.
  void add_weight(const std::string& name, DType dtype, Shape shape,
                  std::shared_ptr<const ValueSource> values);
  // Adds a weight with another's values.
  void add_copy(const std::string& name, const Initializer& of);
  // Gives a weight another shape and values; the dtype stays. REQUIRES: the weight exists.
  void replace_weight(const std::string& name, Shape shape,
                      std::shared_ptr<const ValueSource> values);
  // Gives a weight other values. Returns kInput if it is stored as integers. REQUIRES: it exists.
  Status set_values(const std::string& name, std::shared_ptr<const ValueSource> values);

  // Returns `wanted`, or `wanted` with a number if the graph has that name, and reserves the name.
  std::string free_name(const std::string& wanted);

  Result<OnnxFile> finish();

 private:
  explicit ModelEditor(std::shared_ptr<const OnnxFile> file) : file_(std::move(file)) {}
  // Return a tensor of the file before for the edited one; `moved` puts it into the model itself.
  Initializer kept(const Initializer& tensor) const;
  Initializer moved(const Initializer& tensor) const;
  std::string skeleton() const;
  onnx::ModelProto whole() const;

  std::shared_ptr<const OnnxFile> file_;
  onnx::ModelProto model_;
  std::vector<Initializer> weights_;
  std::set<std::string> names_;
};

// A graph's products with a weight that has two axes (or a 1x1 convolution). Adapters change them,
// and a new head replaces one.
//
// kProducts in model_editor.cpp lists the operators, one row each. A weight may pass through
// Transpose, Cast, Identity and DequantizeLinear. Other products are left out.

struct Product {
  enum class Join : uint8_t {
    kOutput,  // adds a term to the node's output
    kInput,   // adds it to an input, before an activation
  };
  int node = 0;              // place in the graph
  int operand = 0;           // input with the weight
  int other = 0;             // input that it is multiplied with
  std::string weight = {};   // initializer name
  std::vector<int> path{};   // nodes between weight and product, from the product
  bool in_by_out = false;    // the weight is stored as in x out; else out x in
  bool dequantized = false;  // the weight is no floating-point tensor
  bool other_transposed = false;
  bool convolution = false;
  bool packed = false;  // several projections side by side: only their own names take an adapter
  int64_t in = 0, out = 0;
  DType dtype = DType::kFloat32;  // the values' type
  double factor = 1;              // Gemm's alpha, FusedMatMul's, or 1
  Join join = Join::kOutput;
  int join_input = 0;      // kInput: input index, which may be absent
  double join_factor = 1;  // kInput: the node's factor for that input, as Gemm's beta

  // Returns whether y = W x rather than y = x W.
  bool is_left() const { return operand < other && !convolution; }
};

// Returns every node's product, if it has one, in graph order.
std::vector<Product> find_products(const ModelEditor& editor, const onnx::GraphProto& graph,
                                   const ProtoUses& uses);

// `prediction`, below: a graph output; empty: the first of floats.

struct AddedHead;  // importer/edit/model_edits.h
// --add-head: adds a Linear that reads `prediction`, and a graph output of the head's name
// (added_head.cpp). `prediction` may also name an inner value; it stays an output if it was one.
Status add_head(ModelEditor& editor, const AddedHead& head, const std::string& prediction,
                uint64_t seed);

// --replace-head: gives the last product before `prediction` another number of outputs
// (replaced_head.cpp).
Status replace_head(ModelEditor& editor, int64_t outputs, const std::string& prediction,
                    uint64_t seed);

}  // namespace ofsdp::importer
