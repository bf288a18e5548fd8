// Gauss with complete pivoting in double, for Det and its gradient, on the CPU and on devices. It
// reorders x's rows and columns so that x is L D U, with unit triangles and entries of at most 1.
// det x is the product of D. Since cof(A B) = cof A cof B, the cofactors are L^-T cof(D) U^-T.
// cof(D) holds products of the other pivots, so nothing is divided by a zero pivot: singular
// matrices have right gradients.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

// One matrix's memory: `bytes(n)`, aligned as doubles.
struct PivotedMatrix {
  int64_t n;
  double* lu;      // [n, n]: L below the diagonal, D on it, U above
  double* solved;  // [n, n]
  double* others;  // [n]: for each pivot, the product of the others
  int64_t *rows, *columns;

  OFSDP_HD static size_t bytes(int64_t n) {
    return static_cast<size_t>(2 * n * n + n) * sizeof(double) +
           static_cast<size_t>(2 * n) * sizeof(int64_t);
  }
  OFSDP_HD PivotedMatrix(int64_t size, void* memory)
      : n(size),
        lu(static_cast<double*>(memory)),
        solved(lu + n * n),
        others(solved + n * n),
        rows(reinterpret_cast<int64_t*>(others + n)),
        columns(rows + n) {}

  OFSDP_HD double& at(int64_t i, int64_t j) const { return lu[i * n + j]; }

  // Factors x; returns the sign of the row and column permutation.
  template <typename T>
  OFSDP_HD double factor(const T* x) const {
    for (int64_t i = 0; i < n * n; ++i) lu[i] = static_cast<double>(x[i]);
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

  // Fills `solved` with U^-1 cof(D) L^-1.
  OFSDP_HD void solve() const {
    multiply_others();
    for (int64_t i = 0; i < n * n; ++i) solved[i] = 0;
    for (int64_t i = 0; i < n; ++i) {
      solved[i * n + i] = 1;
      for (int64_t k = 0; k < i; ++k) subtract_row(i, k);
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) solved[i * n + j] *= others[i];
    }
    for (int64_t i = n; i-- > 0;) {
      for (int64_t k = i + 1; k < n; ++k) subtract_row(i, k);
    }
  }

 private:
  template <typename T>
  OFSDP_HD static void exchange(T& a, T& b) {
    const T kept = a;
    a = b;
    b = kept;
  }

  // Exchanges rows and columns so that the largest remaining element comes to (k, k). Returns
  // whether the number of exchanges is odd. NaN counts as largest.
  OFSDP_HD bool bring_pivot(int64_t k) const {
    int64_t row = k, column = k;
    double best = std::fabs(at(k, k));
    for (int64_t i = k; i < n; ++i) {
      for (int64_t j = k; j < n; ++j) {
        if (std::fabs(at(i, j)) <= best) continue;
        best = std::fabs(at(i, j));
        row = i;
        column = j;
      }
    }
    for (int64_t j = 0; row != k && j < n; ++j) exchange(at(k, j), at(row, j));
    for (int64_t i = 0; column != k && i < n; ++i) exchange(at(i, k), at(i, column));
    exchange(rows[k], rows[row]);
    exchange(columns[k], columns[column]);
    return (row != k) != (column != k);
  }

  OFSDP_HD void multiply_others() const {
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
  }

  OFSDP_HD void subtract_row(int64_t i, int64_t k) const {  // row k of `solved` from row i
    for (int64_t j = 0; j < n; ++j) solved[i * n + j] -= at(i, k) * solved[k * n + j];
  }
};

}  // namespace ofsdp::kernels
