// RNN, GRU and LSTM: one product makes X W^T of all steps, then each step has one (a GRU with its reset first: two) of the
// states with R^T, and a kernel of kernels/cuda/recurrent/recurrent.h. In float32; 16-bit operands are converted on their way.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/recurrent/recurrent_parts.h"

namespace ofsdp::kernels::cuda {
namespace {

using ops::RecurrentKind;
using ops::RecurrentShape;

class Forward final : public CudaKernel {
 public:
  Forward(DeviceState& device, const RecurrentShape& s, const Problem& p)
      : s_(s),
        operands_(p, places_),
        width_(s.gates() * s.hidden),
        reset_first_(s.is_gru() && !s.linear_before_reset),
        bias_given_(p.has_in(ops::kB)),
        lens_given_(p.has_in(ops::kLens)) {
    const int64_t rows = s.steps * s.batch, states = s.batch * s.hidden;
    const int64_t recurrent = reset_first_ ? 2 * s.hidden : width_;
    input_.make(device, rows, s.in, width_, false, true, bias_given_, 0, made_);
    hidden_.make(device, s.batch, s.hidden, recurrent, false, true, false, 0, made_);
    if (reset_first_) {
      candidate_.make(device, s.batch, s.hidden, s.hidden, false, true, false, 0, made_);
    }
    const auto array = [this](int64_t n) { return places_.take(n, sizeof(float)); };
    gates_ = array(rows * width_);
    recurrent_ = array(s.batch * width_);
    bias_ = array(width_);
    state_ = array(states);
    cell_ = array(states);
    reset_ = array(states);
    scratch_ = places_.take(std::max(
        {input_.workspace_bytes(), hidden_.workspace_bytes(), candidate_.workspace_bytes()}));
  }
  bool made() const { return made_; }
  size_t workspace_bytes() const override { return places_.bytes(); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    FloatOperands::Addresses a;
    OFSDP_CUDA_TRY(operands_.read(l, a, stream));
    for (int64_t d = 0; d < s_.directions; ++d) OFSDP_CUDA_TRY(run_direction(stream, l, a, d));
    return operands_.write(l, stream);
  }

 private:
  static float* place(const Launch& l, size_t offset) {
    return reinterpret_cast<float*>(at(l.workspace, offset));
  }

  RecurrentForward call_of(const Launch& l, const FloatOperands::Addresses& a, int64_t d) const {
    const int64_t h = s_.hidden;
    RecurrentForward r;
    r.extent = recurrent_extent(s_, d);
    r.extent.by_sample = s_.batch_first;
    if (lens_given_) r.extent.lens = l.in<int32_t>(ops::kLens);
    r.gates = place(l, gates_);
    r.recurrent = place(l, recurrent_);
    r.state = place(l, state_);
    r.cell = place(l, cell_);
    r.reset = place(l, reset_);
    if (s_.is_lstm() && a.in[ops::kP] != nullptr) r.peep = a.in[ops::kP] + d * 3 * h;
    if (s_.linear_before_reset && bias_given_) {
      r.bias_n = a.in[ops::kB] + (2 * d + 1) * width_ + 2 * h;
    }
    r.y = a.out[0];
    r.saved = a.out[s_.outputs()];
    return r;
  }

  cudaError_t run_direction(cudaStream_t stream, const Launch& l, const FloatOperands::Addresses& a,
                            int64_t d) const {
    const int64_t h = s_.hidden;
    const RecurrentForward r = call_of(l, a, d);
    const float* const weights = a.in[ops::kR] + d * width_ * h;
    void* const scratch = at(l.workspace, scratch_);
    float* const bias = bias_given_ ? place(l, bias_) : nullptr;
    if (bias_given_) {
      const int64_t both = s_.linear_before_reset ? 2 * h : width_;
      OFSDP_CUDA_TRY(recurrent_bias(a.in[ops::kB] + d * 2 * width_, width_, both, bias, stream));
    }
    OFSDP_CUDA_TRY(copy_states(r.extent, a.in[ops::kInitialH], r.state, stream));
    if (s_.is_lstm()) {
      OFSDP_CUDA_TRY(copy_states(r.extent, a.in[ops::kInitialC], r.cell, stream));
    }
    OFSDP_CUDA_TRY(input_.run(stream, a.in[ops::kX], a.in[ops::kW] + d * width_ * s_.in, bias,
                              r.gates, scratch));
    for (int64_t step = 0; step < s_.steps; ++step) {
      const int64_t t = s_.time(d, step);
      OFSDP_CUDA_TRY(hidden_.run(stream, r.state, weights, nullptr, r.recurrent, scratch));
      OFSDP_CUDA_TRY(recurrent_step(r, t, stream));
      if (!reset_first_) continue;
      OFSDP_CUDA_TRY(
          candidate_.run(stream, r.reset, weights + 2 * h * h, nullptr, r.recurrent, scratch));
      OFSDP_CUDA_TRY(recurrent_rest(r, t, stream));
    }
    OFSDP_CUDA_TRY(put_states(r.extent, r.state, a.out[1], stream));
    return s_.is_lstm() ? put_states(r.extent, r.cell, a.out[2], stream) : cudaSuccess;
  }

  Places places_;
  RecurrentShape s_;
  FloatOperands operands_;
  int64_t width_;
  bool reset_first_, bias_given_, lens_given_, made_ = true;
  FloatProduct input_, hidden_, candidate_;
  size_t gates_, recurrent_, bias_, state_, cell_, reset_, scratch_;
};

}  // namespace

void add_recurrent(CudaImplementations& list) {
  list.insert(list.end(), {recurrent_products<Forward>("RNN", RecurrentKind::kRnn),
                           recurrent_products<Forward>("GRU", RecurrentKind::kGru),
                           recurrent_products<Forward>("LSTM", RecurrentKind::kLstm)});
}

}  // namespace ofsdp::kernels::cuda
