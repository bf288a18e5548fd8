// Reductions (reduce.h) over any axes of a row-major tensor. An axis is reduced or kept; two
// StridedLoops (broadcast.h) walk them:
//
//   kept_     one output per step. Operand 0 is src, operand 1 dst
//   reduced_  the inputs of one output. Operand 0 is src, relative to that output's first input
//
// A StridedLoop merges axes where it can, into `rows` rows of `inner` elements that are
// inner_stride apart. at[k] is the offset of a row in operand k, in elements.
//
// Reduction::run chooses between two loops:
//
//   columns  if neighbouring outputs have neighbouring inputs (the last axis is kept, as in bias
//            gradients): up to kSumColumns outputs at once, row by row of src
//   element  otherwise, also for a single output: one output at a time, contiguous inputs by vector
//            loops
//
// Sums keep the error small: each partial result takes kSumBlock terms, and is then added to the
// total. The order of additions depends only on the shape.
#include "kernels/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kSumBlock = 64;     // terms of a partial sum, which is then added to the total
constexpr int64_t kSumColumns = 128;  // outputs that `columns` sums at once: 512 bytes of totals

// A kind's rule. `load` maps an element (x, |x| or x^2), `join` reduces two loaded elements or
// partial results, and kStart is the result without elements.
template <ReduceKind kind>
struct Rule {
  static constexpr bool kExtreme = kind == ReduceKind::kMax || kind == ReduceKind::kMin;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kStart = kind == ReduceKind::kProduct ? 1.0f
                                  : kind == ReduceKind::kMax   ? -kInfinity
                                  : kind == ReduceKind::kMin   ? kInfinity
                                                               : 0.0f;
  [[gnu::always_inline]] static float load(float x) {
    if constexpr (kind == ReduceKind::kSumAbs) return __builtin_fabsf(x);
    if constexpr (kind == ReduceKind::kSumSquares) return x * x;
    return x;
  }
  [[gnu::always_inline]] static float join(float a, float b) {
    if constexpr (kind == ReduceKind::kProduct) return a * b;
    if constexpr (kind == ReduceKind::kMax) return (b > a) | (b != b) ? b : a;  // a NaN wins
    if constexpr (kind == ReduceKind::kMin) return (b < a) | (b != b) ? b : a;
    return a + b;
  }
};

// Calls f(Rule<kind>{}). The caller is an OFSDP_MULTIARCH function, which the compiler makes once
// per instruction set (kernels/cpu/parallel.h); inlining makes the loop in f part of each version.
[[gnu::always_inline]] inline auto with_rule(ReduceKind kind, const auto& f) {
  switch (kind) {
    case ReduceKind::kSum:
      return f(Rule<ReduceKind::kSum>{});
    case ReduceKind::kSumAbs:
      return f(Rule<ReduceKind::kSumAbs>{});
    case ReduceKind::kSumSquares:
      return f(Rule<ReduceKind::kSumSquares>{});
    case ReduceKind::kProduct:
      return f(Rule<ReduceKind::kProduct>{});
    case ReduceKind::kMax:
      return f(Rule<ReduceKind::kMax>{});
    default:
      return f(Rule<ReduceKind::kMin>{});
  }
}

float initial(ReduceKind kind) {
  return with_rule(kind, [](auto rule) { return rule.kStart; });
}

float combine(ReduceKind kind, float a, float b) {
  return with_rule(
      kind, [&](auto rule) __attribute__((always_inline)) { return rule.join(a, b); });
}

// total[i] = join(total[i], row[i]); the row holds partial results.
OFSDP_MULTIARCH void join_row(ReduceKind kind, float* total, const float* row, int64_t n) {
  with_rule(
      kind, [&](auto rule) __attribute__((always_inline)) {
        for (int64_t i = 0; i < n; ++i) total[i] = rule.join(total[i], row[i]);
      });
}

// total[i] = join(total[i], load(row[i])); the row holds elements.
OFSDP_MULTIARCH void load_row(ReduceKind kind, float* total, const auto* row, int64_t n) {
  with_rule(
      kind, [&](auto rule) __attribute__((always_inline)) {
        for (int64_t i = 0; i < n; ++i) total[i] = rule.join(total[i], rule.load(as_float(row[i])));
      });
}

// Joins 64 columns of `rows` rows, which begin `stride` elements apart, to total[0..63]. The fixed
// width keeps the 64 partial results in registers.
OFSDP_MULTIARCH void load_rows_64(ReduceKind kind, float* total, const auto* src, int64_t rows,
                                  int64_t stride) {
  with_rule(
      kind, [&](auto rule) __attribute__((always_inline)) {
        float partial[64];
        for (int i = 0; i < 64; ++i) partial[i] = rule.load(as_float(src[i]));
        for (int64_t r = 1; r < rows; ++r) {
          for (int i = 0; i < 64; ++i) {
            partial[i] = rule.join(partial[i], rule.load(as_float(src[r * stride + i])));
          }
        }
        for (int i = 0; i < 64; ++i) total[i] = rule.join(total[i], partial[i]);
      });
}

// Maximum or minimum. A separate loop finds NaNs, since gcc does not vectorize a comparison that
// also lets a NaN win.
template <ReduceKind kind>
[[gnu::always_inline]] inline float extreme_of(const float* src, int64_t n) {
  const float nans = lane_sum(n, [src](int64_t i) { return src[i] != src[i] ? 1.0f : 0.0f; });
  if (nans > 0.0f) return std::numeric_limits<float>::quiet_NaN();
  return lane_extreme(src, n, Rule<kind>::kStart, [](float a, float b) {
    return (kind == ReduceKind::kMax ? b > a : b < a) ? b : a;
  });
}

// Reduces n neighbouring floats in kSumLanes lanes: lane k takes every element k + i * kSumLanes.
OFSDP_MULTIARCH float reduce_contiguous(ReduceKind kind, const float* src, int64_t n) {
  if (kind == ReduceKind::kMax) return extreme_of<ReduceKind::kMax>(src, n);
  if (kind == ReduceKind::kMin) return extreme_of<ReduceKind::kMin>(src, n);
  return with_rule(
      kind, [&](auto rule) __attribute__((always_inline)) {
        float lanes[kSumLanes];
        for (float& lane : lanes) lane = rule.kStart;
        int64_t i = 0;
        for (; i + kSumLanes <= n; i += kSumLanes) {
          for (int64_t lane = 0; lane < kSumLanes; ++lane) {
            lanes[lane] = rule.join(lanes[lane], rule.load(src[i + lane]));
          }
        }
        for (int64_t lane = 0; i < n; ++i, ++lane) {
          lanes[lane] = rule.join(lanes[lane], rule.load(src[i]));
        }
        float result = rule.kStart;
        for (float lane : lanes) result = rule.join(result, lane);
        return result;
      });
}

// Reduces elements that are `stride` apart, one after the other and without blocks.
float reduce_strided(ReduceKind kind, const auto* src, int64_t n, int64_t stride) {
  return with_rule(
      kind, [&](auto rule) __attribute__((always_inline)) {
        float result = rule.kStart;
        for (int64_t i = 0; i < n; ++i)
          result = rule.join(result, rule.load(as_float(src[i * stride])));
        return result;
      });
}

OFSDP_MULTIARCH void load_floats(const auto* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = as_float(src[i]);
}

template <typename T>
OFSDP_MULTIARCH void store_floats(const float* src, float scale, T* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = stored<T>(src[i] * scale);
}

// Reduces n neighbouring elements in blocks of kSumBlock * kSumLanes: each lane of a block takes
// kSumBlock terms. 16-bit elements are widened block by block.
template <typename T>
float reduce_row(ReduceKind kind, const T* src, int64_t n) {
  constexpr int64_t kBlock = kSumBlock * kSumLanes;
  float wide[std::is_same_v<T, float> ? 1 : kBlock];
  float result = initial(kind);
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    if constexpr (std::is_same_v<T, float>) {
      result = combine(kind, result, reduce_contiguous(kind, src + i, count));
    } else {
      load_floats(src + i, wide, count);
      result = combine(kind, result, reduce_contiguous(kind, wide, count));
    }
  }
  return result;
}

// Returns the values of the axes with reduced[axis] == wanted.
std::vector<int64_t> pick(const std::vector<int64_t>& values, const std::vector<bool>& reduced,
                          bool wanted) {
  std::vector<int64_t> picked;
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (reduced[axis] == wanted) picked.push_back(values[axis]);
  }
  return picked;
}

// Returns the loop over the reduced axes (`wanted`) or the kept ones, with strides in src (operand
// 0) and in a dense tensor of only these axes (operand 1).
StridedLoop loop_over(const Shape& shape, const std::vector<bool>& reduced, bool wanted) {
  const Shape part(pick(shape.axes(), reduced, wanted));
  return {part,
          {pick(strides_of({DType::kFloat32, shape}), reduced, wanted),
           strides_of({DType::kFloat32, part})}};
}

}  // namespace

FoldLoops::FoldLoops(const Shape& shape, const std::vector<bool>& is_reduced)
    : kept(loop_over(shape, is_reduced, false)), reduced(loop_over(shape, is_reduced, true)) {}

// A fold reduces types that Reduction lacks (integers, float64, bool), see reduce.h: `fold` writes
// one output from a loop over its inputs. A task gets enough rows of outputs to read about 4096
// inputs or more.
std::unique_ptr<Kernel> create_fold(FoldOne fold, DType dtype, const Shape& shape,
                                    const std::vector<bool>& reduced) {
  const auto bytes = static_cast<int64_t>(dtype_size(dtype));
  return make_kernel([fold, bytes, loops = FoldLoops(shape, reduced)](const KernelArgs& a) {
    const int64_t count = loops.reduced.rows() * loops.reduced.inner();
    parallel_for(loops.kept.rows(), 4096 / (count + 1) + 1, [&](int64_t begin, int64_t end) {
      loops.kept.for_rows(begin, end, [&](const StridedLoop::Offsets& at) {
        for (int64_t i = 0; i < loops.kept.inner(); ++i) {
          fold(loops.reduced, a.in<std::byte>(0) + (at[0] + i * loops.kept.inner_stride(0)) * bytes,
               a.out<std::byte>(0) + (at[1] + i) * bytes);
        }
      });
    });
  });
}

Reduction::Reduction(const Shape& shape, const std::vector<bool>& reduced, ReduceKind kind)
    : kept_(loop_over(shape, reduced, false)),
      reduced_(loop_over(shape, reduced, true)),
      kind_(kind) {}

template <typename T>
void Reduction::run(const T* src, T* dst, float scale) const {
  const int64_t work =
      std::max<int64_t>(reduced_.rows() * reduced_.inner(), 1);  // inputs per output
  // False for a single output, whose loop has no axis and inner stride 0.
  const bool by_columns = kept_.inner_stride(0) == 1;
  const int64_t step = by_columns ? kSumColumns : 1;
  // A row of kept_ is divided into items of `step` outputs (one output, or kSumColumns of them).
  // Item n of the whole reduction is item n % items of row n / items.
  const int64_t items = (kept_.inner() + step - 1) / step;
  const int64_t grain = kElementGrain / (work * step) + 1;
  parallel_for(kept_.rows() * items, grain, [&](int64_t begin, int64_t end) {
    // Items begin .. end-1 may start and end inside a row, which first and last cut.
    kept_.for_rows(begin / items, (end + items - 1) / items, [&](const StridedLoop::Offsets& at) {
      const int64_t row = at[1] / kept_.inner();
      const int64_t first = std::max(begin - row * items, int64_t{0});
      const int64_t last = std::min(end - row * items, items);
      for (int64_t item = first; item < last; ++item) {
        float total[kSumColumns];
        const int64_t count = std::min(step, kept_.inner() - item * step);
        const T* from = src + at[0] + item * step * kept_.inner_stride(0);
        if (by_columns) {
          columns(from, total, count);
        } else {
          *total = element(from);
        }
        store_floats(total, scale, dst + at[1] + item * step, count);
      }
    });
  });
}

// Reduces `count` outputs whose first inputs are at src[0], src[1], ... to `total`.
template <typename T>
void Reduction::columns(const T* src, float* total, int64_t count) const {
  std::fill_n(total, count, initial(kind_));
  const int64_t stride = reduced_.inner_stride(0);
  reduced_.for_rows(0, reduced_.rows(), [&](const StridedLoop::Offsets& at) {
    for (int64_t r = 0; r < reduced_.inner(); r += kSumBlock) {
      const int64_t rows = std::min(kSumBlock, reduced_.inner() - r);
      const T* from = src + at[0] + r * stride;
      int64_t column = 0;
      for (; column + 64 <= count; column += 64) {
        load_rows_64(kind_, total + column, from + column, rows, stride);
      }
      if (column == count) continue;
      float partial[kSumColumns];
      std::fill_n(partial, count - column, initial(kind_));
      for (int64_t i = 0; i < rows; ++i) {
        load_row(kind_, partial, from + i * stride + column, count - column);
      }
      join_row(kind_, total + column, partial, count - column);
    }
  });
}

// Reduces one output, whose first input is at src.
template <typename T>
float Reduction::element(const T* src) const {
  float total = initial(kind_);
  const int64_t stride = reduced_.inner_stride(0);
  reduced_.for_rows(0, reduced_.rows(), [&](const StridedLoop::Offsets& at) {
    const T* row = src + at[0];
    total = combine(kind_, total,
                    stride == 1 ? reduce_row(kind_, row, reduced_.inner())
                                : reduce_strided(kind_, row, reduced_.inner(), stride));
  });
  return total;
}

template void Reduction::run(const float*, float*, float) const;
template void Reduction::run(const BFloat16*, BFloat16*, float) const;
template void Reduction::run(const Half*, Half*, float) const;

}  // namespace ofsdp::kernels
