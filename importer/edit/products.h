// The products of a graph that a weight of two axes (or a 1x1 convolution's) takes part in: what
// adapters are added to and what a new head replaces.
//
// kProducts in products.cpp lists the operators: a product of another operator is one row. A weight
// is reached straight or through Transpose, Cast, Identity and DequantizeLinear.
//
// Threads: any. Errors: none; what is no such product is left out.
#pragma once

#include <optional>

#include "importer/edit/model_editor.h"
#include "importer/edit/proto_uses.h"

namespace ofsdp::importer {

struct Product {
  enum class Join : uint8_t {
    kOutput,  // a term is added to what the node makes
    kInput,   // to one of its inputs, before an activation
  };
  int node = 0;              // place in the graph
  int operand = 0;           // the input that the weight is
  int other = 0;             // and the input that is multiplied with it
  std::string weight = {};   // the initializer's name
  std::vector<int> path{};   // nodes between weight and product, from the product
  bool in_by_out = false;    // the weight is stored as in x out; else out x in
  bool dequantized = false;  // it is no floating-point tensor
  bool other_transposed = false;
  bool convolution = false;
  bool packed = false;  // several projections side by side: only their name takes an adapter
  int64_t in = 0, out = 0;
  DType dtype = DType::kFloat32;  // of the values
  double factor = 1;              // of the product
  Join join = Join::kOutput;
  int join_input = 0;      // kInput: which; it may be absent
  double join_factor = 1;  // kInput: what the node multiplies that input with

  // y = W x rather than y = x W.
  bool is_left() const { return operand < other && !convolution; }
};

// Returns the product of every node that has one, in the order of the graph.
std::vector<Product> find_products(const ModelEditor& editor, const onnx::GraphProto& graph,
                                   const ProtoUses& uses);

}  // namespace ofsdp::importer
