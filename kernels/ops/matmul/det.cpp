// Det(x [..., n, n]): each matrix's determinant; 1 if n is 0. ofsdp.DetGrad(dy, x): dx = dy cof x,
// the cofactor matrix, which is det x inverse(x)^T if x has an inverse.
//
// kernels/formulas/pivots.h has the elimination.
// https://onnx.ai/onnx/operators/onnx__Det.html
#include <algorithm>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/formulas/pivots.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace det {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const int rank = x.shape.rank();
  if (rank < 2 || x.shape[rank - 1] != x.shape[rank - 2]) {
    return input_error("expected square matrices, found {}", x.text());
  }
  const auto& axes = x.shape.axes();
  return std::vector{TensorDesc{x.dtype, Shape(std::vector(axes.begin(), axes.end() - 2))}};
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.DetGrad", {b.grad_output(0), b.input(0)}));
}

// --- references: elimination by rows, one determinant per cofactor ---

double determinant(std::vector<double> a, size_t n) {
  double made = 1;
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k; i < n; ++i) {
      if (std::abs(a[i * n + k]) > std::abs(a[pivot * n + k])) pivot = i;
    }
    if (a[pivot * n + k] == 0) return 0;
    for (size_t j = 0; pivot != k && j < n; ++j) std::swap(a[k * n + j], a[pivot * n + j]);
    made *= pivot == k ? a[k * n + k] : -a[k * n + k];
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i * n + k] / a[k * n + k];
      for (size_t j = k; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return made;
}

size_t size_of(const TensorDesc& x) { return static_cast<size_t>(x.shape[x.shape.rank() - 1]); }

std::vector<double> matrix_of(const RefTensor& x, int64_t i) {
  const auto size = static_cast<std::ptrdiff_t>(size_of(x.desc) * size_of(x.desc));
  return {x.values.begin() + i * size, x.values.begin() + (i + 1) * size};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    y[i] = determinant(matrix_of(c.inputs[0], i), size_of(c.inputs[0].desc));
  }
  return {y};
}

double cofactor(const std::vector<double>& a, size_t n, size_t row, size_t column) {
  std::vector<double> minor;
  for (size_t at = 0; at < n * n; ++at) {
    if (at / n != row && at % n != column) minor.push_back(a[at]);
  }
  return determinant(minor, n - 1) * ((row + column) % 2 == 0 ? 1 : -1);
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], {}};
  const size_t n = size_of(dx.desc);
  for (int64_t i = 0; i < c.inputs[0].desc.numel(); ++i) {
    for (size_t at = 0; at < n * n; ++at) {
      dx.values.push_back(c.inputs[0][i] * cofactor(matrix_of(c.inputs[1], i), n, at / n, at % n));
    }
  }
  return {dx};
}

// --- kernels, in double ---

// Calls f(args, factors, i) for each of `count` matrices; each thread has a part of the workspace.
template <typename F>
std::unique_ptr<Kernel> for_each_matrix(int64_t n, int64_t count, const F& f) {
  const int64_t grain = kElementGrain / (n * n * n + 16) + 1;
  const int64_t parts = std::clamp<int64_t>(count / grain, 1, pool_threads());
  const size_t bytes = align_up(PivotedMatrix::bytes(n), kTensorAlignment);
  return make_kernel(
      [=](const KernelArgs& a) {
        parallel_each(parts, 1, [&](int64_t part) {
          const PivotedMatrix factors(n, a.workspace + static_cast<size_t>(part) * bytes);
          for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
            f(a, factors, i);
          }
        });
      },
      static_cast<size_t>(parts) * bytes);
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const auto n = static_cast<int64_t>(size_of(p.in(0)));
  return for_each_matrix(n, p.out(0).numel(),
                         [n](const KernelArgs& a, const PivotedMatrix& factors, int64_t i) {
                           double made = factors.factor(a.in<T>(0) + i * n * n);
                           for (int64_t k = 0; k < n; ++k) made *= factors.at(k, k);
                           a.out<T>(0)[i] = static_cast<T>(made);
                         });
}

template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  const auto n = static_cast<int64_t>(size_of(p.in(1)));
  return for_each_matrix(
      n, p.in(0).numel(), [n](const KernelArgs& a, const PivotedMatrix& factors, int64_t m) {
        const double scale =
            factors.factor(a.in<T>(1) + m * n * n) * static_cast<double>(a.in<T>(0)[m]);
        factors.solve();
        T* dx = a.out<T>(0) + m * n * n;
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            dx[factors.rows[i] * n + factors.columns[j]] =
                static_cast<T>(scale * factors.solved[j * n + i]);
          }
        }
      });
}

}  // namespace det

void add_det(Registry& registry) {
  using namespace det;
  registry.add(make_op("Det", {infer, grad, reference},
                       plain_float_kernels<create<float>, create<double>>("pivots"),
                       {.first_opset = 11}));
  registry.add_own(make_op("DetGrad", {infer_like_inputs({1}), nullptr, grad_reference},
                           plain_float_kernels<create_grad<float>, create_grad<double>>("pivots"),
                           {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
