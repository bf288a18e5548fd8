#include "kernels/cpu/attention.h"

#include <cmath>

#include "kernels/cpu/attention_plan.h"

namespace ofsdp::kernels {

using namespace attention;

namespace {

// One block of queries of head `h` of sample `b`, on the buffers of a slot.
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
  // 1 / the sum of row i; 0 where nothing is seen.
  Real share(int64_t i) const {
    const Real sum = reals(plan_.buffers.sums)[i];
    return sum == Real{0} ? Real{0} : Real{1} / sum;
  }

  static Real largest(const Real* row, int64_t n) {
    Real most = kNone;
    for (int64_t i = 0; i < n; ++i) most = std::max(most, row[i]);
    return most;
  }

  // Outside of what the query may see: `value`.
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

  // Scores of a block become e^(score - max), 0 where nothing is seen; sums get their sums.
  // watch(row, scores, mode) sees them on the way.
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

  // dQ of the block, and its part of dK. The products of bfloat16 hold the scale.
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
