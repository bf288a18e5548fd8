// Det(x [..., n, n]): each matrix's determinant; 1 if n is 0. ofsdp.DetGrad(dy, x): dx = dy cof x,
// the cofactor matrix, which is det x inverse(x)^T if x has an inverse.
//
// Both reorder x's rows and columns so that it is L D U, with unit triangles and entries of at most
// 1 (Gauss with complete pivoting). det x is the product of D, and since cof(A B) = cof A cof B,
// the cofactors are L^-T cof(D) U^-T. cof(D) holds products of the other pivots, so nothing is
// divided by a zero pivot: singular matrices have right gradients.
// https://onnx.ai/onnx/operators/onnx__Det.html
#include <algorithm>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
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

// One matrix's memory in the workspace.
struct Factors {
  int64_t n;
  double* lu;      // [n, n]: L below the diagonal, D on it, U above
  double* solved;  // [n, n]
  double* others;  // [n]: for each pivot, the product of the others
  int64_t *rows, *columns;

  static size_t bytes(int64_t n) {
    const size_t numbers = static_cast<size_t>(2 * n * n + n) * sizeof(double);
    return align_up(numbers + static_cast<size_t>(2 * n) * sizeof(int64_t), kTensorAlignment);
  }
  Factors(int64_t size, std::byte* memory)
      : n(size),
        lu(reinterpret_cast<double*>(memory)),
        solved(lu + n * n),
        others(solved + n * n),
        rows(reinterpret_cast<int64_t*>(others + n)),
        columns(rows + n) {}

  double& at(int64_t i, int64_t j) const { return lu[i * n + j]; }

  // Factors x; returns the sign of the row and column permutation.
  double factor(const auto* x) const;
  // Fills `solved` with U^-1 cof(D) L^-1.
  void solve() const;

 private:
  bool bring_pivot(int64_t k) const;
};

// Exchanges rows and columns so that the largest remaining element comes to (k, k). Returns whether
// the number of exchanges is odd. NaN counts as largest.
bool Factors::bring_pivot(int64_t k) const {
  int64_t row = k, column = k;
  double best = std::abs(at(k, k));
  for (int64_t i = k; i < n; ++i) {
    for (int64_t j = k; j < n; ++j) {
      if (std::abs(at(i, j)) <= best) continue;
      best = std::abs(at(i, j));
      row = i;
      column = j;
    }
  }
  if (row != k) std::swap_ranges(lu + row * n, lu + (row + 1) * n, lu + k * n);
  for (int64_t i = 0; column != k && i < n; ++i) std::swap(at(i, k), at(i, column));
  std::swap(rows[k], rows[row]);
  std::swap(columns[k], columns[column]);
  return (row != k) != (column != k);
}

double Factors::factor(const auto* x) const {
  std::copy_n(x, n * n, lu);
  double sign = 1;
  for (int64_t k = 0; k < n; ++k) rows[k] = columns[k] = k;
  for (int64_t k = 0; k < n; ++k) {
    if (bring_pivot(k)) sign = -sign;
    const double pivot = at(k, k);
    if (pivot == 0) break;  // the remaining elements are 0 too
    for (int64_t i = k + 1; i < n; ++i) {
      const double factor = at(i, k) /= pivot;
      for (int64_t j = k + 1; j < n; ++j) at(i, j) -= factor * at(k, j);
    }
    for (int64_t j = k + 1; j < n; ++j) at(k, j) /= pivot;
  }
  return sign;
}

void Factors::solve() const {
  double product = 1;
  for (int64_t i = 0; i < n; ++i) {
    others[i] = product;
    product *= at(i, i);
  }
  product = 1;
  for (int64_t i = n; i-- > 0;) {
    others[i] *= product;
    product *= at(i, i);
  }
  std::fill_n(solved, n * n, 0.0);
  const auto subtract = [&](int64_t i, int64_t k) {  // subtracts row k from row i
    for (int64_t j = 0; j < n; ++j) solved[i * n + j] -= at(i, k) * solved[k * n + j];
  };
  for (int64_t i = 0; i < n; ++i) {
    solved[i * n + i] = 1;
    for (int64_t k = 0; k < i; ++k) subtract(i, k);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) solved[i * n + j] *= others[i];
  }
  for (int64_t i = n; i-- > 0;) {
    for (int64_t k = i + 1; k < n; ++k) subtract(i, k);
  }
}

// Calls f(args, factors, i) for each of `count` matrices; each thread has a part of the workspace.
template <typename F>
std::unique_ptr<Kernel> for_each_matrix(int64_t n, int64_t count, const F& f) {
  const int64_t grain = kElementGrain / (n * n * n + 16) + 1;
  const int64_t parts = std::clamp<int64_t>(count / grain, 1, pool_threads());
  const size_t bytes = Factors::bytes(n);
  return make_kernel(
      [=](const KernelArgs& a) {
        parallel_each(parts, 1, [&](int64_t part) {
          const Factors factors(n, a.workspace + static_cast<size_t>(part) * bytes);
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
                         [n](const KernelArgs& a, const Factors& factors, int64_t i) {
                           double made = factors.factor(a.in<T>(0) + i * n * n);
                           for (int64_t k = 0; k < n; ++k) made *= factors.at(k, k);
                           a.out<T>(0)[i] = static_cast<T>(made);
                         });
}

template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  const auto n = static_cast<int64_t>(size_of(p.in(1)));
  return for_each_matrix(
      n, p.in(0).numel(), [n](const KernelArgs& a, const Factors& factors, int64_t m) {
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
