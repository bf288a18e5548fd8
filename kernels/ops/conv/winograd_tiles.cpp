#include "kernels/ops/conv/winograd_tiles.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kFilterGrain = 64;  // channels by outputs worth a thread

struct Four {
  float a, b, c, d;
};
struct Three {
  float a, b, c;
};
struct Two {
  float a, b;
};

// One axis of each transform.
inline Four of_inputs(float a, float b, float c, float d) { return {a - c, b + c, c - b, b - d}; }
inline Two of_outputs(float a, float b, float c, float d) { return {a + b + c, b - c - d}; }
inline Four of_output_gradients(float a, float b) { return {a, a + b, a - b, -b}; }
inline Four of_weights(float a, float b, float c) {
  return {a, 0.5f * (a + b + c), 0.5f * (a - b + c), c};
}
inline Three of_weight_gradients(float a, float b, float c, float d) {
  return {a + 0.5f * (b + c), 0.5f * (b - c), 0.5f * (b + c) + d};
}

template <typename T>
OFSDP_MULTIARCH void inputs(const T* __restrict d, int64_t row, int64_t channels,
                            float* __restrict planes, int64_t plane) {
#pragma GCC ivdep  // planes and pixels lie apart
  for (int64_t c = 0; c < channels; ++c) {
    const auto column = [&](int64_t j) {
      const T* at = d + j * channels + c;
      return of_inputs(as_float(at[0]), as_float(at[row]), as_float(at[2 * row]),
                       as_float(at[3 * row]));
    };
    const auto put = [&](int64_t i, const Four& v) {
      float* at = planes + 4 * i * plane + c;
      at[0] = v.a, at[plane] = v.b, at[2 * plane] = v.c, at[3 * plane] = v.d;
    };
    const Four p = column(0), q = column(1), r = column(2), s = column(3);
    put(0, of_inputs(p.a, q.a, r.a, s.a));
    put(1, of_inputs(p.b, q.b, r.b, s.b));
    put(2, of_inputs(p.c, q.c, r.c, s.c));
    put(3, of_inputs(p.d, q.d, r.d, s.d));
  }
}

template <typename T>
OFSDP_MULTIARCH void outputs(const float* __restrict planes, int64_t plane,
                             const float* __restrict bias, T* __restrict y, int64_t row,
                             int64_t channels) {
#pragma GCC ivdep  // planes and pixels lie apart
  for (int64_t c = 0; c < channels; ++c) {
    const auto along = [&](int64_t i) {
      const float* at = planes + 4 * i * plane + c;
      return of_outputs(at[0], at[plane], at[2 * plane], at[3 * plane]);
    };
    const Two p = along(0), q = along(1), r = along(2), s = along(3);
    const Two left = of_outputs(p.a, q.a, r.a, s.a), right = of_outputs(p.b, q.b, r.b, s.b);
    y[c] = stored<T>(left.a + bias[c]), y[channels + c] = stored<T>(right.a + bias[c]);
    y[row + c] = stored<T>(left.b + bias[c]);
    y[row + channels + c] = stored<T>(right.b + bias[c]);
  }
}

template <typename T>
OFSDP_MULTIARCH void output_gradients(const T* __restrict dy, int64_t row, int64_t channels,
                                      float* __restrict planes, int64_t plane) {
#pragma GCC ivdep  // planes and pixels lie apart
  for (int64_t c = 0; c < channels; ++c) {
    const T* next = dy + channels;
    const Four left = of_output_gradients(as_float(dy[c]), as_float(dy[row + c]));
    const Four right = of_output_gradients(as_float(next[c]), as_float(next[row + c]));
    const auto put = [&](int64_t i, const Four& v) {
      float* at = planes + 4 * i * plane + c;
      at[0] = v.a, at[plane] = v.b, at[2 * plane] = v.c, at[3 * plane] = v.d;
    };
    put(0, of_output_gradients(left.a, right.a));
    put(1, of_output_gradients(left.b, right.b));
    put(2, of_output_gradients(left.c, right.c));
    put(3, of_output_gradients(left.d, right.d));
  }
}

constexpr int64_t kLanes = 16, kTaps = 9;
using Taps = float[kTaps][kLanes];  // of some weights side by side

OFSDP_MULTIARCH void weights(const Taps& g, float* __restrict planes, int64_t plane,
                             int64_t count) {
  float made[kTilePlanes][kLanes];
#pragma GCC ivdep
  for (int64_t l = 0; l < kLanes; ++l) {
    const Four p = of_weights(g[0][l], g[3][l], g[6][l]);
    const Four q = of_weights(g[1][l], g[4][l], g[7][l]);
    const Four r = of_weights(g[2][l], g[5][l], g[8][l]);
    const auto put = [&](int64_t i, const Four& v) {
      made[4 * i][l] = v.a, made[4 * i + 1][l] = v.b;
      made[4 * i + 2][l] = v.c, made[4 * i + 3][l] = v.d;
    };
    put(0, of_weights(p.a, q.a, r.a));
    put(1, of_weights(p.b, q.b, r.b));
    put(2, of_weights(p.c, q.c, r.c));
    put(3, of_weights(p.d, q.d, r.d));
  }
  for (int64_t k = 0; k < kTilePlanes; ++k) std::copy_n(made[k], count, planes + k * plane);
}

OFSDP_MULTIARCH void weight_gradients(const float* __restrict planes, int64_t plane, int64_t count,
                                      Taps& g) {
  float given[kTilePlanes][kLanes] = {};
  for (int64_t k = 0; k < kTilePlanes; ++k) std::copy_n(planes + k * plane, count, given[k]);
#pragma GCC ivdep
  for (int64_t l = 0; l < kLanes; ++l) {
    const auto along = [&](int64_t i) {
      return of_weight_gradients(given[4 * i][l], given[4 * i + 1][l], given[4 * i + 2][l],
                                 given[4 * i + 3][l]);
    };
    const Three p = along(0), q = along(1), r = along(2), s = along(3);
    const auto put = [&](int64_t j, const Three& v) {
      g[j][l] = v.a, g[j + 3][l] = v.b, g[j + 6][l] = v.c;
    };
    put(0, of_weight_gradients(p.a, q.a, r.a, s.a));
    put(1, of_weight_gradients(p.b, q.b, r.b, s.b));
    put(2, of_weight_gradients(p.c, q.c, r.c, s.c));
  }
}

OFSDP_MULTIARCH void add_rows_of(const float* __restrict rows, int64_t count, int64_t channels,
                                 double* __restrict sums) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < channels; ++c) sums[c] += rows[i * channels + c];
  }
}

}  // namespace

template <typename T>
void transform_inputs(const Pixels<const T>& d, float* planes, int64_t plane) {
  inputs(d.data, d.row, d.channels, planes, plane);
}

template <typename T>
void transform_outputs(const float* planes, int64_t plane, const float* bias, const Pixels<T>& y) {
  outputs(planes, plane, bias, y.data, y.row, y.channels);
}

template <typename T>
void transform_output_gradients(const Pixels<const T>& dy, float* planes, int64_t plane) {
  output_gradients(dy.data, dy.row, dy.channels, planes, plane);
}

template <typename T>
void transform_weights(const T* w, int64_t outputs, int64_t channels, bool turned, float* planes) {
  const int64_t rows = turned ? outputs : channels, columns = turned ? channels : outputs;
  const int64_t step = kTaps * (turned ? 1 : channels);
  parallel_each(rows, kFilterGrain / columns + 1, [&](int64_t row) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      const int64_t count = std::min(kLanes, columns - column);
      const T* from = w + row * kTaps * (turned ? channels : 1) + column * step;
      Taps g{};
      for (int64_t lane = 0; lane < count; ++lane) {
        for (int64_t k = 0; k < kTaps; ++k) {
          g[turned ? kTaps - 1 - k : k][lane] = as_float(from[lane * step + k]);
        }
      }
      weights(g, planes + row * columns + column, outputs * channels, count);
    }
  });
}

template <typename T>
void transform_weight_gradients(const float* planes, int64_t outputs, int64_t channels, T* dw) {
  parallel_each(channels, kFilterGrain / outputs + 1, [&](int64_t c) {
    for (int64_t m = 0; m < outputs; m += kLanes) {
      const int64_t count = std::min(kLanes, outputs - m);
      Taps g{};
      weight_gradients(planes + c * outputs + m, outputs * channels, count, g);
      for (int64_t lane = 0; lane < count; ++lane) {
        T* const to = dw + kTaps * ((m + lane) * channels + c);
        for (int64_t k = 0; k < kTaps; ++k) to[k] = stored<T>(g[k][lane]);
      }
    }
  });
}

void add_rows(const float* rows, int64_t count, int64_t channels, double* sums) {
  add_rows_of(rows, count, channels, sums);
}

#define OFSDP_WINOGRAD_OF(T)                                                                 \
  template void transform_inputs<T>(const Pixels<const T>&, float*, int64_t);                \
  template void transform_outputs<T>(const float*, int64_t, const float*, const Pixels<T>&); \
  template void transform_output_gradients<T>(const Pixels<const T>&, float*, int64_t);      \
  template void transform_weights<T>(const T*, int64_t, int64_t, bool, float*);              \
  template void transform_weight_gradients<T>(const float*, int64_t, int64_t, T*);
OFSDP_WINOGRAD_OF(float)
OFSDP_WINOGRAD_OF(BFloat16)
OFSDP_WINOGRAD_OF(Half)
#undef OFSDP_WINOGRAD_OF

}  // namespace ofsdp::kernels::ops
