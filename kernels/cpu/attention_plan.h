// How AttentionKernel cuts one attention into blocks of queries, its products and the places of the
// buffers of a thread; for kernels/cpu/attention.cpp. Everything is fixed while planning.
//
// T is the type of the operands, Real that of scores and sums: float of bfloat16, else T.
// The plan owns the products; operands are views. Threads: const after construction.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/core/memory.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_product.h"

namespace ofsdp::kernels {

template <typename T>
struct AttentionPlan {
  using Real = RealOf<T>;
  static constexpr bool kNarrow = !std::is_same_v<T, Real>;
  static constexpr int64_t kBlockScores = int64_t{1} << 17;  // 512 KiB of float32
  static constexpr int64_t kMostRows = 128, kLeastRows = 16;
  static constexpr int64_t kKeyStep = 64;  // keys of a causal block are rounded up to this

  // Products of a block of `rows` queries and `keys` keys.
  struct Products {
    Products(const AttentionShape& s, int64_t rows, int64_t keys, bool backward, int slots)
        : Products(s, rows, keys, backward ? rows : 0, backward ? keys : 0, kNarrow ? s.scale : 1.0,
                   slots) {}

    Products(const AttentionShape& s, int64_t rows, int64_t keys, int64_t d_rows, int64_t d_cols,
             double alpha, int slots)
        : scores({rows, s.width, keys, false, true, false, alpha}, slots),
          values({rows, keys, s.v_width, false, false, false}, slots),
          d_probabilities({d_rows, s.v_width, keys, false, true, false}, slots),
          d_values({d_cols, rows, s.v_width, true, false, true}, slots),
          d_queries({d_rows, keys, s.width, false, false, false, alpha}, slots),
          d_keys({d_cols, rows, s.width, true, false, true, alpha}, slots) {}

    size_t scratch_bytes() const {
      return std::max({scores.scratch_bytes(), values.scratch_bytes(),
                       d_probabilities.scratch_bytes(), d_values.scratch_bytes(),
                       d_queries.scratch_bytes(), d_keys.scratch_bytes()});
    }
    TileProduct<T> scores, values, d_probabilities, d_values, d_queries, d_keys;
  };
  struct Block {
    int64_t first, rows, keys;
    std::shared_ptr<const Products> products;
  };
  // Buffers of a slot, in bytes from its start. `factor` holds rounded probabilities or dS.
  struct Buffers {
    size_t q, k, v, dy, factor, scores, second, capped, out, dk, dv, sums, scratch, total;
  };

  AttentionPlan(const AttentionShape& s, bool backward, bool all_keys)
      : shape(s),
        slots(static_cast<int>(std::min<int64_t>(
            pool_threads(), std::max<int64_t>(s.batch * (backward ? s.kv_heads : s.heads), 1)))) {
    const int64_t most = std::max<int64_t>(kBlockScores / std::max<int64_t>(s.keys, 1), kLeastRows);
    const int64_t rows = std::min(std::min(most, kMostRows), std::max<int64_t>(s.queries, 1));
    std::map<std::pair<int64_t, int64_t>, std::shared_ptr<const Products>> made;
    size_t scratch = 0;
    for (int64_t first = 0; first < s.queries; first += rows) {
      const int64_t count = std::min(rows, s.queries - first);
      const int64_t keys = all_keys ? s.keys : keys_of(first + count - 1);
      auto& products = made[{count, keys}];
      if (!products) products = std::make_shared<const Products>(s, count, keys, backward, slots);
      scratch = std::max(scratch, products->scratch_bytes());
      blocks.push_back({first, count, keys, products});
    }
    place(rows, backward, scratch);
  }

  // How many keys the last query of a block may reach, by what is known while planning.
  int64_t keys_of(int64_t query) const {
    int64_t ahead = std::numeric_limits<int64_t>::max();
    if (shape.causal) ahead = 0;
    if (shape.right >= 0) ahead = std::min(ahead, shape.right);
    if (shape.padded || ahead >= shape.keys) return shape.keys;
    const int64_t reach = (shape.offset + query + ahead + 1 + kKeyStep - 1) / kKeyStep * kKeyStep;
    return std::min(reach, shape.keys);
  }

  void place(int64_t rows, bool backward, size_t scratch) {
    size_t end = 0;
    auto take = [&](int64_t count, size_t element) {
      const size_t here = end;
      end += align_up(static_cast<size_t>(count) * element, kTensorAlignment);
      return here;
    };
    auto factors = [&](int64_t count) { return take(count, sizeof(T)); };
    auto reals = [&](int64_t count) { return take(count, sizeof(Real)); };
    const AttentionShape& s = shape;
    auto& b = buffers;
    b.q = factors(kNarrow && s.q.row == s.width ? 0 : rows * s.width);
    b.k = factors(s.k.row == s.width ? 0 : s.keys * s.width);
    b.v = factors(s.v.row == s.v_width ? 0 : s.keys * s.v_width);
    b.dy = factors(backward && s.y.row != s.v_width ? rows * s.v_width : 0);
    b.factor = factors(kNarrow ? rows * s.keys : 0);
    b.scores = reals(rows * s.keys);
    b.second = reals(backward ? rows * s.keys : 0);
    b.capped = reals(backward && s.softcap > 0 ? rows * s.keys : 0);
    b.out = reals(rows * std::max(s.width, s.v_width));
    b.dk = reals(backward ? s.keys * s.width : 0);
    b.dv = reals(backward ? s.keys * s.v_width : 0);
    b.sums = reals(rows);
    b.scratch = end;
    b.total = end + align_up(scratch, kTensorAlignment);
  }

  // f(slot, base, item) for items 0 .. count-1, each slot its share in rising order.
  void for_items(int64_t count, std::byte* workspace, const auto& f) const {
    parallel_each(slots, 1, [&](int64_t slot) {
      std::byte* base = workspace + static_cast<size_t>(slot) * buffers.total;
      for (int64_t i = count * slot / slots; i < count * (slot + 1) / slots; ++i) {
        f(static_cast<int>(slot), base, i);
      }
    });
  }

  // `rows` rows, `step` apart, as dense ones: themselves, or copies in `buffer`.
  static const T* dense(const T* from, int64_t step, int64_t rows, int64_t width,
                        std::byte* buffer) {
    if (step == width) return from;
    T* to = reinterpret_cast<T*>(buffer);
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * step, width, to + r * width);
    return to;
  }

  struct Range {
    int64_t low, high;
  };
  Range range_of(int64_t b, int64_t query, int64_t keys, const int64_t* lengths) const {
    const int64_t at = query + (shape.padded ? lengths[b] - shape.queries : shape.offset);
    Range r{0, keys};
    if (shape.padded) r.high = std::min(r.high, lengths[b]);
    if (shape.mask != MaskKind::kNone) r.high = std::min(r.high, shape.mask_keys);
    if (shape.causal) r.high = std::min(r.high, at + 1);
    if (shape.right >= 0) r.high = std::min(r.high, at + shape.right + 1);
    if (shape.left >= 0) r.low = std::max<int64_t>(0, at - shape.left);
    r.high = std::max<int64_t>(r.high, 0);
    r.low = std::min(r.low, r.high);
    return r;
  }

  // A block's rows [rows, keys] as factors of the next product: themselves, or rounded.
  const T* as_factor(const Real* x, const Block& block, std::byte* base) const {
    if constexpr (kNarrow) {
      T* to = reinterpret_cast<T*>(base + buffers.factor);
      attention::put_row(x, to, block.rows * block.keys);
      return to;
    } else {
      return x;
    }
  }

  // The block's queries, dense; those of float and double times the scale.
  const T* queries(const T* from, const Block& block, std::byte* base) const {
    if constexpr (kNarrow) {
      return dense(from, shape.q.row, block.rows, shape.width, base + buffers.q);
    } else {
      T* to = reinterpret_cast<T*>(base + buffers.q);
      for (int64_t i = 0; i < block.rows; ++i) {
        attention::scale_row(from + i * shape.q.row, static_cast<T>(shape.scale),
                             to + i * shape.width, shape.width);
      }
      return to;
    }
  }

  AttentionShape shape;
  int slots;
  std::vector<Block> blocks;
  Buffers buffers{};
};

}  // namespace ofsdp::kernels
