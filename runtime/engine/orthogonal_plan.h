// Muon's orthogonalization: the 2-D matrices in each unit (a group of parameters that is gathered
// and reduced together), the rank that transforms each, and the kernels in order.
//
// Muon replaces a matrix's update direction by the nearest orthogonal matrix, approximated by
// Muon::kIterations Newton-Schulz iterations (formula: updates::Muon in
// kernels/optimizers/parameter_updates.h). Each matrix has a list of kernel calls: normalize, the
// iterations' products, and a copy of the result onto the matrix. The CPU and devices run the same
// list, in place.
//
// Only one rank, the owner, transforms a matrix. The ranks that share the unit's gradients are its
// shard group, or all ranks if the unit is not sharded. Within a unit the costliest matrix is
// assigned first, each to the rank with the least cost in this unit; among equal ranks, to the one
// with the least cost in the earlier units.
//
// compile_run plans once, before memory is allocated; Updater runs the calls in each update. The
// KernelCache owns the kernels and must outlive the lists. Running allocates nothing.
#pragma once

#include <algorithm>

#include "fsdp/plan/plan.h"
#include "importer/graph/graph.h"
#include "runtime/compile/program/step_program.h"
#include "runtime/engine/update_table.h"

namespace ofsdp::runtime {

struct OrthogonalMatrix {
  int64_t offset = 0;  // first element, counted in the flat unit
  int64_t rows = 0, columns = 0;
  int owner = 0;  // index in the shard group, or the rank if the unit is not sharded
  // One kernel call. Array 0 is the matrix itself, arrays 1 to 3 are parts of the workspace: a
  // matrix of the same shape, the Gram matrix, and its polynomial. Operand i is array in_arrays[i]
  // or out_arrays[i]; running writes the array's address into in[i] or out[i].
  struct Call {
    Kernel* kernel = nullptr;
    std::vector<TensorView> in{}, out{};
    std::vector<int> in_arrays{}, out_arrays{};
  };
  std::vector<Call> calls{};  // all iterations
  size_t work_bytes = 0;      // workspace: arrays 1 to 3, then the largest kernel's own

  int64_t numel() const { return rows * columns; }
  bool tall() const { return rows > columns; }
  int64_t side() const { return std::min(rows, columns); }  // the Gram matrix is [side, side]
};

using OrthogonalUnit = std::vector<OrthogonalMatrix>;

// Returns one list per unit, in parameter order; empty if Muon updates no parameter of the unit.
// Returns kInput if a Gemm or an update operation has no kernel for a matrix.
Result<std::vector<OrthogonalUnit>> plan_orthogonal(const UpdatePlan& updates, const Plan& plan,
                                                    const Registry& registry, KernelCache& kernels);

// Returns the bytes of a workspace for any matrix of the unit.
size_t work_bytes(const OrthogonalUnit& unit);

// Transforms the matrix at `values` (float32, row-major) in place. `work`: matrix.work_bytes,
// aligned to kTensorAlignment. On a device both are device memory, and `step` must be a
// DeviceStepContext with a stream. Returns the first error of a kernel. Writes addresses into
// `matrix`, so one thread at a time may call it.
Status orthogonalize(OrthogonalMatrix& matrix, float* values, std::byte* work,
                     const StepContext& step);

// Return the floating-point operations of one iteration, and of all iterations. A multiply-add
// counts as two.
double iteration_flops(const OrthogonalMatrix& matrix);
double orthogonal_flops(const OrthogonalMatrix& matrix);

// Returns the ranks that transform the matrix, in order: one if all ranks share the gradients. With
// a hybrid strategy each replica of the unit has a shard group and so an owner of its own.
std::vector<int> owners(const Plan& plan, const Unit& unit, const OrthogonalMatrix& matrix);

// Runs only the first iteration, on the CPU, for prediction.cpp, which measures the time.
Status iterate(OrthogonalMatrix& matrix, float* values, std::byte* work);

}  // namespace ofsdp::runtime
