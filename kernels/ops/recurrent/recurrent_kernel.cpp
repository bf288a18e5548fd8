#include <cstring>

#include "kernels/cpu/loops.h"
#include "kernels/ops/recurrent/recurrent_parts.h"
#include "kernels/ops/recurrent/recurrent_shape.h"

namespace ofsdp::kernels::ops {
namespace {

// --- one row of gates (a sample at one step) ---
//
// A row has G parts, one after another in ONNX's order, each with `n` = H values.

template <typename T>
struct ForwardRow {
  int64_t n;
  const GateActivation *f, *g, *h;
  T* gates;         // X W^T + b; becomes the gates
  T* recurrent;     // h R^T; scratch afterwards
  T* state;         // h, in place
  T* cell;          // LSTM's C, in place
  const T* peep;    // LSTM's P or null
  const T* bias_n;  // GRU: R_n's bias, added before the reset
  T* arguments;     // the gates'; null if not kept
  bool input_forget;
};

// Applies f to gates that start at y.
template <typename T>
void apply(const ForwardRow<T>& r, const GateActivation& f, T* y, int64_t n) {
  if (r.arguments != nullptr) std::copy_n(y, n, r.arguments + (y - r.gates));
  activate(f, y, n);
}

template <typename T>
OFSDP_MULTIARCH void rnn_row(const ForwardRow<T>& r) {
  T *a = r.gates, *rec = r.recurrent, *h = r.state;
  loop(r.n, [=](int64_t i) { a[i] += rec[i]; });
  apply(r, *r.f, a, r.n);
  loop(r.n, [=](int64_t i) { h[i] = a[i]; });
}

template <typename T>
OFSDP_MULTIARCH void lstm_row(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *i = r.gates, *o = i + n, *f = o + n, *c = f + n, *cell = r.cell, *rec = r.recurrent;
  T* state = r.state;
  const T* p = r.peep;
  loop(4 * n, [=](int64_t k) { i[k] += rec[k]; });
  if (p != nullptr) {
    loop(n, [=](int64_t k) {
      i[k] += p[k] * cell[k];
      f[k] += p[2 * n + k] * cell[k];
    });
  }
  apply(r, *r.f, i, n);
  if (r.input_forget) {
    loop(n, [=](int64_t k) { f[k] = T{1} - i[k]; });
  } else {
    apply(r, *r.f, f, n);
  }
  apply(r, *r.g, c, n);
  loop(n, [=](int64_t k) {
    cell[k] = f[k] * cell[k] + i[k] * c[k];
    rec[k] = cell[k];
  });
  if (p != nullptr) loop(n, [=](int64_t k) { o[k] += p[n + k] * cell[k]; });
  apply(r, *r.f, o, n);
  activate(*r.h, rec, n);
  loop(n, [=](int64_t k) { state[k] = o[k] * rec[k]; });
}

// Linear before reset: the last third of `recurrent` becomes q.
template <typename T>
OFSDP_MULTIARCH void gru_row(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *z = r.gates, *reset = z + n, *c = reset + n, *rec = r.recurrent, *q = rec + 2 * n;
  T* state = r.state;
  const T* bias = r.bias_n;
  loop(2 * n, [=](int64_t k) { z[k] += rec[k]; });
  apply(r, *r.f, z, 2 * n);
  if (bias != nullptr) loop(n, [=](int64_t k) { q[k] += bias[k]; });
  loop(n, [=](int64_t k) { c[k] += reset[k] * q[k]; });
  apply(r, *r.g, c, n);
  loop(n, [=](int64_t k) { state[k] = (T{1} - z[k]) * c[k] + z[k] * state[k]; });
}

// Reset first: computes gates z and r, and writes r h to the first third of `recurrent`.
// gru_last_row does the rest, once `recurrent` holds the product of r h and R_n^T.
template <typename T>
OFSDP_MULTIARCH void gru_reset_row(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *z = r.gates, *reset = z + n, *rec = r.recurrent, *state = r.state;
  loop(2 * n, [=](int64_t k) { z[k] += rec[k]; });
  apply(r, *r.f, z, 2 * n);
  loop(n, [=](int64_t k) { rec[k] = reset[k] * state[k]; });
}

template <typename T>
OFSDP_MULTIARCH void gru_last_row(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *z = r.gates, *c = z + 2 * n, *rec = r.recurrent, *state = r.state;
  loop(n, [=](int64_t k) { c[k] += rec[k]; });
  apply(r, *r.g, c, n);
  loop(n, [=](int64_t k) { state[k] = (T{1} - z[k]) * c[k] + z[k] * state[k]; });
}

// --- the kernel ---

template <typename T>
class Forward final : public Kernel {
 public:
  Forward(const RecurrentShape& s, const Problem& p) : s_(s), saves_(p.has_out(s.outputs())) {
    const int64_t rows = s.steps * s.batch, width = s.width();
    const bool reset_first = s.resets_first();
    const DType dtype = dtype_of<T>();
    MatrixProduct input = plain_product(dtype, rows, s.in, width);
    input.transpose_b = true;
    input.addend = MatrixProduct::Addend::kBias;
    input_ = RecurrentProduct<T>(input);
    MatrixProduct hidden =
        plain_product(dtype, s.batch, s.hidden, reset_first ? 2 * s.hidden : width);
    hidden.transpose_b = true;
    hidden_ = RecurrentProduct<T>(hidden);
    if (reset_first) {
      hidden.columns = s.hidden;
      candidate_ = RecurrentProduct<T>(hidden);
    }
    const auto array = [this](int64_t n) {
      return places_.add(static_cast<size_t>(n) * sizeof(T));
    };
    x_ = s.batch_first ? array(rows * s.in) : 0;
    gates_ = array(rows * width);
    recurrent_ = array(s.batch * width);
    bias_ = array(width);
    state_ = array(s.batch * s.hidden);
    cell_ = array(s.batch * s.hidden);
    keeps_arguments_ = saves_ && s.keeps_arguments();
    if (keeps_arguments_) arguments_ = array(s.batch * width);
    if (s.rounds_states()) rounded_ = array(s.batch * s.hidden);
    scratch_ = places_.add(std::max(
        {input_.workspace_bytes(), hidden_.workspace_bytes(), candidate_.workspace_bytes()}));
  }

  size_t workspace_bytes() const override { return places_.size(); }

  Status run(const KernelArgs& a) override {
    const T* x = a.in<T>(kX);
    if (s_.batch_first) {
      T* copy = at(a, x_);
      for (int64_t r = 0; r < s_.steps * s_.batch; ++r) {
        std::copy_n(x + s_.x_at(r / s_.batch, r % s_.batch), s_.in, copy + r * s_.in);
      }
      x = copy;
    }
    for (int64_t d = 0; d < s_.directions; ++d) {
      OFSDP_RETURN_IF_ERROR(run_direction(a, d, x));
    }
    return ok_status();
  }

 private:
  static T* at(const KernelArgs& a, size_t place) {
    return reinterpret_cast<T*>(a.workspace + place);
  }

  Status run_direction(const KernelArgs& a, int64_t d, const T* x) {
    const int64_t h = s_.hidden, width = s_.width();
    const T* r = a.in<T>(kR) + d * width * h;
    lay_bias(a, d);
    start_states(a, d);
    OFSDP_RETURN_IF_ERROR(input_.run(x, a.in<T>(kW) + d * width * s_.in, at(a, bias_),
                                     at(a, gates_), a.workspace + scratch_));
    for (int64_t step = 0; step < s_.steps; ++step) {
      const int64_t t = s_.time(d, step);
      OFSDP_RETURN_IF_ERROR(
          hidden_.run(seen(a, t), r, nullptr, at(a, recurrent_), a.workspace + scratch_));
      if (s_.resets_first()) {
        OFSDP_RETURN_IF_ERROR(reset_first(a, d, t, r));
      } else {
        rows(a, d, t);
      }
      store(a, d, t);
    }
    finish(a, d);
    return ok_status();
  }

  // Returns the states that the product with R reads; samples that do not run have unused ones.
  const T* seen(const KernelArgs& a, int64_t t) const {
    const T* states = at(a, state_);
    if (!s_.rounds_states()) return states;
    RangeRounder<T> rounder;
    for (int64_t b = 0; b < s_.batch; ++b) {
      if (is_active(s_, a, t, b)) rounder.see(states + b * s_.hidden, s_.hidden);
    }
    rounder.round(states, s_.batch * s_.hidden, at(a, rounded_));
    return at(a, rounded_);
  }

  // Adds the biases of W and R, except R's bias for a GRU's n if it belongs inside the reset.
  void lay_bias(const KernelArgs& a, int64_t d) const {
    const int64_t width = s_.width();
    T* bias = at(a, bias_);
    if (!given(a, kB)) {
      std::fill_n(bias, width, T{0});
      return;
    }
    const T* b = a.in<T>(kB) + d * 2 * width;
    const int64_t both = s_.linear_before_reset ? 2 * s_.hidden : width;
    for (int64_t i = 0; i < width; ++i) bias[i] = i < both ? b[i] + b[width + i] : b[i];
  }

  void start_states(const KernelArgs& a, int64_t d) const {
    for (int64_t b = 0; b < s_.batch; ++b) {
      start(a, kInitialH, d, b, at(a, state_));
      if (s_.is_lstm()) start(a, kInitialC, d, b, at(a, cell_));
    }
  }
  void start(const KernelArgs& a, size_t input, int64_t d, int64_t b, T* to) const {
    if (given(a, input)) {
      std::copy_n(a.in<T>(input) + s_.state_at(d, b), s_.hidden, to + b * s_.hidden);
    } else {
      std::fill_n(to + b * s_.hidden, s_.hidden, T{0});
    }
  }

  // Calls f(row) for each sample that is still running.
  void each_row(const KernelArgs& a, int64_t d, int64_t t, int64_t recurrent, const auto& f) const {
    const int64_t h = s_.hidden, width = s_.width();
    const T* bias = s_.linear_before_reset && given(a, kB)
                        ? a.in<T>(kB) + (2 * d + 1) * width + 2 * h
                        : nullptr;
    const T* peep = s_.is_lstm() && given(a, kP) ? a.in<T>(kP) + d * 3 * h : nullptr;
    const GateActivation* functions = &s_.activation(d, 0);
    parallel_each(s_.batch, kRowGrain / std::max<int64_t>(width, 1) + 1, [&](int64_t b) {
      if (!is_active(s_, a, t, b)) return;
      f(ForwardRow<T>{h, functions, functions + 1, functions + 2,
                      at(a, gates_) + (t * s_.batch + b) * width, at(a, recurrent_) + b * recurrent,
                      at(a, state_) + b * h, at(a, cell_) + b * h, peep, bias,
                      keeps_arguments_ ? at(a, arguments_) + b * width : nullptr, s_.input_forget});
    });
  }

  void rows(const KernelArgs& a, int64_t d, int64_t t) const {
    const int64_t width = s_.width();
    if (s_.is_lstm()) return each_row(a, d, t, width, [](const auto& row) { lstm_row(row); });
    if (s_.is_gru()) return each_row(a, d, t, width, [](const auto& row) { gru_row(row); });
    each_row(a, d, t, width, [](const auto& row) { rnn_row(row); });
  }

  // The product with R_n needs contiguous rows of r h: they go after the first 2 B H values in the
  // recurrent array.
  Status reset_first(const KernelArgs& a, int64_t d, int64_t t, const T* r) {
    const int64_t h = s_.hidden;
    each_row(a, d, t, 2 * h, [](const auto& row) { gru_reset_row(row); });
    T *both = at(a, recurrent_), *reset = both + 2 * s_.batch * h;
    for (int64_t b = 0; b < s_.batch; ++b) std::copy_n(both + b * 2 * h, h, reset + b * h);
    OFSDP_RETURN_IF_ERROR(
        candidate_.run(reset, r + 2 * h * h, nullptr, both, a.workspace + scratch_));
    each_row(a, d, t, h, [](const auto& row) { gru_last_row(row); });
    return ok_status();
  }

  void store(const KernelArgs& a, int64_t d, int64_t t) const {
    const int64_t h = s_.hidden, width = s_.width();
    T* y = a.outputs[0].data != nullptr ? a.out<T>(0) : nullptr;
    T* saved = saves_ ? a.out<T>(s_.outputs()) : nullptr;
    for (int64_t b = 0; b < s_.batch; ++b) {
      const bool runs = is_active(s_, a, t, b);
      const T* state = at(a, state_) + b * h;
      if (y != nullptr) put(runs, state, h, y + s_.y_at(t, d, b));
      if (saved == nullptr) continue;
      T* to = saved + s_.saved_at(t, d, b);
      put(runs, at(a, gates_) + (t * s_.batch + b) * width, width, to);
      if (s_.is_lstm()) put(runs, at(a, cell_) + b * h, h, to + width);
      if (s_.linear_before_reset) put(runs, at(a, recurrent_) + b * width + 2 * h, h, to + width);
      if (keeps_arguments_) put(runs, at(a, arguments_) + b * width, width, to + s_.results() * h);
    }
  }
  static void put(bool runs, const T* from, int64_t n, T* to) {
    if (runs) {
      std::copy_n(from, n, to);
    } else {
      std::fill_n(to, n, T{0});
    }
  }

  void finish(const KernelArgs& a, int64_t d) const {
    for (size_t output = 1; output < std::min(s_.outputs(), a.outputs.size()); ++output) {
      if (a.outputs[output].data == nullptr) continue;
      const T* from = at(a, output == 1 ? state_ : cell_);
      for (int64_t b = 0; b < s_.batch; ++b) {
        std::copy_n(from + b * s_.hidden, s_.hidden, a.out<T>(output) + s_.state_at(d, b));
      }
    }
  }

  static constexpr int64_t kRowGrain = 4096;  // gate values that are worth a thread

  RecurrentShape s_;
  bool saves_, keeps_arguments_;
  RecurrentProduct<T> input_, hidden_, candidate_;
  Places places_;
  size_t x_, gates_, recurrent_, bias_, state_, cell_, arguments_ = 0, rounded_ = 0, scratch_;
};

}  // namespace

std::unique_ptr<Kernel> make_recurrent(const RecurrentShape& shape, const Problem& problem) {
  if (problem.in(0).dtype == DType::kFloat64) {
    return std::make_unique<Forward<double>>(shape, problem);
  }
  return std::make_unique<Forward<float>>(shape, problem);
}

}  // namespace ofsdp::kernels::ops
