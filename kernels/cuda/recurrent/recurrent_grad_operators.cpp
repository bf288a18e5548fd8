// The gradients of RNN, GRU and LSTM, from the last step to the first: each step multiplies the gates' gradients with R; those
// of W, R and X are products over all steps at the end. In float32, as the operators (recurrent_operators.cpp).
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/recurrent/recurrent_parts.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/shape/movement.h"

namespace ofsdp::kernels::cuda {
namespace {

using ops::RecurrentKind;
using ops::RecurrentShape;
using Addresses = FloatOperands::Addresses;

class Backward final : public CudaKernel {
 public:
  Backward(DeviceState& device, const RecurrentShape& s, const Problem& p)
      : s_(s),
        operands_(p, places_),
        rows_(s.steps * s.batch),
        width_(s.gates() * s.hidden),
        reset_first_(s.is_gru() && !s.linear_before_reset),
        recurrent_width_(reset_first_ ? 2 * s.hidden : width_),
        lens_given_(p.has_in(ops::kLens)),
        sums_(plan_reduce({rows_, width_}, {true, false})) {
    make_products(device);
    lay_out();
  }
  bool made() const { return made_; }
  size_t workspace_bytes() const override { return places_.bytes(); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    Addresses a;
    OFSDP_CUDA_TRY(operands_.read(l, a, stream));
    const float* x = a.in[ops::kX];
    float* dx = a.out[ops::kDiffX];
    if (s_.batch_first) {
      OFSDP_CUDA_TRY(turn(x, place(l, x_copy_), s_.batch, s_.steps, stream));
      x = place(l, x_copy_);
      if (dx != nullptr) dx = place(l, dx_copy_);
    }
    for (int64_t d = 0; d < s_.directions; ++d) {
      OFSDP_CUDA_TRY(run_direction(stream, l, a, d));
      OFSDP_CUDA_TRY(weights(stream, l, a, d, x, dx));
    }
    if (s_.batch_first && dx != nullptr) {
      OFSDP_CUDA_TRY(turn(dx, a.out[ops::kDiffX], s_.steps, s_.batch, stream));
    }
    return operands_.write(l, stream);
  }

 private:
  static float* place(const Launch& l, size_t offset) {
    return reinterpret_cast<float*>(at(l.workspace, offset));
  }
  // [a, b, in] to [b, a, in].
  cudaError_t turn(const float* from, float* to, int64_t a, int64_t b, cudaStream_t stream) const {
    return strided_copy(sizeof(float), {b, a, s_.in}, {s_.in, b * s_.in, 1},
                        dense_strides({b, a, s_.in}), from, to, stream);
  }

  void make_products(DeviceState& device) {
    const int64_t h = s_.hidden;
    back_.make(device, s_.batch, recurrent_width_, h, false, false, false, 0, made_);
    to_x_.make(device, rows_, width_, s_.in, false, false, false, 0, made_);
    if (s_.directions > 1) {
      add_to_x_.make(device, rows_, width_, s_.in, false, false, false, 1, made_);
    }
    to_w_.make(device, width_, rows_, s_.in, true, false, false, 0, made_);
    to_r_.make(device, recurrent_width_, rows_, h, true, false, false, 0, made_);
    if (!reset_first_) return;
    to_reset_.make(device, s_.batch, h, h, false, false, false, 0, made_);
    to_r_n_.make(device, h, rows_, h, true, false, false, 0, made_);
  }

  void lay_out() {
    const int64_t h = s_.hidden, states = s_.batch * h;
    const auto array = [this](int64_t n) { return places_.take(n, sizeof(float)); };
    if (s_.batch_first) x_copy_ = array(rows_ * s_.in);
    if (s_.batch_first) dx_copy_ = array(rows_ * s_.in);
    gates_ = array(rows_ * width_);
    recurrent_ = s_.is_gru() ? array(rows_ * recurrent_width_) : gates_;
    if (reset_first_) last_ = array(rows_ * h);
    if (reset_first_) reset_ = array(rows_ * h);
    before_ = array(rows_ * h);
    for (size_t* state : {&state_, &cell_, &past_, &product_}) *state = array(states);
    sum_scratch_ = places_.take(reduce_scratch(sums_));
    size_t most = 0;
    for (const FloatProduct* p :
         {&back_, &to_x_, &add_to_x_, &to_w_, &to_r_, &to_reset_, &to_r_n_}) {
      most = std::max(most, p->workspace_bytes());
    }
    scratch_ = places_.take(most);
  }

  RecurrentBackward call_of(const Launch& l, const Addresses& a, int64_t d) const {
    RecurrentBackward r;
    r.extent = recurrent_extent(s_, d);
    if (lens_given_) r.extent.lens = l.in<int32_t>(ops::kLens);
    r.y = a.in[ops::kY];
    r.saved = a.in[ops::kSaved];
    r.initial_h = a.in[ops::kInitialH];
    r.initial_c = s_.is_lstm() ? a.in[ops::kInitialC] : nullptr;
    if (s_.is_lstm() && a.in[ops::kP] != nullptr) r.peep = a.in[ops::kP] + d * 3 * s_.hidden;
    r.diff_y = a.in[ops::kDiffY];
    r.product = place(l, product_);
    r.before = place(l, before_);
    r.state = place(l, state_);
    r.cell = place(l, cell_);
    r.past = place(l, past_);
    r.diff_gates = place(l, gates_);
    r.diff_recurrent = place(l, recurrent_);
    r.diff_last = place(l, last_);
    r.reset = place(l, reset_);
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
    float* const product = place(l, product_);
    void* const scratch = at(l.workspace, scratch_);
    OFSDP_CUDA_TRY(recurrent_back(r, t, stream));
    if (reset_first_) {
      OFSDP_CUDA_TRY(to_reset_.run(stream, r.diff_last + first * h, weights + 2 * h * h, nullptr,
                                   product, scratch));
      OFSDP_CUDA_TRY(recurrent_back_rest(r, t, stream));
    }
    OFSDP_CUDA_TRY(back_.run(stream, r.diff_recurrent + first * recurrent_width_, weights, nullptr,
                             product, scratch));
    return recurrent_add(r, t, stream);
  }

  cudaError_t weights(cudaStream_t stream, const Launch& l, const Addresses& a, int64_t d,
                      const float* x, float* dx) const {
    const int64_t h = s_.hidden;
    void* const scratch = at(l.workspace, scratch_);
    const float *gates = place(l, gates_), *recurrent = place(l, recurrent_);
    if (dx != nullptr) {
      const FloatProduct& product = d == 0 ? to_x_ : add_to_x_;
      OFSDP_CUDA_TRY(
          product.run(stream, gates, a.in[ops::kW] + d * width_ * s_.in, nullptr, dx, scratch));
    }
    if (float* const dw = a.out[ops::kDiffW]) {
      OFSDP_CUDA_TRY(to_w_.run(stream, gates, x, nullptr, dw + d * width_ * s_.in, scratch));
    }
    if (float* const dr = a.out[ops::kDiffR]) {
      float* const mine = dr + d * width_ * h;
      OFSDP_CUDA_TRY(to_r_.run(stream, recurrent, place(l, before_), nullptr, mine, scratch));
      if (reset_first_) {
        OFSDP_CUDA_TRY(to_r_n_.run(stream, place(l, last_), place(l, reset_), nullptr,
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

  Places places_;
  RecurrentShape s_;
  FloatOperands operands_;
  int64_t rows_, width_;
  bool reset_first_;
  int64_t recurrent_width_;
  bool lens_given_, made_ = true;
  std::vector<ReducePass> sums_;
  FloatProduct back_, to_x_, add_to_x_, to_w_, to_r_, to_reset_, to_r_n_;
  size_t x_copy_ = 0, dx_copy_ = 0, gates_ = 0, recurrent_ = 0, last_ = 0, reset_ = 0, before_ = 0;
  size_t state_ = 0, cell_ = 0, past_ = 0, product_ = 0, sum_scratch_ = 0, scratch_ = 0;
};

}  // namespace

void add_recurrent_gradients(CudaImplementations& list) {
  list.insert(list.end(), {recurrent_products<Backward>("ofsdp.RNNGrad", RecurrentKind::kRnn),
                           recurrent_products<Backward>("ofsdp.GRUGrad", RecurrentKind::kGru),
                           recurrent_products<Backward>("ofsdp.LSTMGrad", RecurrentKind::kLstm)});
}

}  // namespace ofsdp::kernels::cuda
