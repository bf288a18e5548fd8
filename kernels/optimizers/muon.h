// Muon: an average of gradients, made orthogonal matrix by matrix.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/optimizers/element_update.h"

namespace ofsdp::kernels::updates {

// Muon (torch.optim.Muon, in float32), of a parameter of two axes:
//   m = m + (1 - momentum)(g - m);  u = g + momentum (m - g)
//   X = u / max(|u|, eps), transposed where it has more rows than columns; five times
//     G = X X^T,  X = a X + (b G + c G G) X
//   p *= 1 - lr weight_decay;  p -= lr adjust X
// `step` advances m, `direction` returns u; runtime/engine/orthogonal_plan.h makes X of it.
// https://kellerjordan.github.io/posts/muon
struct Muon : ElementUpdate {
  static constexpr bool kMovesParam = false;
  static constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;
  static constexpr double kEps = 1e-7;
  static constexpr int kIterations = 5;
  using Factors = Lerp;

  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    return Lerp::of(1 - n.settings.momentum);
  }
  OFSDP_BOTH static void step(Element& e, float g, const Factors& f) {
    e.state[0] = f(e.state[0], g);
  }
  OFSDP_BOTH static Lerp look_ahead(const OptimizerSettings& s) { return Lerp::of(s.momentum); }
  // Rows and columns as the use has them: out and in.
  static double original_adjust(int64_t rows, int64_t columns) {
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  }
  static double rms_adjust(int64_t rows, int64_t columns) {
    return 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }

  // Advances the state alone: the rest is no update of elements.
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; s.momentum != 0 && i < span.count; ++i) {
      double& m = span.state[0][i];
      m = s.momentum * m + (1 - s.momentum) * span.grad[i];
    }
  }
};

}  // namespace ofsdp::kernels::updates
