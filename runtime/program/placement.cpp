#include "runtime/program/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ofsdp::runtime {

size_t place(std::vector<MemoryPiece>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  // Placed pieces, by offset: [begin, end), and apart from that, since every piece looks at all,
  // the steps [first, last].
  std::vector<std::pair<size_t, size_t>> extents;
  std::vector<std::pair<int, int>> lives;
  size_t total = 0;
  for (size_t index : order) {
    MemoryPiece& piece = pieces[index];
    if (piece.bytes == 0) continue;
    size_t offset = 0;  // the lowest gap that is wide enough among those alive at the same time
    for (size_t k = 0; k < lives.size(); ++k) {
      if (lives[k].second < piece.first || piece.last < lives[k].first) continue;
      if (extents[k].first >= offset + piece.bytes) break;
      offset = std::max(offset, extents[k].second);
    }
    piece.offset = offset;
    total = std::max(total, offset + piece.bytes);
    const auto at =
        std::ranges::upper_bound(extents, offset, {}, &std::pair<size_t, size_t>::first);
    lives.insert(lives.begin() + (at - extents.begin()), {piece.first, piece.last});
    extents.insert(at, {offset, offset + piece.bytes});
  }
  return total;
}

}  // namespace ofsdp::runtime
