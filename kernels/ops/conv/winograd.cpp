// Convolutions of 3 x 3 taps by Winograd's minimal filtering (winograd_tiles.h): 16 products where
// the definition has 36.
//
// [Note: Winograd] The output is cut into tiles of 2 x 2 that see 4 x 4 inputs; a block of tiles is
// transformed into 16 planes [tiles, channels], which fit the cache:
//
//   y:   planes of x, times transformed weights [channels, outputs], back into tiles of y
//   dx:  the same of dy, with the weights turned by half a turn, padded by 2 less the pads of x
//   dw:  planes of x transposed times planes of dy, added up over the blocks, and back once
//
// An infinity or NaN reaches all outputs of its tiles, not only those whose windows see it.
//
// Threads share the blocks; each adds up dw by itself, then come their sums in order.
#include <algorithm>
#include <cstring>

#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/conv/winograd_tiles.h"
#include "kernels/ops/pointwise/activation.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kBlockFloats = int64_t{1} << 18;  // of both kinds of planes: a cache of 1 MiB
constexpr int64_t kBlockTiles = 64;                 // at least, however many channels there are

// Fewer channels or tiles than these, and the transforms cost more than they save: measured with
// 16 to 512 channels and 7 to 56 rows, AVX2 and AVX-512.
constexpr int64_t kFewestChannels = 16, kFewestOfBoth = 48, kFewestTiles = 128;
constexpr int64_t kMostSums = int64_t{1} << 26;  // elements of all threads' sums of dw

// The tile at a place, with zeros for what lies outside, in `patch` where it is not all inside.
template <typename T>
Pixels<const T> tile_at(const T* image, const PixelShape& s, int64_t top, int64_t left,
                        int64_t size, T* patch) {
  const int64_t row = s.width * s.channels;
  const bool inside = top >= 0 && left >= 0 && top + size <= s.height && left + size <= s.width;
  if (inside) return {image + top * row + left * s.channels, row, s.channels};
  for (int64_t i = 0; i < size * size; ++i) {
    const int64_t y = top + i / size, x = left + i % size;
    T* const to = patch + i * s.channels;
    if (y >= 0 && y < s.height && x >= 0 && x < s.width) {
      std::copy_n(image + y * row + x * s.channels, s.channels, to);
    } else {
      std::fill_n(to, s.channels, T{});
    }
  }
  return {patch, size * s.channels, s.channels};
}

// The tiles of the outputs of a convolution, in blocks.
class Tiles {
 public:
  // `pad_top` and `pad_left`: rows and columns of zeros before the inputs.
  Tiles(const PixelShape& inputs, const PixelShape& outputs, int64_t pad_top, int64_t pad_left)
      : in_(inputs),
        out_(outputs),
        pad_top_(pad_top),
        pad_left_(pad_left),
        down_((outputs.height + 1) / kTileStep),
        across_((outputs.width + 1) / kTileStep),
        tiles_(outputs.count * down_ * across_) {
    const int64_t most =
        std::max(kBlockTiles, kBlockFloats / (kTilePlanes * (in_.channels + out_.channels)));
    blocks_ = (tiles_ + most - 1) / most;
    size_ = (tiles_ + blocks_ - 1) / blocks_;
    blocks_ = (tiles_ + size_ - 1) / size_;
  }

  const PixelShape& in() const { return in_; }
  const PixelShape& out() const { return out_; }
  int64_t blocks() const { return blocks_; }
  int64_t size() const { return size_; }  // tiles of a block; the last may have fewer
  int64_t of_block(int64_t block) const { return std::min(size_, tiles_ - block * size_); }

  // f(index in the block, image, top, left) for its tiles of outputs.
  void for_each(int64_t block, const auto& f) const {
    const int64_t first = block * size_;
    for (int64_t i = 0; i < of_block(block); ++i) {
      const int64_t tile = first + i, place = tile % (down_ * across_);
      f(i, tile / (down_ * across_), place / across_ * kTileStep, place % across_ * kTileStep);
    }
  }

  // Planes [16, size, channels] of a block's inputs.
  template <typename T>
  void read_inputs(int64_t block, const T* x, float* planes, T* patch) const {
    const int64_t plane = size_ * in_.channels, image = in_.numel() / in_.count;
    for_each(block, [&](int64_t i, int64_t n, int64_t top, int64_t left) {
      transform_inputs(
          tile_at(x + n * image, in_, top - pad_top_, left - pad_left_, kTileInputs, patch),
          planes + i * in_.channels, plane);
    });
    clear_rest(block, planes, in_.channels);
  }

  template <typename T>
  void read_output_gradients(int64_t block, const T* dy, float* planes, T* patch) const {
    const int64_t plane = size_ * out_.channels, image = out_.numel() / out_.count;
    for_each(block, [&](int64_t i, int64_t n, int64_t top, int64_t left) {
      transform_output_gradients(tile_at(dy + n * image, out_, top, left, kTileStep, patch),
                                 planes + i * out_.channels, plane);
    });
    clear_rest(block, planes, out_.channels);
  }

  template <typename T>
  void write_outputs(int64_t block, const float* planes, const float* bias, T* y, T* patch) const {
    const int64_t channels = out_.channels, plane = size_ * channels, row = out_.width * channels;
    for_each(block, [&](int64_t i, int64_t n, int64_t top, int64_t left) {
      T* const to = y + n * out_.height * row + top * row + left * channels;
      const float* from = planes + i * channels;
      const int64_t height = std::min(kTileStep, out_.height - top);
      const int64_t width = std::min(kTileStep, out_.width - left);
      if (height == kTileStep && width == kTileStep) {
        transform_outputs<T>(from, plane, bias, {to, row, channels});
        return;
      }
      transform_outputs<T>(from, plane, bias, {patch, kTileStep * channels, channels});
      for (int64_t h = 0; h < height; ++h) {
        std::copy_n(patch + h * kTileStep * channels, width * channels, to + h * row);
      }
    });
  }

 private:
  void clear_rest(int64_t block, float* planes, int64_t channels) const {
    const int64_t there = of_block(block);
    for (int64_t k = 0; there < size_ && k < kTilePlanes; ++k) {
      std::fill(planes + (k * size_ + there) * channels, planes + (k + 1) * size_ * channels, 0.0f);
    }
  }

  PixelShape in_, out_;
  int64_t pad_top_, pad_left_, down_, across_, tiles_;
  int64_t blocks_ = 0, size_ = 0;
};

// The workspace: what all threads share, then the same for each of them.
class Buffers {
 public:
  Buffers(const Tiles& t, int64_t shared, int64_t sums, size_t scratch) : shared_(bytes(shared)) {
    sums_ = add(bytes(sums));
    inputs_ = add(bytes(kTilePlanes * t.size() * t.in().channels));
    outputs_ = add(bytes(kTilePlanes * t.size() * t.out().channels));
    patch_ = add(
        bytes(std::max(kTilePlanes * t.in().channels, kTileStep * kTileStep * t.out().channels)));
    scratch_ = add(scratch);
    slots_ = static_cast<int>(std::min<int64_t>(pool_threads(), t.blocks()));
  }

  int slots() const { return slots_; }
  size_t workspace_bytes() const { return shared_ + each_ * static_cast<size_t>(slots_); }

  static float* shared(std::byte* workspace) { return reinterpret_cast<float*>(workspace); }
  float* sums(std::byte* w, int slot) const { return floats(w, slot, sums_); }
  float* inputs(std::byte* w, int slot) const { return floats(w, slot, inputs_); }
  float* outputs(std::byte* w, int slot) const { return floats(w, slot, outputs_); }
  template <typename T>  // at most 4 bytes each
  T* patch(std::byte* w, int slot) const {
    return reinterpret_cast<T*>(at(w, slot) + patch_);
  }
  std::byte* scratch(std::byte* w, int slot) const { return at(w, slot) + scratch_; }

  // f(slot, block): the blocks, dealt to the threads.
  void for_blocks(int64_t blocks, const auto& f) const {
    parallel_each(slots_, 1, [&](int64_t slot) {
      for (int64_t b = blocks * slot / slots_; b < blocks * (slot + 1) / slots_; ++b) {
        f(static_cast<int>(slot), b);
      }
    });
  }

 private:
  static size_t bytes(int64_t floats) {
    return align_up(static_cast<size_t>(floats) * sizeof(float), kTensorAlignment);
  }
  size_t add(size_t size) {
    const size_t place = each_;
    each_ += align_up(size, kTensorAlignment);
    return place;
  }
  std::byte* at(std::byte* w, int slot) const {
    return w + shared_ + each_ * static_cast<size_t>(slot);
  }
  float* floats(std::byte* w, int slot, size_t place) const {
    return reinterpret_cast<float*>(at(w, slot) + place);
  }

  size_t shared_, each_ = 0;
  size_t sums_, inputs_, outputs_, patch_, scratch_;
  int slots_ = 0;
};

// y = conv(x, w) + bias, or, with the weights turned, dx of dy: whatever `tiles` takes for inputs.
template <typename T>
class WinogradConv {
 public:
  WinogradConv(const Tiles& tiles, bool turned)
      : tiles_(tiles),
        turned_(turned),
        product_({.rows = tiles.size(),
                  .inner = tiles.in().channels,
                  .columns = tiles.out().channels,
                  .count = kTilePlanes},
                 pool_threads()),
        weights_(kTilePlanes * tiles.in().channels * tiles.out().channels),
        buffers_(tiles, weights_ + tiles.out().channels, 0, product_.scratch_bytes()) {}

  size_t workspace_bytes() const { return buffers_.workspace_bytes(); }

  void run(const T* x, const T* w, const T* bias, T* y, std::byte* workspace) const {
    float* const weights = Buffers::shared(workspace);
    const int64_t ins = tiles_.in().channels, outs = tiles_.out().channels;
    transform_weights(w, turned_ ? ins : outs, turned_ ? outs : ins, turned_, weights);
    float* const added = weights + weights_;
    for (int64_t m = 0; m < outs; ++m) added[m] = bias == nullptr ? 0.0f : as_float(bias[m]);
    buffers_.for_blocks(tiles_.blocks(), [&](int slot, int64_t block) {
      float* const inputs = buffers_.inputs(workspace, slot);
      float* const outputs = buffers_.outputs(workspace, slot);
      T* const patch = buffers_.patch<T>(workspace, slot);
      tiles_.read_inputs(block, x, inputs, patch);
      product_.run(slot, inputs, weights, outputs, buffers_.scratch(workspace, slot));
      tiles_.write_outputs(block, outputs, added, y, patch);
    });
  }

 private:
  Tiles tiles_;
  bool turned_;
  TileProduct<float> product_;
  int64_t weights_;
  Buffers buffers_;
};

template <typename T>
class WinogradGradWeights {
 public:
  explicit WinogradGradWeights(const Tiles& tiles)
      : tiles_(tiles),
        sums_(kTilePlanes * tiles.in().channels * tiles.out().channels),
        product_({.rows = tiles.in().channels,
                  .inner = tiles.size(),
                  .columns = tiles.out().channels,
                  .transpose_a = true,
                  .accumulate = true,
                  .count = kTilePlanes},
                 pool_threads()),
        buffers_(tiles, 0, sums_ + 2 * tiles.out().channels, product_.scratch_bytes()) {}

  size_t workspace_bytes() const { return buffers_.workspace_bytes(); }

  void run(const T* x, const T* dy, T* dw, T* db, std::byte* workspace) const {
    const int64_t outs = tiles_.out().channels;
    for (int slot = 0; slot < buffers_.slots(); ++slot) {
      std::fill_n(buffers_.sums(workspace, slot), sums_, 0.0f);
      std::fill_n(bias_sums(workspace, slot), outs, 0.0);
    }
    buffers_.for_blocks(tiles_.blocks(), [&](int slot, int64_t block) {
      float* const inputs = buffers_.inputs(workspace, slot);
      float* const outputs = buffers_.outputs(workspace, slot);
      T* const patch = buffers_.patch<T>(workspace, slot);
      tiles_.read_inputs(block, x, inputs, patch);
      tiles_.read_output_gradients(block, dy, outputs, patch);
      product_.run(slot, inputs, outputs, buffers_.sums(workspace, slot),
                   buffers_.scratch(workspace, slot));
      if (db == nullptr) return;
      add_rows(outputs + kSumPlane * tiles_.size() * outs, tiles_.of_block(block), outs,
               bias_sums(workspace, slot));
    });
    float* const sums = buffers_.sums(workspace, 0);
    double* const bias = bias_sums(workspace, 0);
    for (int slot = 1; slot < buffers_.slots(); ++slot) {
      const float* const more = buffers_.sums(workspace, slot);
      for (int64_t i = 0; i < sums_; ++i) sums[i] += more[i];
      for (int64_t m = 0; m < outs; ++m) bias[m] += bias_sums(workspace, slot)[m];
    }
    transform_weight_gradients(sums, outs, tiles_.in().channels, dw);
    for (int64_t m = 0; db != nullptr && m < outs; ++m)
      db[m] = stored<T>(static_cast<float>(bias[m]));
  }

 private:
  double* bias_sums(std::byte* workspace, int slot) const {
    return reinterpret_cast<double*>(buffers_.sums(workspace, slot) + sums_);
  }

  Tiles tiles_;
  int64_t sums_;  // of weights; those of the bias, in double, come after
  TileProduct<float> product_;
  Buffers buffers_;
};

PixelShape pixels_of(const Shape& s) { return {s[0], s[2], s[3], s[1]}; }

Tiles tiles_of(const ConvShape& s) {
  return {pixels_of(s.x), pixels_of(s.y), s.window.pads_begin[1], s.window.pads_begin[2]};
}

Tiles tiles_of_grad_input(const ConvShape& s) {
  return {pixels_of(s.y), pixels_of(s.x), 2 - s.window.pads_begin[1], 2 - s.window.pads_begin[2]};
}

// `one` and `other`: the operands that are images; `library_accepts`: what oneDNN says.
Acceptance accepts(const Problem& p, const ConvShape& s, const TensorDesc& one,
                   const TensorDesc& other, Acceptance (*library_accepts)(const Problem&)) {
  const Window& w = s.window;
  if (!onednn::is_present()) return Acceptance::refuse(onednn::kNoOneDnn);  // not measured
  const DType dtype = p.in(0).dtype;
  const bool is_half = dtype != DType::kFloat32;
  if (!p.all_dtype(dtype) || !is_32_or_16_bit_float(dtype)) {
    return Acceptance::refuse("not float32 or 16-bit floats");
  }
  const bool fits = w.axes == 2 && w.kernel == Window::Axes{1, 3, 3} &&
                    w.strides == Window::Axes{1, 1, 1} && w.dilations == Window::Axes{1, 1, 1};
  if (!fits) return Acceptance::refuse("not 3 x 3 taps side by side, one step apart");
  if (s.group != 1) return Acceptance::refuse("groups");
  if (one.layout != Layout::kChannelsLast || other.layout != Layout::kChannelsLast) {
    return Acceptance::refuse("not channels last");
  }
  if (is_half && has_relu(p.attributes)) return Acceptance::refuse("a fused activation in 16 bits");
  if (is_half && library_accepts(p))
    return Acceptance::refuse("the processor multiplies this type");
  const int64_t channels = s.x[1] + s.y[1];
  if (std::min(s.x[1], s.y[1]) < kFewestChannels || channels < kFewestOfBoth) {
    return Acceptance::refuse("too few channels");
  }
  const int64_t tiles = s.y[0] * ((s.y[2] + 1) / kTileStep) * ((s.y[3] + 1) / kTileStep);
  return accept_if(tiles >= std::max(kFewestTiles, channels / 2), "too few outputs");
}

}  // namespace

Acceptance winograd_accepts_conv(const Problem& p) {
  return accepts(p, conv_of(p), p.in(0), p.out(0), onednn_accepts_conv);
}

std::unique_ptr<Kernel> make_winograd_conv(const Problem& p) {
  return with_stored_float(p.in(0).dtype, [&]<typename T>(T) {
    const WinogradConv<T> conv(tiles_of(conv_of(p)), false);
    std::unique_ptr<Kernel> kernel = make_kernel(
        [conv, bias = p.has_in(2)](const KernelArgs& a) {
          conv.run(a.in<T>(0), a.in<T>(1), bias ? a.in<T>(2) : nullptr, a.out<T>(0), a.workspace);
        },
        conv.workspace_bytes());
    return has_relu(p.attributes) ? with_relu(std::move(kernel), p.out(0).numel())
                                  : std::move(kernel);
  });
}

Acceptance winograd_accepts_conv_grad_input(const Problem& p) {
  return accepts(p, conv_of_grad(p.attributes), p.in(0), p.out(0), onednn_accepts_conv_grad_input);
}

std::unique_ptr<Kernel> make_winograd_conv_grad_input(const Problem& p) {
  return with_stored_float(p.in(0).dtype, [&]<typename T>(T) {
    const WinogradConv<T> conv(tiles_of_grad_input(conv_of_grad(p.attributes)), true);
    return make_kernel(
        [conv](const KernelArgs& a) {
          conv.run(a.in<T>(0), a.in<T>(1), nullptr, a.out<T>(0), a.workspace);
        },
        conv.workspace_bytes());
  });
}

Acceptance winograd_accepts_conv_grad_weights(const Problem& p) {
  return accepts(p, conv_of_grad(p.attributes), p.in(0), p.in(1), onednn_accepts_conv_grad_weights);
}

std::unique_ptr<Kernel> make_winograd_conv_grad_weights(const Problem& p) {
  return with_stored_float(p.in(0).dtype, [&]<typename T>(T) {
    const WinogradGradWeights<T> conv(tiles_of(conv_of_grad(p.attributes)));
    return make_kernel(
        [conv, bias = p.has_out(1)](const KernelArgs& a) {
          conv.run(a.in<T>(0), a.in<T>(1), a.out<T>(0), bias ? a.out<T>(1) : nullptr, a.workspace);
        },
        conv.workspace_bytes());
  });
}

}  // namespace ofsdp::kernels::ops
