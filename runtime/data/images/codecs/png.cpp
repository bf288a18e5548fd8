#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>

#include "runtime/data/images/codecs/codecs.h"

namespace ofsdp::runtime {
namespace {

// libpng's view of the file, and its error. libpng returns from an error by longjmp, so nothing
// with a destructor lives between png_create_read_struct and its end.
struct PngRead {
  std::span<const std::byte> left;
  std::jmp_buf on_error;
  std::array<char, 120> error{};
};

[[noreturn]] void png_failed(png_structp png, png_const_charp message) {
  auto& read = *static_cast<PngRead*>(png_get_error_ptr(png));
  std::strncpy(read.error.data(), message, read.error.size() - 1);
  std::longjmp(read.on_error, 1);
}

void png_warned(png_structp, png_const_charp) {}

void png_take(png_structp png, png_bytep dst, size_t bytes) {
  auto& read = *static_cast<PngRead*>(png_get_io_ptr(png));
  if (bytes > read.left.size()) png_error(png, "the file's end");
  std::memcpy(dst, read.left.data(), bytes);
  read.left = read.left.subspan(bytes);
}

void set_limits(png_structp png, const ImageHeader& header) {
  constexpr png_alloc_size_t kMostChunkBytes = 1 << 20;
  constexpr png_uint_32 kMostChunks = 1000;
  png_set_user_limits(png, header.width, header.height);
  png_set_chunk_malloc_max(png, kMostChunkBytes);
  png_set_chunk_cache_max(png, kMostChunks);
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // of ancillary ones
}

// Alpha is dropped without blending; of 16 bits the upper 8 are taken.
void set_conversions(png_structp png, png_infop info) {
  const int colour = png_get_color_type(png, info);
  if (png_get_bit_depth(png, info) == 16) png_set_strip_16(png);
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  png_set_strip_alpha(png);
}

// Every pass of an interlaced image completes the rows of the one before.
void take_rows(png_structp png, png_infop info, const ImageHeader& header, std::byte* pixels) {
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const size_t row = size_t{header.width} * header.channels;
  if (png_get_rowbytes(png, info) != row) png_error(png, "rows of another length");
  for (int pass = 0; pass < passes; ++pass) {
    for (uint32_t y = 0; y < header.height; ++y) {
      png_read_row(png, reinterpret_cast<png_bytep>(pixels + y * row), nullptr);
    }
  }
}

void check_palette(png_structp png, png_infop info) {
  png_colorp colours = nullptr;
  int count = 0;
  if (png_get_color_type(png, info) != PNG_COLOR_TYPE_PALETTE) return;
  png_get_PLTE(png, info, &colours, &count);
  if (png_get_palette_max(png, info) >= count) png_error(png, "a colour beyond the palette");
}

enum class Outcome { kDone, kChanged, kDamaged };

Outcome take_image(png_structp png, png_infop info, PngRead& read, const ImageHeader& header,
                   std::byte* pixels) {
  if (setjmp(read.on_error) != 0) return Outcome::kDamaged;
  set_limits(png, header);
  png_set_read_fn(png, &read, png_take);
  png_read_info(png, info);
  if (png_get_image_width(png, info) != header.width ||
      png_get_image_height(png, info) != header.height) {
    return Outcome::kChanged;
  }
  set_conversions(png, info);
  take_rows(png, info, header, pixels);
  check_palette(png, info);
  png_read_end(png, nullptr);
  return Outcome::kDone;
}

}  // namespace

// Two rows of at most 8 bytes a pixel and one that is expanded, inflate's window and tables, and
// one ancillary chunk.
size_t png_bytes(const ImageHeader& header) {
  constexpr size_t kState = 1280 * 1024;
  return kState + size_t{header.width} * 8 * 4;
}

Status decode_png(const std::string& name, std::span<const std::byte> bytes,
                  const ImageHeader& header, std::byte* pixels) {
  PngRead read{.left = bytes, .on_error = {}, .error = {}};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &read, png_failed, png_warned);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  if (info == nullptr) {
    png_destroy_read_struct(&png, nullptr, nullptr);
    return fault("{}: no memory for libpng", name);
  }
  const Outcome outcome = take_image(png, info, read, header, pixels);
  png_destroy_read_struct(&png, &info, nullptr);
  if (outcome == Outcome::kChanged) return changed_image(name, header);
  if (outcome == Outcome::kDone) return ok_status();
  return damaged_image(name, ImageKind::kPng, read.error.data());
}

}  // namespace ofsdp::runtime
