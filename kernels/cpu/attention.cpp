// Attention on the CPU: operations on score rows (softcap, mask, softmax and its gradient), the
// plan with blocks and buffers, the kernel. float is vectorised; bfloat16 is read as float and
// rounded.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/vector_math.h"

namespace ofsdp::kernels::attention {

namespace {

template <typename T, typename M>
[[gnu::always_inline]] inline void mask_as(T* s, const M* mask, int64_t step, int64_t n) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(M) == 1) {
      s[i] = mask[i * step] ? s[i] : kNone;
    } else {
      const T m = as_real(mask[i * step]);
      s[i] = m == kNone ? kNone : s[i] + m;
    }
  }
}

template <typename A>
[[gnu::always_inline]] inline void cap_row_by(float* s, int64_t n, float cap) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) s[i] = cap * vector_tanh<A>(s[i] / cap);
}
const auto fastest_cap_row =
    fastest_version<cap_row_by<SeparateMultiplyAdd>, cap_row_by<FusedMultiplyAdd>>();

template <typename A>
[[gnu::always_inline]] inline float exp_row_by(float* s, int64_t n) {
  const float max = lane_max(s, n);
  if (max == -std::numeric_limits<float>::infinity() &&
      std::none_of(s, s + n, [](float v) { return v != v; })) {
    std::fill_n(s, n, 0.0f);
    return 0;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) s[i] = vector_exp_flushed<A>(s[i] - max);
  return lane_sum(n, [s](int64_t i) { return s[i]; });
}
const auto fastest_exp_row =
    fastest_version<exp_row_by<SeparateMultiplyAdd>, exp_row_by<FusedMultiplyAdd>>();

// s = cap tanh(s / cap)
void cap_row(float* s, int64_t n, float cap) { fastest_cap_row(s, n, cap); }
void cap_row(double* s, int64_t n, double cap) {
  for (int64_t i = 0; i < n; ++i) s[i] = cap * std::tanh(s[i] / cap);
}

// s = -infinity if the mask is false; s += mask, and -infinity if the mask is -infinity.
template <typename T, typename M>
OFSDP_MULTIARCH void mask_row(T* s, const M* mask, int64_t step, int64_t n) {
  if (step == 1) return mask_as(s, mask, 1, n);
  mask_as(s, mask, step, n);
}

// s = e^(s - max); returns the sum. If all are -infinity, writes zeros and returns 0.
float exp_row(float* s, int64_t n) { return fastest_exp_row(s, n); }
double exp_row(double* s, int64_t n) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, s[i]);
  for (int64_t i = 0; i < n; ++i) {
    s[i] = max == -std::numeric_limits<double>::infinity() ? 0 : std::exp(s[i] - max);
    sum += s[i];
  }
  return sum;
}

OFSDP_MULTIARCH void scale_row(const float* s, float factor, float* dst, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dst[i] = s[i] * factor;
}
OFSDP_MULTIARCH void scale_row(const float* s, float factor, BFloat16* dst, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dst[i] = stored<BFloat16>(s[i] * factor);
}
void scale_row(const double* s, double factor, double* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = s[i] * factor;
}

template <typename T>
void put_row(const T* s, T* dst, int64_t n) {
  std::copy_n(s, n, dst);
}
void put_row(const float* s, BFloat16* dst, int64_t n) { scale_row(s, 1.0f, dst, n); }

// dp = p (dp - sum(p dp))
template <typename T>
OFSDP_MULTIARCH void softmax_grad_row(const T* p, T* dp, int64_t n) {
  const T dot = lane_sum(n, [=](int64_t i) { return p[i] * dp[i]; });
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dp[i] = p[i] * (dp[i] - dot);
}

// ds *= 1 - (capped / cap)^2
template <typename T>
OFSDP_MULTIARCH void cap_grad_row(T* ds, const T* capped, T cap, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T t = capped[i] / cap;
    ds[i] *= T{1} - t * t;
  }
}

}  // namespace
}  // namespace ofsdp::kernels::attention

namespace ofsdp::kernels {

// AttentionPlan cuts an attention into query blocks and holds their products and a thread's buffer
// offsets, all fixed while planning. T is the operand type, Real the type for scores and sums:
// float for bfloat16, else T.

template <typename T>
struct AttentionPlan {
  using Real = RealOf<T>;
  static constexpr bool kNarrow = !std::is_same_v<T, Real>;
  static constexpr int64_t kBlockScores = int64_t{1} << 17;  // 512 KiB of float32
  static constexpr int64_t kMaxRows = 128, kMinRows = 16;
  static constexpr int64_t kKeyStep = 64;  // rounds up the keys in a causal block

  // Products for a block with `rows` queries and `keys` keys.
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
  // A slot's buffers, in bytes from the start. `factor` holds rounded probabilities or dS.
  struct Buffers {
    size_t q, k, v, dy, factor, scores, second, capped, out, dk, dv, sums, scratch, total;
  };

  AttentionPlan(const AttentionShape& s, bool backward, bool all_keys)
      : shape(s),
        slots(static_cast<int>(std::min<int64_t>(
            pool_threads(), std::max<int64_t>(s.batch * (backward ? s.kv_heads : s.heads), 1)))) {
    const int64_t most = std::max<int64_t>(kBlockScores / std::max<int64_t>(s.keys, 1), kMinRows);
    const int64_t rows = std::min(std::min(most, kMaxRows), std::max<int64_t>(s.queries, 1));
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

  // Returns how many keys `query` may reach, as far as planning knows.
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

  // Calls f(slot, base, item) for items 0 .. count-1; each slot takes a share in rising order.
  void for_items(int64_t count, std::byte* workspace, const auto& f) const {
    parallel_each(slots, 1, [&](int64_t slot) {
      std::byte* base = workspace + static_cast<size_t>(slot) * buffers.total;
      for (int64_t i = count * slot / slots; i < count * (slot + 1) / slots; ++i) {
        f(static_cast<int>(slot), base, i);
      }
    });
  }

  // Returns `rows` rows, `step` apart, as dense rows: in place, or copied to `buffer`.
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

  // Returns a block's rows [rows, keys] as a factor for the next product: in place, or rounded.
  const T* as_factor(const Real* x, const Block& block, std::byte* base) const {
    if constexpr (kNarrow) {
      T* to = reinterpret_cast<T*>(base + buffers.factor);
      attention::put_row(x, to, block.rows * block.keys);
      return to;
    } else {
      return x;
    }
  }

  // Returns the block's queries, dense; float and double ones already scaled.
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

using namespace attention;

namespace {

// A query block for head `h` in sample `b`, on a slot's buffers.
template <typename T>
class BlockRun {
  using Plan = AttentionPlan<T>;
  using Real = typename Plan::Real;
  using Range = typename Plan::Range;

 public:
  BlockRun(const Plan& plan, const typename Plan::Block& block, const AttentionOperands<T>& o,
           int slot, std::byte* base)
      : plan_(plan), s_(plan.shape), block_(block), o_(o), slot_(slot), base_(base) {}

  void forward(int64_t b, int64_t h, const T* k, const T* v, ScoresOutput mode) const {
    Real* scores = reals(plan_.buffers.scores);
    Real* out = reals(plan_.buffers.out);
    block_.products->scores.run(slot_, queries(b, h), k, scores, scratch());
    T* wanted = o_.scores == nullptr
                    ? nullptr
                    : o_.scores + ((b * s_.heads + h) * s_.queries + block_.first) * s_.keys;
    float* statistics = o_.statistics == nullptr
                            ? nullptr
                            : o_.statistics + (b * s_.heads + h) * s_.queries + block_.first;
    softmax(b, h, scores, [&](int64_t i, const Real* row, ScoresOutput stage, const Range& r) {
      if (statistics != nullptr && stage == ScoresOutput::kMasked) {
        statistics[i] = static_cast<float>(largest(row + r.low, r.high - r.low));
      }
      if (wanted == nullptr || stage != mode) return;
      put_row(row, wanted + i * s_.keys, s_.keys);
      if (stage == ScoresOutput::kMasked) fill_outside(wanted + i * s_.keys, r, s_.keys, kNone);
    });
    for (int64_t i = 0; statistics != nullptr && i < block_.rows; ++i) {
      const Real sum = reals(plan_.buffers.sums)[i];
      statistics[i] = sum == Real{0} ? -static_cast<float>(kNone)
                                     : statistics[i] + std::log(static_cast<float>(sum));
    }
    block_.products->values.run(slot_, plan_.as_factor(scores, block_, base_), v, out, scratch());
    T* y = o_.y + s_.y.of(b, h, block_.first);
    for (int64_t i = 0; i < block_.rows; ++i) {
      if (block_.keys == 0) std::fill_n(out + i * s_.v_width, s_.v_width, Real{0});
      scale_row(out + i * s_.v_width, share(i), y + i * s_.y.row, s_.v_width);
      if (wanted != nullptr && mode == ScoresOutput::kProbabilities) {
        scale_row(scores + i * block_.keys, share(i), wanted + i * s_.keys, s_.keys);
      }
    }
  }

  void backward(int64_t b, int64_t h, const T* k, const T* v) const {
    Real* p = reals(plan_.buffers.scores);
    Real* ds = reals(plan_.buffers.second);
    Real* capped = reals(plan_.buffers.capped);
    const auto cap = static_cast<Real>(s_.softcap);
    const T* q = queries(b, h);
    block_.products->scores.run(slot_, q, k, p, scratch());
    softmax(b, h, p, [&](int64_t i, const Real* row, ScoresOutput stage, const Range&) {
      if (cap > 0 && stage == ScoresOutput::kCapped) {
        std::copy_n(row, block_.keys, capped + i * block_.keys);
      }
    });
    for (int64_t i = 0; i < block_.rows; ++i) {
      scale_row(p + i * block_.keys, share(i), p + i * block_.keys, block_.keys);
    }
    const T* dy = plan_.dense(o_.dy + s_.y.of(b, h, block_.first), s_.y.row, block_.rows,
                              s_.v_width, base_ + plan_.buffers.dy);
    block_.products->d_values.run(slot_, plan_.as_factor(p, block_, base_), dy,
                                  reals(plan_.buffers.dv), scratch());
    block_.products->d_probabilities.run(slot_, dy, v, ds, scratch());
    for (int64_t i = 0; i < block_.rows; ++i) {
      Real* row = ds + i * block_.keys;
      softmax_grad_row(p + i * block_.keys, row, block_.keys);
      if (o_.dmask != nullptr) put_mask_grad(row, b, h, i);
      if (cap > 0) cap_grad_row(row, capped + i * block_.keys, cap, block_.keys);
    }
    to_operands(b, h, plan_.as_factor(ds, block_, base_), q, k);
  }

 private:
  static constexpr Real kNone = -std::numeric_limits<Real>::infinity();

  Real* reals(size_t offset) const { return reinterpret_cast<Real*>(base_ + offset); }
  std::byte* scratch() const { return base_ + plan_.buffers.scratch; }
  const T* queries(int64_t b, int64_t h) const {
    return plan_.queries(o_.q + s_.q.of(b, h, block_.first), block_, base_);
  }
  // Returns 1 / (sum of row i); 0 if the query sees no key.
  Real share(int64_t i) const {
    const Real sum = reals(plan_.buffers.sums)[i];
    return sum == Real{0} ? Real{0} : Real{1} / sum;
  }

  static Real largest(const Real* row, int64_t n) {
    Real most = kNone;
    for (int64_t i = 0; i < n; ++i) most = std::max(most, row[i]);
    return most;
  }

  // Writes `value` to the keys that the query may not see.
  template <typename X>
  static void fill_outside(X* row, const Range& r, int64_t keys, Real value) {
    X x{};
    put_row(&value, &x, 1);
    std::fill(row, row + r.low, x);
    std::fill(row + r.high, row + keys, x);
  }

  void mask_scores(Real* row, const Range& r, int64_t b, int64_t h, int64_t query) const {
    if (s_.mask == MaskKind::kNone) return;
    const int64_t* steps = s_.mask_strides;
    const int64_t at = b * steps[0] + h * steps[1] + query * steps[2] + r.low * steps[3];
    if (s_.mask == MaskKind::kBool) {
      mask_row(row + r.low, static_cast<const bool*>(o_.mask) + at, steps[3], r.high - r.low);
    } else {
      mask_row(row + r.low, static_cast<const T*>(o_.mask) + at, steps[3], r.high - r.low);
    }
  }

  // Turns a block's scores into e^(score - max), 0 if the query sees no key, and writes the row
  // sums. Calls watch(row, scores, mode, range) in between.
  void softmax(int64_t b, int64_t h, Real* scores, const auto& watch) const {
    const auto cap = static_cast<Real>(s_.softcap);
    for (int64_t i = 0; i < block_.rows; ++i) {
      Real* row = scores + i * block_.keys;
      const Range r = plan_.range_of(b, block_.first + i, block_.keys, o_.lengths);
      watch(i, row, ScoresOutput::kRaw, r);
      if (cap > 0) cap_row(row, block_.keys, cap);
      watch(i, row, ScoresOutput::kCapped, r);
      mask_scores(row, r, b, h, block_.first + i);
      watch(i, row, ScoresOutput::kMasked, r);
      reals(plan_.buffers.sums)[i] = exp_row(row + r.low, r.high - r.low);
      fill_outside(row, r, block_.keys, Real{0});
    }
  }

  // Computes the block's dQ and the block's part in dK. bfloat16 products have applied the scale.
  void to_operands(int64_t b, int64_t h, const T* ds, const T* q, const T* k) const {
    Real* dq = reals(plan_.buffers.out);
    block_.products->d_queries.run(slot_, ds, k, dq, scratch());
    T* to = o_.dq + s_.q.of(b, h, block_.first);
    const auto scale = Plan::kNarrow ? Real{1} : static_cast<Real>(s_.scale);
    for (int64_t i = 0; i < block_.rows; ++i) {
      if (block_.keys == 0) std::fill_n(dq + i * s_.width, s_.width, Real{0});
      scale_row(dq + i * s_.width, scale, to + i * s_.q.row, s_.width);
    }
    block_.products->d_keys.run(slot_, ds, q, reals(plan_.buffers.dk), scratch());
  }

  void put_mask_grad(const Real* row, int64_t b, int64_t h, int64_t i) const {
    T* to = o_.dmask + ((b * s_.heads + h) * s_.queries + block_.first + i) * s_.mask_keys;
    const int64_t there = std::min(block_.keys, s_.mask_keys);
    put_row(row, to, there);
    std::fill_n(to + there, s_.mask_keys - there, T{});
  }

  const Plan& plan_;
  const AttentionShape& s_;
  const typename Plan::Block& block_;
  const AttentionOperands<T>& o_;
  int slot_;
  std::byte* base_;
};

template <typename Real, typename T>
void scatter_rows(const Real* from, int64_t rows, int64_t width, T* to, int64_t step) {
  for (int64_t r = 0; r < rows; ++r) put_row(from + r * width, to + r * step, width);
}

}  // namespace

template <typename T>
AttentionKernel<T>::AttentionKernel(const AttentionShape& shape, bool backward, bool all_keys)
    : plan_(std::make_shared<const AttentionPlan<T>>(shape, backward, all_keys)) {}

template <typename T>
bool AttentionKernel<T>::is_available() {
  return TileProduct<T>::is_available();
}

template <typename T>
size_t AttentionKernel<T>::workspace_bytes() const {
  return plan_->buffers.total * static_cast<size_t>(plan_->slots);
}

template <typename T>
void AttentionKernel<T>::forward(const AttentionOperands<T>& o, ScoresOutput mode,
                                 std::byte* workspace) const {
  const AttentionShape& s = plan_->shape;
  const auto& at = plan_->buffers;
  plan_->for_items(s.batch * s.heads, workspace, [&](int slot, std::byte* base, int64_t item) {
    const int64_t b = item / s.heads, h = item % s.heads;
    const int64_t kv = h / (s.heads / s.kv_heads);
    const T* k = plan_->dense(o.k + s.k.of(b, kv), s.k.row, s.keys, s.width, base + at.k);
    const T* v = plan_->dense(o.v + s.v.of(b, kv), s.v.row, s.keys, s.v_width, base + at.v);
    for (const auto& block : plan_->blocks) {
      BlockRun<T>(*plan_, block, o, slot, base).forward(b, h, k, v, mode);
    }
  });
}

template <typename T>
void AttentionKernel<T>::backward(const AttentionOperands<T>& o, std::byte* workspace) const {
  using Real = typename AttentionPlan<T>::Real;
  const AttentionShape& s = plan_->shape;
  const auto& at = plan_->buffers;
  plan_->for_items(s.batch * s.kv_heads, workspace, [&](int slot, std::byte* base, int64_t item) {
    const int64_t b = item / s.kv_heads, kv = item % s.kv_heads;
    const int64_t group = s.heads / s.kv_heads;
    const int64_t at_k = s.k.of(b, kv), at_v = s.v.of(b, kv);
    const T* k = plan_->dense(o.k + at_k, s.k.row, s.keys, s.width, base + at.k);
    const T* v = plan_->dense(o.v + at_v, s.v.row, s.keys, s.v_width, base + at.v);
    Real* dk = reinterpret_cast<Real*>(base + at.dk);
    Real* dv = reinterpret_cast<Real*>(base + at.dv);
    std::fill_n(dk, s.keys * s.width, Real{0});
    std::fill_n(dv, s.keys * s.v_width, Real{0});
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (const auto& block : plan_->blocks) {
        BlockRun<T>(*plan_, block, o, slot, base).backward(b, h, k, v);
      }
    }
    scatter_rows(dk, s.keys, s.width, o.dk + at_k, s.k.row);
    scatter_rows(dv, s.keys, s.v_width, o.dv + at_v, s.v.row);
  });
}

template class AttentionKernel<float>;
template class AttentionKernel<BFloat16>;
template class AttentionKernel<double>;

}  // namespace ofsdp::kernels
