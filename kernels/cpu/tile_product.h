// Matrix products of one size that threads run side by side: dst = A' B', or dst += A' B', all
// dense and row-major (zeros, or nothing added, where there is nothing to sum); A' is A^T when transpose_a, B' likewise. float goes through oneDNN,
// each product on the thread that calls; double through plain loops.
//
// Ownership: owns the primitives, and memory objects for each slot. Threads: `run` from any thread,
// one at a time per slot. Errors: none; what oneDNN has no implementation for ends the program
// while planning, which no float32 product does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ofsdp {

struct TileSize {
  int64_t rows = 0, inner = 0, columns = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
};

template <typename T>
class TileProduct;

template <>
class TileProduct<float> {
 public:
  TileProduct(const TileSize& size, int slots);
  size_t scratch_bytes() const;  // of each slot
  void run(int slot, const float* a, const float* b, float* dst, std::byte* scratch) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

template <>
class TileProduct<double> {
 public:
  TileProduct(const TileSize& size, int) : size_(size) {}
  size_t scratch_bytes() const { return 0; }
  void run(int slot, const double* a, const double* b, double* dst, std::byte* scratch) const;

 private:
  TileSize size_;
};

}  // namespace ofsdp
