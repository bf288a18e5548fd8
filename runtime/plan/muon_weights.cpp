#include "runtime/plan/muon_weights.h"

#include <algorithm>
#include <array>
#include <set>

#include "importer/graph/graph_uses.h"

namespace ofsdp::runtime {
namespace {

// The nodes that a weight passes on its way to the one that uses it.
constexpr std::array kPassed{"Identity",
                             "Cast",
                             "Transpose",
                             "QuantizeLinear",
                             "DequantizeLinear",
                             "ofsdp.FakeQuantize",
                             "com.microsoft.QuantizeLinear",
                             "com.microsoft.DequantizeLinear"};

struct Table {
  const char* op;
  std::array<int, 3> inputs;  // -1: none
};
constexpr std::array kTables{Table{"Gather", {0, -1, -1}},
                             Table{"com.microsoft.EmbedLayerNormalization", {2, 3, 4}}};

// Products, the input that is the left factor, and that which is the right one.
struct ProductOp {
  const char* op;
  int left, right;
};
constexpr std::array kProducts{ProductOp{"Gemm", 0, 1},
                               ProductOp{"MatMul", 0, 1},
                               ProductOp{"ofsdp.MatMul", 0, 1},
                               ProductOp{"com.microsoft.FusedMatMul", 0, 1},
                               ProductOp{"com.microsoft.FusedGemm", 0, 1},
                               ProductOp{"com.microsoft.GemmFastGelu", 0, 1},
                               ProductOp{"com.microsoft.Attention", 0, 1}};

bool is_any(const auto& names, const Node& node) {
  return std::ranges::any_of(names, [&](const char* name) { return node.op->full_name() == name; });
}

// Whether its last product is that with the weight.
bool has_gemm(const Node& node) { return node.op->full_name().find("Gemm") != std::string::npos; }

const ProductOp* product_of(const Node& node) {
  for (const ProductOp& p : kProducts) {
    if (node.op->full_name() == p.op) return &p;
  }
  return nullptr;
}

class WeightReader {
 public:
  WeightReader(const Graph& graph, const LossSpec& loss) : graph_(graph), loss_(loss) {
    parameter_.assign(graph.values.size(), -1);
    transposed_.assign(graph.values.size(), false);
    found_.resize(graph.parameters.size());
  }

  std::vector<MuonWeight> read() {
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      const ValueId value = graph_.parameters[i].value;
      parameter_[static_cast<size_t>(value)] = static_cast<int>(i);
      found_[i].matrix = graph_.value(value).desc.shape.rank() == 2;
    }
    std::vector<bool> used(found_.size(), false);
    for (const Node& node : graph_.nodes) {
      pass_on(node);
      note_table(node);
      note_product(node, used);
    }
    note_head();
    return std::move(found_);
  }

 private:
  int weight(const Node& node, int input) const {
    if (input < 0 || input >= static_cast<int>(node.inputs.size())) return -1;
    return parameter_[static_cast<size_t>(node.inputs[static_cast<size_t>(input)])];
  }

  void pass_on(const Node& node) {
    const int from = weight(node, 0);
    if (from < 0 || !(node.op->view || is_any(kPassed, node))) return;
    const auto to = static_cast<size_t>(node.outputs[0]);
    const bool turns = node.op->full_name() == "Transpose" &&
                       node.attributes.ints("perm", {1, 0}) == std::vector<int64_t>{1, 0};
    parameter_[to] = from;
    transposed_[to] = transposed_[static_cast<size_t>(node.inputs[0])] != turns;
  }

  void note_table(const Node& node) {
    for (const Table& table : kTables) {
      if (node.op->full_name() != table.op) continue;
      for (const int input : table.inputs) {
        if (const int p = weight(node, input); p >= 0) found_[static_cast<size_t>(p)].table = true;
      }
    }
  }

  // y = x B: in x out; y = A x: out x in. The first use counts.
  void note_product(const Node& node, std::vector<bool>& used) {
    const ProductOp* const product = product_of(node);
    if (product == nullptr) return;
    for (const bool right : {false, true}) {
      const int input = right ? product->right : product->left;
      const int p = weight(node, input);
      if (p < 0 || used[static_cast<size_t>(p)]) continue;
      used[static_cast<size_t>(p)] = true;
      const bool turns = node.attributes.i(right ? "transB" : "transA", 0) != 0;
      const bool stored = transposed_[static_cast<size_t>(node.inputs[static_cast<size_t>(input)])];
      found_[static_cast<size_t>(p)].in_by_out = (right != turns) != stored;
    }
  }

  ValueId prediction() const {
    const std::string& name = loss_.prediction.empty() ? loss_.output : loss_.prediction;
    const ValueId found = graph_.find(name);
    return found != 0 || graph_.outputs.empty() ? found : graph_.outputs.front();
  }

  // The last product that the prediction comes from.
  void note_head() {
    std::set<ValueId> wanted{prediction()};
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const bool leads = std::ranges::any_of(
          node.outputs, [&](ValueId id) { return id != 0 && wanted.contains(id); });
      if (!leads) continue;
      if (const ProductOp* const product = product_of(node)) {
        if (!node.op->full_name().ends_with("MatMul") && !has_gemm(node)) return;
        for (const int input : {product->left, product->right}) {
          if (const int p = weight(node, input); p >= 0) found_[static_cast<size_t>(p)].head = true;
        }
        return;
      }
      wanted.insert(node.inputs.begin(), node.inputs.end());
    }
  }

  const Graph& graph_;
  const LossSpec& loss_;
  std::vector<int> parameter_;    // per value: the parameter that it shows, or -1
  std::vector<bool> transposed_;  // and whether turned
  std::vector<MuonWeight> found_;
};

}  // namespace

std::vector<MuonWeight> muon_weights(const Graph& graph, const LossSpec& loss) {
  return WeightReader(graph, loss).read();
}

}  // namespace ofsdp::runtime
