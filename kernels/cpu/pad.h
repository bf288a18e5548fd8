// Padding, and cropping where a pad is negative, of a plain tensor: per axis, which source index
// each output index shows.
//
//   pad_axis(n, before, after, mode)  the source index of each output index; -1 is the constant
//   PadMap                            all axes, as loops over rows of the last axis
//
// kReflect mirrors at the edge elements without repeating them, kEdge repeats them, kWrap goes
// round; all as often as it takes. Negative pads crop first, and what is left is padded.
//
// Ownership: values, made while planning. Threads: the loops fan out over the pool by rows.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/core/shape.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {

enum class PadMode { kConstant, kReflect, kEdge, kWrap };

std::vector<int64_t> pad_axis(int64_t n, int64_t before, int64_t after, PadMode mode);

class PadMap {
 public:
  PadMap(const Shape& src, const std::vector<int64_t>& before, const std::vector<int64_t>& after,
         PadMode mode);

  template <typename T>
  void pad(const T* src, T value, T* dst) const;

  // diff_src = the sum of diff_dst over the output elements that show each source element, in the
  // order of the output. Not for kConstant, whose gradient is a padding itself.
  template <typename T>
  void pad_grad(const T* diff_dst, T* diff_src) const;

 private:
  // Outputs that show source index i of an axis: places[begins[i]] .. places[begins[i + 1]-1].
  struct Inverse {
    std::vector<int64_t> begins, places;
  };
  static Inverse inverted(const std::vector<int64_t>& map, int64_t n);

  template <typename T>
  void add_rows(size_t axis, int64_t row, const int64_t* index, const T* diff_dst, T* to) const;

  Shape src_, dst_;
  std::vector<std::vector<int64_t>> maps_;
  std::vector<Inverse> inverses_;
  // The longest run of the last axis that is one piece of the source: dst [begin, end) from `from`.
  int64_t run_begin_ = 0, run_end_ = 0, run_from_ = 0;
};

}  // namespace ofsdp::kernels
