#include "runtime/program/placement.h"

#include <algorithm>
#include <numeric>

namespace ofsdp::runtime {

size_t place(std::vector<MemoryPiece>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  std::vector<const MemoryPiece*> placed;  // by offset
  size_t total = 0;
  for (size_t index : order) {
    MemoryPiece& piece = pieces[index];
    if (piece.bytes == 0) continue;
    size_t offset = 0;  // the lowest gap that is wide enough among those alive at the same time
    for (const MemoryPiece* other : placed) {
      if (other->last < piece.first || piece.last < other->first) continue;
      if (other->offset >= offset + piece.bytes) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    piece.offset = offset;
    total = std::max(total, offset + piece.bytes);
    placed.insert(std::ranges::upper_bound(placed, offset, {},
                                           [](const MemoryPiece* p) { return p->offset; }),
                  &piece);
  }
  return total;
}

}  // namespace ofsdp::runtime
