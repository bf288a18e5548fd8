#include "importer/file/onnx_file.h"

#include <algorithm>

#include "importer/file/element_codec.h"
#include "importer/file/file_mapping.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr size_t kChunkElements = 16384;

}  // namespace

Result<OnnxFile> OnnxFile::open(const std::string& path) {
  OnnxFile onnx;
  OFSDP_ASSIGN_OR_RETURN(onnx.file_, open_for_reading(path));
  if (onnx.file_.bytes == 0) return input_error("{}: is no ONNX model: the file is empty", path);
  OFSDP_ASSIGN_OR_RETURN(const FileMapping mapping, FileMapping::make(onnx.file_));
  auto contents = walk_onnx(path, mapping.bytes());
  OFSDP_FAULT_IF(mapping.was_cut(), "{}: was cut short while in use", path);
  OFSDP_ASSIGN_OR_RETURN(onnx.contents_, std::move(contents));
  return onnx;
}

std::string initial_key(const Initializer& initializer) {
  return format_text("{} {} {}", initializer.file, initializer.offset, initializer.name);
}

OnnxFile OnnxFile::of_model(const std::string& path, std::string model) {
  OnnxFile onnx;
  onnx.file_.path = path;
  onnx.contents_.skeleton = std::move(model);
  return onnx;
}

OnnxFile OnnxFile::of_parts(OpenFile file, OnnxContents contents) {
  OnnxFile onnx;
  onnx.file_ = std::move(file);
  onnx.contents_ = std::move(contents);
  return onnx;
}

Status OnnxFile::read(const Initializer& initializer, int64_t first_element,
                      std::span<float> dst) const {
  if (initial_ != nullptr && initial_->has(initializer)) {
    return initial_->read(initializer, first_element, dst);
  }
  const auto count = static_cast<int64_t>(dst.size());
  OFSDP_CHECK(first_element >= 0 && first_element + count <= initializer.shape.numel(),
              "{}: elements {} + {} of {}", initializer.name, first_element, count,
              initializer.shape.text());
  if (initializer.values != nullptr) return initializer.values->read(first_element, dst);
  const OpenFile& file = initializer.file == 0
                             ? file_
                             : contents_.data_files[static_cast<size_t>(initializer.file - 1)].file;
  Status status;
  if (initializer.encoding == Initializer::Encoding::kList) {
    status = read_list(initializer, first_element, dst);
  } else if (initializer.dtype == DType::kFloat32 && initializer.stride == 4) {
    status =
        read_exactly(file, initializer.offset + first_element * 4, std::as_writable_bytes(dst));
  } else {
    status = read_converted(file, initializer, first_element, dst);
  }
  return std::move(status).with_prefix("initializer '" + printable(initializer.name) + "'");
}

Status OnnxFile::read_converted(const OpenFile& file, const Initializer& initializer,
                                int64_t first_element, std::span<float> dst) const {
  const int64_t stride = initializer.stride;
  const auto element = static_cast<int64_t>(dtype_size(initializer.dtype));
  std::vector<std::byte> buffer(std::min(dst.size(), kChunkElements) * static_cast<size_t>(stride));
  while (!dst.empty()) {
    const auto part = dst.first(std::min(dst.size(), kChunkElements));
    const int64_t bytes = (static_cast<int64_t>(part.size()) - 1) * stride + element;
    OFSDP_RETURN_IF_ERROR(read_exactly(file, initializer.offset + first_element * stride,
                                       std::span(buffer).first(static_cast<size_t>(bytes))));
    decode_floats(initializer.dtype, buffer.data(), stride, part);
    first_element += static_cast<int64_t>(part.size());
    dst = dst.subspan(part.size());
  }
  return ok_status();
}

Status OnnxFile::read_list(const Initializer& initializer, int64_t first_element,
                           std::span<float> dst) const {
  std::vector<std::byte> body(static_cast<size_t>(initializer.bytes));
  OFSDP_RETURN_IF_ERROR(read_exactly(file_, initializer.offset, body));
  return decode_list(body, initializer.dtype, first_element, dst);
}

}  // namespace ofsdp::importer
