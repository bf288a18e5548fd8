// place: gives pieces of memory with known sizes and lifetimes offsets, so that no two that live at
// the same time overlap; greedy by size. Returns the bytes needed. O(n^2) in the number of pieces.
// Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/core/memory.h"

namespace ofsdp::runtime {

// Places `bytes` after what is there: the offset, a multiple of kTensorAlignment as `end` is.
inline size_t take(size_t& end, size_t bytes) {
  const size_t offset = end;
  end += align_up(bytes, kTensorAlignment);
  return offset;
}

struct MemoryPiece {
  size_t bytes = 0;
  int first = 0;  // steps, inclusive
  int last = 0;
  size_t offset = 0;  // result
};

size_t place(std::vector<MemoryPiece>& pieces);

}  // namespace ofsdp::runtime
