// RNN, GRU, LSTM and their gradients: cuBLASLt products with the kernels of recurrent.h between
// them. Forward: one product X W^T for all steps, then a product of the state with R^T per step
// (two for a GRU that resets first). Backward: per step, last to first, a product of the gate
// gradients with R, then one product each over all steps for dW, dR and dX. All in float32; 16-bit
// operands are converted to and from the workspace.
#include <algorithm>
#include <array>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/shape/movement.h"
#include "kernels/ops/recurrent/recurrent_shape.h"

namespace ofsdp::kernels::cuda {
namespace {

using ops::RecurrentKind;
using ops::RecurrentShape;

RecurrentParams recurrent_extent(const RecurrentShape& s, int64_t direction) {
  RecurrentParams e;
  e.kind = s.is_lstm()             ? CellKind::kLstm
           : !s.is_gru()           ? CellKind::kRnn
           : s.linear_before_reset ? CellKind::kGru
                                   : CellKind::kGruResetFirst;
  e.steps = s.steps;
  e.batch = s.batch;
  e.hidden = s.hidden;
  e.directions = s.directions;
  e.direction = direction;
  e.batch_first = s.batch_first;
  e.reversed = direction == 1 || s.first_reversed;
  e.input_forget = s.input_forget;
  e.keeps_arguments = s.keeps_arguments();
  GateActivation* const functions[] = {&e.f, &e.g, &e.h};
  for (size_t i = 0; i < s.functions(); ++i) *functions[i] = s.activation(direction, i);
  return e;
}

// float32 operands in place; 16-bit operands as float32 copies in the workspace.
class FloatOperands {
 public:
  FloatOperands(const Problem& p, Places& places) {
    for (const TensorDesc& desc : p.inputs) inputs_.push_back(operand(desc, places));
    for (const TensorDesc& desc : p.outputs) outputs_.push_back(operand(desc, places));
  }

  struct Addresses {
    std::array<float*, 16> in{}, out{};  // nullptr: absent or not a float
  };
  // Converts the inputs; sets the addresses to read and to write.
  cudaError_t read(const Launch& l, Addresses& made, cudaStream_t stream) const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Operand& o = inputs_[i];
      if (!o.present) continue;
      made.in[i] = o.buffer(l, l.in(i));
      if (!o.copied) continue;
      OFSDP_CUDA_TRY(cast(o.dtype, l.in(i), DType::kFloat32, made.in[i], o.numel, stream));
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].present) made.out[i] = outputs_[i].buffer(l, l.out(i));
    }
    return cudaSuccess;
  }
  cudaError_t write(const Launch& l, cudaStream_t stream) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Operand& o = outputs_[i];
      if (!o.present || !o.copied) continue;
      void* const to = l.out(i);
      OFSDP_CUDA_TRY(cast(DType::kFloat32, o.buffer(l, to), o.dtype, to, o.numel, stream));
    }
    return cudaSuccess;
  }

 private:
  struct Operand {
    bool present = false, copied = false;
    DType dtype = DType::kFloat32;
    int64_t numel = 0;
    size_t offset = 0;

    float* buffer(const Launch& l, void* given) const {
      return reinterpret_cast<float*>(copied ? at(l.workspace, offset) : given);
    }
  };
  static Operand operand(const TensorDesc& desc, Places& places) {
    Operand made;
    made.present = desc.present() && is_32_or_16_bit_float(desc.dtype) && desc.numel() > 0;
    if (!made.present) return made;
    made.dtype = desc.dtype;
    made.numel = desc.numel();
    made.copied = desc.dtype != DType::kFloat32;
    if (made.copied) made.offset = places.take(made.numel, sizeof(float));
    return made;
  }
  std::vector<Operand> inputs_, outputs_;
};
using Addresses = FloatOperands::Addresses;

// Elements between the states of consecutive samples of a direction.
int64_t state_step(const RecurrentParams& e) {
  return (e.batch_first ? e.directions : 1) * e.hidden;
}

// Copies one direction between rows [batch, H] and states [D, B, H] or [B, D, H]. Missing initial
// states are zeros.
cudaError_t copy_states(const RecurrentParams& e, const float* from, float* rows,
                        cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(e.batch * e.hidden) * sizeof(float);
  if (from == nullptr) return cudaMemsetAsync(rows, 0, bytes, stream);
  return strided_copy(sizeof(float), {e.batch, e.hidden}, {state_step(e), 1}, {e.hidden, 1},
                      from + e.state_row(0) * e.hidden, rows, stream);
}

cudaError_t put_states(const RecurrentParams& e, const float* rows, float* to,
                       cudaStream_t stream) {
  if (to == nullptr) return cudaSuccess;
  return strided_copy(sizeof(float), {e.batch, e.hidden}, {e.hidden, 1}, {state_step(e), 1}, rows,
                      to + e.state_row(0) * e.hidden, stream);
}

// Sizes, products and workspace offsets that forward and backward share.
class RecurrentProducts : public CudaKernel {
 public:
  RecurrentProducts(DeviceState& device, const RecurrentShape& s, const Problem& p)
      : s_(s),
        operands_(p, places_),
        rows_(s.steps * s.batch),
        width_(s.gates() * s.hidden),
        reset_first_(s.is_gru() && !s.linear_before_reset),
        recurrent_width_(reset_first_ ? 2 * s.hidden : width_),
        lens_given_(p.has_in(ops::kLens)),
        device_(device) {}
  bool made() const { return made_; }
  size_t workspace_bytes() const override { return places_.bytes(); }

 protected:
  using Product = std::unique_ptr<MatrixProduct>;

  size_t array(int64_t n) { return places_.take(n, sizeof(float)); }
  static float* buffer(const Launch& l, size_t offset) {
    return reinterpret_cast<float*>(at(l.workspace, offset));
  }
  void* scratch(const Launch& l) const { return at(l.workspace, scratch_); }
  // Reserves the scratch of all products made so far. REQUIRES: called after the last `product`.
  void take_scratch() { scratch_ = places_.take(scratch_bytes_); }
  // Makes a float32 product; a failure makes `made()` false.
  Product product(ProductShape s) {
    // Rows of a direction, step or gate begin at multiples of 32 bytes only if all extents are
    // multiples of 8.
    const bool packs = s.rows % 8 == 0 && s.inner % 8 == 0 && s.columns % 8 == 0;
    if (!packs) s.alignment = sizeof(float);
    Product made = make_product(device_, s);
    made_ = made_ && made != nullptr;
    if (made != nullptr) scratch_bytes_ = std::max(scratch_bytes_, made->workspace_bytes());
    return made;
  }
  RecurrentParams extent(const Launch& l, int64_t d) const {
    RecurrentParams e = recurrent_extent(s_, d);
    if (lens_given_) e.lens = l.in<int32_t>(ops::kLens);
    return e;
  }
  const float* peep(const Addresses& a, int64_t d) const {
    const bool there = s_.is_lstm() && a.in[ops::kP] != nullptr;
    return there ? a.in[ops::kP] + d * 3 * s_.hidden : nullptr;
  }

  Places places_;
  RecurrentShape s_;
  FloatOperands operands_;
  int64_t rows_, width_;
  bool reset_first_;
  int64_t recurrent_width_;
  bool lens_given_, made_ = true;

 private:
  DeviceState& device_;  // only for use in constructors
  size_t scratch_bytes_ = 0, scratch_ = 0;
};

class Forward final : public RecurrentProducts {
 public:
  Forward(DeviceState& device, const RecurrentShape& s, const Problem& p)
      : RecurrentProducts(device, s, p), bias_given_(p.has_in(ops::kB)) {
    const int64_t h = s.hidden, states = s.batch * h;
    input_ = product({.rows = rows_,
                      .columns = width_,
                      .inner = s.in,
                      .transpose_b = true,
                      .bias = bias_given_});
    hidden_ =
        product({.rows = s.batch, .columns = recurrent_width_, .inner = h, .transpose_b = true});
    if (reset_first_) {
      candidate_ = product({.rows = s.batch, .columns = h, .inner = h, .transpose_b = true});
    }
    gates_ = array(rows_ * width_);
    recurrent_ = array(s.batch * width_);
    bias_ = array(width_);
    for (size_t* state : {&state_, &cell_, &reset_}) *state = array(states);
    if (s.rounds_states()) rounded_ = array(states);
    take_scratch();
  }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    Addresses a;
    OFSDP_CUDA_TRY(operands_.read(l, a, stream));
    for (int64_t d = 0; d < s_.directions; ++d) OFSDP_CUDA_TRY(run_direction(stream, l, a, d));
    return operands_.write(l, stream);
  }

 private:
  RecurrentForward call_of(const Launch& l, const Addresses& a, int64_t d) const {
    RecurrentForward r;
    r.extent = extent(l, d);
    r.extent.by_sample = s_.batch_first;
    r.gates = buffer(l, gates_);
    r.recurrent = buffer(l, recurrent_);
    r.state = buffer(l, state_);
    r.cell = buffer(l, cell_);
    r.reset = buffer(l, reset_);
    r.peep = peep(a, d);
    if (s_.linear_before_reset && bias_given_) {
      r.bias_n = a.in[ops::kB] + (2 * d + 1) * width_ + 2 * s_.hidden;
    }
    r.y = a.out[0];
    r.saved = a.out[s_.outputs()];
    return r;
  }

  cudaError_t run_direction(cudaStream_t stream, const Launch& l, const Addresses& a,
                            int64_t d) const {
    const int64_t h = s_.hidden;
    const RecurrentForward r = call_of(l, a, d);
    const float* const weights = a.in[ops::kR] + d * width_ * h;
    void* const scratch = this->scratch(l);
    float* const bias = bias_given_ ? buffer(l, bias_) : nullptr;
    if (bias_given_) {
      const int64_t both = s_.linear_before_reset ? 2 * h : width_;
      OFSDP_CUDA_TRY(recurrent_bias(a.in[ops::kB] + d * 2 * width_, width_, both, bias, stream));
    }
    OFSDP_CUDA_TRY(copy_states(r.extent, a.in[ops::kInitialH], r.state, stream));
    if (s_.is_lstm()) OFSDP_CUDA_TRY(copy_states(r.extent, a.in[ops::kInitialC], r.cell, stream));
    OFSDP_CUDA_TRY(input_->run(stream, a.in[ops::kX], a.in[ops::kW] + d * width_ * s_.in, bias,
                               r.gates, scratch));
    for (int64_t step = 0; step < s_.steps; ++step) {
      const int64_t t = s_.time(d, step);
      const float* seen = r.state;
      if (s_.rounds_states()) {
        seen = buffer(l, rounded_);
        OFSDP_CUDA_TRY(round_states(r.extent, t, r.state, buffer(l, rounded_), stream));
      }
      OFSDP_CUDA_TRY(hidden_->run(stream, seen, weights, nullptr, r.recurrent, scratch));
      OFSDP_CUDA_TRY(recurrent_step(r, t, false, stream));
      if (!reset_first_) continue;
      OFSDP_CUDA_TRY(
          candidate_->run(stream, r.reset, weights + 2 * h * h, nullptr, r.recurrent, scratch));
      OFSDP_CUDA_TRY(recurrent_step(r, t, true, stream));
    }
    OFSDP_CUDA_TRY(put_states(r.extent, r.state, a.out[1], stream));
    return s_.is_lstm() ? put_states(r.extent, r.cell, a.out[2], stream) : cudaSuccess;
  }

  bool bias_given_;
  Product input_, hidden_, candidate_;
  size_t gates_, recurrent_, bias_, state_, cell_, reset_, rounded_ = 0;
};

class Backward final : public RecurrentProducts {
 public:
  Backward(DeviceState& device, const RecurrentShape& s, const Problem& p)
      : RecurrentProducts(device, s, p), sums_(plan_reduce({rows_, width_}, {true, false})) {
    make_products();
    lay_out();
  }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    Addresses a;
    OFSDP_CUDA_TRY(operands_.read(l, a, stream));
    const float* x = a.in[ops::kX];
    float* dx = a.out[ops::kDiffX];
    if (s_.batch_first) {
      OFSDP_CUDA_TRY(transpose(x, buffer(l, x_copy_), s_.batch, s_.steps, stream));
      x = buffer(l, x_copy_);
      if (dx != nullptr) dx = buffer(l, dx_copy_);
    }
    for (int64_t d = 0; d < s_.directions; ++d) {
      OFSDP_CUDA_TRY(run_direction(stream, l, a, d));
      OFSDP_CUDA_TRY(weights(stream, l, a, d, x, dx));
    }
    if (s_.batch_first && dx != nullptr) {
      OFSDP_CUDA_TRY(transpose(dx, a.out[ops::kDiffX], s_.steps, s_.batch, stream));
    }
    return operands_.write(l, stream);
  }

 private:
  // Transposes [a, b, in] to [b, a, in].
  cudaError_t transpose(const float* from, float* to, int64_t a, int64_t b,
                        cudaStream_t stream) const {
    return strided_copy(sizeof(float), {b, a, s_.in}, {s_.in, b * s_.in, 1},
                        dense_strides({b, a, s_.in}), from, to, stream);
  }

  void make_products() {
    const int64_t h = s_.hidden;
    back_ = product({.rows = s_.batch, .columns = h, .inner = recurrent_width_});
    to_x_ = product({.rows = rows_, .columns = s_.in, .inner = width_});
    if (s_.directions > 1) {
      add_to_x_ = product({.rows = rows_, .columns = s_.in, .inner = width_, .beta = 1});
    }
    to_w_ = product({.rows = width_, .columns = s_.in, .inner = rows_, .transpose_a = true});
    to_r_ = product({.rows = recurrent_width_, .columns = h, .inner = rows_, .transpose_a = true});
    if (!reset_first_) return;
    to_reset_ = product({.rows = s_.batch, .columns = h, .inner = h});
    to_r_n_ = product({.rows = h, .columns = h, .inner = rows_, .transpose_a = true});
  }

  void lay_out() {
    const int64_t h = s_.hidden, states = s_.batch * h;
    if (s_.batch_first) x_copy_ = array(rows_ * s_.in);
    if (s_.batch_first) dx_copy_ = array(rows_ * s_.in);
    gates_ = array(rows_ * width_);
    recurrent_ = s_.is_gru() ? array(rows_ * recurrent_width_) : gates_;
    if (reset_first_) last_ = array(rows_ * h);
    if (reset_first_) reset_ = array(rows_ * h);
    before_ = array(rows_ * h);
    for (size_t* state : {&state_, &cell_, &past_, &product_}) *state = array(states);
    sum_scratch_ = places_.take(reduce_scratch(sums_));
    take_scratch();
  }

  RecurrentBackward call_of(const Launch& l, const Addresses& a, int64_t d) const {
    RecurrentBackward r;
    r.extent = extent(l, d);
    r.y = a.in[ops::kY];
    r.saved = a.in[ops::kSaved];
    r.initial_h = a.in[ops::kInitialH];
    r.initial_c = s_.is_lstm() ? a.in[ops::kInitialC] : nullptr;
    r.peep = peep(a, d);
    r.diff_y = a.in[ops::kDiffY];
    r.product = buffer(l, product_);
    r.before = buffer(l, before_);
    r.state = buffer(l, state_);
    r.cell = buffer(l, cell_);
    r.past = buffer(l, past_);
    r.diff_gates = buffer(l, gates_);
    r.diff_recurrent = buffer(l, recurrent_);
    r.diff_last = buffer(l, last_);
    r.reset = buffer(l, reset_);
    return r;
  }

  cudaError_t run_direction(cudaStream_t stream, const Launch& l, const Addresses& a,
                            int64_t d) const {
    const RecurrentBackward r = call_of(l, a, d);
    const float* const weights = a.in[ops::kR] + d * width_ * s_.hidden;
    OFSDP_CUDA_TRY(copy_states(r.extent, a.in[ops::kDiffYh], r.state, stream));
    OFSDP_CUDA_TRY(
        copy_states(r.extent, s_.is_lstm() ? a.in[ops::kDiffYc] : nullptr, r.cell, stream));
    OFSDP_CUDA_TRY(states_before(r, stream));
    for (int64_t t = 0; s_.rounds_states() && t < s_.steps; ++t) {
      float* const states = r.before + t * s_.batch * s_.hidden;
      OFSDP_CUDA_TRY(round_states(r.extent, t, states, states, stream));
    }
    for (int64_t step = s_.steps; step-- > 0;) {
      OFSDP_CUDA_TRY(back_step(stream, l, r, s_.time(d, step), weights));
    }
    OFSDP_CUDA_TRY(put_states(r.extent, r.state, a.out[ops::kDiffH0], stream));
    OFSDP_CUDA_TRY(put_states(r.extent, r.cell, a.out[ops::kDiffC0], stream));
    float* const dp = a.out[ops::kDiffP];
    return dp == nullptr ? cudaSuccess : peephole_gradient(r, dp + d * 3 * s_.hidden, stream);
  }

  cudaError_t back_step(cudaStream_t stream, const Launch& l, const RecurrentBackward& r, int64_t t,
                        const float* weights) const {
    const int64_t h = s_.hidden, first = t * s_.batch;
    float* const product = buffer(l, product_);
    void* const scratch = this->scratch(l);
    OFSDP_CUDA_TRY(recurrent_back(r, t, stream));
    if (reset_first_) {
      OFSDP_CUDA_TRY(to_reset_->run(stream, r.diff_last + first * h, weights + 2 * h * h, nullptr,
                                    product, scratch));
      OFSDP_CUDA_TRY(recurrent_back_rest(r, t, stream));
    }
    OFSDP_CUDA_TRY(back_->run(stream, r.diff_recurrent + first * recurrent_width_, weights, nullptr,
                              product, scratch));
    return recurrent_add(r, t, stream);
  }

  cudaError_t weights(cudaStream_t stream, const Launch& l, const Addresses& a, int64_t d,
                      const float* x, float* dx) const {
    const int64_t h = s_.hidden;
    void* const scratch = this->scratch(l);
    const float *gates = buffer(l, gates_), *recurrent = buffer(l, recurrent_);
    if (dx != nullptr) {
      const Product& product = d == 0 ? to_x_ : add_to_x_;
      OFSDP_CUDA_TRY(
          product->run(stream, gates, a.in[ops::kW] + d * width_ * s_.in, nullptr, dx, scratch));
    }
    if (float* const dw = a.out[ops::kDiffW]) {
      OFSDP_CUDA_TRY(to_w_->run(stream, gates, x, nullptr, dw + d * width_ * s_.in, scratch));
    }
    if (float* const dr = a.out[ops::kDiffR]) {
      float* const mine = dr + d * width_ * h;
      OFSDP_CUDA_TRY(to_r_->run(stream, recurrent, buffer(l, before_), nullptr, mine, scratch));
      if (reset_first_) {
        OFSDP_CUDA_TRY(to_r_n_->run(stream, buffer(l, last_), buffer(l, reset_), nullptr,
                                    mine + 2 * h * h, scratch));
      }
    }
    float* const db = a.out[ops::kDiffB];
    if (db == nullptr) return cudaSuccess;
    float* const mine = db + d * 2 * width_;
    OFSDP_CUDA_TRY(sum(stream, l, gates, mine));
    return sum(stream, l, s_.linear_before_reset ? recurrent : gates, mine + width_);
  }

  cudaError_t sum(cudaStream_t stream, const Launch& l, const float* rows, float* to) const {
    ReduceCall call;
    call.x = rows;
    call.y = to;
    call.scratch = at(l.workspace, sum_scratch_);
    return reduce(sums_, call, stream);
  }

  std::vector<ReducePass> sums_;
  Product back_, to_x_, add_to_x_, to_w_, to_r_, to_reset_, to_r_n_;
  size_t x_copy_ = 0, dx_copy_ = 0, gates_ = 0, recurrent_ = 0, last_ = 0, reset_ = 0, before_ = 0;
  size_t state_ = 0, cell_ = 0, past_ = 0, product_ = 0, sum_scratch_ = 0;
};

Acceptance accepts_recurrent(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), some(p.in(0)), some(p.in(1)), some(p.in(2))});
}

// Registers `op` with kernel K; none if a product has no algorithm.
template <typename K>
CudaImplementation recurrent_products(const char* op, RecurrentKind kind) {
  return {op, "products", accepts_recurrent,
          [kind](DeviceState& device, const Problem& p) -> std::unique_ptr<CudaKernel> {
            const RecurrentShape shape = ops::known_recurrent(kind, p.attributes, p.inputs);
            auto made = std::make_unique<K>(device, shape, p);
            return made->made() ? std::move(made) : nullptr;
          }};
}

}  // namespace

void add_recurrent(CudaImplementations& list) {
  list.insert(list.end(),
              {recurrent_products<Forward>("RNN", RecurrentKind::kRnn),
               recurrent_products<Forward>("GRU", RecurrentKind::kGru),
               recurrent_products<Forward>("LSTM", RecurrentKind::kLstm),
               recurrent_products<Forward>("ofsdp.RoundedLSTM", RecurrentKind::kRoundedLstm),
               recurrent_products<Backward>("ofsdp.RoundedLSTMGrad", RecurrentKind::kRoundedLstm),
               recurrent_products<Backward>("ofsdp.RNNGrad", RecurrentKind::kRnn),
               recurrent_products<Backward>("ofsdp.GRUGrad", RecurrentKind::kGru),
               recurrent_products<Backward>("ofsdp.LSTMGrad", RecurrentKind::kLstm)});
}

}  // namespace ofsdp::kernels::cuda
