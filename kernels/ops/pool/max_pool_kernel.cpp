// [Note: loops of MaxPool] The inner loops do not know the window: the caller lists the source
// elements to compare. So one vectorized loop serves both layouts.
#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/cpu/loops.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {
namespace {

// A block is up to kBlock adjacent outputs in y: channels at one position if channels last,
// positions in one row if plain.
constexpr int64_t kBlock = 64;
constexpr int kTapsAtOnce = 32;

struct Block {
  float best[kBlock];
  int32_t winner[kBlock];
};

struct Tap {
  const float* src;  // for output 0 in the block; output i reads src[i * step]
  int32_t number;
  int64_t begin, end;  // the outputs for which this tap is inside x
};

struct TapList {
  Tap taps[kTapsAtOnce];
  int count = 0;
  int64_t step = 1;
};

// [Note: four taps] Windows of 2 x 2 without padding, the usual case, need no block: each output's
// four candidates are compared in registers. Output i reads src[i * step + offset] for each offset.
struct FourTaps {
  int64_t offsets[4];
  int64_t step;
  bool relu;
};

[[gnu::always_inline]] inline void take_tap(const float* __restrict src, auto step, int32_t number,
                                            int64_t n, float* __restrict best,
                                            int32_t* __restrict winner) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = src[i * step];
    const bool take = (v > best[i]) | (v != v) | (winner[i] < 0);  // larger, NaN, or the first
    best[i] = take ? v : best[i];
    winner[i] = take ? number : winner[i];
  }
}

template <bool kRelu, typename Step>
[[gnu::always_inline]] inline void compare_four(const float* __restrict src, const FourTaps& f,
                                                Step step, int64_t n, float* __restrict dst,
                                                uint8_t* __restrict winners) {
  const float* src1 = src + f.offsets[1];
  const float* src2 = src + f.offsets[2];
  const float* src3 = src + f.offsets[3];
  for (int64_t i = 0; i < n; ++i) {
    float best = src[i * step];
    int32_t winner = 0;
    const float candidates[3] = {src1[i * step], src2[i * step], src3[i * step]};
    for (int32_t t = 0; t < 3; ++t) {
      // Masks, because compilers turn the choice into a jump in rows too short for vectors.
      const int32_t take = -int32_t{(candidates[t] > best) | (candidates[t] != candidates[t])};
      const int32_t bits =
          (std::bit_cast<int32_t>(best) & ~take) | (std::bit_cast<int32_t>(candidates[t]) & take);
      best = std::bit_cast<float>(bits);
      winner = (winner & ~take) | ((t + 1) & take);
    }
    if (kRelu) {
      winner = best > 0.0f ? winner : kNoWinner;
      best = best < 0.0f ? 0.0f : best;
    }
    dst[i] = best;
    winners[i] = static_cast<uint8_t>(winner);
  }
}

// Constant steps let the compiler use vector loads and shuffles. The first of equal taps wins; NaN
// wins over all.
OFSDP_MULTIARCH void take_taps(const TapList& list, Block& block) {
  for (int t = 0; t < list.count; ++t) {
    const Tap& tap = list.taps[t];
    const float* src = tap.src + tap.begin * list.step;
    const int64_t n = tap.end - tap.begin;
    float* best = block.best + tap.begin;
    int32_t* winner = block.winner + tap.begin;
    if (list.step == 1) {
      take_tap(src, std::integral_constant<int64_t, 1>(), tap.number, n, best, winner);
    } else if (list.step == 2) {
      take_tap(src, std::integral_constant<int64_t, 2>(), tap.number, n, best, winner);
    } else {
      take_tap(src, list.step, tap.number, n, best, winner);
    }
  }
}

OFSDP_MULTIARCH void start_block(Block& block) {
  for (int64_t i = 0; i < kBlock; ++i) {
    block.best[i] = -std::numeric_limits<float>::infinity();
    block.winner[i] = kNoWinner;
  }
}

// max(best, 0); no winner if that is 0.
OFSDP_MULTIARCH void relu_block(Block& block) {
  for (int64_t i = 0; i < kBlock; ++i) {
    block.winner[i] = block.best[i] > 0.0f ? block.winner[i] : kNoWinner;
    block.best[i] = block.best[i] < 0.0f ? 0.0f : block.best[i];
  }
}

OFSDP_MULTIARCH void narrow_winners(const int32_t* winner, uint8_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<uint8_t>(winner[i]);
}

// REQUIRES: f.step is 1 or 2.
OFSDP_MULTIARCH void four_taps(const float* src, const FourTaps& f, int64_t n, float* dst,
                               uint8_t* winners) {
  const std::integral_constant<int64_t, 1> one;
  const std::integral_constant<int64_t, 2> two;
  if (f.step == 1) {
    f.relu ? compare_four<true>(src, f, one, n, dst, winners)
           : compare_four<false>(src, f, one, n, dst, winners);
  } else {
    f.relu ? compare_four<true>(src, f, two, n, dst, winners)
           : compare_four<false>(src, f, two, n, dst, winners);
  }
}

class MaxPool {
 public:
  explicit MaxPool(const Problem& p)
      : window_(known_pool(p.attributes, p.in(0).shape)),
        channels_(p.in(0).shape[1]),
        channels_last_(p.in(0).layout == Layout::kChannelsLast),
        column_major_(p.attributes.i("storage_order", 0) != 0),
        relu_(has_relu(p.attributes)),
        indices_(p.has_out(1)),
        winners_(p.has_out(2)),
        narrow_(winner_dtype(window_.taps()) == DType::kUInt8),
        images_(p.in(0).shape[0]) {
    const Window& w = window_;
    const int64_t lane = channels_last_ ? channels_ : 1;
    four_.offsets[1] = lane;
    four_.offsets[2] = w.in[2] * lane;
    four_.offsets[3] = four_.offsets[1] + four_.offsets[2];
    four_.step = channels_last_ ? 1 : 2;
    four_.relu = relu_;
    is_four_ = winners_ && !indices_ && w.kernel == Window::Axes{1, 2, 2} &&
               w.dilations == Window::Axes{1, 1, 1} && w.pads_begin == Window::Axes{0, 0, 0} &&
               (channels_last_ || w.strides[2] == 2) && w.position(1, w.out[1] - 1, 1) < w.in[1] &&
               w.position(2, w.out[2] - 1, 1) < w.in[2];
  }

  void operator()(const KernelArgs& a) const {
    // An item is an output row: all channels of an image if channels last, else one plane.
    const int64_t rows = window_.out[0] * window_.out[1];
    const int64_t items = images_ * (channels_last_ ? 1 : channels_) * rows;
    parallel_each(items, 1, [&](int64_t item) {
      const int64_t d = item % rows / window_.out[1];
      if (is_four_) {
        four_row(a, item / rows, d, item % window_.out[1]);
        return;
      }
      channels_last_ ? channels_row(a, item / rows, d, item % window_.out[1])
                     : plain_row(a, item / rows, d, item % window_.out[1]);
    });
  }

 private:
  // Writes one output row in an image (channels last) or a plane; see [Note: four taps].
  void four_row(const KernelArgs& a, int64_t item, int64_t d, int64_t h) const {
    const Window& w = window_;
    const int64_t lane = channels_last_ ? channels_ : 1;
    const int64_t in_row = (w.position(0, d, 0) * w.in[1] + w.position(1, h, 0)) * w.in[2];
    const float* src = a.in<float>(0) + (item * w.in_size() + in_row) * lane;
    const int64_t out = (item * w.out_size() + (d * w.out[1] + h) * w.out[2]) * lane;
    float* dst = a.out<float>(0) + out;
    uint8_t* winners = a.out<uint8_t>(2) + out;
    if (!channels_last_) return four_taps(src, four_, w.out[2], dst, winners);
    for (int64_t v = 0; v < w.out[2]; ++v) {
      four_taps(src + v * w.strides[2] * lane, four_, lane, dst + v * lane, winners + v * lane);
    }
  }

  void channels_row(const KernelArgs& a, int64_t image, int64_t d, int64_t h) const {
    const float* src = a.in<float>(0) + image * window_.in_size() * channels_;
    const int64_t row = (d * window_.out[1] + h) * window_.out[2];
    for (int64_t v = 0; v < window_.out[2]; ++v) {
      const auto columns = tap_range(window_, 2, v);
      for (int64_t c = 0; c < channels_; c += kBlock) {
        const int64_t n = std::min(kBlock, channels_ - c);
        Block block;
        start_block(block);
        for_rows(d, h, block, 1, [&](TapList& list, int64_t number, int64_t in_row) {
          for (int64_t k = columns.first; k < columns.second; ++k) {
            const int64_t at = in_row + window_.position(2, v, k);
            append(list, {src + at * channels_ + c, static_cast<int32_t>(number + k), 0, n}, block);
          }
        });
        const int64_t out = (image * window_.out_size() + row + v) * channels_ + c;
        finish(a, block, out, n);
        for (int64_t i = 0; indices_ && i < n; ++i) {
          store_index(a, image * channels_ + c + i, row + v, block.winner[i]);
        }
      }
    }
  }

  void plain_row(const KernelArgs& a, int64_t plane, int64_t d, int64_t h) const {
    const float* src = a.in<float>(0) + plane * window_.in_size();
    const int64_t row = (d * window_.out[1] + h) * window_.out[2];
    for (int64_t v = 0; v < window_.out[2]; v += kBlock) {
      const int64_t n = std::min(kBlock, window_.out[2] - v);
      Block block;
      start_block(block);
      for_rows(d, h, block, window_.strides[2], [&](TapList& list, int64_t number, int64_t in_row) {
        for (int64_t k = 0; k < window_.kernel[2]; ++k) {
          const auto [begin, end] = outputs_inside(v, n, k);
          const float* first = src + in_row + window_.position(2, v, k);
          append(list, {first, static_cast<int32_t>(number + k), begin, end}, block);
        }
      });
      finish(a, block, plane * window_.out_size() + row + v, n);
      for (int64_t i = 0; indices_ && i < n; ++i) {
        store_index(a, plane, row + v + i, block.winner[i]);
      }
    }
  }

  // Returns which outputs in v .. v+n-1, counted from v, have tap k on the last axis inside x.
  std::pair<int64_t, int64_t> outputs_inside(int64_t v, int64_t n, int64_t k) const {
    const int64_t stride = window_.strides[2];
    const int64_t first = window_.position(2, v, k);
    const int64_t begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
    const int64_t room = window_.in[2] - first;
    const int64_t end = room > 0 ? (room + stride - 1) / stride : 0;
    return {std::min(begin, n), std::min(end, n)};
  }

  // Calls f(list, first tap number, input row) for each row of taps, then takes the listed taps.
  void for_rows(int64_t d, int64_t h, Block& block, int64_t step, const auto& f) const {
    TapList list;
    list.step = step;
    const auto depth = tap_range(window_, 0, d);
    const auto height = tap_range(window_, 1, h);
    for (int64_t i = depth.first; i < depth.second; ++i) {
      for (int64_t j = height.first; j < height.second; ++j) {
        const int64_t plane = window_.position(0, d, i) * window_.in[1];
        f(list, (i * window_.kernel[1] + j) * window_.kernel[2],
          (plane + window_.position(1, h, j)) * window_.in[2]);
      }
    }
    take_taps(list, block);
  }

  static void append(TapList& list, const Tap& tap, Block& block) {
    if (list.count == kTapsAtOnce) {
      take_taps(list, block);
      list.count = 0;
    }
    list.taps[list.count++] = tap;
  }

  void finish(const KernelArgs& a, Block& block, int64_t out, int64_t n) const {
    if (relu_) relu_block(block);
    std::memcpy(a.out<float>(0) + out, block.best, static_cast<size_t>(n) * sizeof(float));
    if (!winners_) return;
    if (narrow_) {
      narrow_winners(block.winner, a.out<uint8_t>(2) + out, n);
    } else {
      std::memcpy(a.out<int32_t>(2) + out, block.winner, static_cast<size_t>(n) * sizeof(int32_t));
    }
  }

  // Indices are plain in either layout. If a window has only padding, or is stopped, the index is
  // 0.
  void store_index(const KernelArgs& a, int64_t plane, int64_t out, int32_t winner) const {
    const Window& w = window_;
    int64_t place = 0;
    if (winner != kNoWinner) {
      const int64_t o[3] = {out / (w.out[1] * w.out[2]), out / w.out[2] % w.out[1], out % w.out[2]};
      const int64_t d = w.position(0, o[0], winner / (w.kernel[1] * w.kernel[2]));
      const int64_t h = w.position(1, o[1], winner / w.kernel[2] % w.kernel[1]);
      const int64_t v = w.position(2, o[2], winner % w.kernel[2]);
      const int64_t at = (d * w.in[1] + h) * w.in[2] + v;
      place = plane * w.in_size() + stored_place(w, at, column_major_);
    }
    a.out<int64_t>(1)[plane * w.out_size() + out] = place;
  }

  Window window_;
  int64_t channels_;
  bool channels_last_, column_major_, relu_, indices_, winners_, narrow_;
  int64_t images_;
  FourTaps four_{};
  bool is_four_;
};

// --- rare types, by plain loops ---

template <typename T>
class AnyMaxPool {
 public:
  explicit AnyMaxPool(const Problem& p)
      : window_(known_pool(p.attributes, p.in(0).shape)),
        planes_(p.in(0).shape.numel(0, 2)),
        channels_(p.in(0).layout == Layout::kChannelsLast ? p.in(0).shape[1] : 1),
        column_major_(p.attributes.i("storage_order", 0) != 0),
        indices_(p.has_out(1)),
        winners_(p.has_out(2)),
        narrow_(winner_dtype(window_.taps()) == DType::kUInt8) {}

  void operator()(const KernelArgs& a) const {
    parallel_each(planes_, 1, [&](int64_t p) { plane(a, p); });
  }

 private:
  void plane(const KernelArgs& a, int64_t p) const {
    const Window& w = window_;
    const int64_t image = p / channels_ * channels_, channel = p % channels_;
    const T* x = a.in<T>(0) + image * w.in_size() + channel;
    T* y = a.out<T>(0) + image * w.out_size() + channel;
    int64_t current = -1;  // the output to which the next taps belong
    const auto start = [&](int64_t out) {
      while (current < out) {
        ++current;
        y[current * channels_] = std::numeric_limits<T>::has_infinity
                                     ? -std::numeric_limits<T>::infinity()
                                     : std::numeric_limits<T>::lowest();
        store(a, p, current, kNoWinner, 0);
      }
    };
    bool found = false;
    for_each_tap(w, [&](int64_t out, int64_t tap, int64_t in) {
      if (out != current) found = false;
      start(out);
      const T v = x[in * channels_];
      T& best = y[out * channels_];
      if (found && !(v > best) && v == v) return;
      found = true;
      best = v;
      store(a, p, out, tap, in);
    });
    start(w.out_size() - 1);
  }

  // Indices are plain, whatever y's layout.
  void store(const KernelArgs& a, int64_t p, int64_t out, int64_t tap, int64_t in) const {
    const Window& w = window_;
    const int64_t place = p * w.in_size() + stored_place(w, in, column_major_);
    if (indices_) a.out<int64_t>(1)[p * w.out_size() + out] = place;
    const int64_t at = (p / channels_ * w.out_size() + out) * channels_ + p % channels_;
    if (winners_ && narrow_) a.out<uint8_t>(2)[at] = static_cast<uint8_t>(tap);
    if (winners_ && !narrow_) a.out<int32_t>(2)[at] = static_cast<int32_t>(tap);
  }

  Window window_;
  int64_t planes_, channels_;
  bool column_major_, indices_, winners_, narrow_;
};

}  // namespace

bool has_pool_layouts(const Problem& p) {
  return p.out(0).layout == p.in(0).layout &&
         (!p.has_out(2) || p.out(2).layout == p.in(0).layout) &&
         (!p.has_out(1) || p.out(1).layout == Layout::kPlain);
}

std::unique_ptr<Kernel> make_max_pool(const Problem& problem) {
  return make_kernel(MaxPool(problem));
}

Acceptance accepts_max_pool_loops(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  const bool known = dtype == DType::kFloat64 || dtype == DType::kInt8 || dtype == DType::kUInt8;
  if (!known) return Acceptance::refuse("not float64, int8 or uint8");
  if (has_relu(p.attributes)) return Acceptance::refuse("a fused activation");
  return accept_if(has_pool_layouts(p), "operands of several layouts");
}

std::unique_ptr<Kernel> make_max_pool_loops(const Problem& p) {
  if (p.in(0).dtype == DType::kFloat64) return make_kernel(AnyMaxPool<double>(p));
  if (p.in(0).dtype == DType::kInt8) return make_kernel(AnyMaxPool<int8_t>(p));
  return make_kernel(AnyMaxPool<uint8_t>(p));
}

}  // namespace ofsdp::kernels::ops
