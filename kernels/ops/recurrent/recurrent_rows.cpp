#include "kernels/ops/recurrent/recurrent_rows.h"

#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels::ops {
namespace {

// The loops of one pass each. Rows never overlap except where named the same.
template <typename T, typename F>
[[gnu::always_inline]] inline void loop(int64_t n, const F& f) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) f(i);
}

template <typename T>
[[gnu::always_inline]] inline void rnn(const ForwardRow<T>& r) {
  T *a = r.gates, *rec = r.recurrent, *h = r.state;
  loop<T>(r.n, [=](int64_t i) { a[i] += rec[i]; });
  activate(*r.f, a, r.n);
  loop<T>(r.n, [=](int64_t i) { h[i] = a[i]; });
}

template <typename T>
[[gnu::always_inline]] inline void lstm(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *i = r.gates, *o = i + n, *f = o + n, *c = f + n, *cell = r.cell, *rec = r.recurrent;
  T* state = r.state;
  const T* p = r.peep;
  loop<T>(4 * n, [=](int64_t k) { i[k] += rec[k]; });
  if (p != nullptr) {
    loop<T>(n, [=](int64_t k) {
      i[k] += p[k] * cell[k];
      f[k] += p[2 * n + k] * cell[k];
    });
  }
  activate(*r.f, i, n);
  if (r.input_forget) {
    loop<T>(n, [=](int64_t k) { f[k] = T{1} - i[k]; });
  } else {
    activate(*r.f, f, n);
  }
  activate(*r.g, c, n);
  loop<T>(n, [=](int64_t k) {
    cell[k] = f[k] * cell[k] + i[k] * c[k];
    rec[k] = cell[k];
  });
  if (p != nullptr) loop<T>(n, [=](int64_t k) { o[k] += p[n + k] * cell[k]; });
  activate(*r.f, o, n);
  activate(*r.h, rec, n);
  loop<T>(n, [=](int64_t k) { state[k] = o[k] * rec[k]; });
}

template <typename T>
[[gnu::always_inline]] inline void gru(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *z = r.gates, *reset = z + n, *c = reset + n, *rec = r.recurrent, *q = rec + 2 * n;
  T* state = r.state;
  const T* bias = r.bias_n;
  loop<T>(2 * n, [=](int64_t k) { z[k] += rec[k]; });
  activate(*r.f, z, 2 * n);
  if (bias != nullptr) loop<T>(n, [=](int64_t k) { q[k] += bias[k]; });
  loop<T>(n, [=](int64_t k) { c[k] += reset[k] * q[k]; });
  activate(*r.g, c, n);
  loop<T>(n, [=](int64_t k) { state[k] = (T{1} - z[k]) * c[k] + z[k] * state[k]; });
}

template <typename T>
[[gnu::always_inline]] inline void gru_reset(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *z = r.gates, *reset = z + n, *rec = r.recurrent, *state = r.state;
  loop<T>(2 * n, [=](int64_t k) { z[k] += rec[k]; });
  activate(*r.f, z, 2 * n);
  loop<T>(n, [=](int64_t k) { rec[k] = reset[k] * state[k]; });
}

template <typename T>
[[gnu::always_inline]] inline void gru_last(const ForwardRow<T>& r) {
  const int64_t n = r.n;
  T *z = r.gates, *c = z + 2 * n, *rec = r.recurrent, *state = r.state;
  loop<T>(n, [=](int64_t k) { c[k] += rec[k]; });
  activate(*r.g, c, n);
  loop<T>(n, [=](int64_t k) { state[k] = (T{1} - z[k]) * c[k] + z[k] * state[k]; });
}

template <typename T>
[[gnu::always_inline]] inline void rnn_grad(const BackwardRow<T>& r) {
  T *d = r.diff_gates, *dh = r.diff_state;
  loop<T>(r.n, [=](int64_t k) {
    d[k] = dh[k];
    dh[k] = 0;
  });
  activate_grad(*r.f, r.saved, d, r.n);
}

template <typename T>
[[gnu::always_inline]] inline void lstm_grad(const BackwardRow<T>& r) {
  const int64_t n = r.n;
  const T *i = r.saved, *o = i + n, *f = o + n, *c = f + n, *cell = c + n, *before = r.cell_before;
  T *di = r.diff_gates, *d_o = di + n, *df = d_o + n, *dc = df + n;
  T *dh = r.diff_state, *d_cell = r.diff_cell, *h = r.scratch;
  const T* p = r.peep;
  loop<T>(n, [=](int64_t k) { h[k] = cell[k]; });
  activate(*r.h, h, n);
  loop<T>(n, [=](int64_t k) {
    d_o[k] = dh[k] * h[k];
    dh[k] *= o[k];
  });
  activate_grad(*r.f, o, d_o, n);
  activate_grad(*r.h, h, dh, n);
  loop<T>(n, [=](int64_t k) { d_cell[k] += dh[k]; });
  if (p != nullptr) loop<T>(n, [=](int64_t k) { d_cell[k] += d_o[k] * p[n + k]; });
  if (r.input_forget) {
    loop<T>(n, [=](int64_t k) {
      di[k] = d_cell[k] * (c[k] - before[k]);
      df[k] = 0;
    });
  } else {
    loop<T>(n, [=](int64_t k) {
      di[k] = d_cell[k] * c[k];
      df[k] = d_cell[k] * before[k];
    });
    activate_grad(*r.f, f, df, n);
  }
  activate_grad(*r.f, i, di, n);
  loop<T>(n, [=](int64_t k) {
    dc[k] = d_cell[k] * i[k];
    d_cell[k] *= f[k];
    dh[k] = 0;
  });
  activate_grad(*r.g, c, dc, n);
  if (p == nullptr) return;
  loop<T>(n, [=](int64_t k) { d_cell[k] += di[k] * p[k] + df[k] * p[2 * n + k]; });
}

// What both GRUs share: gradients of z and n, and past the product.
template <typename T>
[[gnu::always_inline]] inline void gru_first_grad(const BackwardRow<T>& r) {
  const int64_t n = r.n;
  const T *z = r.saved, *c = z + 2 * n, *before = r.before;
  T *dz = r.diff_gates, *dc = dz + 2 * n, *dh = r.diff_state;
  loop<T>(n, [=](int64_t k) {
    dz[k] = dh[k] * (before[k] - c[k]);
    dc[k] = dh[k] * (T{1} - z[k]);
    dh[k] *= z[k];
  });
  activate_grad(*r.f, z, dz, n);
  activate_grad(*r.g, c, dc, n);
}

template <typename T>
[[gnu::always_inline]] inline void gru_grad(const BackwardRow<T>& r) {
  gru_first_grad(r);
  const int64_t n = r.n;
  const T *reset = r.saved + n, *q = r.saved + 3 * n;
  T *dz = r.diff_gates, *dr = dz + n, *dc = dr + n, *rec = r.diff_recurrent;
  loop<T>(n, [=](int64_t k) { dr[k] = dc[k] * q[k]; });
  activate_grad(*r.f, reset, dr, n);
  loop<T>(n, [=](int64_t k) {
    rec[k] = dz[k];
    rec[n + k] = dr[k];
    rec[2 * n + k] = dc[k] * reset[k];
  });
}

template <typename T>
[[gnu::always_inline]] inline void gru_reset_grad(const BackwardRow<T>& r) {
  const int64_t n = r.n;
  const T *reset = r.saved + n, *before = r.before, *d = r.diff_recurrent;
  T *dr = r.diff_gates + n, *dh = r.diff_state;
  loop<T>(n, [=](int64_t k) {
    dr[k] = d[k] * before[k];
    dh[k] += d[k] * reset[k];
  });
  activate_grad(*r.f, reset, dr, n);
}

OFSDP_MULTIARCH void floats_rnn(const ForwardRow<float>& r) { rnn(r); }
OFSDP_MULTIARCH void floats_lstm(const ForwardRow<float>& r) { lstm(r); }
OFSDP_MULTIARCH void floats_gru(const ForwardRow<float>& r) { gru(r); }
OFSDP_MULTIARCH void floats_gru_reset(const ForwardRow<float>& r) { gru_reset(r); }
OFSDP_MULTIARCH void floats_gru_last(const ForwardRow<float>& r) { gru_last(r); }
OFSDP_MULTIARCH void floats_rnn_grad(const BackwardRow<float>& r) { rnn_grad(r); }
OFSDP_MULTIARCH void floats_lstm_grad(const BackwardRow<float>& r) { lstm_grad(r); }
OFSDP_MULTIARCH void floats_gru_grad(const BackwardRow<float>& r) { gru_grad(r); }
OFSDP_MULTIARCH void floats_gru_first_grad(const BackwardRow<float>& r) { gru_first_grad(r); }
OFSDP_MULTIARCH void floats_gru_reset_grad(const BackwardRow<float>& r) { gru_reset_grad(r); }

}  // namespace

void rnn_row(const ForwardRow<float>& row) { floats_rnn(row); }
void rnn_row(const ForwardRow<double>& row) { rnn(row); }
void lstm_row(const ForwardRow<float>& row) { floats_lstm(row); }
void lstm_row(const ForwardRow<double>& row) { lstm(row); }
void gru_row(const ForwardRow<float>& row) { floats_gru(row); }
void gru_row(const ForwardRow<double>& row) { gru(row); }
void gru_reset_row(const ForwardRow<float>& row) { floats_gru_reset(row); }
void gru_reset_row(const ForwardRow<double>& row) { gru_reset(row); }
void gru_last_row(const ForwardRow<float>& row) { floats_gru_last(row); }
void gru_last_row(const ForwardRow<double>& row) { gru_last(row); }
void rnn_grad_row(const BackwardRow<float>& row) { floats_rnn_grad(row); }
void rnn_grad_row(const BackwardRow<double>& row) { rnn_grad(row); }
void lstm_grad_row(const BackwardRow<float>& row) { floats_lstm_grad(row); }
void lstm_grad_row(const BackwardRow<double>& row) { lstm_grad(row); }
void gru_grad_row(const BackwardRow<float>& row) { floats_gru_grad(row); }
void gru_grad_row(const BackwardRow<double>& row) { gru_grad(row); }
void gru_first_grad_row(const BackwardRow<float>& row) { floats_gru_first_grad(row); }
void gru_first_grad_row(const BackwardRow<double>& row) { gru_first_grad(row); }
void gru_reset_grad_row(const BackwardRow<float>& row) { floats_gru_reset_grad(row); }
void gru_reset_grad_row(const BackwardRow<double>& row) { gru_reset_grad(row); }

}  // namespace ofsdp::kernels::ops
