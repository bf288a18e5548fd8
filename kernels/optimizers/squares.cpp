#include "kernels/optimizers/squares.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {
namespace {

constexpr int kLimbBits = 32;
constexpr int kLowest = -256;  // exponent of the unit of limb 0
constexpr int kMantissaBits = 52;
constexpr int kBias = 1023 + kMantissaBits;  // value = mantissa * 2^(exponent field - kBias)

constexpr size_t kSquareLanes = 16;

OFSDP_MULTIARCH void add_squares(const float* values, size_t count, double* lanes) {
  for (size_t i = 0; i + kSquareLanes <= count; i += kSquareLanes) {
    for (size_t k = 0; k < kSquareLanes; ++k) {
      const double value = values[i + k];
      lanes[k] += value * value;
    }
  }
}

}  // namespace

void ExactSquares::add(std::span<const float> values) {
  for (const float value : values) {
    const double square = static_cast<double>(value) * value;
    add_sum(std::isfinite(square) ? square : std::numeric_limits<double>::quiet_NaN());
  }
}

void ExactSquares::add_sum(double squares) {
  if (squares == 0) return;
  if (!std::isfinite(squares)) {
    lost_ += squares;
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(squares);  // normal: the least is 2^-298
  uint64_t mantissa = (bits & ((uint64_t{1} << kMantissaBits) - 1)) | uint64_t{1} << kMantissaBits;
  int shift = static_cast<int>(bits >> kMantissaBits) - kBias - kLowest;
  if (shift < 0) {
    mantissa = shift > -64 ? mantissa >> -shift : 0;
    shift = 0;
  }
  limbs_[static_cast<size_t>(shift / kLimbBits)] += Wide{mantissa} << (shift % kLimbBits);
}

// Carries, so that each limb is below 2^32; the last limb keeps all higher bits.
std::array<double, ExactSquares::kLimbs> ExactSquares::carried(
    const std::array<Wide, kLimbs>& limbs) {
  std::array<double, kLimbs> out;
  Wide carry = 0;
  for (size_t i = 0; i < limbs.size(); ++i) {
    carry += limbs[i];
    if (i + 1 == limbs.size()) {
      out[i] = static_cast<double>(static_cast<uint64_t>(carry));
    } else {
      out[i] = static_cast<double>(static_cast<uint32_t>(carry));
      carry >>= kLimbBits;
    }
  }
  return out;
}

std::array<double, ExactSquares::kLimbs> ExactSquares::limbs() const {
  std::array<double, kLimbs> out = carried(limbs_);
  if (lost_ != 0) out[0] = lost_;
  return out;
}

double ExactSquares::sum(std::span<const double> limbs_of_ranks) {
  std::array<Wide, kLimbs> total{};
  double lost = 0;
  for (size_t i = 0; i < limbs_of_ranks.size(); ++i) {
    if (std::isfinite(limbs_of_ranks[i])) {
      total[i % kLimbs] += static_cast<uint64_t>(limbs_of_ranks[i]);
    } else {
      lost += limbs_of_ranks[i];
    }
  }
  if (lost != 0) return lost;
  const std::array<double, kLimbs> limbs = carried(total);  // the same for any division among ranks
  double sum = 0;
  for (int i = kLimbs; i-- > 0;) {
    sum += std::ldexp(limbs[static_cast<size_t>(i)], kLimbBits * i + kLowest);
  }
  return sum;
}

void SquareLanes::add(std::span<const float> values) {
  add_squares(values.data(), values.size(), lanes_.data());
  for (size_t i = values.size() / kSquareLanes * kSquareLanes; i < values.size(); ++i) {
    lanes_[i % kSquareLanes] += static_cast<double>(values[i]) * values[i];
  }
}

double SquareLanes::sum() const {
  double sum = 0;
  for (const double lane : lanes_) sum += lane;
  return sum;
}

double sum_of_squares(std::span<const float> values) {
  SquareLanes lanes;
  lanes.add(values);
  return lanes.sum();
}

}  // namespace ofsdp::kernels
