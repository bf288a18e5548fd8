// RNN: in each direction, h_t = f(W x_t + R h_{t-1} + b_W + b_R), f = tanh unless given; h_0 is
// initial_h or 0. Y has every h_t, Y_h the last ones. Backward from the last step, with dh the sum
// of dY_t and the gradient from step t+1:
//   da_t = dh f'(a_t),  dh_{t-1} = R^T da_t,
//   dW = sum of da_t x_t^T,  dR = sum of da_t h_{t-1}^T,  db_W = db_R = sum of da_t,
//   dx_t = W^T da_t
// (ofsdp.RNNGrad, recurrent_shape.h). f' is computed from h_t, which the forward pass saves.
// https://onnx.ai/onnx/operators/onnx__RNN.html
//
// GRU: in each direction, with gates z, r, n (W, R and B in this order),
//   z = f(W_z x + R_z h + b), r = f(W_r x + R_r h + b), b = W's bias and R's,
//   n = g(W_n x + b_Wn + R_n (r h) + b_Rn),
//   with linear_before_reset n = g(W_n x + b_Wn + r (R_n h + b_Rn)),
//   h' = (1 - z) n + z h; f = sigmoid and g = tanh unless given.
// Backward from the last step, with dh the gradient of h': dz = dh (h - n) f'(z),
//   dn = dh (1 - z) g'(n), and dh z goes to h past the products; then
//   reset first: d(r h) = R_n^T dn, dr = d(r h) h f'(r), and d(r h) r goes to h;
//   linear first, with q = R_n h + b_Rn: dr = dn q f'(r), dq = dn r;
//   dW, dR, dB, dx as for RNN (ofsdp.GRUGrad).
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
//   dW, dR, dB, dx as for RNN (ofsdp.LSTMGrad).
// https://onnx.ai/onnx/operators/onnx__LSTM.html

#include <algorithm>

#include "kernels/core/memory.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/recurrent/recurrent_shape.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace recurrent {

// Our own attribute on gradient nodes: 1 for each input that needs a gradient.
constexpr const char* kNeeds = "ofsdp_needs";
// Inputs that have a gradient, in RecurrentGradient's order.
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

// Registers the operator, and ofsdp.NAMEGrad.
template <RecurrentKind kind>
void add(Registry& registry, const std::string& name) {
  registry.add(make_op(
      name,
      {infer<kind>, grad<kind>,
       [](const ReferenceContext& c) { return reference_recurrent(kind, c); }},
      with_half_floats<accepts, create<kind>>("products"),
      {.min_inputs = 3, .first_opset = kind == RecurrentKind::kRnn ? 1 : 7, .costly = true}));
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

namespace {

using Values = std::vector<double>;

// Takes one sample through time in one direction.
class OneSequence {
 public:
  OneSequence(const RecurrentShape& s, const std::vector<RefTensor>& inputs, int64_t d, int64_t b)
      : s_(s), inputs_(inputs), d_(d), b_(b), h_(initial(kInitialH)), c_(initial(kInitialC)) {}

  void run(std::vector<RefTensor>& outputs) {
    const int64_t length = has(kLens) ? static_cast<int64_t>(value(kLens, b_)) : s_.steps;
    for (int64_t step = 0; step < s_.steps; ++step) {
      const int64_t t = s_.time(d_, step);
      if (t >= length) continue;
      Values saved = advance(t);
      if (s_.keeps_arguments()) saved.insert(saved.end(), arguments_.begin(), arguments_.end());
      put(outputs[0].values, s_.y_at(t, d_, b_), h_);
      put(outputs[s_.outputs()].values, s_.saved_at(t, d_, b_), saved);
    }
    put(outputs[1].values, s_.state_at(d_, b_), h_);
    if (s_.is_lstm()) put(outputs[2].values, s_.state_at(d_, b_), c_);
  }

 private:
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i].desc.present(); }
  double value(size_t input, int64_t at) const {
    return inputs_[input].values[static_cast<size_t>(at)];
  }
  double given(size_t input, int64_t at) const { return has(input) ? value(input, at) : 0; }
  Values initial(size_t input) const {
    Values made;
    for (int64_t k = 0; k < s_.hidden; ++k) {
      const bool is_state = input == kInitialH || s_.is_lstm();
      made.push_back(is_state ? given(input, s_.state_at(d_, b_) + k) : 0);
    }
    return made;
  }
  static void put(Values& to, int64_t at, const Values& from) {
    std::copy(from.begin(), from.end(), to.begin() + at);
  }

  // Row k of gate `gate`: from_x is x's part with W's bias, from_state the state's part with R's
  // bias.
  double from_x(int64_t t, int64_t gate, int64_t k) const {
    const int64_t row = d_ * s_.gates() * s_.hidden + gate * s_.hidden + k;
    double sum = given(kB, row + d_ * s_.gates() * s_.hidden);
    for (int64_t i = 0; i < s_.in; ++i) {
      sum += value(kX, s_.x_at(t, b_) + i) * value(kW, row * s_.in + i);
    }
    return sum;
  }
  double from_state(const Values& state, int64_t gate, int64_t k) const {
    const int64_t all = s_.gates() * s_.hidden, row = d_ * all + gate * s_.hidden + k;
    double sum = given(kB, row + (d_ + 1) * all);
    for (int64_t i = 0; i < s_.hidden; ++i) {
      sum += state[static_cast<size_t>(i)] * value(kR, row * s_.hidden + i);
    }
    return sum;
  }
  double apply(size_t which, double x) const {
    return reference_activation(s_.activation(d_, which), x);
  }
  // Also saves the gate's argument for row k.
  double apply(size_t which, int64_t gate, size_t k, double x) {
    arguments_.resize(static_cast<size_t>(s_.width()));
    arguments_[static_cast<size_t>(gate * s_.hidden) + k] = x;
    return apply(which, x);
  }
  double peep(int64_t gate, int64_t k, double c) const {
    return s_.is_lstm() ? given(kP, (d_ * 3 + gate) * s_.hidden + k) * c : 0;
  }

  // Computes one step; returns the values to save.
  Values advance(int64_t t) { return s_.is_lstm() ? lstm(t) : s_.is_gru() ? gru(t) : rnn(t); }

  Values rnn(int64_t t) {
    Values next;
    for (int64_t k = 0; k < s_.hidden; ++k) {
      const auto row = static_cast<size_t>(k);
      next.push_back(apply(0, 0, row, from_x(t, 0, k) + from_state(h_, 0, k)));
    }
    return h_ = next;
  }

  Values gru(int64_t t) {
    const auto n = static_cast<size_t>(s_.hidden);
    Values saved(n * static_cast<size_t>(s_.results())), reset(n);
    for (size_t k = 0; k < 2 * n; ++k) {
      const auto gate = static_cast<int64_t>(k / n), row = static_cast<int64_t>(k % n);
      saved[k] = apply(0, gate, k % n, from_x(t, gate, row) + from_state(h_, gate, row));
    }
    for (size_t k = 0; k < n; ++k) reset[k] = saved[n + k] * h_[k];
    Values next(n);
    for (size_t k = 0; k < n; ++k) {
      const auto row = static_cast<int64_t>(k);
      const double q = from_state(s_.linear_before_reset ? h_ : reset, 2, row);
      const double candidate =
          apply(1, 2, k, from_x(t, 2, row) + (s_.linear_before_reset ? saved[n + k] * q : q));
      next[k] = (1 - saved[k]) * candidate + saved[k] * h_[k];
      saved[2 * n + k] = candidate;
      if (s_.linear_before_reset) saved[3 * n + k] = q;
    }
    h_ = next;
    return saved;
  }

  Values lstm(int64_t t) {
    const auto n = static_cast<size_t>(s_.hidden);
    Values saved(5 * n), next(n);
    for (size_t k = 0; k < n; ++k) {
      const auto row = static_cast<int64_t>(k);
      const auto sum = [&](int64_t gate) {
        return from_x(t, gate, row) + from_state(h_, gate, row);
      };
      const double i = apply(0, 0, k, sum(0) + peep(0, row, c_[k]));
      const double f = s_.input_forget ? 1 - i : apply(0, 2, k, sum(2) + peep(2, row, c_[k]));
      const double c = apply(1, 3, k, sum(3));
      c_[k] = f * c_[k] + i * c;
      const double o = apply(0, 1, k, sum(1) + peep(1, row, c_[k]));
      next[k] = o * apply(2, c_[k]);
      const double row_of[] = {i, o, f, c, c_[k]};
      for (size_t g = 0; g < 5; ++g) saved[g * n + k] = row_of[g];
    }
    h_ = next;
    return saved;
  }

  const RecurrentShape& s_;
  const std::vector<RefTensor>& inputs_;
  int64_t d_, b_;
  Values h_, c_;
  Values arguments_;  // for this step's gates
};

std::vector<std::byte> bytes_of(const RefTensor& tensor, const TensorDesc& desc) {
  std::vector<std::byte> made(desc.present() ? desc.bytes() : 0);
  if (desc.present()) from_doubles(tensor.values, desc, made.data());
  return made;
}

TensorDesc in_double(TensorDesc desc) {
  if (is_floating(desc.dtype)) desc.dtype = DType::kFloat64;
  return desc;
}

}  // namespace

std::vector<RefTensor> reference_recurrent(RecurrentKind kind, const ReferenceContext& c) {
  const RecurrentShape s = known_recurrent(kind, c.attributes, descs_of(c.inputs));
  std::vector<Shape> shapes(s.outputs(), s.state_shape());
  shapes[0] = s.y_shape();
  shapes.push_back(s.saved_shape());
  std::vector<RefTensor> outputs;
  for (const Shape& shape : shapes) outputs.push_back(zeros({c.inputs[0].desc.dtype, shape}));
  for (int64_t d = 0; d < s.directions; ++d) {
    for (int64_t b = 0; b < s.batch; ++b) OneSequence(s, c.inputs, d, b).run(outputs);
  }
  outputs.resize(std::min(outputs.size(), c.output_descs.size()));
  return outputs;
}

std::vector<RefTensor> reference_recurrent_grad(RecurrentKind kind, const ReferenceContext& c) {
  Problem p{c.attributes, descs_of(c.inputs), c.output_descs, {}};
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorView> inputs, outputs;
  for (TensorDesc& desc : p.inputs) desc = in_double(desc);
  for (TensorDesc& desc : p.outputs) desc = in_double(desc);
  bytes.reserve(p.inputs.size() + p.outputs.size() + 1);
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    bytes.push_back(bytes_of(c.inputs[i], p.inputs[i]));
    inputs.push_back({p.inputs[i].present() ? bytes.back().data() : nullptr, p.inputs[i]});
  }
  for (const TensorDesc& desc : p.outputs) {
    bytes.emplace_back(desc.bytes());
    outputs.push_back({bytes.back().data(), desc});
  }
  const auto kernel = make_recurrent_grad(known_recurrent(kind, p.attributes, p.inputs), p);
  bytes.emplace_back(kernel->workspace_bytes() + kTensorAlignment);
  const Status status = kernel->run({inputs, outputs, bytes.back().data(), &c.step});
  OFSDP_CHECK(status.ok(), "the gradient in double failed");
  std::vector<RefTensor> made;
  for (size_t i = 0; i < outputs.size(); ++i) {
    made.push_back({c.output_descs[i], to_doubles(p.outputs[i], outputs[i].data)});
  }
  return made;
}

}  // namespace ofsdp::kernels::ops
