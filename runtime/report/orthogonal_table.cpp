#include "runtime/report/orthogonal_table.h"

#include <algorithm>

#include "kernels/base/escaped.h"
#include "kernels/base/readable.h"

namespace ofsdp::runtime {
namespace {

size_t matrix_bytes(const OrthogonalMatrix& m) {
  return static_cast<size_t>(m.numel()) * sizeof(float);
}

std::string gigaflops(double flops) { return readable_number(flops * 1e-9, 3); }

}  // namespace

std::vector<DealtMatrix> dealt_matrices(const RunPlan& plan) {
  std::vector<DealtMatrix> list;
  for (size_t u = 0; u < plan.orthogonal.size(); ++u) {
    const Unit& unit = plan.plan.units[u];
    for (const OrthogonalMatrix& m : plan.orthogonal[u]) {
      const auto param = std::ranges::find(unit.params, m.offset, &UnitParam::offset);
      list.push_back({param->name, unit.id, &m, owners(plan.plan, unit, m)});
    }
  }
  return list;
}

std::vector<OrthogonalLoad> orthogonal_loads(const RunPlan& plan) {
  std::vector<OrthogonalLoad> loads(static_cast<size_t>(plan.plan.world));
  for (const DealtMatrix& dealt : dealt_matrices(plan)) {
    for (const int rank : dealt.ranks) {
      OrthogonalLoad& load = loads[static_cast<size_t>(rank)];
      ++load.matrices;
      load.bytes += matrix_bytes(*dealt.matrix);
      load.flops += orthogonal_flops(*dealt.matrix);
    }
  }
  return loads;
}

std::string orthogonal_table(const RunPlan& plan) {
  const std::vector<DealtMatrix> list = dealt_matrices(plan);
  if (list.empty()) return "";
  size_t width = 6;
  for (const DealtMatrix& dealt : list) width = std::max(width, escaped(dealt.name).size());
  const auto padded = [width](std::string text) {
    text.resize(width, ' ');
    return text;
  };
  std::string out = format_text("\nNewton-Schulz (Muon)\n{}  {:>5}  {:>13}  {:>9}  {:>12}  rank\n",
                                padded("matrix"), "unit", "shape", "size", "GFLOP");
  for (const DealtMatrix& dealt : list) {
    const OrthogonalMatrix& m = *dealt.matrix;
    out += format_text("{}  {:>5}  {:>13}  {:>9}  {:>12}  {}\n", padded(escaped(dealt.name)),
                       format_text("u{}", dealt.unit), format_text("{} x {}", m.rows, m.columns),
                       readable_bytes(matrix_bytes(m)), gigaflops(orthogonal_flops(m)),
                       joined(dealt.ranks, ", "));
  }
  out += format_text("\n{:>4}  {:>8}  {:>9}  {:>12}\n", "rank", "matrices", "size", "GFLOP");
  const std::vector<OrthogonalLoad> loads = orthogonal_loads(plan);
  for (size_t r = 0; r < loads.size(); ++r) {
    out += format_text("{:>4}  {:>8}  {:>9}  {:>12}\n", r, loads[r].matrices,
                       readable_bytes(loads[r].bytes), gigaflops(loads[r].flops));
  }
  return out;
}

}  // namespace ofsdp::runtime
