// RNN: in each direction, h_t = f(W x_t + R h_{t-1} + b_W + b_R), f = tanh unless given; h_0 is
// initial_h or 0. Y has every h_t, Y_h the last ones.
// Backward from the last step, with dh the sum of dY_t and what comes from step t+1:
//   da_t = dh f'(a_t),  dh_{t-1} = R^T da_t,
//   dW = sum of da_t x_t^T,  dR = sum of da_t h_{t-1}^T,  db_W = db_R = sum of da_t,
//   dx_t = W^T da_t
// (ofsdp.RNNGrad, recurrent_kernel.h). f' is written with h_t, which the forward leaves.
// https://onnx.ai/onnx/operators/onnx__RNN.html
//
// GRU: in each direction, with gates z, r, n (W, R and B in this order),
//   z = f(W_z x + R_z h + b), r = f(W_r x + R_r h + b), b = W's bias and R's,
//   n = g(W_n x + b_Wn + R_n (r h) + b_Rn),
//   with linear_before_reset n = g(W_n x + b_Wn + r (R_n h + b_Rn)),
//   h' = (1 - z) n + z h; f = sigmoid and g = tanh unless given.
// Backward from the last step, with dh the gradient of h': dz = dh (h - n) f'(z),
//   dn = dh (1 - z) g'(n), past the products dh z; then
//   reset first: d(r h) = R_n^T dn, dr = d(r h) h f'(r), and d(r h) r goes to h;
//   linear first, with q = R_n h + b_Rn: dr = dn q f'(r), dq = dn r;
//   dW, dR, dB, dx as of RNN (ofsdp.GRUGrad).
// https://onnx.ai/onnx/operators/onnx__GRU.html
//
// LSTM: in each direction, with gates i, o, f, c (W, R and B in this order), peepholes P (i, o, f):
//   i = f(W_i x + R_i h + P_i C + b), f the same, c = g(W_c x + R_c h + b),
//   C' = f C + i c,  o = f(W_o x + R_o h + P_o C' + b),  h' = o h(C');
//   f = sigmoid, g = h = tanh unless given; input_forget: gate f = 1 - i.
// Backward from the last step, with dh and dC the gradients of h' and C':
//   do = dh h(C') f'(o), dC += dh o h'(C') + P_o do,
//   di = dC c f'(i), df = dC C f'(f), dc = dC i g'(c), dC = dC f + P_i di + P_f df;
//   dP_i = sum of di C, dP_f = sum of df C, dP_o = sum of do C';
//   dW, dR, dB, dx as of RNN (ofsdp.LSTMGrad).
// https://onnx.ai/onnx/operators/onnx__LSTM.html
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/recurrent/recurrent_kernel.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace recurrent {

// Attribute of our own, of the gradients: 1 for each input that wants its gradient.
constexpr const char* kNeeds = "ofsdp_needs";
// The inputs that have a gradient, in the order of RecurrentGradient.
constexpr size_t kDifferentiable[] = {kX, kW, kR, kB, kInitialH, kInitialC, kP};

template <RecurrentKind kind>
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const RecurrentShape s, infer_recurrent(kind, c.attributes, c.inputs));
  const DType dtype = c.inputs[0].dtype;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (i != kLens && c.has(i) && c.inputs[i].dtype != dtype) {
      return input_error("expected one type of all operands, found {} and {}", c.inputs[0].text(),
                         c.inputs[i].text());
    }
  }
  std::vector<TensorDesc> outputs(s.outputs(), {dtype, s.state_shape()});
  outputs[0].shape = s.y_shape();
  const bool saves = c.wanted.size() > s.outputs() && c.wanted[s.outputs()];
  outputs.push_back(saves ? TensorDesc{dtype, s.saved_shape()} : TensorDesc{});
  return outputs;
}

template <RecurrentKind kind>
void grad(GradBuilder& b) {
  const size_t outputs = kind == RecurrentKind::kLstm ? 3 : 2;
  std::vector<Ref> inputs(kRecurrentInputs);
  for (size_t i = 0; i < b.num_inputs(); ++i) inputs[i] = b.input(i);
  inputs[kY] = b.output(0);
  inputs[kSaved] = b.output(outputs);
  for (size_t i = 0; i < outputs; ++i) inputs[kDiffY + i] = b.grad_output(i);
  std::vector<int64_t> needs;
  for (size_t i : kDifferentiable) needs.push_back(inputs[i] && b.needs_grad(i) ? 1 : 0);
  Attributes attributes = b.attributes();
  attributes.set(kNeeds, needs);
  const char* name = kind == RecurrentKind::kLstm  ? "ofsdp.LSTMGrad"
                     : kind == RecurrentKind::kGru ? "ofsdp.GRUGrad"
                                                   : "ofsdp.RNNGrad";
  const std::vector<Ref> grads = b.emit(name, inputs, attributes, std::size(kDifferentiable));
  for (size_t i = 0; i < grads.size(); ++i) {
    if (needs[i] != 0) b.set_grad(kDifferentiable[i], grads[i]);
  }
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  const std::vector<int64_t> needs = c.attributes.ints(kNeeds);
  std::vector<TensorDesc> outputs;
  for (size_t i = 0; i < std::size(kDifferentiable); ++i) {
    const bool needed = needs[i] != 0 && c.has(kDifferentiable[i]);
    outputs.push_back({c.inputs[0].dtype, needed ? c.inputs[kDifferentiable[i]].shape : Shape{0}});
  }
  return outputs;
}

Acceptance accepts(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64) {
    return Acceptance::refuse("not float32 or float64");
  }
  return accept_if(p.all_plain(), "not the plain layout");
}

template <RecurrentKind kind>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_recurrent(known_recurrent(kind, p.attributes, p.inputs), p);
}

template <RecurrentKind kind>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_recurrent_grad(known_recurrent(kind, p.attributes, p.inputs), p);
}

// The operator, and its gradient in our own domain under the name of the operator and "Grad".
template <RecurrentKind kind>
void add(Registry& registry, const std::string& name) {
  registry.add(make_op(name,
                       {infer<kind>, grad<kind>,
                        [](const ReferenceContext& c) { return reference_recurrent(kind, c); }},
                       with_half_floats<accepts, create<kind>>("products"),
                       {.min_inputs = 3, .first_opset = kind == RecurrentKind::kRnn ? 1 : 7}));
  registry.add_own(
      make_op(name + "Grad",
              {infer_grad, nullptr,
               [](const ReferenceContext& c) { return reference_recurrent_grad(kind, c); }},
              with_half_floats<accepts, create_grad<kind>>("products"), {.min_inputs = 3}));
}

}  // namespace recurrent

void add_recurrent(Registry& registry) {
  using namespace recurrent;
  add<RecurrentKind::kRnn>(registry, "RNN");
  add<RecurrentKind::kGru>(registry, "GRU");
  add<RecurrentKind::kLstm>(registry, "LSTM");
}

}  // namespace ofsdp::kernels::ops
