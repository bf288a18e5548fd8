// The codecs of images, one for each library.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/data/images/image.h"

namespace ofsdp::runtime {

// decode_image and codec_bytes for one kind.
size_t png_bytes(const ImageHeader& header);
Status decode_png(const std::string& name, std::span<const std::byte> bytes,
                  const ImageHeader& header, std::byte* pixels);
size_t jpeg_bytes(const ImageHeader& header);
Status decode_jpeg(const std::string& name, std::span<const std::byte> bytes,
                   const ImageHeader& header, std::byte* pixels);

// Errors of a run: the header was read before the first step.
Status damaged_image(const std::string& name, ImageKind kind, const char* what);
Status changed_image(const std::string& name, const ImageHeader& header);

}  // namespace ofsdp::runtime
