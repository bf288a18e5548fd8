// ofsdp.Chain(x0, x1, ...): elementwise operators joined by fusion, in one pass over memory. The
// attributes steps and results are those of kernels/core/chain.h. Inputs are float32, of the output's
// shape, of one element, or of its trailing axes. Outputs after the first are for the gradient. dx by
// the chain rule, as one ofsdp.ChainGrad(the inputs, dy and y that it needs), which may have several
// outputs and is not differentiated itself.
#include <cmath>

#include "kernels/cpu/chain_kernel.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/gelu.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Chain chain, Chain::parse(c.attributes, c.inputs.size()));
  TensorDesc desc = c.inputs[0];
  for (const TensorDesc& input : c.inputs) {
    if (input.dtype != desc.dtype) {
      return input_error("expected inputs of one dtype, found {} and {}", desc.text(),
                         input.text());
    }
    OFSDP_ASSIGN_OR_RETURN(const Shape shape, broadcast(desc.shape, input.shape));
    if (shape == input.shape) desc = input;
    if (shape != desc.shape) return input_error("no input has the shape {}", shape.text());
  }
  return std::vector(chain.results.size(), desc);
}

// The gradients that repeat an operand, and those of operands that were broadcast, need no chain of
// their own: they are dy, or summed afterwards.
void grad(GradBuilder& b) {
  const Chain forward = *Chain::parse(b.attributes(), b.num_inputs());
  std::vector<bool> wanted;
  for (size_t i = 0; i < b.num_inputs(); ++i) wanted.push_back(b.needs_grad(i));
  const CompactedChain made = compacted(chain_gradient(forward, wanted));
  auto old_input = [&](int i) {
    if (i < forward.inputs) return b.input(static_cast<size_t>(i));
    const int result = i - forward.inputs - 1;
    return result < 0 ? b.grad_output(0) : b.output(static_cast<size_t>(result));
  };
  std::vector<Ref> slopes;
  if (!made.chain.results.empty()) {
    std::vector<Ref> inputs;
    for (int i : made.used_inputs) inputs.push_back(old_input(i));
    slopes = b.emit("ofsdp.ChainGrad", inputs, made.chain.attributes(), made.chain.results.size());
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int output = made.outputs[i];
    if (output == CompactedChain::kNone) continue;
    const Ref slope = output >= 0 ? slopes[static_cast<size_t>(output)] : old_input(-1 - output);
    b.set_grad(i, b.sum_to(slope, b.input(i)));
  }
}

// In the order of ChainOp; operations of one operand do not read b.
double reference_step(ChainOp op, double a, double b) {
  using Function = double (*)(double, double);
  constexpr Function kFunctions[kChainOps] = {
      nullptr,  // kNumber
      [](double a, double b) { return a + b; },
      [](double a, double b) { return a - b; },
      [](double a, double b) { return a * b; },
      [](double a, double b) { return a / b; },
      [](double a, double) { return -a; },
      [](double a, double) { return a < 0 ? 0 : a; },
      [](double a, double) { return 1 / (1 + std::exp(-a)); },
      [](double a, double) { return std::tanh(a); },
      [](double a, double) { return std::exp(a); },
      [](double a, double) { return std::log(a); },
      [](double a, double) { return std::sqrt(a); },
      [](double a, double) { return 1 / a; },
      [](double a, double) { return std::erf(a); },
      [](double a, double) { return std::log1p(std::exp(-std::abs(a))) + (a < 0 ? 0 : a); },
      [](double a, double) { return reference_gelu(a, false); },
      [](double a, double) { return reference_gelu(a, true); },
      [](double a, double b) { return b > 0 ? a : 0; },
      [](double a, double b) { return a * b * (1 - b); },
      [](double a, double b) { return a * (1 - b * b); },
      [](double a, double b) { return a * 2 / std::sqrt(M_PI) * std::exp(-b * b); },
      [](double a, double b) { return a / (1 + std::exp(-b)); },
      [](double a, double b) { return a * reference_gelu_slope(b, false); },
      [](double a, double b) { return a * reference_gelu_slope(b, true); },
  };
  return kFunctions[static_cast<size_t>(op)](a, b);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Chain chain = *Chain::parse(c.attributes, c.inputs.size());
  std::vector<RefTensor> outputs;
  for (const TensorDesc& desc : c.output_descs) {
    outputs.push_back({desc, std::vector<double>(static_cast<size_t>(desc.numel()))});
  }
  for (int64_t i = 0; i < c.output_descs[0].numel(); ++i) {
    const auto index = unravel(c.output_descs[0].shape, i);
    std::vector<double> values;
    for (const RefTensor& x : c.inputs) {
      values.push_back(x.values[ravel_broadcast(x.desc.shape, index)]);
    }
    for (const ChainStep& s : chain.steps) {
      auto at = [&](int v) { return values[static_cast<size_t>(v)]; };
      const int arity = chain_op_arity(s.op);
      values.push_back(arity == 0 ? static_cast<double>(s.number)
                                  : reference_step(s.op, at(s.a), arity == 1 ? 0 : at(s.b)));
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (!outputs[k].desc.present()) continue;
      outputs[k].values[static_cast<size_t>(i)] = values[static_cast<size_t>(chain.results[k])];
    }
  }
  return outputs;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_chain_kernel(*Chain::parse(p.attributes, p.inputs.size()), p);
}

SampleCase sample(std::string name, std::vector<std::string> steps, std::vector<Shape> shapes,
                  std::vector<int64_t> results = {}, size_t outputs = 0) {
  if (results.empty()) results = {static_cast<int64_t>(shapes.size() + steps.size()) - 1};
  SampleCase made{.name = std::move(name),
                  .attributes = {{"steps", std::move(steps)}, {"results", results}},
                  .fill =
                      [](size_t i, std::vector<double>& values) {
                        // The last operands are divisors and under roots.
                        for (double& v : values) v = i < 2 ? v : std::abs(v) + 0.5;
                      },
                  .num_outputs = outputs == 0 ? results.size() : outputs};
  for (Shape& shape : shapes) made.inputs.push_back({DType::kFloat32, std::move(shape)});
  return made;
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = {
      sample("silu_gate", {"Sigmoid 0", "Mul 0 2", "Mul 3 1"}, {{3, 700}, {3, 700}}, {4, 2}, 1),
      sample("kept", {"Exp 0", "Tanh 1", "Mul 2 3", "Neg 4"}, {{3, 50}, {3, 50}}, {5, 2, 3}),
      sample("last_kept", {"Exp 0", "Mul 2 1", "Tanh 2"}, {{3, 50}, {3, 50}}, {3, 4}),
      sample("mish", {"Softplus 0", "Tanh 1", "Mul 0 2"}, {{2, 3, 4, 5}}),
      sample("row_and_single", {"Add 0 1", "Relu 3", "Number 0.25", "Mul 4 5", "Div 6 2"},
             {{4, 3, 37}, {37}, {1}}),
      sample("two_trailing_axes", {"Sub 0 1", "Tanh 2", "Number -1.5", "Div 4 3"},
             {{5, 2, 600}, {1, 2, 600}}),
      sample("all_of_one", {"Neg 0", "Erf 2", "Gelu 3", "GeluTanh 4", "Exp 5", "Sub 6 1"},
             {{50}, {50}}),
      sample("roots", {"Sqrt 2", "Log 3", "Reciprocal 2", "Mul 4 5", "Add 6 0", "Mul 7 1"},
             {{7, 11}, {1}, {7, 11}}),
      sample("used_twice", {"Mul 0 0", "Add 1 0", "Mul 2 2"}, {{1, 33}}),
      sample("sums", {"Add 0 1", "Add 3 2"}, {{2, 3}, {2, 3}, {3}}),
      sample("nothing", {"Sigmoid 0", "Mul 1 2"}, {{0, 5}, {5}}),
      sample("single", {"Add 0 1", "Exp 2"}, {{}, {}}),
      sample("many_blocks", {"Add 0 1", "Tanh 2"}, {{70001}, {70001}})};
  list.back().check_grad = false;  // too many elements for finite differences
  for (SampleCase& made : list) {
    if (made.num_outputs > 1) made.check_grad = false;  // no gradient comes to the others
  }
  list.push_back(sample("float16", {"Sigmoid 0", "Mul 1 2"}, {{40}, {40}}));
  for (TensorDesc& desc : list.back().inputs) desc.dtype = DType::kFloat16;
  list.back().check_grad = false;  // as float32
  list.back().tolerance = 2e-3;
  return list;
}

std::vector<SampleCase> grad_samples() {
  std::vector<SampleCase> list = {
      sample("several", {"Mul 0 1", "ReluGrad 3 2", "SigmoidGrad 0 1", "TanhGrad 5 2"},
             {{3, 1500}, {3, 1500}, {3, 1500}}, {3, 6, 4}),
      sample("slopes", {"ErfGrad 0 1", "SoftplusGrad 2 1", "GeluGrad 3 1", "GeluTanhGrad 4 1"},
             {{3, 40}, {40}}, {3, 5}),
      sample("channels", {"Neg 0", "Mul 2 1"}, {{2, 3, 4, 5}, {2, 3, 4, 5}}, {2, 3})};
  return list;
}

OpDef definition(const char* name) {
  return {.domain = kOwnDomain,
          .name = name,
          .infer = infer,
          .reference = reference,
          .cpu = {{"blocks", chain_accepts, create}, in_float32<chain_accepts, create>()},
          .inplace_inputs = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
          .layout = LayoutRule::kElementwise};
}

}  // namespace

void add_chain(Registry& registry) {
  OpDef chain = definition("Chain"), gradient = definition("ChainGrad");
  chain.grad = grad;
  chain.samples = samples;
  gradient.samples = grad_samples;
  registry.add(std::move(chain));
  registry.add(std::move(gradient));
}

}  // namespace ofsdp::kernels::ops
