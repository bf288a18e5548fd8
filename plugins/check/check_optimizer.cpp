#include "plugins/check/check_optimizer.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/core/tensor.h"
#include "plugins/check/check_values.h"
#include "plugins/loading/guarded_buffer.h"

namespace ofsdp::plugins {
namespace {

float* floats(const std::shared_ptr<GuardedBuffer>& buffer) {
  return reinterpret_cast<float*>(buffer->data());
}

// The step of an optimizer with a direction, made of spans that end at `cut` and at the end. `all`:
// parameter, gradient, states. What is wrong, or nothing.
std::string take_direction(const OptimizerDef& def,
                           const std::vector<std::shared_ptr<GuardedBuffer>>& all, int64_t cut,
                           int64_t step) {
  const auto count = static_cast<int64_t>(all[0]->size() / sizeof(float));
  GuardedBuffer buffer("direction", all[0]->size());
  auto* direction = reinterpret_cast<float*>(buffer.data());
  for (int64_t at = 0; at < count;) {
    const int64_t stop = at < cut ? cut : count;
    std::vector<float*> states;
    for (size_t k = 2; k < all.size(); ++k) states.push_back(floats(all[k]) + at);
    def.direction({}, {floats(all[0]) + at, nullptr, states.data(), stop - at, 0.01, 0.1, step},
                  direction + at);
    at = stop;
  }
  if (!buffer.surrounded()) return "it writes outside of " + buffer.name();
  double of_p = 0, of_d = 0;
  for (int64_t i = 0; i < count; ++i) {
    of_p += static_cast<double>(floats(all[0])[i]) * floats(all[0])[i];
    of_d += static_cast<double>(direction[i]) * direction[i];
  }
  for (const auto& [p, d] : {std::pair{of_p, of_d}, {0.0, of_d}, {of_p, 0.0}, {0.0, 0.0}}) {
    const double length = def.step_length({}, {std::sqrt(p), std::sqrt(d), count, 0.01, step});
    if (!std::isfinite(length)) {
      return format_text("step_length is {} for norms {} and {}", length, std::sqrt(p),
                         std::sqrt(d));
    }
  }
  const double length = def.step_length({}, {std::sqrt(of_p), std::sqrt(of_d), count, 0.01, step});
  for (int64_t i = 0; i < count; ++i) {
    floats(all[0])[i] -= static_cast<float>(length) * direction[i];
  }
  return "";
}

}  // namespace

std::vector<std::string> check_optimizer(const OptimizerDef& def) {
  constexpr int64_t kCount = 1000, kCut = 377;
  std::mt19937 random(5);
  const std::vector<double> start = normals(kCount, random), slope = normals(kCount, random);
  const size_t states = def.state_names({}).size();
  std::vector<std::shared_ptr<GuardedBuffer>> results;
  for (const bool cut : {false, true, false}) {
    std::vector<std::shared_ptr<GuardedBuffer>> all;
    for (size_t k = 0; k < states + 2; ++k) {
      const std::string name = k == 0 ? "param" : k == 1 ? "grad" : format_text("state {}", k - 2);
      all.push_back(std::make_shared<GuardedBuffer>(name, kCount * sizeof(float)));
      all.back()->fill(0);
    }
    const TensorDesc desc{DType::kFloat32, {kCount}};
    from_doubles(start, desc, all[0]->data());
    from_doubles(slope, desc, all[1]->data());
    all[1]->protect(true);
    for (int64_t step = 1; step <= 3; ++step) {
      for (int64_t at = 0; at < kCount;) {
        const int64_t stop = cut && at == 0 ? kCut : kCount;
        std::vector<float*> parts;
        for (auto& b : all) parts.push_back(reinterpret_cast<float*>(b->data()) + at);
        def.update({}, {parts[0], parts[1], parts.data() + 2, stop - at, 0.01, 0.1, step});
        at = stop;
      }
      if (def.direction == nullptr) continue;
      const std::string wrong = take_direction(def, all, cut ? kCut : kCount, step);
      if (!wrong.empty()) return {"! " + wrong};
    }
    for (const auto& buffer : all) {
      if (!buffer->surrounded()) return {"! it writes outside of " + buffer->name()};
    }
    results.push_back(all[0]);
  }
  const auto same = [&](size_t i) {
    return std::memcmp(results[0]->data(), results[i]->data(), results[0]->size()) == 0;
  };
  if (!same(2)) return {"! two runs differ"};
  if (!same(1)) return {"! the update of a span depends on where it is cut"};
  return {"update of a shard, whole and cut"};
}

}  // namespace ofsdp::plugins
