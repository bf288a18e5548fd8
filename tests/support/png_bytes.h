// A writer for PNG files in tests, without filters: 8 bits, one or three channels.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/namespaces.h"

namespace ofsdp::testing_data {

inline std::string big_endian_word(uint32_t value) {
  std::string text;
  for (const int shift : {24, 16, 8, 0}) text += static_cast<char>(value >> shift & 0xff);
  return text;
}

inline std::string png_chunk(const std::string& kind, const std::string& data) {
  const std::string body = kind + data;
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian_word(static_cast<uint32_t>(data.size())) + body +
         big_endian_word(static_cast<uint32_t>(crc));
}

inline std::string zlib_bytes(const std::string& bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::string out(size, '\0');
  (void)compress(reinterpret_cast<Bytef*>(out.data()), &size,
                 reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uLong>(bytes.size()));
  out.resize(size);
  return out;
}

// `header_width`, `header_height`: the size in the header, if it differs from the pixels.
inline std::string png_bytes(uint32_t width, uint32_t height, int channels,
                             const std::vector<uint8_t>& pixels, uint32_t header_width = 0,
                             uint32_t header_height = 0) {
  std::string rows;
  const size_t row = size_t{width} * static_cast<size_t>(channels);
  for (size_t y = 0; y < height; ++y) {
    rows += '\0';
    rows.append(reinterpret_cast<const char*>(pixels.data()) + y * row, row);
  }
  const std::string header = big_endian_word(header_width != 0 ? header_width : width) +
                             big_endian_word(header_height != 0 ? header_height : height) + '\x08' +
                             (channels == 1 ? '\x00' : '\x02') + std::string(3, '\0');
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", zlib_bytes(rows)) +
         png_chunk("IEND", "");
}

// Different pixels for each image.
inline std::vector<uint8_t> made_pixels(size_t count, uint32_t image) {
  std::vector<uint8_t> pixels(count);
  uint32_t state = image * 2654435761u + 12345;
  for (uint8_t& pixel : pixels) {
    state = state * 1664525u + 1013904223u;
    pixel = static_cast<uint8_t>(state >> 24);
  }
  return pixels;
}

}  // namespace ofsdp::testing_data
