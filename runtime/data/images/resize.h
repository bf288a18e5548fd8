// Bilinear resizing of 8-bit images, with the bytes of Pillow 13's Image.resize(size, BILINEAR).
//
// Like Pillow, the filter covers all pixels under an output pixel when an image shrinks. Weights
// are rounded to 22 bits after the point. Rows and columns are resized one after the other, with 8
// bits between them; an axis that keeps its length is not filtered.
//
// Does not allocate: `scratch` has resize_bytes(...) bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ofsdp::runtime {

// A part of an image: `channels` adjacent bytes a pixel, `stride` bytes from row to row.
struct PixelView {
  const std::byte* data = nullptr;
  int64_t width = 0, height = 0;
  int64_t stride = 0;
};

// Grows with width and height.
size_t resize_bytes(int64_t width, int64_t height, int64_t to_width, int64_t to_height,
                    int channels);

// Writes to_height rows of to_width pixels to `dst`. `channels`: 1 or 3.
void resize_image(const PixelView& from, int channels, int64_t to_width, int64_t to_height,
                  std::byte* dst, std::span<std::byte> scratch);

}  // namespace ofsdp::runtime
