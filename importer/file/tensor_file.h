// TensorFile: an open file with named, dense tensors, in safetensors or ONNX Runtime's adapter
// format. TensorLayout: such tensors in a file that ranks write together, and the bytes around
// them. Const members are thread-safe. Errors: kFault (disk).
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"

namespace ofsdp::importer {

// One tensor's values, with a share in the open file. File::read(place, first element, dst) reads
// elements as float32.

template <typename File, typename Place>
class StoredValues final : public ValueSource {
 public:
  StoredValues(std::shared_ptr<const File> file, Place place)
      : file_(std::move(file)), place_(std::move(place)) {}
  Status read(int64_t first_element, std::span<float> dst) const override {
    return file_->read(place_, first_element, dst);
  }
  bool has_raw() const override {
    if constexpr (kHasRaw) return file_->has_raw(place_);
    return false;
  }
  Status read_raw(int64_t first_byte, std::span<std::byte> dst) const override {
    if constexpr (kHasRaw) return file_->read_raw(place_, first_byte, dst);
    return ValueSource::read_raw(first_byte, dst);
  }
  Status read_stored_integers(int64_t first_element, std::span<int64_t> dst) const override {
    if constexpr (kHasRaw) return file_->read_stored_integers(place_, first_element, dst);
    return ValueSource::read_stored_integers(first_element, dst);
  }

 private:
  static constexpr bool kHasRaw = requires(const File& file, const Place& place) {
    file.has_raw(place);
  };

  std::shared_ptr<const File> file_;
  Place place_;
};

// Parses a JSON text in which no object may have a key twice. nlohmann silently takes the last
// value, but a reader must not choose. Errors: kInput naming the key.

// Returns a discarded value if `text` is no JSON.
inline Result<nlohmann::json> parse_unique(std::string_view text) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> open;  // keys so far, by open object
  std::optional<std::string> twice;
  const auto see = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event != Json::parse_event_t::key) return true;
    const std::string& key = value.get_ref<const std::string&>();
    if (!open.back().insert(key).second && !twice) twice = key;
    return true;
  };
  Json parsed = Json::parse(text, see, false);
  if (!parsed.is_discarded() && twice) {
    return input_error("key '{}' stands twice in one object", escaped(*twice));
  }
  return parsed;
}

struct FileTensor {
  std::string name;
  std::string type{};               // name in the format: "BF16"
  DType dtype = DType::kUndefined;  // kUndefined: we have no such type
  Shape shape{};
  int64_t offset = 0;  // in the file
};

class TensorFile {
 public:
  TensorFile(OpenFile file, std::vector<FileTensor> tensors,
             std::map<std::string, std::string> metadata = {})
      : file_(std::move(file)), tensors_(std::move(tensors)), metadata_(std::move(metadata)) {}

  const std::vector<FileTensor>& tensors() const { return tensors_; }
  const FileTensor* find(const std::string& name) const;  // null: none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads a floating-point tensor's elements as float32.
  Status read(const FileTensor& tensor, int64_t first, std::span<float> dst) const;

 private:
  OpenFile file_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;  // texts
};

std::shared_ptr<const ValueSource> tensor_values(std::shared_ptr<const TensorFile> file,
                                                 const FileTensor& tensor);

struct TensorLayout {
  struct Text {
    int64_t offset = 0;
    std::string bytes;
  };
  std::vector<Text> texts;
  std::vector<Initializer> places;  // the tensors, in the given order
};

Status write_texts(const OpenFile& file, const TensorLayout& layout);

// Files with named tensors, as Hugging Face writes them. Opening one reads only the header.
//
//   u64 header length, little-endian; the header, JSON {name: {dtype, shape, data_offsets}};
//   the tensors one after the other. Follows https://github.com/huggingface/safetensors ("Format").
//
// Checks lengths, shapes and offsets in the header against the file. Errors: kInput naming file and
// tensor.

const char* safetensors_type(DType dtype);  // "F32"; REQUIRES: the format has the type
std::optional<DType> safetensors_dtype(std::string_view type);  // the other way

Result<TensorFile> open_safetensors(const std::string& path);  // tensors by name

// ONNX Runtime's adapter files (NAME.onnx_adapter). A run replaces the inputs that have the
// tensors' names. A FlatBuffer with the identifier TORT:
//
//   Adapter    0 format version i32 | 1 adapter version i32 | 2 model version i32 | 3 [Parameter]
//   Parameter  0 name | 1 dims [i64] | 2 ONNX type i32 | 3 data [u8]
//
// Follows onnxruntime/lora/adapter_format (adapter_schema.fbs, format version 1) in
// https://github.com/microsoft/onnxruntime.
//
// Trusts no byte in a file. Threads: one (see FileMapping). Errors: kInput naming the file.

Result<bool> is_ort_adapter(const std::string& path);  // judged by the identifier
Result<TensorFile> open_ort_adapter(const std::string& path);

// Lays out a file with these tensors. kInput, without a file name, if a FlatBuffer cannot hold
// them.
Result<TensorLayout> lay_out_ort_adapter(std::vector<Initializer> tensors);

}  // namespace ofsdp::importer
