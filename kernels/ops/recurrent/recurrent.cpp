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
//
// ofsdp.RoundedLSTM: what com.microsoft.DynamicQuantizeLSTM computes (quantized_graph.h). An LSTM,
// but R multiplies states that are rounded step by step.

#include <algorithm>
#include <cmath>

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
constexpr const char* kGradient = kind == RecurrentKind::kRnn    ? "ofsdp.RNNGrad"
                                  : kind == RecurrentKind::kGru  ? "ofsdp.GRUGrad"
                                  : kind == RecurrentKind::kLstm ? "ofsdp.LSTMGrad"
                                                                 : "ofsdp.RoundedLSTMGrad";

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
  constexpr bool is_lstm = kind == RecurrentKind::kLstm || kind == RecurrentKind::kRoundedLstm;
  const size_t outputs = is_lstm ? 3 : 2;
  std::vector<Ref> inputs(kRecurrentInputs);
  for (size_t i = 0; i < b.num_inputs(); ++i) inputs[i] = b.input(i);
  inputs[kY] = b.output(0);
  inputs[kSaved] = b.output(outputs);
  for (size_t i = 0; i < outputs; ++i) inputs[kDiffY + i] = b.grad_output(i);
  std::vector<int64_t> needs;
  for (size_t i : kDifferentiable) needs.push_back(inputs[i] && b.needs_grad(i) ? 1 : 0);
  Attributes attributes = b.attributes();
  attributes.set(kNeeds, needs);
  const std::vector<Ref> grads =
      b.emit(kGradient<kind>, inputs, attributes, std::size(kDifferentiable));
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

// Returns the operator; registers ofsdp.NAMEGrad.
template <RecurrentKind kind>
OpDef operator_with_gradient(Registry& registry, const std::string& name, OpDef traits) {
  registry.add_own(
      make_op(name + "Grad",
              {infer_grad, nullptr,
               [](const ReferenceContext& c) { return reference_recurrent_grad(kind, c); }},
              with_half_floats<accepts, create_grad<kind>>("products"), {.min_inputs = 3}));
  traits.min_inputs = 3;
  traits.costly = true;
  return make_op(name,
                 {infer<kind>, grad<kind>,
                  [](const ReferenceContext& c) { return reference_recurrent(kind, c); }},
                 with_half_floats<accepts, create<kind>>("products"), std::move(traits));
}

}  // namespace recurrent

void add_recurrent(Registry& registry) {
  using namespace recurrent;
  registry.add(operator_with_gradient<RecurrentKind::kRnn>(registry, "RNN", {.first_opset = 1}));
  registry.add(operator_with_gradient<RecurrentKind::kGru>(registry, "GRU", {.first_opset = 7}));
  registry.add(operator_with_gradient<RecurrentKind::kLstm>(registry, "LSTM", {.first_opset = 7}));
  registry.add_own(operator_with_gradient<RecurrentKind::kRoundedLstm>(
      registry, "RoundedLSTM", {.rounding_inputs = kP + 1}));
}

namespace {

using Values = std::vector<double>;

// Takes one sample through time in one direction.
class OneSequence {
 public:
  OneSequence(const RecurrentShape& s, const std::vector<RefTensor>& inputs, int64_t d, int64_t b)
      : s_(s), inputs_(inputs), d_(d), b_(b), h_(initial(kInitialH)), c_(initial(kInitialC)) {}

  bool runs(int64_t t) const {
    return t < (has(kLens) ? static_cast<int64_t>(value(kLens, b_)) : s_.steps);
  }
  const Values& state() const { return h_; }
  void see(Values state) { seen_ = std::move(state); }  // an LSTM's product with R reads it

  void step(int64_t t, std::vector<RefTensor>& outputs) {
    Values saved = advance(t);
    if (s_.keeps_arguments()) saved.insert(saved.end(), arguments_.begin(), arguments_.end());
    put(outputs[0].values, s_.y_at(t, d_, b_), h_);
    put(outputs[s_.outputs()].values, s_.saved_at(t, d_, b_), saved);
  }
  void finish(std::vector<RefTensor>& outputs) const {
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
        return from_x(t, gate, row) + from_state(seen_, gate, row);
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
  Values h_, c_, seen_;
  Values arguments_;  // for this step's gates
};

// How rounding changes a RoundedLSTM's states, in the order in which samples come to their steps.
class StateRoundings {
 public:
  void replay() {  // the changes so far, for states that have moved
    next_ = 0;
    replays_ = true;
  }

  void apply(const std::vector<OneSequence*>& running) {
    if (!replays_) add(running);
    for (OneSequence* sample : running) {
      Values state = sample->state();
      const Values& change = changes_[next_++];
      for (size_t k = 0; k < state.size(); ++k) state[k] += change[k];
      sample->see(std::move(state));
    }
  }

 private:
  void add(const std::vector<OneSequence*>& running) {
    double least = 0, most = 0;
    for (const OneSequence* sample : running) {
      for (const double h : sample->state()) least = std::min(least, h), most = std::max(most, h);
    }
    const double scale = most > least ? (most - least) / 255 : 1;
    const double zero = std::nearbyint(-least / scale);
    for (const OneSequence* sample : running) {
      Values change;
      for (const double h : sample->state()) {
        const double integer = std::nearbyint(h / scale) + zero;
        change.push_back((std::clamp(integer, 0.0, 255.0) - zero) * scale - h);
      }
      changes_.push_back(std::move(change));
    }
  }

  std::vector<Values> changes_;
  size_t next_ = 0;
  bool replays_ = false;
};

// Takes all samples through time in one direction.
void run_direction(const RecurrentShape& s, const std::vector<RefTensor>& inputs, int64_t d,
                   StateRoundings& roundings, std::vector<RefTensor>& outputs) {
  std::vector<OneSequence> samples;
  for (int64_t b = 0; b < s.batch; ++b) samples.emplace_back(s, inputs, d, b);
  for (int64_t step = 0; step < s.steps; ++step) {
    const int64_t t = s.time(d, step);
    std::vector<OneSequence*> running;
    for (OneSequence& sample : samples) {
      if (sample.runs(t)) running.push_back(&sample);
    }
    if (s.rounds_states()) {
      roundings.apply(running);
    } else {
      for (OneSequence* sample : running) sample->see(sample->state());
    }
    for (OneSequence* sample : running) sample->step(t, outputs);
  }
  for (const OneSequence& sample : samples) sample.finish(outputs);
}

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
  StateRoundings roundings;
  const auto run = [&](const std::vector<RefTensor>& inputs) {
    std::vector<RefTensor> made;
    for (const Shape& shape : shapes) made.push_back(zeros({c.inputs[0].desc.dtype, shape}));
    for (int64_t d = 0; d < s.directions; ++d) run_direction(s, inputs, d, roundings, made);
    return made;
  };
  constexpr size_t kOwn = kP + 1;
  if (s.rounds_states() && c.inputs.size() == 2 * kOwn) {  // OpDef::rounding_inputs
    run({c.inputs.begin() + kOwn, c.inputs.end()});
    roundings.replay();
  }
  std::vector<RefTensor> outputs = run(c.inputs);
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
