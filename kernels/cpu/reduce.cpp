#include "kernels/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kSumBlock = 64;  // additions before the running total takes them over
constexpr int64_t kColumns = 128;  // columns summed together: 512 bytes of accumulators

float initial(ReduceKind kind) {
  return kind == ReduceKind::kSum ? 0.0f : -std::numeric_limits<float>::infinity();
}

[[gnu::always_inline]] inline float larger(float a, float b) {
  return !(b <= a) && a == a ? b : a;  // a NaN on either side wins
}

[[gnu::always_inline]] inline float combine(ReduceKind kind, float a, float b) {
  return kind == ReduceKind::kSum ? a + b : larger(a, b);
}

OFSDP_MULTIARCH void add_row(float* total, const float* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) total[i] += row[i];
}

OFSDP_MULTIARCH void max_row(float* total, const float* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) total[i] = larger(total[i], row[i]);
}

// Whole blocks of rows that lie `stride` apart, the common case of a bias gradient: the
// accumulators of 64 columns stay in registers.
OFSDP_MULTIARCH void add_rows_64(float* total, const float* src, int64_t rows, int64_t stride) {
  float partial[64];
  for (int i = 0; i < 64; ++i) partial[i] = src[i];
  for (int64_t r = 1; r < rows; ++r) {
    for (int i = 0; i < 64; ++i) partial[i] += src[r * stride + i];
  }
  for (int i = 0; i < 64; ++i) total[i] += partial[i];
}

OFSDP_MULTIARCH float sum_contiguous(const float* src, int64_t n) {
  return lane_sum(n, [src](int64_t i) { return src[i]; });
}

float sum_row(const float* src, int64_t n) {
  constexpr int64_t kBlock = kSumBlock * kLanes;
  float sum = 0;
  for (int64_t i = 0; i < n; i += kBlock) sum += sum_contiguous(src + i, std::min(kBlock, n - i));
  return sum;
}

std::vector<int64_t> pick(const std::vector<int64_t>& values, const std::vector<bool>& reduced,
                          bool which) {
  std::vector<int64_t> picked;
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (reduced[axis] == which) picked.push_back(values[axis]);
  }
  return picked;
}

StridedLoop loop_over(const Shape& shape, const std::vector<bool>& reduced, bool which) {
  const Shape part(pick(shape.axes(), reduced, which));
  return {part,
          {pick(strides_of({DType::kFloat32, shape}), reduced, which),
           strides_of({DType::kFloat32, part})}};
}

}  // namespace

Reduction::Reduction(const Shape& shape, const std::vector<bool>& reduced, ReduceKind kind)
    : kept_(loop_over(shape, reduced, false)),
      reduced_(loop_over(shape, reduced, true)),
      kind_(kind),
      kept_count_(kept_.rows() * kept_.inner()) {}

void Reduction::run(const float* src, float* dst, float scale) const {
  const int64_t work = std::max<int64_t>(reduced_.rows() * reduced_.inner(), 1);
  const bool by_columns = kept_.inner_stride(0) == 1;
  const int64_t step = by_columns ? kColumns : 1;
  const int64_t items = (kept_.inner() + step - 1) / step;  // of a row of kept_
  parallel_for(kept_.rows() * items, kGrain / (work * step) + 1, [&](int64_t begin, int64_t end) {
    kept_.for_rows(begin / items, (end + items - 1) / items, [&](const StridedLoop::Offsets& at) {
      const int64_t row = at[1] / kept_.inner();
      const int64_t first = std::max(begin - row * items, int64_t{0});
      const int64_t last = std::min(end - row * items, items);
      for (int64_t item = first; item < last; ++item) {
        const int64_t count = std::min(step, kept_.inner() - item * step);
        const float* from = src + at[0] + item * step * kept_.inner_stride(0);
        float* to = dst + at[1] + item * step;
        if (by_columns) {
          columns(from, to, count);
        } else {
          *to = element(from);
        }
        for (int64_t i = 0; i < count; ++i) to[i] *= scale;
      }
    });
  });
}

void Reduction::columns(const float* src, float* dst, int64_t count) const {
  float total[kColumns];
  std::fill_n(total, count, initial(kind_));
  const int64_t stride = reduced_.inner_stride(0);
  reduced_.for_rows(0, reduced_.rows(), [&](const StridedLoop::Offsets& at) {
    for (int64_t r = 0; r < reduced_.inner(); r += kSumBlock) {
      const int64_t rows = std::min(kSumBlock, reduced_.inner() - r);
      const float* from = src + at[0] + r * stride;
      if (kind_ == ReduceKind::kMax) {
        for (int64_t i = 0; i < rows; ++i) max_row(total, from + i * stride, count);
        continue;
      }
      int64_t column = 0;
      for (; column + 64 <= count; column += 64) {
        add_rows_64(total + column, from + column, rows, stride);
      }
      if (column == count) continue;
      float partial[kColumns] = {};
      for (int64_t i = 0; i < rows; ++i) {
        add_row(partial, from + i * stride + column, count - column);
      }
      add_row(total + column, partial, count - column);
    }
  });
  std::copy_n(total, count, dst);
}

float Reduction::element(const float* src) const {
  float total = initial(kind_);
  const int64_t stride = reduced_.inner_stride(0);
  const bool contiguous = stride == 1 && kind_ == ReduceKind::kSum;
  reduced_.for_rows(0, reduced_.rows(), [&](const StridedLoop::Offsets& at) {
    float row = initial(kind_);
    if (contiguous) {
      row = sum_row(src + at[0], reduced_.inner());
    } else {
      for (int64_t i = 0; i < reduced_.inner(); ++i) {
        row = combine(kind_, row, src[at[0] + i * stride]);
      }
    }
    total = combine(kind_, total, row);
  });
  return total;
}

}  // namespace ofsdp
