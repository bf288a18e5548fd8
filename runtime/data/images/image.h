// Images as files hold them: PNG (ISO/IEC 15948) and JPEG (ITU-T T.81), as 8-bit pixels.
//
// read_image_header looks at a file's first bytes; decode_image makes pixels of all of them, by
// libpng or libjpeg-turbo. Pixels are bytes in rows from the top, channels adjacent (HWC).
//
// Rules, which are those of Pillow's Image.convert: alpha is dropped, a palette becomes its
// colours, CMYK becomes RGB, grey of 1, 2 and 4 bits is stretched to 0..255. Of 16 bits the upper 8
// are taken. Gamma, colour profiles and EXIF orientation are not applied.
//
// Files are not trusted. A header bounds what decoding may use: at most kMostPixels pixels, of
// ancillary chunks and scans as many as real files have. Any damage is an error: kInput with the
// file, the expected and the found.
//
// decode_image may be called from any thread. It allocates inside the libraries, at most
// codec_bytes(header).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/status.h"

namespace ofsdp::runtime {

inline constexpr uint64_t kMostPixels = 89'478'485;             // as Pillow's MAX_IMAGE_PIXELS
inline constexpr uint64_t kMostImageBytes = uint64_t{1} << 28;  // of a file

enum class ImageKind : uint8_t { kPng, kJpeg };
const char* image_kind_name(ImageKind kind);  // "PNG"

struct ImageHeader {
  ImageKind kind = ImageKind::kPng;
  uint8_t channels = 1;    // as decoded: 1 grey, 3 RGB, 4 CMYK
  bool in_passes = false;  // interlaced or progressive
  uint32_t width = 0, height = 0;

  bool operator==(const ImageHeader&) const = default;
  uint64_t pixels() const { return uint64_t{width} * height; }
  int depth() const { return channels == 1 ? 1 : 3; }  // of the converted image
};

// Returns the kind that a file's name says, if it is one that is read here.
std::optional<ImageKind> image_kind_of(const std::string& name);
// Returns true for an image in a format that is not read here: .gif, .webp, ...
bool is_foreign_image(const std::string& name);

// Parses `prefix`, the first bytes of a file of `bytes` bytes. Returns nothing if the header is
// longer than the prefix. `name` says which kind is expected.
Result<std::optional<ImageHeader>> read_image_header(const std::string& name,
                                                     std::span<const std::byte> prefix,
                                                     uint64_t bytes);

// Returns an error in a build without libpng and libjpeg-turbo.
Status check_image_codecs();

// Bytes that the libraries allocate at most while they decode such an image.
size_t codec_bytes(const ImageHeader& header);

// Decodes the file `bytes` into width * height * channels bytes at `pixels`. The file must still
// have this header.
Status decode_image(const std::string& name, std::span<const std::byte> bytes,
                    const ImageHeader& header, std::byte* pixels);

// Converts `count` pixels of `from` channels (1, 3 or 4) to 1 or 3 channels, in place. REQUIRES:
// room for count * max(from, to) bytes.
void convert_pixels(std::byte* pixels, size_t count, int from, int to);

}  // namespace ofsdp::runtime
