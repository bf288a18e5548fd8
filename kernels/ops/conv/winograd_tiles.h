// The transforms of Winograd's minimal filtering F(2 x 2, 3 x 3), all of them sums and differences:
//
//   y = A^T [(G g G^T) * (B^T d B)] A        * element by element
//
// g: 3 x 3 weights; d: the 4 x 4 inputs from which they make the 2 x 2 outputs y: 16 products in
// place of 36. Between the transforms an element of a tile is one of 16 planes, so that sums over
// channels are 16 products of matrices. Numbers 0, 1 and 1/2 alone, so what is lost to rounding is
// of the size that the plain sum loses.
// Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015,
// https://arxiv.org/abs/1509.09308
//
// Pixels are channels last, of float, BFloat16 or Half (T); planes are float. Ownership: views.
// Threads: any. Errors: none.
#pragma once

#include <cstdint>

namespace ofsdp::kernels::ops {

inline constexpr int64_t kTilePlanes = 16;  // elements of a transformed tile
inline constexpr int64_t kTileStep = 2;     // from a tile to its neighbour
inline constexpr int64_t kTileInputs = 4;   // of an axis

// Images [count, height, width, channels].
struct PixelShape {
  int64_t count = 0, height = 0, width = 0, channels = 0;
  int64_t numel() const { return count * height * width * channels; }
};

// Some pixels of an image: rows `row` elements apart, pixels `channels` apart.
template <typename T>
struct Pixels {
  T* data = nullptr;
  int64_t row = 0, channels = 0;
};

// planes[k * plane + c] = (B^T d B)[k] of channel c.
template <typename T>
void transform_inputs(const Pixels<const T>& d, float* planes, int64_t plane);
// y = A^T m A + bias of each channel c, m[k] = planes[k * plane + c].
template <typename T>
void transform_outputs(const float* planes, int64_t plane, const float* bias, const Pixels<T>& y);
// planes = A dy A^T: the transpose of transform_outputs.
template <typename T>
void transform_output_gradients(const Pixels<const T>& dy, float* planes, int64_t plane);

// w [outputs, channels, 3, 3]. planes [16, channels, outputs] = G w G^T; or, for the gradient of
// the inputs, [16, outputs, channels] of w turned by half a turn.
template <typename T>
void transform_weights(const T* w, int64_t outputs, int64_t channels, bool turned, float* planes);
// dw = G^T planes G of planes [16, channels, outputs].
template <typename T>
void transform_weight_gradients(const float* planes, int64_t outputs, int64_t channels, T* dw);

// The plane of A dy A^T whose elements are the sums of their tiles of dy.
inline constexpr int64_t kSumPlane = 5;
// sums[c] += every row of rows [count, channels].
void add_rows(const float* rows, int64_t count, int64_t channels, double* sums);

}  // namespace ofsdp::kernels::ops
