#include "importer/write/safetensors_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "importer/file/safetensors_file.h"
#include "importer/write/output_files.h"
#include "importer/write/value_writer.h"

namespace ofsdp::importer {
namespace {

constexpr int64_t kChunk = int64_t{1} << 18;  // elements

Status fill(const TensorLayout& layout, const std::string& path, const ReadValues& values) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(path));
  OFSDP_RETURN_IF_ERROR(write_texts(file, layout));
  std::vector<float> chunk(static_cast<size_t>(kChunk));
  for (size_t i = 0; i < layout.places.size(); ++i) {
    const int64_t numel = layout.places[i].shape.numel();
    for (int64_t at = 0; at < numel; at += kChunk) {
      const auto part = std::span(chunk).first(static_cast<size_t>(std::min(kChunk, numel - at)));
      OFSDP_RETURN_IF_ERROR(values(static_cast<int>(i), at, part));
      OFSDP_RETURN_IF_ERROR(write_values(file, layout.places[i], at, part));
    }
  }
  return sync_file(file);
}

}  // namespace

TensorLayout lay_out_safetensors(const std::vector<Initializer>& tensors) {
  TensorLayout layout;
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}, {"producer", "onnx-fsdp"}}}};
  int64_t end = 0;
  for (Initializer place : tensors) {
    place.file = 0;
    if (place.quantization != nullptr) {  // the values that trained, not their integers
      place.quantization = nullptr;
      place.bits = 0;
      place.dtype = DType::kFloat32;
    }
    place.values = nullptr;
    place.encoding = Initializer::Encoding::kDense;
    place.stride = static_cast<int64_t>(dtype_size(place.dtype));
    place.offset = end;
    place.bytes = place.shape.numel() * place.stride;
    end += place.bytes;
    header[place.name] = {{"dtype", safetensors_type(place.dtype)},
                          {"shape", place.shape.axes()},
                          {"data_offsets", {place.offset, end}}};
    layout.places.push_back(std::move(place));
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (size_t i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  layout.texts.push_back({0, length + text});
  for (Initializer& place : layout.places) {
    place.offset += static_cast<int64_t>(length.size() + text.size());
  }
  return layout;
}

Status write_safetensors(const OnnxFile& model, const std::string& path, const ReadValues& values) {
  OFSDP_RETURN_IF_ERROR(check_output_path(path));
  std::vector<Initializer> tensors;
  std::vector<int> index;
  for (size_t i = 0; i < model.initializers().size(); ++i) {
    const Initializer& weight = model.initializers()[i];
    if (weight.own_type && !is_floating(weight.dtype)) continue;  // bytes that nothing trains
    tensors.push_back(weight);
    index.push_back(static_cast<int>(i));
  }
  const TensorLayout layout = lay_out_safetensors(tensors);
  const ReadValues of_tensor = [&](int i, int64_t first, std::span<float> dst) {
    return values(index[static_cast<size_t>(i)], first, dst);
  };
  OFSDP_RETURN_IF_ERROR(write_whole(
      path, [&](const std::string& temporary) { return fill(layout, temporary, of_tensor); }));
  return sync_folder(folder_of(path));
}

}  // namespace ofsdp::importer
