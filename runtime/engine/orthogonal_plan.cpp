#include "runtime/engine/orthogonal_plan.h"

#include <array>
#include <numeric>

#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/parameter_updates.h"

namespace ofsdp::runtime {
namespace {

using updates::Muon;

TensorDesc matrix_of(int64_t rows, int64_t columns) {
  return {DType::kFloat32, Shape{rows, columns}};
}

size_t bytes_of(int64_t numel) {
  return align_up(static_cast<size_t>(numel) * sizeof(float), kTensorAlignment);
}

// Arrays that calls read and write: the matrix, a second matrix of the same shape, the Gram matrix,
// and its polynomial. All but the first are in the workspace; the kernels' own workspace follows.
enum Array { kValues, kOther, kGram, kPolynomial, kArrays };
constexpr size_t kIterationCalls = 4;

std::array<size_t, kArrays + 1> offsets(const OrthogonalMatrix& m) {
  const size_t square = bytes_of(m.side() * m.side()), gram = bytes_of(m.numel());
  return {0, 0, gram, gram + square, gram + 2 * square};
}

class OrthogonalPlanner {
 public:
  OrthogonalPlanner(const Registry& registry, KernelCache& kernels)
      : gemm_(registry.get("Gemm")), parts_(update_registry({})), kernels_(kernels) {}

  // A tall matrix X has the smaller Gram matrix X^T X, and is multiplied by its polynomial from the
  // right instead of from the left.
  Status plan(OrthogonalMatrix& m) {
    const TensorDesc x = matrix_of(m.rows, m.columns), gram = matrix_of(m.side(), m.side());
    const TensorDesc sums{DType::kFloat64, Shape{m.numel() / kUpdateBlock + 2}};
    // kOther holds the partial sums of the norm; the first iteration overwrites it.
    OFSDP_RETURN_IF_ERROR(add(m, "muon.normalize", {}, {}, {{kValues, x}, {kOther, sums}}));
    int from = kValues, to = kOther;
    for (int i = 0; i < Muon::kIterations; ++i) {
      const Operand of{from, x}, g{kGram, gram}, polynomial{kPolynomial, gram};
      OFSDP_RETURN_IF_ERROR(
          add(m, "Gemm", {{m.tall() ? "transA" : "transB", int64_t{1}}}, {of, of}, {g}));
      OFSDP_RETURN_IF_ERROR(
          add(m, "Gemm", {{"beta", Muon::kB / Muon::kC}}, {g, g, g}, {polynomial}));
      // A separate call, since oneDNN has no fast product that both scales and adds.
      OFSDP_RETURN_IF_ERROR(add(m, "muon.scale", {}, {}, {polynomial}));
      const auto factors =
          m.tall() ? std::vector{of, polynomial, of} : std::vector{polynomial, of, of};
      OFSDP_RETURN_IF_ERROR(add(m, "Gemm", {{"beta", Muon::kA}}, factors, {{to, x}}));
      std::swap(from, to);
    }
    OFSDP_RETURN_IF_ERROR(add(m, "put", {}, {{from, x}}, {{kValues, x}}));
    m.work_bytes = offsets(m).back() + workspace_;
    workspace_ = 0;
    return {};
  }

 private:
  struct Operand {
    int array;
    TensorDesc desc;
  };

  Status add(OrthogonalMatrix& m, const std::string& op, Attributes attributes,
             const std::vector<Operand>& in, const std::vector<Operand>& out) {
    Problem problem{std::move(attributes), {}, {}, {}, 0, pool_threads()};
    OrthogonalMatrix::Call call;
    for (const Operand& o : in) {
      problem.inputs.push_back(o.desc);
      call.in.push_back({nullptr, o.desc});
      call.in_arrays.push_back(o.array);
    }
    for (const Operand& o : out) {
      problem.outputs.push_back(o.desc);
      call.out.push_back({nullptr, o.desc});
      call.out_arrays.push_back(o.array);
    }
    problem.constants.resize(in.size());
    const OpDef& def = op == "Gemm" ? gemm_ : parts_.get("ofsdp.update." + op);
    OFSDP_ASSIGN_OR_RETURN(call.kernel, kernels_.get(def, problem));
    workspace_ = std::max(workspace_, call.kernel->workspace_bytes());
    m.calls.push_back(std::move(call));
    return {};
  }

  const OpDef& gemm_;
  const Registry parts_;
  KernelCache& kernels_;
  size_t workspace_ = 0;
};

Status run_calls(OrthogonalMatrix& m, std::span<OrthogonalMatrix::Call> calls, float* values,
                 std::byte* work, const StepContext& step) {
  const auto at = offsets(m);
  const auto place = [&](const std::vector<int>& arrays, std::vector<TensorView>& views) {
    for (size_t i = 0; i < arrays.size(); ++i) {
      views[i].data = arrays[i] == kValues ? reinterpret_cast<std::byte*>(values)
                                           : work + at[static_cast<size_t>(arrays[i])];
    }
  };
  for (OrthogonalMatrix::Call& call : calls) {
    place(call.in_arrays, call.in);
    place(call.out_arrays, call.out);
    OFSDP_RETURN_IF_ERROR(call.kernel->run({call.in, call.out, work + at.back(), &step}));
  }
  return {};
}

// Assigns owners. `loads`: each rank's operations in the units so far; adds this unit's.
void deal(OrthogonalUnit& unit, std::vector<double>& loads) {
  std::vector<size_t> order(unit.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return iteration_flops(unit[a]) > iteration_flops(unit[b]);
  });
  std::vector<double> here(loads.size());
  for (const size_t i : order) {
    int best = 0;
    for (size_t r = 1; r < loads.size(); ++r) {
      const auto b = static_cast<size_t>(best);
      const bool less = here[r] < here[b] || (here[r] == here[b] && loads[r] < loads[b]);
      if (less) best = static_cast<int>(r);
    }
    unit[i].owner = best;
    here[static_cast<size_t>(best)] += iteration_flops(unit[i]);
  }
  for (size_t r = 0; r < loads.size(); ++r) loads[r] += here[r];
}

}  // namespace

double iteration_flops(const OrthogonalMatrix& m) {
  const auto side = static_cast<double>(m.side());
  return 2 * (2 * side * static_cast<double>(m.numel()) + side * side * side);
}

double orthogonal_flops(const OrthogonalMatrix& m) {
  return Muon::kIterations * iteration_flops(m);
}

std::vector<int> owners(const Plan& plan, const Unit& unit, const OrthogonalMatrix& matrix) {
  std::vector<int> ranks;
  for (int r = 0; r < plan.world; ++r) {
    const RankGroup group =
        unit.plan.shards > 1 ? plan.shard_group(unit, r) : RankGroup{0, plan.world, 1};
    if (group.index_of(r) == matrix.owner) ranks.push_back(r);
  }
  return ranks;
}

Result<std::vector<OrthogonalUnit>> plan_orthogonal(const UpdatePlan& updates, const Plan& plan,
                                                    const Registry& registry,
                                                    KernelCache& kernels) {
  std::vector<OrthogonalUnit> units;
  std::vector<double> loads_of_shards(static_cast<size_t>(plan.shard_size));
  std::vector<double> loads_of_all(static_cast<size_t>(plan.world));
  OrthogonalPlanner planner(registry, kernels);
  for (const Unit& unit : plan.units) {
    OrthogonalUnit& list = units.emplace_back();
    for (const UnitParam& p : unit.params) {
      if (!updates.optimizer_of(p.parameter).traits.orthogonal) continue;
      const MatrixShape& shape = updates.of(p.parameter).shape;
      OrthogonalMatrix& m = list.emplace_back();
      m.offset = p.offset;
      m.rows = shape.rows;
      m.columns = shape.columns;
      OFSDP_RETURN_IF_ERROR(planner.plan(m));
    }
    deal(list, unit.plan.shards > 1 ? loads_of_shards : loads_of_all);
  }
  return units;
}

size_t work_bytes(const OrthogonalUnit& unit) {
  size_t most = 0;
  for (const OrthogonalMatrix& m : unit) most = std::max(most, m.work_bytes);
  return most;
}

Status orthogonalize(OrthogonalMatrix& m, float* values, std::byte* work, const StepContext& step) {
  return run_calls(m, m.calls, values, work, step);
}

Status iterate(OrthogonalMatrix& m, float* values, std::byte* work) {
  return run_calls(m, std::span(m.calls).subspan(1, kIterationCalls), values, work, {});
}

}  // namespace ofsdp::runtime
