#include "importer/write/value_writer.h"

#include <algorithm>
#include <vector>

#include "importer/file/element_codec.h"
#include "importer/file/integer_codec.h"

namespace ofsdp::importer {
namespace {

constexpr size_t kChunkElements = 16384;

// The tag before each unpacked element: float_data or double_data.
std::byte tag_of(DType dtype) {
  return dtype == DType::kFloat32 ? std::byte{4 << 3 | 5} : std::byte{10 << 3 | 1};
}

Status write_quantized(const OpenFile& file, const Initializer& place, int64_t first,
                       std::span<const float> src) {
  std::vector<int64_t> integers(std::min(src.size(), kChunkElements));
  while (!src.empty()) {
    const auto part = src.first(std::min(src.size(), kChunkElements));
    const auto whole = std::span(integers).first(part.size());
    requantize(*place.quantization, first, part, whole);
    OFSDP_RETURN_IF_ERROR(write_integers(file, place, first, whole));
    first += static_cast<int64_t>(part.size());
    src = src.subspan(part.size());
  }
  return ok_status();
}

}  // namespace

Status write_integers(const OpenFile& file, const Initializer& place, int64_t first,
                      std::span<const int64_t> integers) {
  const int64_t per_byte = place.bits == 4 ? 2 : 1;
  OFSDP_CHECK(first % per_byte == 0, "{}: element {} begins within a byte", place.name, first);
  const int64_t size = static_cast<int64_t>(dtype_size(place.dtype));
  return write_exactly(file, place.offset + first / per_byte * size,
                       integer_bytes(place, integers));
}

Status write_values(const OpenFile& file, const Initializer& place, int64_t first_element,
                    std::span<const float> src) {
  const int64_t numel = place.shape.numel();
  const auto count = static_cast<int64_t>(src.size());
  OFSDP_CHECK(first_element >= 0 && first_element + count <= numel, "{}: elements {} + {} of {}",
              place.name, first_element, count, numel);
  if (place.quantization != nullptr) return write_quantized(file, place, first_element, src);
  const int64_t stride = place.stride;
  const int64_t tag = stride - static_cast<int64_t>(dtype_size(place.dtype));
  std::vector<std::byte> buffer(std::min(src.size(), kChunkElements) * static_cast<size_t>(stride),
                                tag_of(place.dtype));
  while (!src.empty()) {
    const auto part = src.first(std::min(src.size(), kChunkElements));
    encode_floats(place.dtype, part, stride, buffer.data() + tag);
    OFSDP_RETURN_IF_ERROR(
        write_exactly(file, place.offset - tag + first_element * stride,
                      std::span(buffer).first(part.size() * static_cast<size_t>(stride))));
    first_element += static_cast<int64_t>(part.size());
    src = src.subspan(part.size());
  }
  return ok_status();
}

}  // namespace ofsdp::importer
