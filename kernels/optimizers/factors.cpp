#include <algorithm>
#include <array>

#include "kernels/core/optimizer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/parameter_updates.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kTile = 256;                // columns summed at once, on the stack
constexpr int64_t kGrain = int64_t{1} << 15;  // least elements per thread

OFSDP_MULTIARCH float row_sum(const float* __restrict values, int64_t n) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const double value = values[i + k];
      lanes[static_cast<size_t>(k)] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (; i < n; ++i) sum += static_cast<double>(values[i]) * values[i];
  return static_cast<float>(sum);
}

OFSDP_MULTIARCH void add_squares_of(const float* __restrict values, double* __restrict sums,
                                    int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double value = values[i];
    sums[i] += value * value;
  }
}

// Sums columns [begin, end) of one matrix over the rows of which the span has elements.
void column_sums(const MatrixSpan& span, const float* grad, int64_t matrix, int64_t begin,
                 int64_t end, float* sums) {
  const MatrixShape& shape = span.shape;
  std::array<double, kTile> tile{};
  const int64_t base = matrix * shape.size(), last = span.first + span.count;
  const int64_t first_row = std::max<int64_t>(0, span.first - base) / shape.columns;
  const int64_t row_end = std::min(shape.rows, (last - base + shape.columns - 1) / shape.columns);
  for (int64_t row = first_row; row < row_end; ++row) {
    const int64_t at = base + row * shape.columns;
    const int64_t from = std::max(at + begin, span.first), to = std::min(at + end, last);
    if (from >= to) continue;
    add_squares_of(grad + (from - span.first), tile.data() + (from - at - begin), to - from);
  }
  for (int64_t j = begin; j < end; ++j) {
    sums[matrix * shape.columns + j] = static_cast<float>(tile[static_cast<size_t>(j - begin)]);
  }
}

OFSDP_MULTIARCH void lerp_to_means(float* __restrict factors, const float* __restrict sums,
                                   int64_t n, float length, updates::Lerp lerp) {
  for (int64_t i = 0; i < n; ++i) factors[i] = lerp(factors[i], sums[i] / length);
}

OFSDP_MULTIARCH void row_direction(const float* __restrict grad, float row,
                                   const float* __restrict columns, float mean,
                                   float* __restrict out, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] = updates::Adafactor::direction(grad[j], row * columns[j] / mean);
  }
}

}  // namespace

void sums_of_squares(const MatrixSpan& span, const float* grad, float* rows, float* columns) {
  if (span.count == 0) return;
  const MatrixShape& shape = span.shape;
  const int64_t last = span.first + span.count;
  const int64_t first_row = span.first / shape.columns;
  const int64_t row_end = (last + shape.columns - 1) / shape.columns;
  parallel_for(row_end - first_row, std::max<int64_t>(1, kGrain / shape.columns),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = first_row + begin; row < first_row + end; ++row) {
                   const int64_t from = std::max(span.first, row * shape.columns);
                   const int64_t to = std::min(last, (row + 1) * shape.columns);
                   rows[row] = row_sum(grad + (from - span.first), to - from);
                 }
               });
  const int64_t tiles = (shape.columns + kTile - 1) / kTile;
  const int64_t first_matrix = span.first_matrix();
  const int64_t tile_size = std::min(kTile, shape.columns) * shape.rows;
  parallel_for((span.last_matrix() - first_matrix) * tiles,
               std::max<int64_t>(1, kGrain / tile_size), [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t at = i % tiles * kTile;
                   column_sums(span, grad, first_matrix + i / tiles, at,
                               std::min(at + kTile, shape.columns), columns);
                 }
               });
}

void advance_factors(float* factors, const float* sums, int64_t count, int64_t length,
                     int64_t step) {
  lerp_to_means(factors, sums, count, static_cast<float>(length),
                updates::Lerp::of(updates::Adafactor::weight(step)));
}

float mean_row_factor(const float* rows, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += rows[i];
  return std::max(static_cast<float>(sum / static_cast<double>(count)), updates::Adafactor::kEps);
}

void factored_direction(const MatrixSpan& span, const float* grad, const float* rows,
                        const float* columns, float mean, float* out) {
  const int64_t width = span.shape.columns, last = span.first + span.count;
  for (int64_t at = span.first; at < last;) {
    const int64_t row = at / width, column = at % width;
    const int64_t n = std::min(width - column, last - at);
    row_direction(grad + (at - span.first), rows[row], columns + column, mean,
                  out + (at - span.first), n);
    at += n;
  }
}

}  // namespace ofsdp::kernels
