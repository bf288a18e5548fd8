#include "importer/write/model_output.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "importer/file/tensor_file.h"
#include "importer/write/model_copy.h"
#include "importer/write/output_files.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {

Result<ModelOutput> ModelOutput::begin(const OnnxFile& input, const std::string& path) {
  OFSDP_RETURN_IF_ERROR(check_output_path(path, input));
  ModelOutput output;
  output.owner_ = true;
  OFSDP_ASSIGN_OR_RETURN(output.locations_, choose_locations(path, input));
  OFSDP_RETURN_IF_ERROR(output.create_files(input, path));
  OFSDP_RETURN_IF_ERROR(output.lay_out(input));
  const std::atomic<bool> cancelled = false;
  OFSDP_RETURN_IF_ERROR(output.copy_.write_rest(output.folder_, cancelled).with_prefix(path));
  return output;
}

Result<ModelOutput> ModelOutput::join(const OnnxFile& input, const std::string& ticket) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < ticket.size();) {
    const size_t end = std::min(ticket.find('\0', begin), ticket.size());
    words.push_back(ticket.substr(begin, end - begin));
    begin = end + 1;
  }
  const size_t data_files = input.contents().data_files.size();
  OFSDP_FAULT_IF(words.size() != 1 + 2 * data_files,
                 "{}: expected {} names of output files from rank 0, found {}", input.path(),
                 1 + 2 * data_files, words.size());
  ModelOutput output;
  for (size_t i = 0; i <= data_files; ++i) output.targets_.push_back({"", words[i]});
  output.locations_.assign(words.begin() + static_cast<ptrdiff_t>(data_files) + 1, words.end());
  OFSDP_RETURN_IF_ERROR(output.lay_out(input));
  return output;
}

ModelOutput::ModelOutput(ModelOutput&& other) noexcept
    : targets_(std::move(other.targets_)),
      locations_(std::move(other.locations_)),
      folder_(std::move(other.folder_)),
      copy_(std::move(other.copy_)),
      owner_(std::exchange(other.owner_, false)) {}

std::string ModelOutput::ticket() const {
  std::string text;
  for (const Target& target : targets_) text += target.temporary + '\0';
  for (const std::string& location : locations_) text += location + '\0';
  return text;
}

void ModelOutput::rescale(const std::map<int, std::vector<float>>& scales) {
  for (const auto& [initializer, values] : scales) copy_.rescale(initializer, values);
}

Status ModelOutput::write(size_t initializer, int64_t first_element,
                          std::span<const float> src) const {
  return copy_.write(folder_, static_cast<int>(initializer), first_element, src);
}

Status ModelOutput::write_state(size_t tensor, int64_t first_element,
                                std::span<const float> src) const {
  return copy_.write(folder_, copy_.layout().algorithm_tensors[tensor], first_element, src);
}

Status ModelOutput::write_scalar(size_t tensor, std::span<const std::byte> value) const {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(targets_[0].temporary));
  return write_exactly(file, copy_.layout().algorithm_tensors[tensor].offset, value);
}

Status ModelOutput::commit() {
  OFSDP_CHECK(owner_, "commit of a file that is not this rank's");
  for (size_t i = targets_.size(); i-- > 0;) {  // the model last: it makes the others visible
    const Target& target = targets_[i];
    OFSDP_FAULT_IF(std::rename(target.temporary.c_str(), target.path.c_str()) != 0,
                   "{}: cannot be renamed from {}: {}", target.path, target.temporary,
                   std::strerror(errno));
  }
  owner_ = false;
  return sync_folder(folder_of(targets_[0].path));
}

void ModelOutput::discard() {
  if (!owner_) return;
  for (const Target& target : targets_) unlink(target.temporary.c_str());
  owner_ = false;
}

Status ModelOutput::create_files(const OnnxFile& input, const std::string& path) {
  std::vector<std::string> paths = {path};
  for (size_t i = 0; i < input.contents().data_files.size(); ++i) {
    paths.push_back(join_path(folder_of(path), locations_[i]));
  }
  for (const std::string& target : paths) {
    OFSDP_ASSIGN_OR_RETURN(std::string temporary, create_temporary(target));
    targets_.push_back({target, std::move(temporary)});
  }
  return ok_status();
}

Status ModelOutput::lay_out(const OnnxFile& input) {
  folder_ = folder_of(targets_[0].temporary);
  std::vector<std::string> names;
  for (const Target& target : targets_) names.push_back(filename_of(target.temporary));
  OFSDP_ASSIGN_OR_RETURN(copy_, ModelCopy::make(input, names, locations_, {}, false));
  return ok_status();
}

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
    if (place.quantization != nullptr) {  // the values that were trained, not their integers
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
