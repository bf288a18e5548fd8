#include "kernels/ops/pool/max_pool_kernel.h"

#include "kernels/cpu/parallel.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/pool/max_pool_loops.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {
namespace {

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

  Status operator()(const KernelArgs& a) const {
    // An item is an image's row of outputs of all channels, or that row of one plane.
    const int64_t rows = window_.out[0] * window_.out[1];
    const int64_t items = images_ * (channels_last_ ? 1 : channels_) * rows;
    parallel_for(items, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t d = item % rows / window_.out[1];
        if (is_four_) {
          four_row(a, item / rows, d, item % window_.out[1]);
          continue;
        }
        channels_last_ ? channels_row(a, item / rows, d, item % window_.out[1])
                       : plain_row(a, item / rows, d, item % window_.out[1]);
      }
    });
    return ok_status();
  }

 private:
  // One row of outputs of an image (channels last) or of a plane; see [Note: four taps].
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

  // The outputs v .. v+n-1 whose tap k of the last axis lies inside x, counted from v.
  std::pair<int64_t, int64_t> outputs_inside(int64_t v, int64_t n, int64_t k) const {
    const int64_t stride = window_.strides[2];
    const int64_t first = window_.position(2, v, k);
    const int64_t begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
    const int64_t room = window_.in[2] - first;
    const int64_t end = room > 0 ? (room + stride - 1) / stride : 0;
    return {std::min(begin, n), std::min(end, n)};
  }

  // f(list, number of the first tap of a row of taps, input row it lies in), then takes what is
  // listed.
  template <typename F>
  void for_rows(int64_t d, int64_t h, Block& block, int64_t step, const F& f) const {
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

  // Indices are plain in either layout. A window of padding alone, or a stopped one, gets place 0.
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

}  // namespace

std::unique_ptr<Kernel> make_max_pool(const Problem& problem) {
  return make_kernel(MaxPool(problem));
}

}  // namespace ofsdp::kernels::ops
