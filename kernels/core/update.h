// The contract of update kernels: operation names, operands, and the planned tables that travel as
// attributes. An update kernel runs one part of an optimizer's update on one rank's shard (the
// elements that the rank owns) of one unit (a group of parameters that is gathered together).
//
// runtime/engine/updater.h makes the kernels before the first step and runs them in each update.
// The CPU's kernels are in kernels/optimizers, the CUDA library's in
// kernels/cuda/training/update_operators.cpp. update_op(OPTIMIZER, PART) names an operation; an
// optimizer has only the parts that the formula needs, in this order:
//
//   advance   reads the gradient and advances the states. An elementwise optimizer (AdamW, SGD)
//             moves the parameters here and is done. An optimizer whose step needs a whole
//             parameter or matrix (LAMB, Adafactor, Muon) moves them in `step`
//   keep      copies the gradient into kKept, because its buffer is used again before `step`
//             reads it (Adafactor). Muon writes the momentum's direction there, of which an
//             exchange between ranks then makes the orthogonal one
//   sums      sums the gradient's squares over the rows and columns of matrices, into kSums. Then
//             ranks add up their sums
//   factors   advances the factored second moments (Adafactor's row and column factors) by kSums;
//             writes each matrix's mean row factor into kMeans
//   norms     adds each parameter's squares, and each direction's, to kSquares. Then ranks add up
//             their squares. LAMB and Adafactor have this part, Muon does not
//   step      p = (1 - lr weight_decay) p - step_length direction; the step length depends on the
//             norms, if there are any. `norms` and `step` compute the direction anew from states
//             and kKept; it is not stored. LAMB, which has no `keep`, adds the decay to the
//             direction, and its first factor is 1
//
// For any optimizer kAverageOp moves kAverage towards the parameters (--ema), kSwapOp exchanges the
// two, and kRoundOp rounds the parameters into kCopy.
//
// All these operations have one operand list (UpdateIn, UpdateOut); a kernel reads the operands
// that the part needs; operands that the unit lacks (kAverage without --ema) are absent. Two
// attributes hold the numbers known before the first step: an UpdateSpec, and UpdateRows, as bytes.
//
// Kernels check nothing: the updater has chosen all shapes and dtypes. Only a device's launch
// fails.
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

// A row of the update table (runtime/engine/update_table.h): a range of the shard in which all
// elements are updated alike.
struct UpdateRow {
  // Elements of the shard. In the rows of a `sums` kernel: of that kernel's gradient operand.
  int64_t begin = 0, end = 0;
  int64_t parameter = 0;  // index in the graph
  double weight_decay = 0;
  // The parameter has `numel` elements; the row begins at its element `first`. The row may end with
  // the padding that aligns the next parameter.
  int64_t first = 0, numel = 0;
  // The parameter's state i is operand kStates + states[i]. The state of shard element e is at
  // index e + shifts[i]. A factor has one number per matrix row (or column) instead: row r, counted
  // through all matrices of the parameter, is at index r + shifts[i].
  int32_t num_states = 0;
  int32_t states[kMaxRowStates] = {};
  int64_t shifts[kMaxRowStates] = {};
  int32_t group = 0;  // index in UpdatePlan::groups: optimizer and learning rate (--group)
  // A model may bring an update as ONNX nodes (training_info): the index of the parameter's
  // rule, see runtime/engine/update_program.h, whose kernel then replaces `advance` for the whole
  // run. -1: an optimizer updates the parameter, or, in such a run, nothing does.
  int32_t rule = -1;
  int64_t rows = 0, columns = 0;  // of each matrix if second moments are factored, else 0
  int64_t sums = 0;               // index in kSums: one sum per row, then one per column
  int64_t means = 0;              // index in kMeans of the parameter's first matrix
  double adjust = 1;              // Muon's shape-dependent step factor (ParameterNorms::adjust)

  // REQUIRES of shape and column_sums: second moments are factored.
  MatrixShape shape() const { return {numel / (rows * columns), rows, columns}; }
  // Returns how many elements of the row belong to the parameter and not to padding.
  int64_t count() const { return std::min(end - begin, numel - first); }
  int64_t column_sums() const { return sums + numel / columns; }
};

// Numbers that are the same in all updates and for all rows of a kernel.
struct UpdateSpec {
  OptimizerSettings settings;
  DType round_to = DType::kFloat32;  // dtype to which the gradient is rounded before use
  bool scaled = false;  // the gradient is multiplied by the run state's gradient_factor
  // On the CPU under --deterministic across_ranks: `norms` writes exact sums (limbs of
  // ExactSquares, kernels/optimizers/squares.h) to kPartials instead of adding doubles to kSquares.
  // Ranks add up the limbs, and Updater turns them into kSquares before `step`.
  bool exact = false;
  double base_lr = -1;       // of a group (--group); negative: the run's rate holds
  uint64_t seed = 0;         // for the stochastic rounding of states that are stored in few bits
  double average_decay = 0;  // average = decay * average + (1 - decay) * parameter
  int64_t first_update = 1;  // in this update the average becomes a copy of the parameter
};

struct UpdateIn {
  enum Operand : size_t {
    kNumbers,   // ofsdp_step_numbers: learning rate and factor of the schedule
    kRunState,  // ofsdp_run_state; if skip or stop is set, the kernel does nothing
    kStretch,   // Stretch, in host memory; absent: the whole shard
    // The stretch's gradient elements. For `sums`: the elements from the first one that this rank
    // counts; UpdateRow::begin indexes them.
    kGradient,
    kOnto,  // float32: the sum of earlier micro-batches, to which the gradient is added; or absent
    kCount
  };
};
struct UpdateOut {
  enum Operand : size_t {
    kParam,    // float32 [shard elements]
    kCopy,     // the parameters rounded to float16 or bfloat16; or absent
    kKept,     // float32 [shard elements]: see `keep`
    kSums,     // float32 [factor_sums of the unit]
    kMeans,    // float32 [matrices with factors, all units]
    kSquares,  // float64 [graph parameters, 2]: |p|^2 and |direction|^2
    // float64. On a device, scratch. On the CPU with UpdateSpec::exact, limbs: [graph parameters,
    // 2, ExactSquares::kLimbs].
    kPartials,
    kAverage,  // float32 [shard elements]
    kStates    // the first of the unit's states; a state's dtype tells how it is stored
  };
};

// Returns a problem with the operands that every update operation has: numbers and run state. The
// other inputs, the outputs and the attributes are the caller's.
inline Problem update_problem() {
  const auto bytes = [](size_t size) {
    return TensorDesc{DType::kUInt8, Shape{static_cast<int64_t>(size)}};
  };
  Problem p;
  p.inputs.resize(UpdateIn::kCount);
  p.inputs[UpdateIn::kNumbers] = bytes(sizeof(ofsdp_step_numbers));
  p.inputs[UpdateIn::kRunState] = bytes(sizeof(ofsdp_run_state));
  p.constants.resize(UpdateIn::kCount);
  return p;
}

// The part of a shard that one call updates.
struct Stretch {
  int64_t begin = 0, end = 0;  // elements of the shard
};

// Calls f(row, at, n) for each row that overlaps the stretch; shard elements [at, at + n) are in
// both. REQUIRES: rows are in rising order and do not overlap.
template <typename F>
void each_piece(std::span<const UpdateRow> rows, const Stretch& stretch, const F& f) {
  auto row = std::ranges::upper_bound(rows, stretch.begin, {}, &UpdateRow::end);
  for (; row != rows.end() && row->begin < stretch.end; ++row) {
    const int64_t at = std::max(row->begin, stretch.begin);
    const int64_t end = std::min(row->end, stretch.end);
    if (at < end) f(*row, at, end - at);
  }
}

// Norms are summed over blocks of this many elements ([Note: the norms of parameters] in
// runtime/engine/updater.h).
inline constexpr int64_t kUpdateBlock = 4096;

// Muon's steps that are not matrix products (runtime/engine/orthogonal_plan.h). They have operands
// of their own, float32 arrays:
//
//   update_op("muon", "normalize")  divides output 0 by its 2-norm; output 1 is float64 scratch
//   update_op("muon", "scale")      multiplies output 0 by Muon's constant c
//   kPutOp                          copies input 0 to output 0, or writes zeros without an input.
//                                   -0 becomes 0, as if other ranks' zeros had been added
inline constexpr const char* kPutOp = "ofsdp.update.put";
inline constexpr const char* kAverageOp = "ofsdp.update.average";
inline constexpr const char* kSwapOp = "ofsdp.update.swap";
inline constexpr const char* kRoundOp = "ofsdp.update.round";

inline std::string update_op(const std::string& optimizer, const char* part) {
  return "ofsdp.update." + optimizer + "." + part;
}

// Returns `values` as a byte attribute; plain_values reads it back, and returns an empty vector if
// the attribute is absent. REQUIRES: T is trivially copyable.
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

// Returns all update operations of `optimizers` with CPU kernels, and the operations that belong to
// no optimizer (kernels/optimizers/update_kernels.cpp).
Registry update_registry(std::span<const OptimizerDef> optimizers);

}  // namespace ofsdp::kernels
