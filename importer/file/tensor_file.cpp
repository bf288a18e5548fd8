#include "importer/file/tensor_file.h"

#include <algorithm>

#include "importer/file/element_codec.h"
#include "importer/file/stored_values.h"

namespace ofsdp::importer {

const FileTensor* TensorFile::find(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &FileTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

Status TensorFile::read(const FileTensor& tensor, int64_t first, std::span<float> dst) const {
  const auto stride = static_cast<int64_t>(dtype_size(tensor.dtype));
  constexpr size_t kChunk = 16384;
  std::vector<std::byte> buffer(std::min(dst.size(), kChunk) * static_cast<size_t>(stride));
  while (!dst.empty()) {
    const auto part = dst.first(std::min(dst.size(), kChunk));
    const auto raw = std::span(buffer).first(part.size() * static_cast<size_t>(stride));
    OFSDP_RETURN_IF_ERROR(read_exactly(file_, tensor.offset + first * stride, raw));
    decode_floats(tensor.dtype, raw.data(), stride, part);
    first += static_cast<int64_t>(part.size());
    dst = dst.subspan(part.size());
  }
  return {};
}

std::shared_ptr<const ValueSource> tensor_values(std::shared_ptr<const TensorFile> file,
                                                 const FileTensor& tensor) {
  return std::make_shared<StoredValues<TensorFile, FileTensor>>(std::move(file), tensor);
}

Status write_texts(const OpenFile& file, const TensorLayout& layout) {
  for (const TensorLayout::Text& text : layout.texts) {
    OFSDP_RETURN_IF_ERROR(write_exactly(file, text.offset, std::as_bytes(std::span(text.bytes))));
  }
  return {};
}

}  // namespace ofsdp::importer
