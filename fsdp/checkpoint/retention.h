// Retention: the checkpoints that stay. These are the newest `keep`, and the one of the best
// evaluation when `best` asks for it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ofsdp::fsdp {

struct Retention {
  int64_t keep = 2;
  std::string best;  // the number of an evaluation that decides; empty: none
};

// Whether number `a` of an evaluation is better than `b`; equal is not. `name` may end in
// @PREDICTION. NaN is never better, and everything else is better than NaN.
inline bool is_better(std::string_view name, double a, double b) {
  constexpr std::array<std::string_view, 4> kLowerIsBetter{"loss", "perplexity", "rmse", "mae"};
  if (a != a || b != b) return a == a;
  const bool lower = std::ranges::count(kLowerIsBetter, name.substr(0, name.find('@'))) > 0;
  return lower ? a < b : a > b;
}

}  // namespace ofsdp::fsdp
