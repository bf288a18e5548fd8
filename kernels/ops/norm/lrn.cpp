// LRN(x), attributes size, alpha, beta, bias: y = x s^-beta, where s_c = bias + alpha / size times
// the sum of x^2 over the `size` channels around c (one more after it if size is even). The
// gradient is ofsdp.LRNGrad(dy, x): dx_c = dy_c s_c^-beta - 2 alpha beta / size x_c sum dy_k x_k
// s_k^(-beta - 1) over all channels k with c in their window.
// https://onnx.ai/onnx/operators/onnx__LRN.html
#include <cmath>

#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace lrn {
namespace {

struct Window {
  int64_t batch, channels, inner, before, after;
  double alpha, beta, bias;  // alpha is divided by size

  int64_t first(int64_t c) const { return std::max<int64_t>(c - before, 0); }
  int64_t last(int64_t c) const { return std::min(c + after, channels - 1); }
};

Window window(const Shape& x, const Attributes& a) {
  const int64_t size = a.i("size", 1);
  return {x[0],
          x[1],
          x.numel(2, x.rank()),
          (size - 1) / 2,
          size / 2,
          static_cast<double>(a.f("alpha", 1e-4f)) / static_cast<double>(size),
          static_cast<double>(a.f("beta", 0.75f)),
          static_cast<double>(a.f("bias", 1.0f))};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() < 2) return input_error("expected [N, C, d...], found {}", x.text());
  if (c.attributes.i("size", 0) < 1) {
    return input_error("attribute 'size': expected at least 1, found {}",
                       c.attributes.i("size", 0));
  }
  return std::vector{TensorDesc{x.dtype, x.shape}};
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.LRNGrad", {b.grad_output(0), b.input(0)}, b.attributes()));
}

// Calls f(flat index of [n, c, i], c, s), with s summed in double.
void reference_walk(const Window& w, const std::vector<double>& x, const auto& f) {
  for (int64_t i = 0; i < w.batch * w.channels * w.inner; ++i) {
    const int64_t c = i / w.inner % w.channels;
    double s = 0;
    for (int64_t k = w.first(c); k <= w.last(c); ++k) {
      const double v = x[static_cast<size_t>(i + (k - c) * w.inner)];
      s += v * v;
    }
    f(i, c, w.bias + w.alpha * s);
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Window w = window(c.inputs[0].desc.shape, c.attributes);
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  reference_walk(w, c.inputs[0].values,
                 [&](int64_t i, int64_t, double s) { y[i] *= std::pow(s, -w.beta); });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const Window w = window(c.inputs[0].desc.shape, c.attributes);
  const auto &dy = c.inputs[0].values, &x = c.inputs[1].values;
  RefTensor dx{c.output_descs[0], std::vector<double>(x.size())};
  reference_walk(w, x, [&](int64_t i, int64_t channel, double s) {
    const auto at = static_cast<size_t>(i);
    dx.values[at] += dy[at] * std::pow(s, -w.beta);
    const double through = -2 * w.alpha * w.beta * dy[at] * x[at] * std::pow(s, -w.beta - 1);
    for (int64_t k = w.first(channel); k <= w.last(channel); ++k) {
      const auto to = static_cast<size_t>(i + (k - channel) * w.inner);
      dx.values[to] += through * x[to];
    }
  });
  return {dx};
}

constexpr int64_t kColumns = 64;  // pixels that are computed together

// Writes s for `n` neighbouring positions in channel c.
OFSDP_MULTIARCH void sums(const Window& w, const float* x, int64_t c, int64_t n, float* s) {
  for (int64_t i = 0; i < n; ++i) s[i] = 0;
  for (int64_t k = w.first(c); k <= w.last(c); ++k) {
    const float* row = x + k * w.inner;
    for (int64_t i = 0; i < n; ++i) s[i] += row[i] * row[i];
  }
  const float alpha = static_cast<float>(w.alpha), bias = static_cast<float>(w.bias);
  for (int64_t i = 0; i < n; ++i) s[i] = bias + alpha * s[i];
}

// p = s^-beta; the usual beta of 0.75 is two square roots.
OFSDP_MULTIARCH void powers(const float* s, double beta, int64_t n, float* p) {
  if (beta == 0.75) {
    for (int64_t i = 0; i < n; ++i) {
      const float root = __builtin_sqrtf(s[i]);
      p[i] = 1.0f / (root * __builtin_sqrtf(root));
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) p[i] = std::pow(s[i], static_cast<float>(-beta));
}

OFSDP_MULTIARCH void multiply(const float* a, const float* b, int64_t n, float* y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

// Calls f(offset of the columns, column count) for each block of columns in each sample.
void for_columns(const Window& w, const auto& f) {
  const int64_t blocks = (w.inner + kColumns - 1) / kColumns;
  parallel_each(
      w.batch * blocks, 8192 / (std::max<int64_t>(w.channels, 1) * kColumns) + 1, [&](int64_t i) {
        const int64_t column = i % blocks * kColumns;
        f(i / blocks * w.channels * w.inner + column, std::min(kColumns, w.inner - column));
      });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([w = window(p.in(0).shape, p.attributes)](const KernelArgs& a) {
    for_columns(w, [&](int64_t at, int64_t n) {
      float s[kColumns], power[kColumns];
      const float* x = a.in<float>(0) + at;
      for (int64_t c = 0; c < w.channels; ++c) {
        sums(w, x, c, n, s);
        powers(s, w.beta, n, power);
        multiply(x + c * w.inner, power, n, a.out<float>(0) + at + c * w.inner);
      }
    });
  });
}

OFSDP_MULTIARCH void direct(const float* dy, const float* power, int64_t n, float* dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] += dy[i] * power[i];
}

struct Through {
  const float *dy, *x, *s, *power;
  float factor;
};

OFSDP_MULTIARCH void through(const Through& t, const float* x, int64_t n, float* dx) {
  for (int64_t i = 0; i < n; ++i) {
    dx[i] -= t.factor * t.dy[i] * t.x[i] * (t.power[i] / t.s[i]) * x[i];
  }
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([w = window(p.in(0).shape, p.attributes)](const KernelArgs& a) {
    std::fill_n(a.out<float>(0), w.batch * w.channels * w.inner, 0.0f);
    for_columns(w, [&](int64_t at, int64_t n) {
      float s[kColumns], power[kColumns];
      const float* x = a.in<float>(1) + at;
      const float* dy = a.in<float>(0) + at;
      float* dx = a.out<float>(0) + at;
      for (int64_t c = 0; c < w.channels; ++c) {
        sums(w, x, c, n, s);
        powers(s, w.beta, n, power);
        const int64_t row = c * w.inner;
        direct(dy + row, power, n, dx + row);
        const Through t{dy + row, x + row, s, power, static_cast<float>(2 * w.alpha * w.beta)};
        for (int64_t k = w.first(c); k <= w.last(c); ++k) {
          through(t, x + k * w.inner, n, dx + k * w.inner);
        }
      }
    });
  });
}

}  // namespace
}  // namespace lrn

void add_lrn(Registry& registry) {
  using namespace lrn;
  registry.add(make_op("LRN", {infer, grad, reference},
                       with_half_floats<accepts_plain_of<float>, create>("columns")));
  registry.add_own(make_op("LRNGrad", {infer, nullptr, grad_reference},
                           with_half_floats<accepts_plain_of<float>, create_grad>("columns"),
                           {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
