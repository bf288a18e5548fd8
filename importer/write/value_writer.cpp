#include "importer/write/value_writer.h"

#include <algorithm>
#include <vector>

#include "importer/file/element_codec.h"

namespace ofsdp::importer {
namespace {

constexpr size_t kChunkElements = 16384;

// The tag before each unpacked element: float_data or double_data.
std::byte tag_of(DType dtype) {
  return dtype == DType::kFloat32 ? std::byte{4 << 3 | 5} : std::byte{10 << 3 | 1};
}

}  // namespace

Status write_values(const OpenFile& file, const Initializer& place, int64_t first_element,
                    std::span<const float> src) {
  const int64_t numel = place.shape.numel();
  const auto count = static_cast<int64_t>(src.size());
  OFSDP_CHECK(first_element >= 0 && first_element + count <= numel, "{}: elements {} + {} of {}",
              place.name, first_element, count, numel);
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
