#include "library/settings.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/status.h"

namespace ofsdp::library {

Result<onnx_fsdp_settings> known_settings(const onnx_fsdp_settings* settings) {
  OFSDP_REJECT_IF(settings == nullptr, "settings: expected a struct, found a null pointer");
  const size_t least = offsetof(onnx_fsdp_settings, options);
  OFSDP_REJECT_IF(settings->size < least || settings->size > sizeof(onnx_fsdp_settings),
                  "settings: size: expected sizeof(onnx_fsdp_settings) of at most {}, found {}",
                  sizeof(onnx_fsdp_settings), settings->size);
  onnx_fsdp_settings known{};
  std::memcpy(&known, settings, settings->size);
  OFSDP_REJECT_IF(known.model == nullptr || *known.model == 0,
                  "settings: model: expected the name of a file, found none");
  return known;
}

Result<std::vector<std::string>> command_words(const std::string& command,
                                               const onnx_fsdp_settings& settings) {
  std::vector<std::string> words{command};
  for (size_t i = 0; i < settings.option_count; ++i) {
    const onnx_fsdp_option& option = settings.options[i];
    OFSDP_REJECT_IF(option.name == nullptr || option.value == nullptr,
                    "settings: options: expected a name and a value, found a null pointer as "
                    "number {}",
                    i);
    words.push_back(format_text("--{}={}", option.name, option.value));
  }
  words.push_back("--");
  words.push_back(settings.model);
  return words;
}

Result<std::vector<ColumnArray>> column_arrays(const onnx_fsdp_array* arrays, size_t count) {
  std::vector<ColumnArray> columns;
  for (size_t i = 0; i < count; ++i) {
    const onnx_fsdp_array& array = arrays[i];
    OFSDP_REJECT_IF(array.name == nullptr, "an array: expected a name, found none");
    ColumnArray column{.name = array.name,
                       .dtype = dtype_from_onnx_number(array.dtype),
                       .dims = {},
                       .data = static_cast<const std::byte*>(array.data)};
    OFSDP_REJECT_IF(column.dtype == DType::kUndefined,
                    "array '{}': dtype: expected a number of onnx_fsdp_dtype, found {}",
                    column.name, array.dtype);
    OFSDP_REJECT_IF(array.rank < 1 || array.dims == nullptr || array.data == nullptr,
                    "array '{}': expected at least one axis and data, found {} axes", column.name,
                    array.rank);
    column.dims.assign(array.dims, array.dims + array.rank);
    const bool again = std::ranges::count(columns, column.name, &ColumnArray::name) > 0;
    OFSDP_REJECT_IF(again, "array '{}': expected each column once, found it twice", column.name);
    columns.push_back(std::move(column));
  }
  return columns;
}

}  // namespace ofsdp::library
