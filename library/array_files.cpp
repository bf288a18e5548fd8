#include "library/array_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "kernels/base/reject.h"
#include "runtime/cli/options/option_value.h"
#include "runtime/data/npy_header.h"

namespace ofsdp::library {

Result<ArrayFiles> ArrayFiles::make(std::span<const ColumnArray> train,
                                    std::span<const ColumnArray> eval) {
  ArrayFiles files;
  if (train.empty() && eval.empty()) return files;
  OFSDP_REJECT_IF(train.empty(), "eval_data: expected data beside it, found none");
  OFSDP_ASSIGN_OR_RETURN(files.folder_, TemporaryFolder::make());
  std::string yaml;
  OFSDP_ASSIGN_OR_RETURN(yaml, files.add(train));
  yaml = "train:\n" + yaml;
  if (!eval.empty()) {
    OFSDP_ASSIGN_OR_RETURN(const std::string columns, files.add(eval));
    yaml += "eval:\n" + columns;
  }
  files.data_ = join_path(files.folder_.path(), "data.yaml");
  std::ofstream file(files.data_);
  file << yaml << std::flush;
  OFSDP_FAULT_IF(!file, "{}: cannot be written", files.data_);
  return files;
}

// The lines of the YAML file for the columns.
Result<std::string> ArrayFiles::add(std::span<const ColumnArray> arrays) {
  std::string lines;
  for (const ColumnArray& array : arrays) {
    const size_t number = memory_.size();
    OFSDP_RETURN_IF_ERROR(link(number, array));
    lines += format_text("  {}: {{file: {}.npy}}\n", cli::yaml_quoted(array.name), number);
  }
  return lines;
}

Status ArrayFiles::link(size_t number, const ColumnArray& array) {
  OFSDP_REJECT_IF(!npy_descr(array.dtype), "array '{}': {} is no type of a column", array.name,
                  dtype_name(array.dtype));
  const Result<int64_t> count = checked_numel(array.dims);
  if (!count.ok()) return input_error("array '{}': {}", array.name, count.error().message());
  const std::string header = npy_header(array.dtype, array.dims);
  OpenFile memory{.path = format_text("array '{}'", array.name),
                  .fd = UniqueFd(memory_file("ofsdp"))};
  OFSDP_FAULT_IF(!memory.fd.valid(), "{}: no memory for it: {}", memory.path, std::strerror(errno));
  OFSDP_RETURN_IF_ERROR(
      write_exactly(memory, 0, std::as_bytes(std::span(header.data(), header.size()))));
  const size_t bytes = static_cast<size_t>(*count) * dtype_size(array.dtype);
  OFSDP_RETURN_IF_ERROR(
      write_exactly(memory, static_cast<int64_t>(header.size()), {array.data, bytes}));
  const std::string name = join_path(folder_.path(), format_text("{}.npy", number));
  const std::string target = format_text("/proc/self/fd/{}", memory.fd.get());
  OFSDP_FAULT_IF(symlink(target.c_str(), name.c_str()) != 0, "{}: cannot be made: {}", name,
                 std::strerror(errno));
  memory_.push_back(std::move(memory.fd));
  return {};
}

}  // namespace ofsdp::library
