#include "runtime/program/placement.h"

#include <algorithm>
#include <numeric>

namespace ofsdp::runtime {

size_t place(std::vector<MemoryPiece>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  struct Extent {
    size_t begin, end;
  };
  struct Life {
    int first, last;
  };
  std::vector<Extent> extents;  // of placed pieces, by offset
  std::vector<Life> lives;      // theirs: apart, since every piece looks at all of them
  size_t total = 0;
  for (size_t index : order) {
    MemoryPiece& piece = pieces[index];
    if (piece.bytes == 0) continue;
    size_t offset = 0;  // the lowest gap that is wide enough among those alive at the same time
    for (size_t k = 0; k < lives.size(); ++k) {
      if (lives[k].last < piece.first || piece.last < lives[k].first) continue;
      if (extents[k].begin >= offset + piece.bytes) break;
      offset = std::max(offset, extents[k].end);
    }
    piece.offset = offset;
    total = std::max(total, offset + piece.bytes);
    const auto at = std::ranges::upper_bound(extents, offset, {}, &Extent::begin);
    lives.insert(lives.begin() + (at - extents.begin()), {piece.first, piece.last});
    extents.insert(at, {offset, offset + piece.bytes});
  }
  return total;
}

}  // namespace ofsdp::runtime
