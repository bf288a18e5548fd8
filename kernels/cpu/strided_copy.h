// Copies a tensor from one set of strides to another: slices, concatenation, transposes, expansion,
// changes of layout. Elements are 1, 2, 4 or 8 bytes and are moved, never looked at.
//
// Planning picks the way: rows that are contiguous on both sides are copied whole; a transposition
// goes in square tiles, so that both sides stay in cache; anything else goes element by element.
//
// `run` fans out over the pool.
#pragma once

#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cpu/broadcast.h"

namespace ofsdp::kernels {

class StridedCopy {
 public:
  // Strides in elements, one per axis of `shape`; dst must not overlap itself or src.
  StridedCopy(const Shape& shape, const std::vector<int64_t>& src_strides,
              const std::vector<int64_t>& dst_strides, size_t element_bytes);

  void run(const std::byte* src, std::byte* dst) const;

 private:
  template <typename T>
  void run_as(const T* src, T* dst) const;
  template <typename T>
  void run_rows(const T* src, T* dst) const;
  template <typename T>
  void run_tiles(const T* src, T* dst) const;

  StridedLoop loop_;          // operands: src, dst
  StridedLoop::Axis across_;  // if tiled: the outer axis along which src is contiguous
  bool tiled_ = false;
  size_t element_bytes_;
};

// Copies input 0, from `src_offset` bytes on, to output 0, from `dst_offset` bytes on.
std::unique_ptr<Kernel> make_copy_kernel(StridedCopy copy, int64_t src_offset = 0,
                                         int64_t dst_offset = 0);

}  // namespace ofsdp::kernels
