#include "runtime/data/images/image.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

using Prefix = std::span<const std::byte>;

struct Extension {
  std::string_view text;
  ImageKind kind;
};
constexpr Extension kExtensions[] = {
    {".png", ImageKind::kPng}, {".jpg", ImageKind::kJpeg}, {".jpeg", ImageKind::kJpeg}};
constexpr std::string_view kForeignImages[] = {".bmp",  ".gif", ".webp", ".tif", ".tiff", ".heic",
                                               ".avif", ".ppm", ".pgm",  ".jp2", ".jxl"};

constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpegMagic = "\xff\xd8\xff";

std::string extension_of(const std::string& name) {
  std::string text = std::filesystem::path(name).extension().string();
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

bool starts_with(Prefix prefix, std::string_view magic) {
  return std::string_view(reinterpret_cast<const char*>(prefix.data()), prefix.size())
      .starts_with(magic);
}

unsigned byte_at(Prefix prefix, size_t i) { return static_cast<unsigned>(prefix[i]); }

unsigned big_endian(Prefix prefix, size_t at, size_t bytes) {
  unsigned value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | byte_at(prefix, at + i);
  return value;
}

std::string first_bytes(Prefix prefix) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(prefix.size(), 4); ++i) {
    text += format_text("{}{:02x}", i > 0 ? " " : "", byte_at(prefix, i));
  }
  return text;
}

Status truncated_header(const std::string& name, const char* kind, uint64_t bytes) {
  return input_error("{}: truncated: expected the header of a {} image, found {} bytes", name, kind,
                     bytes);
}

Status check_size(const std::string& name, const ImageHeader& header) {
  OFSDP_REJECT_IF(header.width == 0 || header.height == 0,
                  "{}: expected at least 1 pixel, found {}x{}", name, header.width, header.height);
  OFSDP_REJECT_IF(header.pixels() > kMostPixels,
                  "{}: expected at most {} pixels, found {}x{}: save a smaller image", name,
                  kMostPixels, header.width, header.height);
  return ok_status();
}

// PNG: the signature, then the chunk IHDR: width, height, bit depth, colour type, compression,
// filter, interlace.
Result<std::optional<ImageHeader>> png_header(const std::string& name, Prefix prefix,
                                              uint64_t bytes) {
  constexpr size_t kHeader = 33;
  if (prefix.size() < kHeader) {
    if (bytes >= kHeader) return std::optional<ImageHeader>();
    return truncated_header(name, "PNG", bytes);
  }
  const bool first = big_endian(prefix, 8, 4) == 13 && starts_with(prefix.subspan(12), "IHDR");
  OFSDP_REJECT_IF(!first, "{}: expected a PNG image with IHDR first, found another chunk", name);
  ImageHeader header{.kind = ImageKind::kPng,
                     .channels = 1,
                     .in_passes = byte_at(prefix, 28) != 0,
                     .width = big_endian(prefix, 16, 4),
                     .height = big_endian(prefix, 20, 4)};
  const unsigned colour = byte_at(prefix, 25);
  OFSDP_REJECT_IF(colour != 0 && colour != 2 && colour != 3 && colour != 4 && colour != 6,
                  "{}: expected a PNG colour type of 0, 2, 3, 4 or 6, found {}", name, colour);
  header.channels = colour == 0 || colour == 4 ? 1 : 3;
  OFSDP_RETURN_IF_ERROR(check_size(name, header));
  return std::optional(header);
}

// JPEG: segments of a marker ff xx and a length, up to the frame header (SOF): precision, height,
// width, components.
Result<std::optional<ImageHeader>> jpeg_frame(const std::string& name, Prefix prefix, size_t at,
                                              unsigned marker) {
  OFSDP_REJECT_IF(marker != 0xc0 && marker != 0xc1 && marker != 0xc2,
                  "{}: expected a baseline or progressive JPEG image, found the frame type SOF{}",
                  name, marker - 0xc0);
  const unsigned precision = byte_at(prefix, at + 4), components = byte_at(prefix, at + 9);
  OFSDP_REJECT_IF(precision != 8, "{}: expected a JPEG image of 8 bits, found {}", name, precision);
  OFSDP_REJECT_IF(components != 1 && components != 3 && components != 4,
                  "{}: expected a JPEG image of 1, 3 or 4 components, found {}", name, components);
  const ImageHeader header{.kind = ImageKind::kJpeg,
                           .channels = static_cast<uint8_t>(components),
                           .in_passes = marker == 0xc2,
                           .width = big_endian(prefix, at + 7, 2),
                           .height = big_endian(prefix, at + 5, 2)};
  OFSDP_RETURN_IF_ERROR(check_size(name, header));
  return std::optional(header);
}

bool is_frame(unsigned marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

Result<std::optional<ImageHeader>> jpeg_header(const std::string& name, Prefix prefix,
                                               uint64_t bytes) {
  constexpr size_t kFrame = 10;  // marker, length, precision, height, width, components
  size_t at = 2;
  while (at + kFrame <= prefix.size()) {
    const unsigned marker = byte_at(prefix, at + 1);
    OFSDP_REJECT_IF(byte_at(prefix, at) != 0xff, "{}: damaged: expected a JPEG marker at byte {}",
                    name, at);
    if (marker == 0xff || marker == 0x01) {  // a fill byte, or a marker without a length
      at += marker == 0xff ? 1 : 2;
      continue;
    }
    if (is_frame(marker)) return jpeg_frame(name, prefix, at, marker);
    OFSDP_REJECT_IF(marker == 0xd9 || marker == 0xda,
                    "{}: damaged: expected a JPEG frame header, found none", name);
    at += 2 + std::max(2u, big_endian(prefix, at + 2, 2));
  }
  if (at + kFrame <= bytes && prefix.size() < bytes) return std::optional<ImageHeader>();
  return truncated_header(name, "JPEG", bytes);
}

uint8_t clip(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// Pillow's CMYK to RGB: x * y / 255, rounded.
int product(int x, int y) {
  const int t = x * y + 128;
  return ((t >> 8) + t) >> 8;
}

void cmyk_to_rgb(const uint8_t* from, uint8_t* to) {
  const std::array<int, 4> ink{from[0], from[1], from[2], from[3]};
  const int light = 255 - ink[3];
  for (size_t i = 0; i < 3; ++i) to[i] = clip(light - product(ink[i], light));
}

// ITU-R 601-2 luma, rounded as Pillow does.
uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

}  // namespace

const char* image_kind_name(ImageKind kind) { return kind == ImageKind::kPng ? "PNG" : "JPEG"; }

std::optional<ImageKind> image_kind_of(const std::string& name) {
  const std::string text = extension_of(name);
  const auto* const found = std::ranges::find(kExtensions, text, &Extension::text);
  return found == std::end(kExtensions) ? std::nullopt : std::optional(found->kind);
}

bool is_foreign_image(const std::string& name) {
  return std::ranges::count(kForeignImages, extension_of(name)) > 0;
}

Result<std::optional<ImageHeader>> read_image_header(const std::string& name,
                                                     std::span<const std::byte> prefix,
                                                     uint64_t bytes) {
  OFSDP_REJECT_IF(bytes > kMostImageBytes, "{}: expected an image of at most {} bytes, found {}",
                  name, kMostImageBytes, bytes);
  const ImageKind expected = image_kind_of(name).value_or(ImageKind::kPng);
  const bool png = starts_with(prefix, kPngMagic), jpeg = starts_with(prefix, kJpegMagic);
  OFSDP_REJECT_IF(!png && !jpeg, "{}: expected a {} image, found {}", name,
                  image_kind_name(expected),
                  prefix.empty() ? "an empty file" : "the first bytes " + first_bytes(prefix));
  const ImageKind found = png ? ImageKind::kPng : ImageKind::kJpeg;
  OFSDP_REJECT_IF(found != expected, "{}: expected a {} image, found a {} image: rename the file",
                  name, image_kind_name(expected), image_kind_name(found));
  return png ? png_header(name, prefix, bytes) : jpeg_header(name, prefix, bytes);
}

void convert_pixels(std::byte* pixels, size_t count, int from, int to) {
  auto* const at = reinterpret_cast<uint8_t*>(pixels);
  if (from == 4) {
    for (size_t i = 0; i < count; ++i) cmyk_to_rgb(at + 4 * i, at + 3 * i);
    from = 3;
  }
  if (from == 3 && to == 1) {
    for (size_t i = 0; i < count; ++i) at[i] = luma(at + 3 * i);
  } else if (from == 1 && to == 3) {  // from the end, since pixels grow
    for (size_t i = count; i-- > 0;) std::fill_n(at + 3 * i, 3, uint8_t{at[i]});
  }
}

}  // namespace ofsdp::runtime
