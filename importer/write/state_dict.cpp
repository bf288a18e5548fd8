#include "importer/write/state_dict.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "importer/file/tensor_file.h"
#include "importer/file/wire.h"
#include "importer/proto/onnx_protos.h"
#include "importer/write/model_copy.h"
#include "importer/write/model_output.h"
#include "kernels/base/text.h"

namespace ofsdp::importer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kEntry = "onnx_fsdp.state_dict";
constexpr int64_t kPart = int64_t{1} << 18;  // elements

std::optional<std::vector<std::byte>> from_base64(std::string_view text) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::vector<std::byte> bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const size_t digit = kLetters.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<std::byte>(bits >> held & 0xff));
  }
  return bytes;
}

// Floating-point initializers, and integers that are weights.
bool is_written(const Initializer& weight) { return !weight.own_type || is_floating(weight.dtype); }

class EntryReader {
 public:
  explicit EntryReader(const OnnxFile& model) : model_(model) {
    const auto& all = model.initializers();
    for (size_t i = 0; i < all.size(); ++i) index_[all[i].name] = static_cast<int>(i);
  }

  Result<StateDict> read(const std::string& text) {
    OFSDP_ASSIGN_OR_RETURN(const Json unique, parse_unique(text));
    OFSDP_REJECT_IF(unique.is_discarded(), "expected JSON, found {}", shown(text));
    const OrderedJson json = OrderedJson::parse(text, nullptr, false);
    OFSDP_REJECT_IF(!json.is_object() || json.value("version", OrderedJson()) != 1,
                    "expected a JSON object of version 1, found {}", shown(text));
    const auto tensors = json.find("tensors");
    OFSDP_REJECT_IF(tensors == json.end() || !tensors->is_object(),
                    "expected an object 'tensors', found none");
    StateDict dict;
    if (const auto flag = json.find("training"); flag != json.end() && flag->is_boolean()) {
      dict.training = flag->get<bool>();
    }
    if (const auto count = json.find("dropout");
        count != json.end() && count->is_number_integer()) {
      dict.dropout = count->get<int64_t>();
    }
    for (const auto& [key, source] : tensors->items()) {
      OFSDP_RETURN_IF_ERROR(add(dict, key, source).with_prefix("'" + escaped(key) + "'"));
    }
    return with_later_ones(std::move(dict), json.value("others", OrderedJson::array()));
  }

 private:
  static std::string shown(const std::string& text) { return escaped(text.substr(0, 40)); }

  Status add(StateDict& dict, const std::string& key, const OrderedJson& source) {
    if (source.is_string()) return add_initializer(dict, key, source.get<std::string>(), false);
    OFSDP_REJECT_IF(!source.is_object(), "expected a name or an object");
    const auto name = source.find("initializer");
    if (name == source.end()) return add_bytes(dict, key, source);
    OFSDP_REJECT_IF(!name->is_string(), "expected the name of an initializer");
    const auto turned = source.find("transposed");
    return add_initializer(dict, key, name->get<std::string>(),
                           turned != source.end() && *turned == true);
  }

  Status add_initializer(StateDict& dict, const std::string& key, const std::string& name,
                         bool transposed) {
    named_.insert(name);
    const auto found = index_.find(name);
    if (found == index_.end()) return ok_status();
    const Initializer& weight = model_.initializers()[static_cast<size_t>(found->second)];
    if (!is_written(weight)) return ok_status();
    StateTensor tensor{weight, found->second, transposed};
    tensor.place.name = key;
    if (transposed) {
      const Shape& shape = tensor.place.shape;
      OFSDP_REJECT_IF(shape.rank() != 2, "expected a matrix '{}', found {} axes", escaped(name),
                      shape.rank());
      tensor.place.shape = Shape{shape[1], shape[0]};
    }
    dict.tensors.push_back(std::move(tensor));
    return ok_status();
  }

  static Status add_bytes(StateDict& dict, const std::string& key, const OrderedJson& source) {
    const auto type = source.find("dtype"), shape = source.find("shape"),
               data = source.find("data");
    OFSDP_REJECT_IF(type == source.end() || !type->is_string() || shape == source.end() ||
                        !shape->is_array() || data == source.end() || !data->is_string(),
                    "expected an initializer, or dtype, shape and data");
    StateTensor tensor;
    tensor.place.name = key;
    const std::optional<DType> dtype = safetensors_dtype(type->get<std::string>());
    OFSDP_REJECT_IF(!dtype, "dtype '{}' is not known", escaped(type->get<std::string>()));
    tensor.place.dtype = *dtype;
    std::vector<int64_t> axes;
    for (const auto& axis : *shape) {
      OFSDP_REJECT_IF(!axis.is_number_unsigned(), "expected axes of at least 0");
      axes.push_back(axis.get<int64_t>());
    }
    OFSDP_ASSIGN_OR_RETURN(const int64_t numel, checked_numel(axes));
    const auto bytes = from_base64(data->get<std::string>());
    const auto size = static_cast<int64_t>(dtype_size(*dtype));
    OFSDP_REJECT_IF(!bytes || static_cast<int64_t>(bytes->size()) != numel * size,
                    "expected {} elements of {} in base64, found other data", numel,
                    dtype_name(*dtype));
    tensor.place.shape = Shape(std::move(axes));
    tensor.bytes = *bytes;
    dict.tensors.push_back(std::move(tensor));
    return ok_status();
  }

  // Appends initializers that the file had not when the entry was written.
  Result<StateDict> with_later_ones(StateDict dict, const OrderedJson& others) {
    std::set<std::string> keys;
    for (const StateTensor& tensor : dict.tensors) keys.insert(tensor.place.name);
    for (const auto& other : others) {
      if (other.is_string()) named_.insert(other.get<std::string>());
    }
    for (const auto& [name, index] : index_) {
      const Initializer& weight = model_.initializers()[static_cast<size_t>(index)];
      if (named_.contains(name) || keys.contains(name) || !is_written(weight)) continue;
      dict.tensors.push_back({weight, index});
    }
    return dict;
  }

  const OnnxFile& model_;
  std::map<std::string, int> index_;  // initializers
  std::set<std::string> named_;       // initializers that the entry knows
};

std::vector<StateTensor> every_weight(const OnnxFile& model) {
  std::vector<StateTensor> tensors;
  const auto& all = model.initializers();
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_written(all[i])) tensors.push_back({all[i], static_cast<int>(i)});
  }
  return tensors;
}

// Returns the transpose of a matrix with `columns` columns.
std::vector<float> turned(const std::vector<float>& values, int64_t columns) {
  std::vector<float> result(values.size());
  const int64_t rows = columns == 0 ? 0 : static_cast<int64_t>(values.size()) / columns;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

class StateWriter {
 public:
  StateWriter(const std::vector<StateTensor>& tensors, const ReadValues& values)
      : tensors_(tensors), values_(values) {
    std::vector<Initializer> places;
    for (const StateTensor& tensor : tensors) places.push_back(tensor.place);
    layout_ = lay_out_safetensors(places);
  }

  Status write(const std::string& path) const {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(path));
    OFSDP_RETURN_IF_ERROR(write_texts(file, layout_));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      OFSDP_RETURN_IF_ERROR(write_tensor(file, tensors_[i], layout_.places[i]));
    }
    return sync_file(file);
  }

 private:
  Status write_tensor(const OpenFile& file, const StateTensor& tensor,
                      const Initializer& place) const {
    if (tensor.initializer < 0) return write_exactly(file, place.offset, tensor.bytes);
    const int64_t numel = place.shape.numel();
    const int64_t part = tensor.transposed ? std::max<int64_t>(numel, 1) : kPart;
    std::vector<float> chunk(static_cast<size_t>(std::min(part, numel)));
    for (int64_t at = 0; at < numel; at += part) {
      const auto some = std::span(chunk).first(static_cast<size_t>(std::min(part, numel - at)));
      OFSDP_RETURN_IF_ERROR(values_(tensor.initializer, at, some));
      if (tensor.transposed) chunk = turned(chunk, place.shape[0]);
      OFSDP_RETURN_IF_ERROR(
          write_values(file, place, at, tensor.transposed ? std::span<const float>(chunk) : some));
    }
    return ok_status();
  }

  const std::vector<StateTensor>& tensors_;
  const ReadValues& values_;
  TensorLayout layout_;
};

// Returns the last such entry of the file's metadata, or "".
std::string metadata_of(const OnnxFile& model, std::string_view key) {
  const std::string& skeleton = model.skeleton();
  std::string value;
  WireReader fields(std::as_bytes(std::span(skeleton)));
  while (!fields.done()) {
    const Result<WireField> field = fields.next();
    if (!field.ok()) break;
    const bool entry = field->number == model_field::kMetadataProps;
    if (entry && string_field(field->bytes, entry_field::kKey) == key)
      value = string_field(field->bytes, entry_field::kValue);
  }
  return value;
}

}  // namespace

Result<std::optional<StateDict>> state_dict_of(const OnnxFile& model) {
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto proto, parse_model(model));
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() != kEntry) continue;
    OFSDP_ASSIGN_OR_RETURN(StateDict dict,
                           prefixed(format_text("{}: metadata '{}'", model.path(), kEntry),
                                    EntryReader(model).read(entry.value())));
    return std::optional(std::move(dict));
  }
  return std::optional<StateDict>();
}

Result<std::set<std::string>> frozen_by_module(const OnnxFile& model) {
  const std::string text = metadata_of(model, kFrozenEntry);
  if (text.empty()) return std::set<std::string>();
  const Json names = Json::parse(text, nullptr, false);
  const bool listed = names.is_array() && std::ranges::all_of(names, &Json::is_string);
  OFSDP_REJECT_IF(!listed, "{}: metadata '{}': expected a JSON list of names, found {}",
                  model.path(), kFrozenEntry, escaped(text.substr(0, 40)));
  return names.get<std::set<std::string>>();
}

Status write_safetensors(const OnnxFile& model, const std::string& path, const ReadValues& values) {
  OFSDP_RETURN_IF_ERROR(check_output_path(path));
  OFSDP_ASSIGN_OR_RETURN(const std::optional<StateDict> dict, state_dict_of(model));
  const std::vector<StateTensor> tensors = dict ? dict->tensors : every_weight(model);
  const StateWriter writer(tensors, values);
  OFSDP_RETURN_IF_ERROR(
      write_whole(path, [&](const std::string& temporary) { return writer.write(temporary); }));
  return sync_folder(parent_folder(path));
}

}  // namespace ofsdp::importer
