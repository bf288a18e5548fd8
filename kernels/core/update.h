// Update operations: the parts of an optimizer's update, as kernels made before the first step.
// Each updates a rank's shard of a unit. The CPU's are in kernels/optimizers, the CUDA library's in
// kernels/cuda/training/update_operators.cpp; update_op(NAME, PART) names them:
//
//   advance   reads the gradient and advances the states; moves the parameters too, unless steps
//             come from whole parameters
//   keep      writes the gradient, or a direction, into kKept for the step
//   sums      sums the gradient's squares over rows and columns of matrices, into kSums
//   factors   advances factored second moments by kSums, which ranks have added up; writes the mean
//             row factor of each matrix into kMeans
//   norms     adds the squares of each parameter, and of each direction, to kSquares
//   step      p = (1 - lr weight_decay) p - step_length direction
//
// and for any optimizer kAverageOp (kAverage follows the parameters) and kRoundOp (rounds the
// parameters into kCopy).
//
// All have the unit's operands (UpdateIn, UpdateOut); operands that the unit lacks are absent.
// Attributes are planned: an UpdateSpec, and the rows of the unit that the optimizer updates.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/device_values.h"
#include "kernels/core/kernel.h"
#include "kernels/core/op_def.h"
#include "kernels/core/optimizer.h"

namespace ofsdp::kernels {

inline constexpr int kMaxRowStates = 8;

// A row of an update table: elements of a shard that are updated alike. Kernels get rows as bytes.
struct UpdateRow {
  int64_t begin = 0, end = 0;  // elements of the shard; for sums, of the gradient
  int64_t parameter = 0;       // of the graph
  double weight_decay = 0;
  int64_t first = 0, numel = 0;  // the row begins at element `first` of `numel` of the parameter
  // State i of the parameter is the unit's state `states[i]`, with the shard's element e at
  // e + shifts[i]. For factors, e counts rows or columns of all matrices.
  int32_t num_states = 0;
  int32_t states[kMaxRowStates] = {};
  int64_t shifts[kMaxRowStates] = {};
  int32_t group = 0;  // of the parameter
  int32_t rule = -1;  // of the model's own update (runtime/engine/update_program.h); -1: none
  int64_t rows = 0, columns = 0;  // of a matrix, if second moments are factored
  int64_t sums = 0;               // offset in kSums: sums of all rows, then of all columns
  int64_t means = 0;              // offset in kMeans
  double adjust = 1;              // ParameterNorms::adjust

  MatrixShape shape() const { return {numel / (rows * columns), rows, columns}; }
  // Returns the elements without the gap after the parameter.
  int64_t count() const { return std::min(end - begin, numel - first); }
  int64_t column_sums() const { return sums + numel / columns; }
};

// Planned numbers of an update; also passed as bytes.
struct UpdateSpec {
  OptimizerSettings settings;
  DType round_to = DType::kFloat32;  // rounds the gradient first
  bool scaled = false;               // multiplies the gradient by gradient_factor
  bool exact = false;                // norms go to kPartials as limbs of ExactSquares
  uint64_t seed = 0;                 // for rounding states
  double average_decay = 0;
  int64_t first_update = 1;  // after it the average is the parameter
};

struct UpdateIn {
  enum Operand : size_t {
    kNumbers,   // ofsdp_step_numbers
    kRunState,  // ofsdp_run_state; if skip or stop is set, nothing is updated
    kStretch,   // Stretch, in host memory; absent: the whole shard
    kGradient,  // of the stretch; for sums, of the elements that rows count
    kOnto,      // a sum of earlier gradients to add; or absent
    kCount
  };
};
struct UpdateOut {
  enum Operand : size_t {
    kParam,     // float32, of the shard
    kCopy,      // the same, rounded; or absent
    kKept,      // float32, of the shard
    kSums,      // float32
    kMeans,     // float32
    kSquares,   // float64: two for each parameter of the graph
    kPartials,  // float64: scratch of a device; limbs of exact norms, two rows a parameter
    kAverage,   // float32, of the shard
    kStates     // the unit's states from here on; dtypes give their forms
  };
};

struct Stretch {
  int64_t begin = 0, end = 0;  // elements of the shard
};

// Calls f(row, at, n) for elements [at, at + n) of each row in the stretch.
// REQUIRES: rows are in order.
template <typename F>
void each_piece(std::span<const UpdateRow> rows, const Stretch& stretch, const F& f) {
  auto row = std::ranges::upper_bound(rows, stretch.begin, {}, &UpdateRow::end);
  for (; row != rows.end() && row->begin < stretch.end; ++row) {
    const int64_t at = std::max(row->begin, stretch.begin);
    const int64_t end = std::min(row->end, stretch.end);
    if (at < end) f(*row, at, end - at);
  }
}

// Norms are sums over blocks of so many elements ([Note: the norms of parameters] in
// runtime/engine/updater.h).
inline constexpr int64_t kUpdateBlock = 4096;

// Parts of optimizers of matrices that are no products (runtime/engine/orthogonal_plan.h), on
// arrays of float32: muon.normalize divides output 0 by its 2-norm, with output 1, float64, as
// scratch; muon.scale multiplies output 0; put copies input 0 to output 0, -0 as 0, or writes zeros
// if there is no input.
inline constexpr const char* kPutOp = "ofsdp.update.put";
inline constexpr const char* kAverageOp = "ofsdp.update.average";
inline constexpr const char* kRoundOp = "ofsdp.update.round";

inline std::string update_op(const std::string& optimizer, const char* part) {
  return "ofsdp.update." + optimizer + "." + part;
}

// An attribute with the bytes of `values`. REQUIRES: T is trivially copyable.
template <typename T>
ConstantPtr plain_constant(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return make_constant<std::byte>(DType::kUInt8, Shape{static_cast<int64_t>(bytes.size())}, bytes);
}
template <typename T>
std::vector<T> plain_values(const Problem& p, const char* attribute) {
  const ConstantPtr constant = p.attributes.get<ConstantPtr>(attribute, nullptr);
  std::vector<T> values(constant == nullptr ? 0 : constant->bytes.size() / sizeof(T));
  if (!values.empty())
    std::memcpy(static_cast<void*>(values.data()), constant->bytes.data(),
                values.size() * sizeof(T));
  return values;
}

inline Attributes update_attributes(const UpdateSpec& spec, std::span<const UpdateRow> rows) {
  return {{"spec", plain_constant(std::span(&spec, 1))}, {"rows", plain_constant(rows)}};
}
inline UpdateSpec update_spec(const Problem& p) { return plain_values<UpdateSpec>(p, "spec")[0]; }
inline std::vector<UpdateRow> update_rows(const Problem& p) {
  return plain_values<UpdateRow>(p, "rows");
}

// Returns the update operations of `optimizers` on the CPU (kernels/optimizers/update_kernels.cpp).
Registry update_registry(std::span<const OptimizerDef> optimizers);

}  // namespace ofsdp::kernels
