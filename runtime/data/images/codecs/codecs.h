// The codecs of images, one for each library.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/data/images/image.h"

namespace ofsdp::runtime {

// codec_bytes and decode_image (image.h) for one kind. The first returns the most bytes that the
// library allocates while it decodes. The second writes width * height * channels bytes at
// `pixels`, 8 bits a channel, in rows from the top; its errors are the two below. `header` is the
// one that was read before the first step.
size_t png_bytes(const ImageHeader& header);
Status decode_png(const std::string& name, std::span<const std::byte> bytes,
                  const ImageHeader& header, std::byte* pixels);
size_t jpeg_bytes(const ImageHeader& header);
Status decode_jpeg(const std::string& name, std::span<const std::byte> bytes,
                   const ImageHeader& header, std::byte* pixels);

// kFault, since the header was right before the first step. `what` is the library's message. The
// text of changed_image names the expected `header`, not the one that was found.
Status damaged_image(const std::string& name, ImageKind kind, const char* what);
Status changed_image(const std::string& name, const ImageHeader& header);

}  // namespace ofsdp::runtime
