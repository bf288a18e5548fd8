// Consecutive elementwise operators -> ofsdp.Chain, one pass over memory forward and one backward.
//
// A node takes in the elementwise nodes (or chains) with the same shape that make the operands, if
// nothing else reads them and the joint gradient keeps no more tensors than the separate ones (a
// chain keeps the operands: for (a + b + c) * d three, for the sum alone one). Operands repeated
// along leading axes stay operands; known numbers become part of the program.
#include "kernels/core/chain.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "importer/passes/fusion/fusion.h"

namespace ofsdp::importer {
namespace {

// Leaves room for a gradient, which computes the forward part again.
constexpr int kMaxForwardSteps = 14, kMaxForwardInputs = 8;

struct Operation {
  std::string_view name;
  ChainOp op;
};

constexpr Operation kOperations[] = {
    {"Add", ChainOp::kAdd},         {"Sub", ChainOp::kSub},
    {"Mul", ChainOp::kMul},         {"Div", ChainOp::kDiv},
    {"Neg", ChainOp::kNeg},         {"Relu", ChainOp::kRelu},
    {"Sigmoid", ChainOp::kSigmoid}, {"Tanh", ChainOp::kTanh},
    {"Exp", ChainOp::kExp},         {"Log", ChainOp::kLog},
    {"Sqrt", ChainOp::kSqrt},       {"Reciprocal", ChainOp::kReciprocal},
    {"Erf", ChainOp::kErf},         {"Softplus", ChainOp::kSoftplus},
    {"Gelu", ChainOp::kGelu},       {"Pow", ChainOp::kMul}};

const Operation* operation(std::string_view name) {
  const auto found = std::ranges::find(kOperations, name, &Operation::name);
  return found == std::end(kOperations) ? nullptr : &*found;
}

bool operands_fit(const Rewriter& r, const Node& node) {
  const TensorDesc& out = r.desc(node.outputs[0]);
  if (out.dtype != DType::kFloat32 || out.numel() == 0) return false;
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    const TensorDesc& in = r.desc(id);
    const bool shaped = in.numel() == 1 || is_trailing(in.shape, out.shape);
    return id != 0 && in.dtype == DType::kFloat32 && shaped;
  });
}

bool is_member(const Rewriter& r, const Node& node) {
  const std::string name = node.op->full_name();
  if (name == "ofsdp.Chain") return true;
  if (node.op->layout != LayoutRule::kElementwise) return false;  // a plug-in has replaced it
  if (name == "Pow" && !r.is_scalar(node.inputs[1], 2)) return false;
  return operation(name) != nullptr && operands_fit(r, node);
}

// A chain under construction with the values that it reads. `takes` tells whether a node takes in
// an operand's maker; without it the chain has only the node.
class Builder {
 public:
  using Takes = std::function<bool(const Node& reader, const Node& maker)>;

  Builder(const Rewriter& r, const Node& node, Takes takes)
      : r_(r), takes_(std::move(takes)), result_(node.outputs[0]) {
    members_.results = {value_of(node)};
  }

  int joined() const { return joined_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }

  // Returns the values with the outputs' size that the gradient keeps: graph values, and (negative)
  // values inside the chain.
  std::set<ValueId> kept() const {
    const Chain forward = chain();
    std::vector<bool> wanted;
    for (ValueId id : inputs_) wanted.push_back(r_.trained(id));
    std::set<ValueId> made;
    for (int i : compacted(chain_gradient(forward, wanted)).used_inputs) {
      if (i == forward.inputs) continue;
      const int result = i - forward.inputs - 1;
      if (result >= 0) made.insert(result == 0 ? result_ : -(result + 100 * result_));
      const auto at = static_cast<size_t>(i);
      if (result < 0 && r_.shape(inputs_[at]) == r_.shape(result_)) made.insert(inputs_[at]);
    }
    return made;
  }

  // Inputs count down from -2 while their number is unknown.
  Chain chain() const {
    Chain made{static_cast<int>(inputs_.size()), {}, {}};
    auto renamed = [&](int v) {
      if (v == -1) return -1;
      return v < 0 ? -2 - v : v + made.inputs;
    };
    for (ChainStep s : members_.steps) {
      s.a = renamed(s.a);
      s.b = renamed(s.b);
      made.steps.push_back(s);
    }
    made.results = {renamed(members_.results[0])};
    made.keep_costly();
    return made;
  }

 private:
  int value_of(const Node& node) {
    if (node.op->full_name() == "ofsdp.Chain") return steps_of(node);
    const int a = operand(node, node.inputs[0]);
    const std::string name = node.op->full_name();
    if (name == "Pow") return members_.add({ChainOp::kMul, a, a});
    const bool tanh = node.attributes.s("approximate", "none") == "tanh";
    const ChainOp op = name == "Gelu" && tanh ? ChainOp::kGeluTanh : operation(name)->op;
    if (chain_op_arity(op) == 1) return members_.add({op, a});
    const int b = node.inputs[1] == node.inputs[0] ? a : operand(node, node.inputs[1]);
    return members_.add({op, a, b});
  }

  int steps_of(const Node& node) {
    const Chain inner = *Chain::parse(node.attributes, node.inputs.size());
    std::vector<int> values;
    for (ValueId id : node.inputs) values.push_back(external(id));
    for (ChainStep s : inner.steps) {
      if (s.a >= 0) s.a = values[static_cast<size_t>(s.a)];
      if (s.b >= 0) s.b = values[static_cast<size_t>(s.b)];
      values.push_back(members_.add(s));
    }
    return values[static_cast<size_t>(inner.results[0])];
  }

  int operand(const Node& reader, ValueId id) {
    if (const auto number = r_.scalar(id)) {
      return members_.add({ChainOp::kNumber, -1, -1, static_cast<float>(*number)});
    }
    const Node* made = r_.maker(id);
    if (made == nullptr || !takes_ || !takes_(reader, *made)) return external(id);
    ++joined_;
    return value_of(*made);
  }

  int external(ValueId id) {
    auto at = std::ranges::find(inputs_, id);
    if (at == inputs_.end()) at = inputs_.insert(at, id);
    return -2 - static_cast<int>(at - inputs_.begin());
  }

  const Rewriter& r_;
  const Takes takes_;
  const ValueId result_;
  Chain members_;  // numbered from 0, inputs from -2 down
  std::vector<ValueId> inputs_;
  int joined_ = 0;
};

bool only_reader(const Rewriter& r, const Node& reader, ValueId id) {
  return r.reads(id) == static_cast<int>(std::ranges::count(reader.inputs, id));
}

bool keeps_no_more(const Rewriter& r, const Node& reader, const Node& maker) {
  std::set<ValueId> apart = Builder(r, reader, nullptr).kept();
  apart.merge(Builder(r, maker, nullptr).kept());
  const auto only_this = [&](const Node& a, const Node& b) {
    return &a == &reader && &b == &maker;
  };
  return Builder(r, reader, only_this).kept().size() <= apart.size();
}

// A maker that was taken in runs when the reader does. If it has several operands, they would all
// live until then; otherwise only its one result does.
bool ends_no_later(const Rewriter& r, const Node& reader, const Node& maker) {
  const ValueId id = maker.outputs[0];
  const auto whole = std::ranges::count_if(
      maker.inputs, [&](ValueId input) { return r.shape(input) == r.shape(id); });
  return whole <= 1 || std::ranges::all_of(reader.inputs, [&](ValueId other) {
           return r.order(other) <= r.order(id);
         });
}

}  // namespace

bool fuse_chain(Rewriter& r, const Node& node) {
  if (node.op->full_name() == "ofsdp.Chain" || !is_member(r, node)) return false;
  if (r.desc(node.outputs[0]).bytes() < r.least_chain_bytes) return false;
  const Shape shape = r.shape(node.outputs[0]);
  const Builder built(r, node, [&](const Node& reader, const Node& maker) {
    const ValueId id = maker.outputs[0];
    const bool joins = is_member(r, maker) && r.shape(id) == shape && only_reader(r, reader, id);
    return joins && ends_no_later(r, reader, maker) && keeps_no_more(r, reader, maker);
  });
  const Chain chain = built.chain();
  const bool fits =
      chain.inputs <= kMaxForwardInputs && static_cast<int>(chain.steps.size()) <= kMaxForwardSteps;
  if (built.joined() == 0 || !fits) return false;
  return r.replace(node, "ofsdp.Chain", built.inputs(), chain.attributes());
}

}  // namespace ofsdp::importer
