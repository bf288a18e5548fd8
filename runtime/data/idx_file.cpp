// IDX, the format of MNIST (http://yann.lecun.com/exdb/mnist): two zero bytes, the type, the number
// of axes, each axis as a big-endian uint32, and then the elements, big-endian too.
#include <optional>
#include <vector>

#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

std::optional<DType> dtype_of(unsigned type) {
  switch (type) {
    case 0x08:
      return DType::kUInt8;
    case 0x09:
      return DType::kInt8;
    case 0x0b:
      return DType::kInt16;
    case 0x0c:
      return DType::kInt32;
    case 0x0d:
      return DType::kFloat32;
    case 0x0e:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<ColumnLayout> parse_idx(const std::string& path, std::span<const std::byte> prefix) {
  auto byte = [&](size_t i) { return static_cast<unsigned>(prefix[i]); };
  if (prefix.size() < 4) {
    return input_error("{}: truncated: expected a header of at least 4 bytes, found {}", path,
                       prefix.size());
  }
  const std::optional<DType> dtype = dtype_of(byte(2));
  if (byte(0) != 0 || byte(1) != 0 || !dtype) {
    return input_error(
        "{}: expected a .npy, .bin or IDX file (first bytes 00 00 08), found {:02x} {:02x} {:02x}",
        path, byte(0), byte(1), byte(2));
  }
  const size_t header = 4 + 4 * size_t{byte(3)};
  if (prefix.size() < header) {
    return input_error("{}: truncated: expected a header of {} bytes, found {}", path, header,
                       prefix.size());
  }
  std::vector<int64_t> axes;
  for (size_t i = 4; i < header; i += 4) {
    axes.push_back(int64_t{byte(i)} << 24 | byte(i + 1) << 16 | byte(i + 2) << 8 | byte(i + 3));
  }
  OFSDP_ASSIGN_OR_RETURN(ColumnLayout layout, dense_layout(path, *dtype, std::move(axes), header));
  layout.big_endian = dtype_size(layout.dtype) > 1;
  return layout;
}

}  // namespace ofsdp::runtime
