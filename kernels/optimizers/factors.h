// Second moments of matrices, stored as a number for each row and for each column (Adafactor): the
// sums of squares, the update of the factors, and the directions that follow.
//
// A parameter is MatrixShape::matrices matrices one after the other, row-major; a span is elements
// [first, first + count) of it. Rows and columns are numbered through all matrices: row r belongs
// to matrix r / rows.
//
// Sums are taken in double in an order that depends on the span alone, not on the number of
// threads, and rounded to float32 once. Call from the thread that runs the schedule; the sums fan
// out. Shazeer and Stern, "Adafactor", 2018 (https://arxiv.org/abs/1804.04235).
#pragma once

#include "kernels/core/optimizer.h"

namespace ofsdp::kernels {

struct MatrixSpan {
  MatrixShape shape;
  int64_t first = 0, count = 0;

  // The matrices that it has an element of: [first_matrix, last_matrix).
  int64_t first_matrix() const { return first / shape.size(); }
  int64_t last_matrix() const { return (first + count + shape.size() - 1) / shape.size(); }
};

// Writes the sum of squares of the span's elements in each row and each column that it touches;
// does not write the others. `rows` and `columns` begin at the parameter's first.
void sums_of_squares(const MatrixSpan& span, const float* grad, float* rows, float* columns);

// Moves `count` factors towards the means of their squares: sums over `length` elements each.
void advance_factors(float* factors, const float* sums, int64_t count, int64_t length,
                     int64_t step);

// Returns the mean of the row factors of one matrix, at least eps.
float mean_of_rows(const float* rows, int64_t count);

// Writes the directions of a span within one matrix, `first` counted from its begin; `rows` and
// `columns` begin at the matrix's first, `mean` is its mean_of_rows.
void factored_direction(const MatrixSpan& span, const float* grad, const float* rows,
                        const float* columns, float mean, float* out);

}  // namespace ofsdp::kernels
