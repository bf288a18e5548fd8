// ExactSquares: a sum of squares of float32 values that does not depend on their order, so that a
// norm is the same however many ranks share it.
//
// The square of a float32 is exact in double. Squares are added as integers in units of 2^-256
// (what lies below is cut off value by value), so the sum is exact too, and is rounded once, at the
// end. Kulisch, "Computer Arithmetic and Validity", the long accumulator.
//
// A rank adds its values, gives its limbs, and any rank adds the limbs of all: kLimbs integers of
// 32 bits a rank, as doubles, least significant first; NaN in the first where a value was not
// finite. Ownership: a value. Threads: one. Never allocates. At most 2^43 values.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace ofsdp::kernels {

class ExactSquares {
 public:
  static constexpr int kLimbs = 16;

  void clear() { *this = {}; }
  void add(std::span<const float> values);
  std::array<double, kLimbs> limbs() const;

  // Takes kLimbs numbers a rank; returns the sum of all squares, rounded.
  static double sum(std::span<const double> limbs_of_ranks);

 private:
  using Wide = unsigned __int128;
  static std::array<double, kLimbs> carried(const std::array<Wide, kLimbs>& limbs);

  std::array<Wide, kLimbs> limbs_{};  // limb i counts units of 2^(32 i - 256)
  bool finite_ = true;
};

// Sum of squares in double: 16 sums in turn, which are then added in order.
double sum_of_squares(std::span<const float> values);

}  // namespace ofsdp::kernels
