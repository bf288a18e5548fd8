// Values of new weights: drawn by PyTorch's rules from the seed, or zero.
//
// Every element is a function of seed, name and place (Philox, kernels/core/philox.h), so all ranks
// draw the same, whatever part they read. Threads: any. Errors: none.
#pragma once

#include <algorithm>
#include <cmath>

#include "importer/file/initializer.h"
#include "kernels/base/hash.h"
#include "kernels/core/philox.h"

namespace ofsdp::importer {

// Uniform in (-1/sqrt(fan_in), 1/sqrt(fan_in)): torch.nn.Linear's weight and bias, which is
// Kaiming-uniform with a = sqrt(5), PEFT's lora_A.
class LinearDraw final : public ValueSource {
 public:
  LinearDraw(const std::string& name, uint64_t seed, int64_t fan_in)
      : key_(kernels::philox_key(seed, Fnv1a().add(name).value(), 0)),
        bound_(1 / std::sqrt(static_cast<double>(std::max<int64_t>(fan_in, 1)))) {}

  Status read(int64_t first, std::span<float> dst) const override {
    for (float& value : dst) {
      const uint32_t bits = kernels::philox_element(key_, 0, static_cast<uint64_t>(first++));
      value = static_cast<float>((bits * 0x1p-31 + 0x1p-32 - 1) * bound_);
    }
    return {};
  }

 private:
  kernels::PhiloxKey key_;
  double bound_;
};

class Zeros final : public ValueSource {
 public:
  Status read(int64_t /*first*/, std::span<float> dst) const override {
    std::ranges::fill(dst, 0.0f);
    return {};
  }
};

}  // namespace ofsdp::importer
