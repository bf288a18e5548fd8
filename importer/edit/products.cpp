#include "importer/edit/products.h"

#include <algorithm>
#include <array>

#include "importer/proto/onnx_protos.h"
#include "importer/proto/opset.h"
#include "kernels/base/format.h"

namespace ofsdp::importer {
namespace {

// A tensor that a product may read: its name and axes.
struct Stored {
  std::string name;
  std::vector<int64_t> dims;
  DType dtype = DType::kUndefined;
  std::vector<int> path;
  bool transposed = false;
  bool dequantized = false;
};

class Finder {
 public:
  Finder(const ModelEditor& editor, const onnx::GraphProto& graph, const ProtoUses& uses)
      : editor_(editor), graph_(graph), uses_(uses) {
    for (const auto& tensor : graph.initializer()) tensors_[tensor.name()] = &tensor;
  }

  std::vector<Product> find() const;

  // Returns the initializer that a value comes from, whatever its type.
  std::optional<Stored> stored(std::string value) const {
    Stored found;
    for (int depth = 0; depth < 8; ++depth) {
      const int maker = uses_.maker(value);
      if (maker < 0) break;
      const auto& node = graph_.node(maker);
      if (!short_domain(node.domain()).empty() && node.op_type() != "DequantizeLinear") return {};
      if (node.op_type() == "Transpose") {
        if (!swaps_two(node)) return {};
        found.transposed = !found.transposed;
      } else if (node.op_type() == "DequantizeLinear") {
        found.dequantized = true;
        if (found.dtype == DType::kUndefined) found.dtype = type_of(input_or_none(node, 1));
      } else if (node.op_type() == "Cast") {
        if (found.dtype == DType::kUndefined) {
          found.dtype = dtype_of_number(int_attribute(node, "to", 0));
        }
      } else if (node.op_type() != "Identity") {
        return {};
      }
      found.path.push_back(maker);
      value = input_or_none(node, 0);
    }
    found.name = value;
    if (const Initializer* weight = editor_.weight(value)) {
      found.dims = weight->shape.axes();
      if (found.dtype == DType::kUndefined) found.dtype = weight->dtype;
      return found;
    }
    const auto tensor = tensors_.find(value);
    if (tensor == tensors_.end() || !found.dequantized) return {};
    found.dims.assign(tensor->second->dims().begin(), tensor->second->dims().end());
    return found;
  }

  DType type_of(const std::string& value) const {
    const Initializer* weight = editor_.weight(value);
    return weight == nullptr ? DType::kFloat32 : weight->dtype;
  }

  // Two axes that take part as they are stored or transposed.
  bool set_matrix(Product& p, const onnx::NodeProto& node, bool transposed) const {
    const auto found = stored(input_or_none(node, p.operand));
    if (!found || found->dims.size() != 2) return false;
    take(p, *found);
    const bool turned = found->transposed != transposed;
    // A right operand as it is: in x out. A left one: out x in.
    p.in_by_out = (p.operand > p.other) != turned;
    p.in = found->dims[p.in_by_out ? 0 : 1];
    p.out = found->dims[p.in_by_out ? 1 : 0];
    return true;
  }

  static void take(Product& p, const Stored& stored) {
    p.weight = stored.name;
    p.path = stored.path;
    p.dequantized = stored.dequantized;
    p.dtype = stored.dtype;
  }

 private:
  static bool swaps_two(const onnx::NodeProto& node) {
    const auto* perm = find_attribute(node, "perm");
    if (perm == nullptr) return true;
    return perm->ints_size() == 2 && perm->ints(0) == 1 && perm->ints(1) == 0;
  }

  const ModelEditor& editor_;
  const onnx::GraphProto& graph_;
  const ProtoUses& uses_;
  std::map<std::string, const onnx::TensorProto*> tensors_;
};

bool mat_mul(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  for (const int operand : {1, 0}) {
    p.operand = operand;
    p.other = 1 - operand;
    if (finder.set_matrix(p, node, false)) return true;
  }
  return false;
}

// alpha * op(A) op(B) + beta * C
bool gemm(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  const std::array turned{int_attribute(node, "transA", 0) != 0,
                          int_attribute(node, "transB", 0) != 0};
  p.factor = float_attribute(node, "alpha", 1);
  for (const size_t operand : {1, 0}) {
    p.operand = static_cast<int>(operand);
    p.other = 1 - p.operand;
    p.other_transposed = turned[1 - operand];
    if (finder.set_matrix(p, node, turned[operand])) return true;
  }
  return false;
}

// The activation comes after the sum, so the term goes to C.
bool fused_gemm(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  if (!gemm(finder, node, p)) return false;
  p.join = Product::Join::kInput;
  p.join_input = 2;
  p.join_factor = float_attribute(node, "beta", 1);
  return p.join_factor != 0;
}

// Its weight has the columns of q, k and v; they are parted after the sum with the bias.
bool packed_attention(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.packed = true;
  p.join = Product::Join::kInput;
  p.join_input = 2;
  return finder.set_matrix(p, node, false);
}

bool fused_mat_mul(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.factor = float_attribute(node, "alpha", 1);
  p.other_transposed = int_attribute(node, "transA", 0) != 0;
  if (int_attribute(node, "transBatchA", 0) != 0) return false;
  return finder.set_matrix(p, node, int_attribute(node, "transB", 0) != 0);
}

// Its weight is out x in, in blocks of 4 or 8 bits.
bool mat_mul_n_bits(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.weight = input_or_none(node, 1);
  p.in = int_attribute(node, "K", 0);
  p.out = int_attribute(node, "N", 0);
  p.dequantized = true;
  p.dtype = finder.type_of(input_or_none(node, 2));
  return p.in > 0 && p.out > 0;
}

bool convolution(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.convolution = true;
  const auto found = finder.stored(input_or_none(node, 1));
  if (!found || found->transposed || found->dims.size() < 3) return false;
  if (int_attribute(node, "group", 1) != 1) return false;
  if (std::any_of(found->dims.begin() + 2, found->dims.end(), [](int64_t n) { return n != 1; })) {
    return false;
  }
  Finder::take(p, *found);
  p.out = found->dims[0];
  p.in = found->dims[1];
  return true;
}

// Its activation comes after the sum with Z.
bool fused_convolution(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.join = Product::Join::kInput;
  p.join_input = 3;
  return convolution(finder, node, p);
}

struct ProductRow {
  const char* domain;
  const char* op;
  bool (*find)(const Finder& finder, const onnx::NodeProto& node, Product& p);
};
constexpr ProductRow kProducts[] = {
    {"", "MatMul", mat_mul},
    {"", "Gemm", gemm},
    {"", "Conv", convolution},
    {kMicrosoft, "Attention", packed_attention},
    {kMicrosoft, "FusedMatMul", fused_mat_mul},
    {kMicrosoft, "FusedGemm", fused_gemm},
    {kMicrosoft, "MatMulNBits", mat_mul_n_bits},
    {kMicrosoft, "FusedConv", fused_convolution},
};

std::vector<Product> Finder::find() const {
  std::vector<Product> products;
  for (int i = 0; i < graph_.node_size(); ++i) {
    const auto& node = graph_.node(i);
    for (const ProductRow& row : kProducts) {
      if (node.op_type() != row.op || short_domain(node.domain()) != row.domain) continue;
      Product product{.node = i};
      if (row.find(*this, node, product)) products.push_back(std::move(product));
    }
  }
  return products;
}

}  // namespace

std::string described(const onnx::NodeProto& node) {
  const std::string& name =
      node.name().empty() && node.output_size() > 0 ? node.output(0) : node.name();
  return format_text("node '{}' ({})", printable(name), node.op_type());
}

std::vector<Product> find_products(const ModelEditor& editor, const onnx::GraphProto& graph,
                                   const ProtoUses& uses) {
  return Finder(editor, graph, uses).find();
}

}  // namespace ofsdp::importer
