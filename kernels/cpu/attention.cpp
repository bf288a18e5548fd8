#include "kernels/cpu/attention.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "kernels/core/memory.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_product.h"

namespace ofsdp {

using namespace attention;

namespace {

constexpr int64_t kBlockScores = int64_t{1} << 17;  // 512 KiB of float32
constexpr int64_t kMostRows = 128, kLeastRows = 16;
constexpr int64_t kKeyStep = 64;  // keys of a causal block are rounded up to this

// Copies `rows` rows of `width` that lie `step` apart to dense ones, or the other way round.
template <typename T>
void gather_rows(const T* from, int64_t step, int64_t rows, int64_t width, T* to) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * step, width, to + r * width);
}
template <typename T>
void scatter_rows(const T* from, int64_t rows, int64_t width, T* to, int64_t step) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * width, width, to + r * step);
}

}  // namespace

HeadStrides head_strides(int64_t heads, int64_t rows, int64_t width, bool packed) {
  if (packed) return {rows * heads * width, width, heads * width};
  return {heads * rows * width, rows * width, width};
}

template <typename T>
struct AttentionKernel<T>::Plan {
  // Products of a block of `rows` queries and `keys` keys.
  struct Products {
    Products(const AttentionShape& s, int64_t rows, int64_t keys, bool backward, int slots)
        : scores({rows, s.width, keys, false, true, false}, slots),
          values({rows, keys, s.v_width, false, false, false}, slots),
          d_probabilities({backward ? rows : 0, s.v_width, keys, false, true, false}, slots),
          d_values({backward ? keys : 0, rows, s.v_width, true, false, true}, slots),
          d_queries({backward ? rows : 0, keys, s.width, false, false, false}, slots),
          d_keys({backward ? keys : 0, rows, s.width, true, false, true}, slots) {}

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
  // Buffers of a slot, in elements from its start.
  struct Buffers {
    size_t q, k, v, scores, second, capped, out, dy, dk, dv, sums, scratch, total;
  };

  Plan(const AttentionShape& s, bool backward, bool all_keys)
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
      if (!products) {
        products = std::make_shared<const Products>(s, count, keys, backward, slots);
      }
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
    size_t at = 0;
    auto take = [&](int64_t count) {
      const size_t here = at;
      at += align_up(static_cast<size_t>(count) * sizeof(T), kTensorAlignment) / sizeof(T);
      return here;
    };
    const AttentionShape& s = shape;
    auto& b = buffers;
    b.q = take(rows * s.width);
    b.k = take(s.k.row == s.width ? 0 : s.keys * s.width);
    b.v = take(s.v.row == s.v_width ? 0 : s.keys * s.v_width);
    b.scores = take(rows * s.keys);
    b.second = take(backward ? rows * s.keys : 0);
    b.capped = take(backward && s.softcap > 0 ? rows * s.keys : 0);
    b.out = take(rows * std::max(s.width, s.v_width));
    b.dy = take(backward ? rows * s.v_width : 0);
    b.dk = take(backward ? s.keys * s.width : 0);
    b.dv = take(backward ? s.keys * s.v_width : 0);
    b.sums = take(rows);
    b.scratch = at;
    b.total = at * sizeof(T) + align_up(scratch, kTensorAlignment);
  }

  // f(slot, base, item) for items 0 .. count-1, each slot its share in rising order.
  template <typename F>
  void for_items(int64_t count, std::byte* workspace, const F& f) const {
    parallel_for(slots, 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        T* base = reinterpret_cast<T*>(workspace + static_cast<size_t>(slot) * buffers.total);
        for (int64_t i = count * slot / slots; i < count * (slot + 1) / slots; ++i) {
          f(static_cast<int>(slot), base, i);
        }
      }
    });
  }

  std::byte* scratch_of(T* base) const {
    return reinterpret_cast<std::byte*>(base + buffers.scratch);
  }

  const T* dense(const T* from, int64_t step, int64_t width, T* buffer) const {
    if (step == width) return from;
    gather_rows(from, step, shape.keys, width, buffer);
    return buffer;
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

  // Outside of what the query may see: `value`.
  static void fill_outside(T* row, const Range& r, int64_t keys, T value) {
    std::fill(row, row + r.low, value);
    std::fill(row + r.high, row + keys, value);
  }

  void mask_scores(T* row, const Range& r, const void* mask, int64_t b, int64_t h,
                   int64_t query) const {
    if (shape.mask == MaskKind::kNone) return;
    const int64_t* steps = shape.mask_strides;
    const int64_t at = b * steps[0] + h * steps[1] + query * steps[2] + r.low * steps[3];
    if (shape.mask == MaskKind::kBool) {
      mask_row(row + r.low, static_cast<const bool*>(mask) + at, steps[3], r.high - r.low);
    } else {
      mask_row(row + r.low, static_cast<const T*>(mask) + at, steps[3], r.high - r.low);
    }
  }

  // Scores of a block become e^(score - max), 0 where nothing is seen; sums get their sums.
  // watch(row, scores, mode) sees them on the way.
  template <typename Watch>
  void softmax(const AttentionOperands<T>& o, const Block& block, int64_t b, int64_t h, T* scores,
               T* sums, const Watch& watch) const {
    const auto cap = static_cast<T>(shape.softcap);
    for (int64_t i = 0; i < block.rows; ++i) {
      T* row = scores + i * block.keys;
      const Range r = range_of(b, block.first + i, block.keys, o.lengths);
      watch(i, row, ScoresOutput::kRaw, r);
      if (cap > 0) cap_row(row, block.keys, cap);
      watch(i, row, ScoresOutput::kCapped, r);
      mask_scores(row, r, o.mask, b, h, block.first + i);
      watch(i, row, ScoresOutput::kMasked, r);
      sums[i] = exp_row(row + r.low, r.high - r.low);
      fill_outside(row, r, block.keys, T{0});
    }
  }

  void forward_block(const AttentionOperands<T>& o, const Block& block, int slot, T* base,
                     int64_t b, int64_t h, const T* k, const T* v, ScoresOutput mode) const {
    const AttentionShape& s = shape;
    T* scores = base + buffers.scores;
    T* sums = base + buffers.sums;
    T* out = base + buffers.out;
    load_queries(o, block, base, b, h);
    block.products->scores.run(slot, base + buffers.q, k, scores, scratch_of(base));
    T* wanted = o.scores == nullptr
                    ? nullptr
                    : o.scores + ((b * s.heads + h) * s.queries + block.first) * s.keys;
    softmax(o, block, b, h, scores, sums,
            [&](int64_t i, const T* row, ScoresOutput stage, const Range& r) {
              if (wanted == nullptr || stage != mode) return;
              std::copy_n(row, s.keys, wanted + i * s.keys);
              if (stage == ScoresOutput::kMasked) {
                fill_outside(wanted + i * s.keys, r, s.keys, -std::numeric_limits<T>::infinity());
              }
            });
    block.products->values.run(slot, scores, v, out, scratch_of(base));
    T* y = o.y + b * s.y.batch + h * s.y.head + block.first * s.y.row;
    for (int64_t i = 0; i < block.rows; ++i) {
      const T factor = sums[i] == T{0} ? T{0} : T{1} / sums[i];
      if (block.keys == 0) std::fill_n(out + i * s.v_width, s.v_width, T{0});
      scale_row(out + i * s.v_width, factor, y + i * s.y.row, s.v_width);
      if (wanted != nullptr && mode == ScoresOutput::kProbabilities) {
        scale_row(scores + i * block.keys, factor, wanted + i * s.keys, s.keys);
      }
    }
  }

  // The block's queries, times the scale, dense.
  void load_queries(const AttentionOperands<T>& o, const Block& block, T* base, int64_t b,
                    int64_t h) const {
    const T* q = o.q + b * shape.q.batch + h * shape.q.head + block.first * shape.q.row;
    for (int64_t i = 0; i < block.rows; ++i) {
      scale_row(q + i * shape.q.row, static_cast<T>(shape.scale),
                base + buffers.q + static_cast<size_t>(i * shape.width), shape.width);
    }
  }

  void backward_block(const AttentionOperands<T>& o, const Block& block, int slot, T* base,
                      int64_t b, int64_t h, const T* k, const T* v) const {
    const AttentionShape& s = shape;
    const auto cap = static_cast<T>(s.softcap);
    std::byte* scratch = scratch_of(base);
    T* p = base + buffers.scores;
    T* ds = base + buffers.second;
    T* capped = base + buffers.capped;
    T* sums = base + buffers.sums;
    T* dy = base + buffers.dy;
    load_queries(o, block, base, b, h);
    block.products->scores.run(slot, base + buffers.q, k, p, scratch);
    softmax(o, block, b, h, p, sums,
            [&](int64_t i, const T* row, ScoresOutput stage, const Range&) {
              if (cap > 0 && stage == ScoresOutput::kCapped) {
                std::copy_n(row, block.keys, capped + i * block.keys);
              }
            });
    for (int64_t i = 0; i < block.rows; ++i) {
      T* row = p + i * block.keys;
      scale_row(row, sums[i] == T{0} ? T{0} : T{1} / sums[i], row, block.keys);
    }
    gather_rows(o.dy + b * s.y.batch + h * s.y.head + block.first * s.y.row, s.y.row, block.rows,
                s.v_width, dy);
    block.products->d_values.run(slot, p, dy, base + buffers.dv, scratch);
    block.products->d_probabilities.run(slot, dy, v, ds, scratch);
    for (int64_t i = 0; i < block.rows; ++i) {
      T* row = ds + i * block.keys;
      softmax_grad_row(p + i * block.keys, row, block.keys);
      if (o.dmask != nullptr) put_mask_grad(o, row, block, b, h, i);
      if (cap > 0) cap_grad_row(row, capped + i * block.keys, cap, block.keys);
    }
    T* dq = base + buffers.out;
    block.products->d_queries.run(slot, ds, k, dq, scratch);
    T* to = o.dq + b * s.q.batch + h * s.q.head + block.first * s.q.row;
    for (int64_t i = 0; i < block.rows; ++i) {
      if (block.keys == 0) std::fill_n(dq + i * s.width, s.width, T{0});
      scale_row(dq + i * s.width, static_cast<T>(s.scale), to + i * s.q.row, s.width);
    }
    block.products->d_keys.run(slot, ds, base + buffers.q, base + buffers.dk, scratch);
  }

  void put_mask_grad(const AttentionOperands<T>& o, const T* row, const Block& block, int64_t b,
                     int64_t h, int64_t i) const {
    T* to = o.dmask + ((b * shape.heads + h) * shape.queries + block.first + i) * shape.mask_keys;
    const int64_t there = std::min(block.keys, shape.mask_keys);
    std::copy_n(row, there, to);
    std::fill_n(to + there, shape.mask_keys - there, T{0});
  }

  AttentionShape shape;
  int slots;
  std::vector<Block> blocks;
  Buffers buffers{};
};

template <typename T>
AttentionKernel<T>::AttentionKernel(const AttentionShape& shape, bool backward, bool all_keys)
    : plan_(std::make_shared<const Plan>(shape, backward, all_keys)) {}

template <typename T>
size_t AttentionKernel<T>::workspace_bytes() const {
  return plan_->buffers.total * static_cast<size_t>(plan_->slots);
}

template <typename T>
void AttentionKernel<T>::forward(const AttentionOperands<T>& o, ScoresOutput mode,
                                 std::byte* workspace) const {
  const AttentionShape& s = plan_->shape;
  plan_->for_items(s.batch * s.heads, workspace, [&](int slot, T* base, int64_t item) {
    const int64_t b = item / s.heads, h = item % s.heads;
    const int64_t kv = h / (s.heads / s.kv_heads);
    const T* k = plan_->dense(o.k + b * s.k.batch + kv * s.k.head, s.k.row, s.width,
                              base + plan_->buffers.k);
    const T* v = plan_->dense(o.v + b * s.v.batch + kv * s.v.head, s.v.row, s.v_width,
                              base + plan_->buffers.v);
    for (const auto& block : plan_->blocks) {
      plan_->forward_block(o, block, slot, base, b, h, k, v, mode);
    }
  });
}

template <typename T>
void AttentionKernel<T>::backward(const AttentionOperands<T>& o, std::byte* workspace) const {
  const AttentionShape& s = plan_->shape;
  const auto& at = plan_->buffers;
  plan_->for_items(s.batch * s.kv_heads, workspace, [&](int slot, T* base, int64_t item) {
    const int64_t b = item / s.kv_heads, kv = item % s.kv_heads;
    const int64_t group = s.heads / s.kv_heads;
    const int64_t at_k = b * s.k.batch + kv * s.k.head, at_v = b * s.v.batch + kv * s.v.head;
    const T* k = plan_->dense(o.k + at_k, s.k.row, s.width, base + at.k);
    const T* v = plan_->dense(o.v + at_v, s.v.row, s.v_width, base + at.v);
    std::fill_n(base + at.dk, s.keys * s.width, T{0});
    std::fill_n(base + at.dv, s.keys * s.v_width, T{0});
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (const auto& block : plan_->blocks) {
        plan_->backward_block(o, block, slot, base, b, h, k, v);
      }
    }
    scatter_rows(base + at.dk, s.keys, s.width, o.dk + at_k, s.k.row);
    scatter_rows(base + at.dv, s.keys, s.v_width, o.dv + at_v, s.v.row);
  });
}

template class AttentionKernel<float>;
template class AttentionKernel<double>;

}  // namespace ofsdp
