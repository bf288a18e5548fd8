// The matrices of each unit that Muon orthogonalizes: which rank takes which, and the kernels and
// workspace of the Newton-Schulz iterations (updates::Muon has the formula).
//
// A unit's matrices are dealt over the ranks that share its gradients, the costliest first, each to
// the rank that has least so far, over all units.
//
// plan is pure but for the kernels, which are the cache's: the CPU's or a device's. `orthogonalize`
// works in place on the thread that runs the schedule; kernels fan out. No allocation. Errors:
// kInput from plan (no kernel), a kernel's.
#pragma once

#include <algorithm>

#include "fsdp/plan/plan.h"
#include "importer/graph/graph.h"
#include "runtime/engine/update_plan.h"
#include "runtime/program/program.h"

namespace ofsdp::runtime {

struct OrthogonalMatrix {
  int64_t offset = 0;  // element of the unit
  int64_t rows = 0, columns = 0;
  int owner = 0;  // place in the group of ranks
  // Operands get their addresses when it runs.
  struct Product {
    Kernel* kernel = nullptr;
    std::vector<TensorView> in{};
    TensorView out{};
  };
  Product gram{}, square{}, advance{};  // X X^T; b G + c G G; a X + that X
  size_t work_bytes = 0;

  int64_t numel() const { return rows * columns; }
  bool tall() const { return rows > columns; }
  int64_t side() const { return std::min(rows, columns); }  // of its Gram matrix
};

using OrthogonalUnit = std::vector<OrthogonalMatrix>;

// Per unit, in the order of its parameters; empty where Muon takes none.
Result<std::vector<OrthogonalUnit>> plan_orthogonal(const UpdatePlan& updates, const Plan& plan,
                                                    const Registry& registry, KernelCache& kernels);

// The workspace of the largest.
size_t work_bytes(const OrthogonalUnit& unit);

// Who carries the iterations out: a processor, on the thread that calls, or a device, on a stream.
// Kernels get `context`.
class MatrixArithmetic {
 public:
  virtual ~MatrixArithmetic() = default;
  virtual const StepContext& context() const = 0;
  // values / max(|values|, least); `scratch`: count / 4096 + 2 doubles.
  virtual Status normalize(float* values, int64_t count, double least, double* scratch) = 0;
  virtual Status scale(float* values, float by, int64_t count) = 0;
  virtual Status put(const float* from, float* to, int64_t count) = 0;  // -0 becomes 0
  virtual Status clear(float* values, int64_t count) = 0;
};

class HostArithmetic final : public MatrixArithmetic {
 public:
  const StepContext& context() const override { return context_; }
  Status normalize(float* values, int64_t count, double least, double*) override;
  Status scale(float* values, float by, int64_t count) override;
  Status put(const float* from, float* to, int64_t count) override;
  Status clear(float* values, int64_t count) override;

 private:
  StepContext context_;
};

// `work`: aligned, work_bytes of it.
Status orthogonalize(OrthogonalMatrix& matrix, float* values, std::byte* work,
                     MatrixArithmetic& arithmetic);

// Count the operations of the products, of one iteration and of all; to multiply and add is two.
double iteration_flops(const OrthogonalMatrix& matrix);
double orthogonal_flops(const OrthogonalMatrix& matrix);

// The ranks whose place in a unit's group is a matrix's owner; one of each copy of the unit.
std::vector<int> owners(const Plan& plan, const Unit& unit, const OrthogonalMatrix& matrix);

// The products of one iteration, whose result is in `work`: to be measured.
Status iterate(OrthogonalMatrix& matrix, float* values, std::byte* work,
               MatrixArithmetic& arithmetic);

}  // namespace ofsdp::runtime
