// OptimizerDef: an optimizer as functions over a span, a range of elements of one parameter in a
// rank's shard. All data are float32, in host memory.
//
// An OptimizerDef names the state tensors (one float32 per parameter element each). `update`
// updates `count` elements of parameter and states in place. Definitions follow PyTorch
// (torch.optim, single tensor, not fused) with the same operations in the same order, so that
// trajectories agree to rounding. Every operation is one IEEE operation, so the bits do not depend
// on vector width or on how a shard is divided into spans. `reference` is the same formula in
// double, for tests.
//
// Some steps depend on a whole parameter: LAMB and Adafactor need norms, Adafactor also sums over
// rows and columns, Muon the matrix itself. For them `update` only advances the states; after ranks
// have exchanged the parameter's numbers, `direction` and `step_length` give the step.
//
// Call from the thread that runs the schedule. kernels/optimizers defines them,
// kernels/optimizers/optimizers.inc lists them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/namespaces.h"

namespace ofsdp::kernels {

struct OptimizerSettings {
  double weight_decay = 0;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double rho = 0.9;
  bool bias_correction = true;  // adamw
};

template <typename T>
struct OptimizerSpan {
  T* param;  // updated in place
  const T* grad;
  T* const* state;  // one pointer per state tensor, to the element that belongs to param[0]
  int64_t count;
  double lr;
  double weight_decay;  // 0 for parameters without decay
  int64_t step;         // update number, from 1
};

// A parameter with two axes or more, as matrices over the last two.
struct MatrixShape {
  int64_t matrices = 1;  // product of the leading axes
  int64_t rows = 0, columns = 0;

  int64_t size() const { return rows * columns; }  // elements in a matrix
  int64_t numel() const { return matrices * size(); }
};

// Numbers of a whole parameter, p, on which the step length may depend. d: the direction.
struct ParameterNorms {
  double param;      // |p|, before the step
  double direction;  // |d|
  int64_t count;     // elements
  double lr;
  int64_t step;       // update number, from 1
  double adjust = 1;  // Muon: factor on the learning rate that depends on the matrix's shape
};

// Settings that an optimizer takes; options for other settings have no effect on it.
enum OptimizerTakes : uint32_t {
  kTakesMomentum = 1,  // and, if momentum is not 0, has the state momentum_buffer
  kTakesNesterov = 2,
  kTakesBetas = 4,
  kTakesEps = 8,
  kTakesRho = 16,
};

// A row in kernels/optimizers/optimizers.inc: states, settings and PyTorch's defaults.
struct OptimizerTraits {
  std::array<const char*, 2> states = {};  // null: none
  uint32_t squares = 0;                    // bit i is set if states[i] is never negative
  // States that replace `states` if a parameter has two axes or more: one number per row, and one
  // per column, of the parameter's matrices. Null: none.
  std::array<const char*, 2> factors = {};
  bool orthogonal = false;  // orthogonalizes directions, matrix by matrix
  uint32_t takes = ~0u;     // OptimizerTakes
  double lr = 1e-3;
  double weight_decay = 0;
  double momentum = 0;
  double beta2 = 0.999;
  double eps = 1e-8;
  double rho = 0.9;  // fixed if not a setting
};

struct OptimizerDef {
  std::string name;  // "adamw"
  std::vector<std::string> state_names(const OptimizerSettings& settings) const {
    return states(settings);
  }
  std::function<std::vector<std::string>(const OptimizerSettings&)> states;
  std::function<void(const OptimizerSettings&, const OptimizerSpan<float>&)> update;
  std::function<void(const OptimizerSettings&, const OptimizerSpan<double>&)> reference;
  // Both are set if steps need a whole parameter, else empty. If set, `update` only advances the
  // states, `direction` writes the span's direction d, the caller subtracts step_length * d from p,
  // and the span of `reference` must be a whole parameter.
  std::function<void(const OptimizerSettings&, const OptimizerSpan<float>&, float* direction)>
      direction = {};
  std::function<double(const OptimizerSettings&, const ParameterNorms&)> step_length = {};
  OptimizerTraits traits = {};

  bool factors() const { return traits.factors[0] != nullptr; }
  // Returns whether `direction` reads the gradient, so that the gradient must be kept until the
  // step. For such optimizers the caller applies the decay: p = (1 - lr weight_decay) p -
  // step_length d.
  bool keeps_gradient() const { return factors() || traits.orthogonal; }
  bool needs_norms() const { return direction != nullptr && !traits.orthogonal; }
};

std::vector<OptimizerDef> optimizer_list();                   // in row order
const OptimizerDef* find_optimizer(const std::string& name);  // null: unknown

// Factored second moments (Adafactor): one number per row and one per column of a parameter's
// matrices, instead of one per element. Shazeer and Stern, "Adafactor", 2018
// (https://arxiv.org/abs/1804.04235).
//
// A parameter holds MatrixShape::matrices row-major matrices one after the other; a span is the
// elements [first, first + count). Rows and columns are numbered through all matrices: row r
// belongs to matrix r / rows.
//
// Sums run in double, in an order that depends only on the span, and round to float32 once. Call
// from the thread that runs the schedule; the functions themselves use several threads.

struct MatrixSpan {
  MatrixShape shape;
  int64_t first = 0, count = 0;

  // Matrices with an element in the span: [first_matrix, last_matrix).
  int64_t first_matrix() const { return first / shape.size(); }
  int64_t last_matrix() const { return (first + count + shape.size() - 1) / shape.size(); }
};

// Writes the span's sum of squares per row to `rows`, and per column to `columns`, both indexed
// from the parameter's first row and column. Does not write other rows and columns.
void sums_of_squares(const MatrixSpan& span, const float* grad, float* rows, float* columns);

// Moves each of `count` factors towards the mean square, sums[i] / length.
void advance_factors(float* factors, const float* sums, int64_t count, int64_t length,
                     int64_t step);

// Returns a matrix's mean row factor, at least eps.
float mean_row_factor(const float* rows, int64_t count);

// Writes directions for a span within one matrix; `first` counts from the matrix's first element,
// and `rows` and `columns` are that matrix's factors. `mean`: the matrix's mean_row_factor.
void factored_direction(const MatrixSpan& span, const float* grad, const float* rows,
                        const float* columns, float mean, float* out);

}  // namespace ofsdp::kernels
