// The gradient kernel of RNN, GRU and LSTM: see recurrent_kernel.h.
#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/recurrent_kernel.h"
#include "kernels/ops/recurrent_product.h"
#include "kernels/ops/recurrent_rows.h"

namespace ofsdp::ops {
namespace {

template <typename T>
class Backward final : public Kernel {
 public:
  Backward(const RecurrentShape& s, const Problem& p) : s_(s) {
    for (size_t i = 0; i < wanted_.size(); ++i) wanted_[i] = p.has_out(i) && p.out(i).numel() > 0;
    reset_first_ = s.is_gru() && !s.linear_before_reset;
    make_products();
    lay_out();
  }

  size_t workspace_bytes() const override { return places_.size(); }

  Status run(const KernelArgs& a) override {
    x_ = a.in<T>(kX);
    diff_x_ = wanted_[kDiffX] ? a.out<T>(kDiffX) : nullptr;
    if (s_.batch_first) {
      for (int64_t r = 0; r < s_.steps * s_.batch; ++r) {
        std::copy_n(x_ + s_.x_at(r / s_.batch, r % s_.batch), s_.in, at(a, x_copy_) + r * s_.in);
      }
      x_ = at(a, x_copy_);
      if (diff_x_ != nullptr) diff_x_ = at(a, diff_x_copy_);
    }
    for (int64_t d = 0; d < s_.directions; ++d) {
      OFSDP_RETURN_IF_ERROR(run_direction(a, d));
    }
    for (int64_t r = 0; s_.batch_first && diff_x_ != nullptr && r < s_.steps * s_.batch; ++r) {
      std::copy_n(diff_x_ + r * s_.in, s_.in,
                  a.out<T>(kDiffX) + s_.x_at(r / s_.batch, r % s_.batch));
    }
    return ok_status();
  }

 private:
  int64_t width() const { return s_.gates() * s_.hidden; }
  // Gates in the product of a step's states with R.
  int64_t recurrent_width() const { return reset_first_ ? 2 * s_.hidden : width(); }

  void make_products() {
    const DType dtype = dtype_of<T>();
    const int64_t rows = s_.steps * s_.batch, h = s_.hidden;
    const auto made = [](MatrixProduct p, bool transpose_a, MatrixProduct::Addend addend) {
      p.transpose_a = transpose_a;
      p.addend = addend;
      return RecurrentProduct<T>(p);
    };
    using Addend = MatrixProduct::Addend;
    back_ = made(plain_product(dtype, s_.batch, recurrent_width(), h), false, Addend::kNone);
    const MatrixProduct x = plain_product(dtype, rows, width(), s_.in);
    to_x_ = made(x, false, Addend::kNone);
    add_to_x_ = made(x, false, Addend::kAccumulate);
    to_w_ = made(plain_product(dtype, width(), rows, s_.in), true, Addend::kNone);
    to_r_ = made(plain_product(dtype, recurrent_width(), rows, h), true, Addend::kNone);
    if (!reset_first_) return;
    to_reset_ = made(plain_product(dtype, s_.batch, h, h), false, Addend::kNone);
    to_r_n_ = made(plain_product(dtype, h, rows, h), true, Addend::kNone);
  }

  void lay_out() {
    const int64_t rows = s_.steps * s_.batch, h = s_.hidden, states = s_.batch * h;
    const auto array = [this](int64_t n) {
      return places_.add(static_cast<size_t>(n) * sizeof(T));
    };
    if (s_.batch_first) x_copy_ = array(rows * s_.in);
    if (s_.batch_first) diff_x_copy_ = array(rows * s_.in);
    gates_ = array(rows * width());
    recurrent_ = s_.is_gru() ? array(rows * recurrent_width()) : gates_;
    if (reset_first_) {
      last_ = array(rows * h);
      reset_ = array(rows * h);
    }
    before_ = array(rows * h);
    state_ = array(states);
    cell_ = array(states);
    current_ = array(states);
    product_ = array(states);
    row_ = array(states);
    zeros_ = array(h);
    scratch_ = places_.add(
        std::max({back_.workspace_bytes(), to_x_.workspace_bytes(), add_to_x_.workspace_bytes(),
                  to_w_.workspace_bytes(), to_r_.workspace_bytes(), to_reset_.workspace_bytes(),
                  to_r_n_.workspace_bytes()}));
  }

  static T* at(const KernelArgs& a, size_t place) {
    return reinterpret_cast<T*>(a.workspace + place);
  }
  static bool given(const KernelArgs& a, size_t i) {
    return i < a.inputs.size() && a.inputs[i].data != nullptr && a.inputs[i].desc.present();
  }
  bool active(const KernelArgs& a, int64_t t, int64_t b) const {
    return t >= 0 && t < s_.steps && (!given(a, kLens) || t < a.in<int32_t>(kLens)[b]);
  }
  // The time before t in direction d; outside of 0 .. steps-1 at the beginning.
  int64_t time_before(int64_t d, int64_t t) const {
    return d == 1 || s_.first_reversed ? t + 1 : t - 1;
  }

  Status run_direction(const KernelArgs& a, int64_t d) {
    std::fill_n(at(a, zeros_), s_.hidden, T{0});
    start(a, kDiffYh, d, at(a, state_));
    if (s_.is_lstm()) start(a, kDiffYc, d, at(a, cell_));
    lay_states(a, d);
    for (int64_t step = s_.steps; step-- > 0;) {
      OFSDP_RETURN_IF_ERROR(back_step(a, d, s_.time(d, step)));
    }
    finish(a, d, kDiffH0, at(a, state_));
    finish(a, d, kDiffC0, at(a, cell_));
    OFSDP_RETURN_IF_ERROR(weights(a, d));
    if (wanted_[kDiffB]) bias(a, d);
    if (wanted_[kDiffP]) peepholes(a, d);
    return ok_status();
  }

  void start(const KernelArgs& a, size_t input, int64_t d, T* to) const {
    for (int64_t b = 0; b < s_.batch; ++b) {
      const T* from = given(a, input) ? a.in<T>(input) + s_.state_at(d, b) : at(a, zeros_);
      std::copy_n(from, s_.hidden, to + b * s_.hidden);
    }
  }
  void finish(const KernelArgs& a, int64_t d, size_t output, const T* from) const {
    for (int64_t b = 0; wanted_[output] && b < s_.batch; ++b) {
      std::copy_n(from + b * s_.hidden, s_.hidden, a.out<T>(output) + s_.state_at(d, b));
    }
  }

  // The states before each step; zeros where a sample has ended.
  void lay_states(const KernelArgs& a, int64_t d) const {
    for (int64_t t = 0; t < s_.steps; ++t) {
      for (int64_t b = 0; b < s_.batch; ++b) {
        const int64_t before = time_before(d, t);
        const T* from = at(a, zeros_);
        if (active(a, before, b)) {
          from = a.in<T>(kY) + s_.y_at(before, d, b);
        } else if (given(a, kInitialH)) {
          from = a.in<T>(kInitialH) + s_.state_at(d, b);
        }
        if (!active(a, t, b)) from = at(a, zeros_);
        std::copy_n(from, s_.hidden, at(a, before_) + (t * s_.batch + b) * s_.hidden);
      }
    }
  }

  const T* cell_before(const KernelArgs& a, int64_t d, int64_t t, int64_t b) const {
    const int64_t before = time_before(d, t);
    if (active(a, before, b)) return a.in<T>(kSaved) + s_.saved_at(before, d, b) + 4 * s_.hidden;
    return given(a, kInitialC) ? a.in<T>(kInitialC) + s_.state_at(d, b) : at(a, zeros_);
  }

  BackwardRow<T> row_of(const KernelArgs& a, int64_t d, int64_t t, int64_t b) const {
    const int64_t h = s_.hidden, row = t * s_.batch + b;
    const GateActivation* functions = &s_.activation(d, 0);
    BackwardRow<T> made{};
    made.n = h;
    made.f = functions;
    made.g = functions + 1;
    made.h = functions + 2;
    made.saved = a.in<T>(kSaved) + s_.saved_at(t, d, b);
    made.before = at(a, before_) + row * h;
    made.cell_before = s_.is_lstm() ? cell_before(a, d, t, b) : nullptr;
    made.peep = s_.is_lstm() && given(a, kP) ? a.in<T>(kP) + d * 3 * h : nullptr;
    made.diff_state = at(a, current_) + b * h;
    made.diff_cell = at(a, cell_) + b * h;
    made.diff_gates = at(a, gates_) + row * width();
    made.diff_recurrent =
        reset_first_ ? at(a, product_) + b * h : at(a, recurrent_) + row * width();
    made.scratch = at(a, row_) + b * h;
    made.input_forget = s_.input_forget;
    return made;
  }

  // f(b) for every sample, dealt to the threads.
  template <typename F>
  void each_sample(const F& f) const {
    parallel_for(s_.batch, kRowGrain / std::max<int64_t>(width(), 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t b = begin; b < end; ++b) f(b);
                 });
  }

  Status back_step(const KernelArgs& a, int64_t d, int64_t t) {
    const int64_t h = s_.hidden, first = t * s_.batch;
    const T* r = a.in<T>(kR) + d * width() * h;
    std::byte* scratch = a.workspace + scratch_;
    each_sample([&](int64_t b) { sample_step(a, d, t, b); });
    if (reset_first_) {
      OFSDP_RETURN_IF_ERROR(to_reset_.run(at(a, last_) + first * h, r + 2 * h * h, nullptr,
                                          at(a, product_), scratch));
      each_sample([&](int64_t b) { reset_step(a, d, t, b); });
    }
    OFSDP_RETURN_IF_ERROR(back_.run(at(a, recurrent_) + first * recurrent_width(), r, nullptr,
                                    at(a, product_), scratch));
    for (int64_t b = 0; b < s_.batch; ++b) {
      if (!active(a, t, b)) continue;
      const T *past = at(a, current_) + b * h, *back = at(a, product_) + b * h;
      T* state = at(a, state_) + b * h;
      for (int64_t k = 0; k < h; ++k) state[k] = past[k] + back[k];
    }
    return ok_status();
  }

  void sample_step(const KernelArgs& a, int64_t d, int64_t t, int64_t b) const {
    const int64_t h = s_.hidden, row = t * s_.batch + b;
    if (!active(a, t, b)) {
      std::fill_n(at(a, gates_) + row * width(), width(), T{0});
      std::fill_n(at(a, recurrent_) + row * recurrent_width(), recurrent_width(), T{0});
      if (reset_first_) std::fill_n(at(a, last_) + row * h, h, T{0});
      if (reset_first_) std::fill_n(at(a, reset_) + row * h, h, T{0});
      return;
    }
    T* current = at(a, current_) + b * h;
    std::copy_n(at(a, state_) + b * h, h, current);
    if (given(a, kDiffY)) {
      const T* dy = a.in<T>(kDiffY) + s_.y_at(t, d, b);
      for (int64_t k = 0; k < h; ++k) current[k] += dy[k];
    }
    const BackwardRow<T> made = row_of(a, d, t, b);
    if (s_.is_lstm()) return lstm_grad_row(made);
    if (!s_.is_gru()) return rnn_grad_row(made);
    if (!reset_first_) return gru_grad_row(made);
    gru_first_grad_row(made);
    std::copy_n(made.diff_gates + 2 * h, h, at(a, last_) + row * h);
    T* reset = at(a, reset_) + row * h;
    for (int64_t k = 0; k < h; ++k) reset[k] = made.saved[h + k] * made.before[k];
  }

  void reset_step(const KernelArgs& a, int64_t d, int64_t t, int64_t b) const {
    if (!active(a, t, b)) return;
    const int64_t h = s_.hidden;
    const BackwardRow<T> made = row_of(a, d, t, b);
    gru_reset_grad_row(made);
    std::copy_n(made.diff_gates, 2 * h, at(a, recurrent_) + (t * s_.batch + b) * 2 * h);
  }

  Status weights(const KernelArgs& a, int64_t d) {
    const int64_t h = s_.hidden;
    std::byte* scratch = a.workspace + scratch_;
    const T* gates = at(a, gates_);
    if (diff_x_ != nullptr) {
      OFSDP_RETURN_IF_ERROR(
          (d == 0 ? to_x_ : add_to_x_)
              .run(gates, a.in<T>(kW) + d * width() * s_.in, nullptr, diff_x_, scratch));
    }
    if (wanted_[kDiffW]) {
      OFSDP_RETURN_IF_ERROR(
          to_w_.run(gates, x_, nullptr, a.out<T>(kDiffW) + d * width() * s_.in, scratch));
    }
    if (!wanted_[kDiffR]) return ok_status();
    T* dr = a.out<T>(kDiffR) + d * width() * h;
    OFSDP_RETURN_IF_ERROR(to_r_.run(at(a, recurrent_), at(a, before_), nullptr, dr, scratch));
    if (!reset_first_) return ok_status();
    return to_r_n_.run(at(a, last_), at(a, reset_), nullptr, dr + 2 * h * h, scratch);
  }

  void bias(const KernelArgs& a, int64_t d) const {
    T* db = a.out<T>(kDiffB) + d * 2 * width();
    std::fill_n(db, 2 * width(), T{0});
    const T* recurrent = at(a, s_.linear_before_reset ? recurrent_ : gates_);
    for (int64_t row = 0; row < s_.steps * s_.batch; ++row) {
      for (int64_t k = 0; k < width(); ++k) {
        db[k] += at(a, gates_)[row * width() + k];
        db[width() + k] += recurrent[row * width() + k];
      }
    }
  }

  void peepholes(const KernelArgs& a, int64_t d) const {
    const int64_t h = s_.hidden;
    T* dp = a.out<T>(kDiffP) + d * 3 * h;
    std::fill_n(dp, 3 * h, T{0});
    for (int64_t t = 0; t < s_.steps; ++t) {
      for (int64_t b = 0; b < s_.batch; ++b) {
        if (!active(a, t, b)) continue;
        const T* before = cell_before(a, d, t, b);
        const T* cell = a.in<T>(kSaved) + s_.saved_at(t, d, b) + 4 * h;
        const T* gates = at(a, gates_) + (t * s_.batch + b) * width();
        for (int64_t k = 0; k < h; ++k) {
          dp[k] += gates[k] * before[k];
          dp[h + k] += gates[h + k] * cell[k];
          dp[2 * h + k] += gates[2 * h + k] * before[k];
        }
      }
    }
  }

  static constexpr int64_t kRowGrain = 4096;  // gate values worth a thread

  RecurrentShape s_;
  std::array<bool, 7> wanted_{};
  bool reset_first_ = false;
  RecurrentProduct<T> back_, to_x_, add_to_x_, to_w_, to_r_, to_reset_, to_r_n_;
  Places places_;
  // Gradients of the gates [T B, G H] and of h R^T; of a GRU with the reset first the latter has
  // only z and r, and there is that of n in `last` and r h in `reset`.
  size_t gates_ = 0, recurrent_ = 0, last_ = 0, reset_ = 0;
  size_t before_ = 0, state_ = 0, cell_ = 0, current_ = 0, product_ = 0, row_ = 0, zeros_ = 0;
  size_t x_copy_ = 0, diff_x_copy_ = 0, scratch_ = 0;
  const T* x_ = nullptr;
  T* diff_x_ = nullptr;
};

}  // namespace

std::unique_ptr<Kernel> make_recurrent_grad(const RecurrentShape& shape, const Problem& problem) {
  if (problem.in(0).dtype == DType::kFloat64) {
    return std::make_unique<Backward<double>>(shape, problem);
  }
  return std::make_unique<Backward<float>>(shape, problem);
}

}  // namespace ofsdp::ops
