#include "runtime/engine/orthogonal_plan.h"

#include <cmath>
#include <numeric>

#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/parameter_updates.h"
#include "runtime/engine/optimizer_step.h"

namespace ofsdp::runtime {
namespace {

using updates::Muon;

TensorDesc matrix_of(int64_t rows, int64_t columns) {
  return {DType::kFloat32, Shape{rows, columns}};
}

size_t bytes_of(int64_t numel) {
  return align_up(static_cast<size_t>(numel) * sizeof(float), kTensorAlignment);
}

// Another X of the same shape, the Gram matrix, its polynomial, the kernels' own.
struct Workspace {
  float *other, *gram, *polynomial;
  std::byte* kernel;
};

Workspace workspace(const OrthogonalMatrix& m, std::byte* work) {
  const size_t square = bytes_of(m.side() * m.side());
  std::byte* const gram = work + bytes_of(m.numel());
  return {reinterpret_cast<float*>(work), reinterpret_cast<float*>(gram),
          reinterpret_cast<float*>(gram + square), gram + 2 * square};
}

class OrthogonalPlanner {
 public:
  OrthogonalPlanner(const Registry& registry, KernelCache& kernels)
      : gemm_(registry.get("Gemm")), kernels_(kernels) {}

  // Tall matrices stand on the other side of the products, which is the transposed formula.
  Status plan(OrthogonalMatrix& m) {
    const TensorDesc x = matrix_of(m.rows, m.columns), gram = matrix_of(m.side(), m.side());
    OFSDP_ASSIGN_OR_RETURN(m.gram,
                           product({{m.tall() ? "transA" : "transB", int64_t{1}}}, {x, x}, gram));
    OFSDP_ASSIGN_OR_RETURN(m.square,
                           product({{"beta", Muon::kB / Muon::kC}}, {gram, gram, gram}, gram));
    const auto factors = m.tall() ? std::vector{x, gram, x} : std::vector{gram, x, x};
    OFSDP_ASSIGN_OR_RETURN(m.advance, product({{"beta", Muon::kA}}, factors, x));
    size_t most = 0;
    for (const auto* product : {&m.gram, &m.square, &m.advance}) {
      most = std::max(most, product->kernel->workspace_bytes());
    }
    m.work_bytes = bytes_of(m.numel()) + 2 * bytes_of(m.side() * m.side()) + most;
    return {};
  }

 private:
  Result<OrthogonalMatrix::Product> product(Attributes attributes,
                                            const std::vector<TensorDesc>& inputs,
                                            const TensorDesc& output) {
    Problem problem{std::move(attributes), inputs, {output}, {}, 0, pool_threads()};
    problem.constants.resize(inputs.size());
    OrthogonalMatrix::Product made;
    OFSDP_ASSIGN_OR_RETURN(made.kernel, kernels_.get(gemm_, problem));
    for (const TensorDesc& desc : inputs) made.in.push_back({nullptr, desc});
    made.out = {nullptr, output};
    return made;
  }

  const OpDef& gemm_;
  KernelCache& kernels_;
};

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

OFSDP_MULTIARCH void divide(float* values, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = values[i] / by;
}

// Apart from the product: oneDNN has no fast one that both scales and adds.
OFSDP_MULTIARCH void multiply(float* values, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = values[i] * by;
}

// As where ranks add their zeros.
OFSDP_MULTIARCH void add_zero(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] + 0.0f;
}

// From x to next.
Status iterate(OrthogonalMatrix& m, float* x, float* next, const Workspace& w,
               MatrixArithmetic& arithmetic) {
  const auto run = [&](OrthogonalMatrix::Product& product, std::initializer_list<float*> in,
                       float* out) {
    auto view = product.in.begin();
    for (float* const data : in) (view++)->data = reinterpret_cast<std::byte*>(data);
    product.out.data = reinterpret_cast<std::byte*>(out);
    return product.kernel->run({product.in, {&product.out, 1}, w.kernel, &arithmetic.context()});
  };
  OFSDP_RETURN_IF_ERROR(run(m.gram, {x, x}, w.gram));
  OFSDP_RETURN_IF_ERROR(run(m.square, {w.gram, w.gram, w.gram}, w.polynomial));
  OFSDP_RETURN_IF_ERROR(arithmetic.scale(w.polynomial, Muon::kC, m.side() * m.side()));
  return m.tall() ? run(m.advance, {x, w.polynomial, x}, next)
                  : run(m.advance, {w.polynomial, x, x}, next);
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

Status HostArithmetic::normalize(float* values, int64_t count, double least, double*) {
  const double norm = std::sqrt(sum_of_squares({values, static_cast<size_t>(count)}));
  divide(values, static_cast<float>(std::max(norm, least)), count);
  return {};
}

Status HostArithmetic::scale(float* values, float by, int64_t count) {
  multiply(values, by, count);
  return {};
}

Status HostArithmetic::put(const float* from, float* to, int64_t count) {
  add_zero(from, to, count);
  return {};
}

Status HostArithmetic::clear(float* values, int64_t count) {
  std::fill_n(values, count, 0.0f);
  return {};
}

// The other X is free while the norm is made.
Status orthogonalize(OrthogonalMatrix& m, float* values, std::byte* work,
                     MatrixArithmetic& arithmetic) {
  const Workspace w = workspace(m, work);
  OFSDP_RETURN_IF_ERROR(
      arithmetic.normalize(values, m.numel(), Muon::kEps, reinterpret_cast<double*>(w.other)));
  float *x = values, *next = w.other;
  for (int i = 0; i < Muon::kIterations; ++i) {
    OFSDP_RETURN_IF_ERROR(iterate(m, x, next, w, arithmetic));
    std::swap(x, next);
  }
  return arithmetic.put(x, values, m.numel());
}

Status iterate(OrthogonalMatrix& m, float* values, std::byte* work, MatrixArithmetic& arithmetic) {
  const Workspace w = workspace(m, work);
  return iterate(m, values, w.other, w, arithmetic);
}

}  // namespace ofsdp::runtime
