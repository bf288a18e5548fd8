#include "runtime/data/images/codecs/codecs.h"

namespace ofsdp::runtime {

Status damaged_image(const std::string& name, ImageKind kind, const char* what) {
  return fault("{}: damaged: expected a whole {} image, found '{}': save it again or remove it",
               name, image_kind_name(kind), what);
}

Status changed_image(const std::string& name, const ImageHeader& header) {
  return fault("{}: expected a {} image of {}x{} as before the first step, found another", name,
               image_kind_name(header.kind), header.width, header.height);
}

Status check_image_codecs() { return ok_status(); }

size_t codec_bytes(const ImageHeader& header) {
  return header.kind == ImageKind::kPng ? png_bytes(header) : jpeg_bytes(header);
}

Status decode_image(const std::string& name, std::span<const std::byte> bytes,
                    const ImageHeader& header, std::byte* pixels) {
  return header.kind == ImageKind::kPng ? decode_png(name, bytes, header, pixels)
                                        : decode_jpeg(name, bytes, header, pixels);
}

}  // namespace ofsdp::runtime
