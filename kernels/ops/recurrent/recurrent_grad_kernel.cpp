// The gradient kernel for RNN, GRU and LSTM (recurrent_shape.h).
#include <algorithm>

#include "kernels/cpu/loops.h"
#include "kernels/ops/recurrent/recurrent_parts.h"

namespace ofsdp::kernels::ops {
namespace {

// --- one row of gates (a sample at one step) ---
//
// A row has G parts, one after another in ONNX's order, each with `n` = H values.

template <typename T>
struct BackwardRow {
  int64_t n;
  const GateActivation *f, *g, *h;
  const T* saved;
  const T* arguments;    // the gates'; read only if keeps_arguments
  const T* before;       // h before this step
  const T* cell_before;  // LSTM: C before this step
  const T* peep;
  T* diff_state;  // in: gradient of this step's h; out: the part that bypasses the product with R
  T* diff_cell;   // LSTM: gradient of C, in and out
  T* diff_gates;  // out: gradient of X W^T + b
  T* diff_recurrent;  // GRU: out: gradient of h R^T (if reset comes before the product: in: of r h)
  T* scratch;         // n values
  bool input_forget;
};

// Multiplies gate `gate`'s gradient d by f'.
template <typename T>
void gate_grad(const BackwardRow<T>& r, const GateActivation& f, int64_t gate, T* d) {
  activate_grad(f, r.arguments + gate * r.n, r.saved + gate * r.n, d, r.n);
}

template <typename T>
OFSDP_MULTIARCH void rnn_grad_row(const BackwardRow<T>& r) {
  T *d = r.diff_gates, *dh = r.diff_state;
  loop(r.n, [=](int64_t k) {
    d[k] = dh[k];
    dh[k] = 0;
  });
  gate_grad(r, *r.f, 0, d);
}

template <typename T>
OFSDP_MULTIARCH void lstm_grad_row(const BackwardRow<T>& r) {
  const int64_t n = r.n;
  const T *i = r.saved, *o = i + n, *f = o + n, *c = f + n, *cell = c + n, *before = r.cell_before;
  T *di = r.diff_gates, *d_o = di + n, *df = d_o + n, *dc = df + n;
  T *dh = r.diff_state, *d_cell = r.diff_cell, *h = r.scratch;
  const T* p = r.peep;
  loop(n, [=](int64_t k) { h[k] = cell[k]; });
  activate(*r.h, h, n);
  loop(n, [=](int64_t k) {
    d_o[k] = dh[k] * h[k];
    dh[k] *= o[k];
  });
  gate_grad(r, *r.f, 1, d_o);
  activate_grad(*r.h, cell, h, dh, n);
  loop(n, [=](int64_t k) { d_cell[k] += dh[k]; });
  if (p != nullptr) loop(n, [=](int64_t k) { d_cell[k] += d_o[k] * p[n + k]; });
  if (r.input_forget) {
    loop(n, [=](int64_t k) {
      di[k] = d_cell[k] * (c[k] - before[k]);
      df[k] = 0;
    });
  } else {
    loop(n, [=](int64_t k) {
      di[k] = d_cell[k] * c[k];
      df[k] = d_cell[k] * before[k];
    });
    gate_grad(r, *r.f, 2, df);
  }
  gate_grad(r, *r.f, 0, di);
  loop(n, [=](int64_t k) {
    dc[k] = d_cell[k] * i[k];
    d_cell[k] *= f[k];
    dh[k] = 0;
  });
  gate_grad(r, *r.g, 3, dc);
  if (p == nullptr) return;
  loop(n, [=](int64_t k) { d_cell[k] += di[k] * p[k] + df[k] * p[2 * n + k]; });
}

// For both GRUs: the gradients of z and n, and the part of the state's gradient that bypasses the
// product.
template <typename T>
OFSDP_MULTIARCH void gru_first_grad_row(const BackwardRow<T>& r) {
  const int64_t n = r.n;
  const T *z = r.saved, *c = z + 2 * n, *before = r.before;
  T *dz = r.diff_gates, *dc = dz + 2 * n, *dh = r.diff_state;
  loop(n, [=](int64_t k) {
    dz[k] = dh[k] * (before[k] - c[k]);
    dc[k] = dh[k] * (T{1} - z[k]);
    dh[k] *= z[k];
  });
  gate_grad(r, *r.f, 0, dz);
  gate_grad(r, *r.g, 2, dc);
}

template <typename T>
OFSDP_MULTIARCH void gru_grad_row(const BackwardRow<T>& r) {
  gru_first_grad_row(r);
  const int64_t n = r.n;
  const T *reset = r.saved + n, *q = r.saved + 3 * n;
  T *dz = r.diff_gates, *dr = dz + n, *dc = dr + n, *rec = r.diff_recurrent;
  loop(n, [=](int64_t k) { dr[k] = dc[k] * q[k]; });
  gate_grad(r, *r.f, 1, dr);
  loop(n, [=](int64_t k) {
    rec[k] = dz[k];
    rec[n + k] = dr[k];
    rec[2 * n + k] = dc[k] * reset[k];
  });
}

// Reset first: computes r's gradient. REQUIRES: diff_recurrent holds the gradient of r h.
template <typename T>
OFSDP_MULTIARCH void gru_reset_grad_row(const BackwardRow<T>& r) {
  const int64_t n = r.n;
  const T *reset = r.saved + n, *before = r.before, *d = r.diff_recurrent;
  T *dr = r.diff_gates + n, *dh = r.diff_state;
  loop(n, [=](int64_t k) {
    dr[k] = d[k] * before[k];
    dh[k] += d[k] * reset[k];
  });
  gate_grad(r, *r.f, 1, dr);
}

// --- gradients of X, W, R, B and P in one direction, from all steps' gate gradients ---
//
// See [Note: recurrent kernels]. `scratch` has workspace_bytes().

template <typename T>
RecurrentProduct<T> made(MatrixProduct p, bool transpose_a,
                         MatrixProduct::Addend addend = MatrixProduct::Addend::kNone) {
  p.transpose_a = transpose_a;
  p.addend = addend;
  return RecurrentProduct<T>(p);
}

template <typename T>
struct RecurrentSteps {  // rows for all steps and samples, [T B, ...]
  const T* x;
  const T* gates;      // gradients of X W^T + b
  const T* recurrent;  // gradients of h R^T; for a GRU with the reset first only z and r
  const T* last;       // in that GRU: gradients of n
  const T* reset;      // in that GRU: r h
  const T* before;     // h before the step
  const T* zeros;      // [H]
};

template <typename T>
class RecurrentParameterGrad {
 public:
  RecurrentParameterGrad(const RecurrentShape& s, const Problem& p)
      : s_(s),
        diff_w_(is_wanted(p, kDiffW)),
        diff_r_(is_wanted(p, kDiffR)),
        diff_b_(is_wanted(p, kDiffB)),
        diff_p_(is_wanted(p, kDiffP)) {
    const DType dtype = dtype_of<T>();
    const int64_t rows = s_.steps * s_.batch, h = s_.hidden;
    const MatrixProduct x = plain_product(dtype, rows, s_.width(), s_.in);
    to_x_ = made<T>(x, false);
    add_to_x_ = made<T>(x, false, MatrixProduct::Addend::kAccumulate);
    to_w_ = made<T>(plain_product(dtype, s_.width(), rows, s_.in), true);
    to_r_ = made<T>(plain_product(dtype, s_.recurrent_width(), rows, h), true);
    if (s_.resets_first()) to_r_n_ = made<T>(plain_product(dtype, h, rows, h), true);
  }

  size_t workspace_bytes() const {
    return std::max({to_x_.workspace_bytes(), add_to_x_.workspace_bytes(), to_w_.workspace_bytes(),
                     to_r_.workspace_bytes(), to_r_n_.workspace_bytes()});
  }

  // The second direction adds to `diff_x`, which may be null; the rest goes to `a`'s outputs.
  Status run(const KernelArgs& a, int64_t d, const RecurrentSteps<T>& steps, T* diff_x,
             std::byte* scratch) {
    const int64_t width = s_.width();
    if (diff_x != nullptr) {
      OFSDP_RETURN_IF_ERROR(
          (d == 0 ? to_x_ : add_to_x_)
              .run(steps.gates, a.in<T>(kW) + d * width * s_.in, nullptr, diff_x, scratch));
    }
    OFSDP_RETURN_IF_ERROR(weights(a, d, steps, scratch));
    if (diff_b_) bias(steps, a.out<T>(kDiffB) + d * 2 * width);
    if (diff_p_) peepholes(a, d, steps, a.out<T>(kDiffP) + d * 3 * s_.hidden);
    return ok_status();
  }

 private:
  Status weights(const KernelArgs& a, int64_t d, const RecurrentSteps<T>& steps,
                 std::byte* scratch) {
    const int64_t h = s_.hidden, width = s_.width();
    if (diff_w_) {
      OFSDP_RETURN_IF_ERROR(
          to_w_.run(steps.gates, steps.x, nullptr, a.out<T>(kDiffW) + d * width * s_.in, scratch));
    }
    if (!diff_r_) return ok_status();
    T* dr = a.out<T>(kDiffR) + d * width * h;
    OFSDP_RETURN_IF_ERROR(to_r_.run(steps.recurrent, steps.before, nullptr, dr, scratch));
    if (!s_.resets_first()) return ok_status();
    return to_r_n_.run(steps.last, steps.reset, nullptr, dr + 2 * h * h, scratch);
  }

  void bias(const RecurrentSteps<T>& steps, T* db) const {
    const int64_t width = s_.width();
    std::fill_n(db, 2 * width, T{0});
    const T* gates = steps.gates;
    const T* recurrent = s_.linear_before_reset ? steps.recurrent : gates;
    for (int64_t row = 0; row < s_.steps * s_.batch; ++row) {
      for (int64_t k = 0; k < width; ++k) {
        db[k] += gates[row * width + k];
        db[width + k] += recurrent[row * width + k];
      }
    }
  }

  void peepholes(const KernelArgs& a, int64_t d, const RecurrentSteps<T>& steps, T* dp) const {
    const int64_t h = s_.hidden;
    std::fill_n(dp, 3 * h, T{0});
    for (int64_t t = 0; t < s_.steps; ++t) {
      for (int64_t b = 0; b < s_.batch; ++b) {
        if (!is_active(s_, a, t, b)) continue;
        const T* before = cell_before(s_, a, d, t, b, steps.zeros);
        const T* cell = a.in<T>(kSaved) + s_.saved_at(t, d, b) + 4 * h;
        const T* gates = steps.gates + (t * s_.batch + b) * s_.width();
        for (int64_t k = 0; k < h; ++k) {
          dp[k] += gates[k] * before[k];
          dp[h + k] += gates[h + k] * cell[k];
          dp[2 * h + k] += gates[2 * h + k] * before[k];
        }
      }
    }
  }

  RecurrentShape s_;
  bool diff_w_, diff_r_, diff_b_, diff_p_;  // wanted
  RecurrentProduct<T> to_x_, add_to_x_, to_w_, to_r_, to_r_n_;
};

// --- the kernel ---

template <typename T>
class Backward final : public Kernel {
 public:
  Backward(const RecurrentShape& s, const Problem& p)
      : s_(s),
        diff_x_wanted_(is_wanted(p, kDiffX)),
        diff_h0_wanted_(is_wanted(p, kDiffH0)),
        diff_c0_wanted_(is_wanted(p, kDiffC0)),
        parameters_(s, p) {
    const DType dtype = dtype_of<T>();
    const int64_t h = s.hidden;
    back_ = RecurrentProduct<T>(plain_product(dtype, s.batch, s.recurrent_width(), h));
    if (s.resets_first()) to_reset_ = RecurrentProduct<T>(plain_product(dtype, s.batch, h, h));
    lay_out();
  }

  size_t workspace_bytes() const override { return places_.size(); }

  Status run(const KernelArgs& a) override {
    x_ = a.in<T>(kX);
    diff_x_ = diff_x_wanted_ ? a.out<T>(kDiffX) : nullptr;
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
  void lay_out() {
    const int64_t rows = s_.steps * s_.batch, h = s_.hidden, states = s_.batch * h;
    const auto array = [this](int64_t n) {
      return places_.add(static_cast<size_t>(n) * sizeof(T));
    };
    if (s_.batch_first) x_copy_ = array(rows * s_.in);
    if (s_.batch_first) diff_x_copy_ = array(rows * s_.in);
    gates_ = array(rows * s_.width());
    recurrent_ = s_.is_gru() ? array(rows * s_.recurrent_width()) : gates_;
    if (s_.resets_first()) {
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
    scratch_ = places_.add(std::max(
        {back_.workspace_bytes(), to_reset_.workspace_bytes(), parameters_.workspace_bytes()}));
  }

  static T* at(const KernelArgs& a, size_t place) {
    return reinterpret_cast<T*>(a.workspace + place);
  }

  Status run_direction(const KernelArgs& a, int64_t d) {
    std::fill_n(at(a, zeros_), s_.hidden, T{0});
    start(a, kDiffYh, d, at(a, state_));
    if (s_.is_lstm()) start(a, kDiffYc, d, at(a, cell_));
    lay_states(a, d);
    for (int64_t step = s_.steps; step-- > 0;) {
      OFSDP_RETURN_IF_ERROR(back_step(a, d, s_.time(d, step)));
    }
    if (diff_h0_wanted_) finish(a, d, kDiffH0, at(a, state_));
    if (diff_c0_wanted_) finish(a, d, kDiffC0, at(a, cell_));
    return parameters_.run(a, d,
                           {x_, at(a, gates_), at(a, recurrent_), at(a, last_), at(a, reset_),
                            at(a, before_), at(a, zeros_)},
                           diff_x_, a.workspace + scratch_);
  }

  void start(const KernelArgs& a, size_t input, int64_t d, T* to) const {
    for (int64_t b = 0; b < s_.batch; ++b) {
      const T* from = given(a, input) ? a.in<T>(input) + s_.state_at(d, b) : at(a, zeros_);
      std::copy_n(from, s_.hidden, to + b * s_.hidden);
    }
  }
  void finish(const KernelArgs& a, int64_t d, size_t output, const T* from) const {
    for (int64_t b = 0; b < s_.batch; ++b) {
      std::copy_n(from + b * s_.hidden, s_.hidden, a.out<T>(output) + s_.state_at(d, b));
    }
  }

  // Writes the state before each step, as the product with R read it; zeros if a sample has ended.
  void lay_states(const KernelArgs& a, int64_t d) const {
    for (int64_t t = 0; t < s_.steps; ++t) {
      for (int64_t b = 0; b < s_.batch; ++b) {
        const int64_t before = s_.time_before(d, t);
        const T* from = at(a, zeros_);
        if (is_active(s_, a, before, b)) {
          from = a.in<T>(kY) + s_.y_at(before, d, b);
        } else if (given(a, kInitialH)) {
          from = a.in<T>(kInitialH) + s_.state_at(d, b);
        }
        if (!is_active(s_, a, t, b)) from = at(a, zeros_);
        std::copy_n(from, s_.hidden, at(a, before_) + (t * s_.batch + b) * s_.hidden);
      }
      if (s_.rounds_states()) round_states(at(a, before_) + t * s_.batch * s_.hidden);
    }
  }

  void round_states(T* states) const {
    RangeRounder<T> rounder;
    rounder.see(states, s_.batch * s_.hidden);
    rounder.round(states, s_.batch * s_.hidden, states);
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
    made.arguments = s_.keeps_arguments() ? made.saved + s_.results() * h : made.saved;
    made.before = at(a, before_) + row * h;
    made.cell_before = s_.is_lstm() ? cell_before<T>(s_, a, d, t, b, at(a, zeros_)) : nullptr;
    made.peep = s_.is_lstm() && given(a, kP) ? a.in<T>(kP) + d * 3 * h : nullptr;
    made.diff_state = at(a, current_) + b * h;
    made.diff_cell = at(a, cell_) + b * h;
    made.diff_gates = at(a, gates_) + row * s_.width();
    made.diff_recurrent =
        s_.resets_first() ? at(a, product_) + b * h : at(a, recurrent_) + row * s_.width();
    made.scratch = at(a, row_) + b * h;
    made.input_forget = s_.input_forget;
    return made;
  }

  // Calls f(b) for every sample; threads share them.
  void each_sample(const auto& f) const {
    parallel_each(s_.batch, kRowGrain / std::max<int64_t>(s_.width(), 1) + 1,
                  [&](int64_t b) { f(b); });
  }

  Status back_step(const KernelArgs& a, int64_t d, int64_t t) {
    const int64_t h = s_.hidden, first = t * s_.batch;
    const T* r = a.in<T>(kR) + d * s_.width() * h;
    std::byte* scratch = a.workspace + scratch_;
    each_sample([&](int64_t b) { sample_step(a, d, t, b); });
    if (s_.resets_first()) {
      OFSDP_RETURN_IF_ERROR(to_reset_.run(at(a, last_) + first * h, r + 2 * h * h, nullptr,
                                          at(a, product_), scratch));
      each_sample([&](int64_t b) { reset_step(a, d, t, b); });
    }
    OFSDP_RETURN_IF_ERROR(back_.run(at(a, recurrent_) + first * s_.recurrent_width(), r, nullptr,
                                    at(a, product_), scratch));
    for (int64_t b = 0; b < s_.batch; ++b) {
      if (!is_active(s_, a, t, b)) continue;
      const T *past = at(a, current_) + b * h, *back = at(a, product_) + b * h;
      T* state = at(a, state_) + b * h;
      for (int64_t k = 0; k < h; ++k) state[k] = past[k] + back[k];
    }
    return ok_status();
  }

  void sample_step(const KernelArgs& a, int64_t d, int64_t t, int64_t b) const {
    const int64_t h = s_.hidden, row = t * s_.batch + b;
    if (!is_active(s_, a, t, b)) {
      std::fill_n(at(a, gates_) + row * s_.width(), s_.width(), T{0});
      std::fill_n(at(a, recurrent_) + row * s_.recurrent_width(), s_.recurrent_width(), T{0});
      if (s_.resets_first()) std::fill_n(at(a, last_) + row * h, h, T{0});
      if (s_.resets_first()) std::fill_n(at(a, reset_) + row * h, h, T{0});
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
    if (!s_.resets_first()) return gru_grad_row(made);
    gru_first_grad_row(made);
    std::copy_n(made.diff_gates + 2 * h, h, at(a, last_) + row * h);
    T* reset = at(a, reset_) + row * h;
    for (int64_t k = 0; k < h; ++k) reset[k] = made.saved[h + k] * made.before[k];
  }

  void reset_step(const KernelArgs& a, int64_t d, int64_t t, int64_t b) const {
    if (!is_active(s_, a, t, b)) return;
    const int64_t h = s_.hidden;
    const BackwardRow<T> made = row_of(a, d, t, b);
    gru_reset_grad_row(made);
    std::copy_n(made.diff_gates, 2 * h, at(a, recurrent_) + (t * s_.batch + b) * 2 * h);
  }

  static constexpr int64_t kRowGrain = 4096;  // gate values that are worth a thread

  RecurrentShape s_;
  bool diff_x_wanted_, diff_h0_wanted_, diff_c0_wanted_;
  RecurrentProduct<T> back_, to_reset_;
  RecurrentParameterGrad<T> parameters_;
  Places places_;
  // Gradients of the gates [T B, G H] and of h R^T. For a GRU with the reset first, recurrent_ has
  // only z and r, last_ has n, and reset_ has r h.
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

}  // namespace ofsdp::kernels::ops
