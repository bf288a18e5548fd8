// Winograd's minimal filtering F(2 x 2, 3 x 3), with transforms that are sums and differences:
//
//   y = A^T [(G g G^T) * (B^T d B)] A        * element by element
//
// g: 3 x 3 weights; d: the 4 x 4 inputs that make the 2 x 2 outputs y, in 16 products instead of
// 36. Between the transforms, element k of every tile lies in plane k (of 16), so summing over
// channels is 16 matrix products. The transforms multiply only by 0, 1 and 1/2, so the rounding
// error is about as large as a plain sum's. Lavin and Gray, Fast Algorithms for Convolutional
// Neural Networks, 2015,
// https://arxiv.org/abs/1509.09308
//
// Pixels are channels last: float, BFloat16 or Half (T); planes are float.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/pointwise/activation.h"

namespace ofsdp::kernels::ops {
namespace {

inline constexpr int64_t kTilePlanes = 16;  // elements in a transformed tile
inline constexpr int64_t kTileStep = 2;     // from one tile to the next
inline constexpr int64_t kTileInputs = 4;   // along an axis

// Images [count, height, width, channels].
struct PixelShape {
  int64_t count = 0, height = 0, width = 0, channels = 0;
  int64_t numel() const { return count * height * width * channels; }
};

// Pixels of an image: rows lie `row` elements apart, pixels `channels` apart.
template <typename T>
struct Pixels {
  T* data = nullptr;
  int64_t row = 0, channels = 0;
};

// The plane of A dy A^T that holds each dy tile's sum.
inline constexpr int64_t kSumPlane = 5;

constexpr int64_t kFilterGrain = 64;  // channels times outputs that are worth a thread

struct Four {
  float a, b, c, d;
};
struct Three {
  float a, b, c;
};
struct Two {
  float a, b;
};

// Each transform along one axis.
inline Four of_inputs(float a, float b, float c, float d) { return {a - c, b + c, c - b, b - d}; }
inline Two of_outputs(float a, float b, float c, float d) { return {a + b + c, b - c - d}; }
inline Four of_output_gradients(float a, float b) { return {a, a + b, a - b, -b}; }
inline Four of_weights(float a, float b, float c) {
  return {a, 0.5f * (a + b + c), 0.5f * (a - b + c), c};
}
inline Three of_weight_gradients(float a, float b, float c, float d) {
  return {a + 0.5f * (b + c), 0.5f * (b - c), 0.5f * (b + c) + d};
}

template <typename T>
OFSDP_MULTIARCH void inputs(const T* __restrict d, int64_t row, int64_t channels,
                            float* __restrict planes, int64_t plane) {
#pragma GCC ivdep  // planes and pixels lie apart
  for (int64_t c = 0; c < channels; ++c) {
    const auto column = [&](int64_t j) {
      const T* at = d + j * channels + c;
      return of_inputs(as_float(at[0]), as_float(at[row]), as_float(at[2 * row]),
                       as_float(at[3 * row]));
    };
    const auto put = [&](int64_t i, const Four& v) {
      float* at = planes + 4 * i * plane + c;
      at[0] = v.a, at[plane] = v.b, at[2 * plane] = v.c, at[3 * plane] = v.d;
    };
    const Four p = column(0), q = column(1), r = column(2), s = column(3);
    put(0, of_inputs(p.a, q.a, r.a, s.a));
    put(1, of_inputs(p.b, q.b, r.b, s.b));
    put(2, of_inputs(p.c, q.c, r.c, s.c));
    put(3, of_inputs(p.d, q.d, r.d, s.d));
  }
}

template <typename T>
OFSDP_MULTIARCH void outputs(const float* __restrict planes, int64_t plane,
                             const float* __restrict bias, T* __restrict y, int64_t row,
                             int64_t channels) {
#pragma GCC ivdep  // planes and pixels lie apart
  for (int64_t c = 0; c < channels; ++c) {
    const auto along = [&](int64_t i) {
      const float* at = planes + 4 * i * plane + c;
      return of_outputs(at[0], at[plane], at[2 * plane], at[3 * plane]);
    };
    const Two p = along(0), q = along(1), r = along(2), s = along(3);
    const Two left = of_outputs(p.a, q.a, r.a, s.a), right = of_outputs(p.b, q.b, r.b, s.b);
    y[c] = stored<T>(left.a + bias[c]), y[channels + c] = stored<T>(right.a + bias[c]);
    y[row + c] = stored<T>(left.b + bias[c]);
    y[row + channels + c] = stored<T>(right.b + bias[c]);
  }
}

template <typename T>
OFSDP_MULTIARCH void output_gradients(const T* __restrict dy, int64_t row, int64_t channels,
                                      float* __restrict planes, int64_t plane) {
#pragma GCC ivdep  // planes and pixels lie apart
  for (int64_t c = 0; c < channels; ++c) {
    const T* next = dy + channels;
    const Four left = of_output_gradients(as_float(dy[c]), as_float(dy[row + c]));
    const Four right = of_output_gradients(as_float(next[c]), as_float(next[row + c]));
    const auto put = [&](int64_t i, const Four& v) {
      float* at = planes + 4 * i * plane + c;
      at[0] = v.a, at[plane] = v.b, at[2 * plane] = v.c, at[3 * plane] = v.d;
    };
    put(0, of_output_gradients(left.a, right.a));
    put(1, of_output_gradients(left.b, right.b));
    put(2, of_output_gradients(left.c, right.c));
    put(3, of_output_gradients(left.d, right.d));
  }
}

constexpr int64_t kLanes = 16, kTaps = 9;
using Taps = float[kTaps][kLanes];  // several weights side by side

OFSDP_MULTIARCH void weights(const Taps& g, float* __restrict planes, int64_t plane,
                             int64_t count) {
  float made[kTilePlanes][kLanes];
#pragma GCC ivdep
  for (int64_t l = 0; l < kLanes; ++l) {
    const Four p = of_weights(g[0][l], g[3][l], g[6][l]);
    const Four q = of_weights(g[1][l], g[4][l], g[7][l]);
    const Four r = of_weights(g[2][l], g[5][l], g[8][l]);
    const auto put = [&](int64_t i, const Four& v) {
      made[4 * i][l] = v.a, made[4 * i + 1][l] = v.b;
      made[4 * i + 2][l] = v.c, made[4 * i + 3][l] = v.d;
    };
    put(0, of_weights(p.a, q.a, r.a));
    put(1, of_weights(p.b, q.b, r.b));
    put(2, of_weights(p.c, q.c, r.c));
    put(3, of_weights(p.d, q.d, r.d));
  }
  for (int64_t k = 0; k < kTilePlanes; ++k) std::copy_n(made[k], count, planes + k * plane);
}

OFSDP_MULTIARCH void weight_gradients(const float* __restrict planes, int64_t plane, int64_t count,
                                      Taps& g) {
  float given[kTilePlanes][kLanes] = {};
  for (int64_t k = 0; k < kTilePlanes; ++k) std::copy_n(planes + k * plane, count, given[k]);
#pragma GCC ivdep
  for (int64_t l = 0; l < kLanes; ++l) {
    const auto along = [&](int64_t i) {
      return of_weight_gradients(given[4 * i][l], given[4 * i + 1][l], given[4 * i + 2][l],
                                 given[4 * i + 3][l]);
    };
    const Three p = along(0), q = along(1), r = along(2), s = along(3);
    const auto put = [&](int64_t j, const Three& v) {
      g[j][l] = v.a, g[j + 3][l] = v.b, g[j + 6][l] = v.c;
    };
    put(0, of_weight_gradients(p.a, q.a, r.a, s.a));
    put(1, of_weight_gradients(p.b, q.b, r.b, s.b));
    put(2, of_weight_gradients(p.c, q.c, r.c, s.c));
  }
}

// Adds every row of rows [count, channels] to sums.
OFSDP_MULTIARCH void add_rows(const float* __restrict rows, int64_t count, int64_t channels,
                              double* __restrict sums) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < channels; ++c) sums[c] += rows[i * channels + c];
  }
}

// planes[k * plane + c] = (B^T d B)[k] for each channel c.
template <typename T>
void transform_inputs(const Pixels<const T>& d, float* planes, int64_t plane) {
  inputs(d.data, d.row, d.channels, planes, plane);
}

// y = A^T m A + bias for each channel c, with m[k] = planes[k * plane + c].
template <typename T>
void transform_outputs(const float* planes, int64_t plane, const float* bias, const Pixels<T>& y) {
  outputs(planes, plane, bias, y.data, y.row, y.channels);
}

// planes = A dy A^T: transposes transform_outputs.
template <typename T>
void transform_output_gradients(const Pixels<const T>& dy, float* planes, int64_t plane) {
  output_gradients(dy.data, dy.row, dy.channels, planes, plane);
}

// Transforms w [outputs, channels, 3, 3]: planes [16, channels, outputs] = G w G^T; or, for the
// input gradient, planes [16, outputs, channels] from w turned by 180 degrees.
template <typename T>
void transform_weights(const T* w, int64_t outputs, int64_t channels, bool turned, float* planes) {
  const int64_t rows = turned ? outputs : channels, columns = turned ? channels : outputs;
  const int64_t step = kTaps * (turned ? 1 : channels);
  parallel_each(rows, kFilterGrain / columns + 1, [&](int64_t row) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      const int64_t count = std::min(kLanes, columns - column);
      const T* from = w + row * kTaps * (turned ? channels : 1) + column * step;
      Taps g{};
      for (int64_t lane = 0; lane < count; ++lane) {
        for (int64_t k = 0; k < kTaps; ++k) {
          g[turned ? kTaps - 1 - k : k][lane] = as_float(from[lane * step + k]);
        }
      }
      weights(g, planes + row * columns + column, outputs * channels, count);
    }
  });
}

// dw = G^T planes G, for planes [16, channels, outputs].
template <typename T>
void transform_weight_gradients(const float* planes, int64_t outputs, int64_t channels, T* dw) {
  parallel_each(channels, kFilterGrain / outputs + 1, [&](int64_t c) {
    for (int64_t m = 0; m < outputs; m += kLanes) {
      const int64_t count = std::min(kLanes, outputs - m);
      Taps g{};
      weight_gradients(planes + c * outputs + m, outputs * channels, count, g);
      for (int64_t lane = 0; lane < count; ++lane) {
        T* const to = dw + kTaps * ((m + lane) * channels + c);
        for (int64_t k = 0; k < kTaps; ++k) to[k] = stored<T>(g[k][lane]);
      }
    }
  });
}

// [Note: Winograd] The output is cut into 2 x 2 tiles that see 4 x 4 inputs; a block of tiles is
// transformed into 16 planes [tiles, channels], which fit the cache:
//
//   y:   planes of x, times transformed weights [channels, outputs], back into tiles of y
//   dx:  the same with dy for x, weights turned by 180 degrees, and pads of 2 minus x's pads
//   dw:  transposed planes of x times planes of dy, summed over the blocks, transformed back once
//
// An infinity or NaN reaches all outputs in its tile, even outputs with windows that do not see it.
//
// Threads share the blocks. Each sums dw by itself; then the sums are added in order.

constexpr int64_t kBlockFloats = int64_t{1} << 18;  // in both kinds of planes: a 1 MiB cache
constexpr int64_t kBlockTiles = 64;                 // at least, however many channels there are

// With fewer channels or tiles, the transforms cost more than they save: measured with 16 to 512
// channels and 7 to 56 rows, on AVX2 and AVX-512.
constexpr int64_t kFewestChannels = 16, kFewestOfBoth = 48, kFewestTiles = 128;
constexpr int64_t kMaxSums = int64_t{1} << 26;  // elements in all threads' sums of dw

// Returns the tile at a position. If it reaches outside the image, returns a copy in `patch` with
// zeros there.
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

// Output tiles of a convolution, in blocks.
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
  int64_t size() const { return size_; }  // tiles per block; the last may have fewer
  int64_t of_block(int64_t block) const { return std::min(size_, tiles_ - block * size_); }

  // Calls f(index in the block, image, top, left) for each output tile in the block.
  void for_each(int64_t block, const auto& f) const {
    const int64_t first = block * size_;
    for (int64_t i = 0; i < of_block(block); ++i) {
      const int64_t tile = first + i, place = tile % (down_ * across_);
      f(i, tile / (down_ * across_), place / across_ * kTileStep, place % across_ * kTileStep);
    }
  }

  // Writes a block's inputs as planes [16, size, channels].
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

// The workspace: buffers that all threads share, then each thread's buffers.
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
  template <typename T>  // at most 4 bytes
  T* patch(std::byte* w, int slot) const {
    return reinterpret_cast<T*>(at(w, slot) + patch_);
  }
  std::byte* scratch(std::byte* w, int slot) const { return at(w, slot) + scratch_; }

  // Deals the blocks to the threads and calls f(slot, block) for each.
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

// y = conv(x, w) + bias or, if the weights are turned, dx from dy; `tiles` takes either as inputs.
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
  int64_t sums_;  // weight sums; bias sums, in double, follow
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

// `one` and `other` are the image operands; `library_accepts` is oneDNN's answer.
Acceptance accepts(const Problem& p, const ConvShape& s, const TensorDesc& one,
                   const TensorDesc& other, Acceptance (*library_accepts)(const Problem&)) {
  const Window& w = s.window;
  // Measured only against oneDNN.
  if (!onednn::is_present()) return Acceptance::refuse(onednn::kNoOneDnn);
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
