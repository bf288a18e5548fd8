// Gelu in both forms from its pieces, in any order of its products:
//
//   x * 0.5 * (1 + erf(x / sqrt(2)))                                -> Gelu(x)
//   x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))       -> Gelu(x, approximate="tanh")
#include <cmath>
#include <numbers>

#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {
namespace {

// A product taken apart: constants multiplied together, the other factors with powers written out.
struct Factors {
  double constant = 1;
  std::vector<ValueId> values;
};

void collect(const Rewriter& r, ValueId id, bool top, Factors& out) {
  if (const auto number = r.scalar(id)) {
    out.constant *= *number;
    return;
  }
  const bool inner = top || r.read_once(id);
  const Node* mul = inner ? r.made_by(id, "Mul") : nullptr;
  const Node* div = inner ? r.made_by(id, "Div") : nullptr;
  const Node* pow = r.made_by(id, "Pow");
  if (mul != nullptr) {
    collect(r, mul->inputs[0], false, out);
    collect(r, mul->inputs[1], false, out);
  } else if (div != nullptr && r.scalar(div->inputs[1])) {
    collect(r, div->inputs[0], false, out);
    out.constant /= *r.scalar(div->inputs[1]);
  } else if (pow != nullptr && r.is_scalar(pow->inputs[1], 3)) {
    out.values.insert(out.values.end(), 3, pow->inputs[0]);
  } else {
    out.values.push_back(id);
  }
}

Factors factors(const Rewriter& r, ValueId id) {
  Factors made;
  collect(r, id, true, made);
  return made;
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-4 * std::abs(b); }

// The node `op` in 1 + op(...), or null.
const Node* one_plus(const Rewriter& r, ValueId id, const char* op) {
  const Node* add = r.made_by(id, "Add");
  if (add == nullptr) return nullptr;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const Node* inner = r.made_by(add->inputs[side], op);
    if (inner != nullptr && r.is_scalar(add->inputs[1 - side], 1)) return inner;
  }
  return nullptr;
}

bool is_erf_argument(const Rewriter& r, ValueId id, ValueId x) {
  const Factors f = factors(r, id);
  return f.values == std::vector<ValueId>{x} && near(f.constant, 1 / std::numbers::sqrt2);
}

bool is_cube_term(const Rewriter& r, ValueId id, ValueId x) {
  const Factors f = factors(r, id);
  return f.values == std::vector<ValueId>{x, x, x} && near(f.constant, 0.044715);
}

bool is_tanh_argument(const Rewriter& r, ValueId id, ValueId x) {
  const Factors f = factors(r, id);
  if (f.values.size() != 1 || !near(f.constant, std::sqrt(2 / std::numbers::pi))) return false;
  const Node* sum = r.made_by(f.values[0], "Add");
  if (sum == nullptr) return false;
  return (sum->inputs[0] == x && is_cube_term(r, sum->inputs[1], x)) ||
         (sum->inputs[1] == x && is_cube_term(r, sum->inputs[0], x));
}

}  // namespace

bool fuse_gelu(Rewriter& r, const Node& node) {
  if (node.op->full_name() != "Mul" || r.graph().registry->find("", "Gelu") == nullptr)
    return false;
  Factors f;
  collect(r, node.inputs[0], false, f);
  collect(r, node.inputs[1], false, f);
  if (f.values.size() != 2 || !near(f.constant, 0.5)) return false;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const ValueId x = f.values[side], gate = f.values[1 - side];
    const Node* erf = one_plus(r, gate, "Erf");
    if (erf != nullptr && is_erf_argument(r, erf->inputs[0], x))
      return r.replace(node, "Gelu", {x});
    const Node* tanh = one_plus(r, gate, "Tanh");
    if (tanh != nullptr && is_tanh_argument(r, tanh->inputs[0], x)) {
      return r.replace(node, "Gelu", {x}, {{"approximate", std::string("tanh")}});
    }
  }
  return false;
}

}  // namespace ofsdp::importer
