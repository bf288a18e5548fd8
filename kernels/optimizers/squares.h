// ExactSquares: a sum of squares of float32 values that does not depend on their order, so that a
// norm has the same bits for any number of ranks (--deterministic across_ranks).
//
// The square of a float32 is exact in double. Each square is cut off below 2^-256 and added as an
// integer in units of 2^-256, so the sum is exact too, and is rounded once, at the end (the long
// accumulator: Kulisch, "Computer Arithmetic and Validity").
//
// Each rank calls `add` for the values that it counts, at most 2^43 of them, and then `limbs`:
// kLimbs doubles that hold integers of 32 bits, least significant first; the first is NaN if a
// value was not finite. Ranks exchange the limbs, and each calls `sum` with all of them.
// `add_sum` takes the sum of a fixed block of squares, rounded to double; then the result does not
// depend on who has which blocks, and is infinite if a sum is. Nothing allocates.
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
  void add_sum(double squares);  // at least 0, below 2^272; or not finite
  std::array<double, kLimbs> limbs() const;

  // Returns the sum of all squares, rounded. `limbs_of_ranks`: kLimbs numbers per rank.
  static double sum(std::span<const double> limbs_of_ranks);

 private:
  using Wide = unsigned __int128;
  static std::array<double, kLimbs> carried(const std::array<Wide, kLimbs>& limbs);

  std::array<Wide, kLimbs> limbs_{};  // limb i counts units of 2^(32 i - 256)
  double lost_ = 0;                   // the sum of what is not finite
};

// SquareLanes: a sum of squares in double, piece by piece; the bits do not depend on the pieces.
// Value i is added to sum i % 16; the 16 sums are then added in order. All pieces but the last must
// have multiples of 16 values.
class SquareLanes {
 public:
  void add(std::span<const float> values);
  double sum() const;

 private:
  std::array<double, 16> lanes_{};
};

// Returns the same of one piece.
double sum_of_squares(std::span<const float> values);

}  // namespace ofsdp::kernels
