// The matrices of each unit that an optimizer of matrices (Muon) transforms: which rank takes
// which, and the kernels in order. Newton-Schulz iterations (formula: updates::Muon) are a list of
// operators, which runs on the CPU and on devices, in place.
//
// A unit's matrices are dealt over the ranks that share its gradients, the costliest first, each to
// the rank with the least cost so far, over all units.
//
// The cache owns the kernels. plan_orthogonal returns kInput if an operator has no kernel. Running
// allocates nothing and returns errors from kernels.
#pragma once

#include <algorithm>

#include "fsdp/plan/plan.h"
#include "importer/graph/graph.h"
#include "runtime/compile/program/step_program.h"
#include "runtime/engine/update_table.h"

namespace ofsdp::runtime {

struct OrthogonalMatrix {
  int64_t offset = 0;  // element of the unit
  int64_t rows = 0, columns = 0;
  int owner = 0;  // index in the group of ranks
  // A kernel and the arrays that it reads and writes. Running sets their addresses.
  struct Call {
    Kernel* kernel = nullptr;
    std::vector<TensorView> in{}, out{};
    std::vector<int> in_arrays{}, out_arrays{};
  };
  std::vector<Call> calls{};
  size_t work_bytes = 0;

  int64_t numel() const { return rows * columns; }
  bool tall() const { return rows > columns; }
  int64_t side() const { return std::min(rows, columns); }  // of the Gram matrix
};

using OrthogonalUnit = std::vector<OrthogonalMatrix>;

// Per unit, in parameter order; empty if Muon takes no parameter of the unit.
Result<std::vector<OrthogonalUnit>> plan_orthogonal(const UpdatePlan& updates, const Plan& plan,
                                                    const Registry& registry, KernelCache& kernels);

// Returns the largest workspace.
size_t work_bytes(const OrthogonalUnit& unit);

// Transforms the matrix at `values` in place. `work`: work_bytes, aligned. `step`: a
// DeviceStepContext with a stream, on a device.
Status orthogonalize(OrthogonalMatrix& matrix, float* values, std::byte* work,
                     const StepContext& step);

// Return the operations of one iteration, and of all; a multiplication with an addition is two.
double iteration_flops(const OrthogonalMatrix& matrix);
double orthogonal_flops(const OrthogonalMatrix& matrix);

// Returns the ranks that own a matrix: one in each replica of the unit.
std::vector<int> owners(const Plan& plan, const Unit& unit, const OrthogonalMatrix& matrix);

// Runs one iteration, for measurements.
Status iterate(OrthogonalMatrix& matrix, float* values, std::byte* work);

}  // namespace ofsdp::runtime
