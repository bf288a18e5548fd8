#include "importer/write/training_layout.h"

#include <algorithm>
#include <map>
#include <optional>

#include "importer/file/tensor_data.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {
namespace {

enum : uint32_t { kTrainingInfo = 20, kAlgorithm = 2, kGraphInitializer = 5 };

int64_t length_of(const std::string& text) { return static_cast<int64_t>(text.size()); }

bool is_varint_scalar(const Initializer& tensor) {
  return tensor.encoding == Initializer::Encoding::kList && tensor.shape.numel() == 1 &&
         (tensor.dtype == DType::kInt64 || tensor.dtype == DType::kInt32);
}

// The one value of a list, packed or not.
Result<uint64_t> only_value(const WireField& field) {
  if (field.type == WireType::kVarint) return field.value;
  WireReader reader(field.bytes);
  return reader.varint();
}

Result<Splice> new_scalar(const OnnxFile& input, const AlgorithmTensor& tensor, int index) {
  std::vector<std::byte> body(static_cast<size_t>(tensor.field.end - tensor.field.body));
  OFSDP_RETURN_IF_ERROR(read_exactly(input.file(), tensor.field.body, body));
  std::string fields;
  uint64_t value = 0;
  for (WireReader reader(body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (is_data_field(field.number)) {
      OFSDP_ASSIGN_OR_RETURN(value, only_value(field));
      continue;
    }
    fields += as_text(std::span<const std::byte>(body).subspan(
        static_cast<size_t>(field.begin), static_cast<size_t>(field.end - field.begin)));
  }
  const size_t bytes = dtype_size(tensor.initializer.dtype);
  std::string raw;
  for (size_t i = 0; i < bytes; ++i) raw += static_cast<char>((value >> (8 * i)) & 0xff);
  append_bytes(fields, tensor_field::kRawData, raw);
  Splice splice{tensor.field.begin, tensor.field.end, {}, index, 0};
  append_bytes(splice.text, kGraphInitializer, fields);
  splice.value = length_of(splice.text) - static_cast<int64_t>(bytes);
  return splice;
}

// The tag and length of a message whose body grows.
Splice new_header(uint32_t number, const FieldPlace& place, int64_t growth) {
  Splice splice{place.begin, place.body, {}, -1, 0};
  append_tag(splice.text, number, WireType::kBytes);
  append_varint(splice.text, static_cast<uint64_t>(place.end - place.body + growth));
  return splice;
}

int64_t growth_of(const Splice& splice) {
  return length_of(splice.text) - (splice.end - splice.begin);
}

}  // namespace

Result<std::vector<Splice>> splice_training_info(const OnnxFile& input) {
  std::vector<Splice> splices;
  std::map<int, int64_t> growths;  // of the algorithm of each training_info
  std::map<int, const AlgorithmTensor*> any;
  const auto& tensors = input.contents().algorithm_tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_varint_scalar(tensors[i].initializer)) continue;
    OFSDP_ASSIGN_OR_RETURN(Splice splice, new_scalar(input, tensors[i], static_cast<int>(i)));
    growths[tensors[i].training_info] += growth_of(splice);
    any[tensors[i].training_info] = &tensors[i];
    splices.push_back(std::move(splice));
  }
  for (const auto& [index, growth] : growths) {
    Splice algorithm = new_header(kAlgorithm, any.at(index)->algorithm, growth);
    splices.push_back(
        new_header(kTrainingInfo, any.at(index)->info, growth + growth_of(algorithm)));
    splices.push_back(std::move(algorithm));
  }
  std::ranges::sort(splices, {}, &Splice::begin);
  return splices;
}

}  // namespace ofsdp::importer
