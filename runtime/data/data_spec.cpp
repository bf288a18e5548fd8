#include "runtime/data/data_spec.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/base/escaped.h"
#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;

bool is_yaml(const fs::path& path) {
  return path.extension() == ".yaml" || path.extension() == ".yml";
}

// Sorted by name, so that every rank opens (and shares) columns in the same order.
Result<ColumnSet> folder_columns(const fs::path& folder) {
  ColumnSet set{folder.string(), {}};
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const fs::path& path = i->path();
    if (path.extension() != ".npy") continue;
    ColumnSpec& column = set.columns.emplace_back();
    column.name = path.stem().string();
    column.path = path.string();
  }
  if (error) return input_error("{}: cannot read the folder: {}", set.origin, error.message());
  std::ranges::sort(set.columns, {}, &ColumnSpec::name);
  return set;
}

Result<DataSpec> folder_spec(const fs::path& folder) {
  DataSpec spec;
  OFSDP_ASSIGN_OR_RETURN(spec.train, folder_columns(folder));
  std::error_code error;
  if (fs::is_directory(folder / "eval", error)) {
    OFSDP_ASSIGN_OR_RETURN(spec.eval, folder_columns(folder / "eval"));
  }
  return spec;
}

Result<DataSpec> yaml_spec(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return input_error("{}: cannot be read", path.string());
  return parse_data_yaml(text.str(), path.parent_path().string(), path.string());
}

// Each column that the file has, by its own name.
Result<DataSpec> file_spec(const std::string& path) {
  DataSpec spec;
  spec.train.origin = path;
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, ColumnFile::columns_of(path));
  for (const std::string& name : names) {
    ColumnSpec& column = spec.train.columns.emplace_back();
    column.name = name;
    column.path = path;
    column.parts = {name};
  }
  return spec;
}

Result<DataSpec> read_spec(const char* flag, const std::string& value) {
  std::error_code error;
  const fs::file_status status = fs::status(value, error);
  if (fs::is_directory(status)) return folder_spec(value);
  if (!fs::exists(status)) {
    return input_error("{}: expected a folder, a YAML file or 'synthetic', found no file '{}'",
                       flag, value);
  }
  if (ColumnFile::holds_several(fs::path(value).extension().string())) return file_spec(value);
  if (!is_yaml(value)) {
    return input_error(
        "{}: expected a folder, a file (.yaml, .npz, .safetensors, .csv, .tsv, .jsonl) or "
        "'synthetic', found the file '{}'",
        flag, value);
  }
  return yaml_spec(value);
}

}  // namespace

const ColumnSpec* ColumnSet::find(const std::string& name) const {
  const auto found = std::ranges::find(columns, name, &ColumnSpec::name);
  return found == columns.end() ? nullptr : &*found;
}

ColumnSet column_set(std::span<const ColumnArray> arrays, const std::string& origin) {
  ColumnSet set{.origin = origin, .columns = {}};
  for (const ColumnArray& array : arrays) {
    ColumnSpec column;
    column.name = array.name;
    column.path = format_text("{}: '{}'", origin, escaped(array.name));
    column.array = array;
    set.columns.push_back(std::move(column));
  }
  return set;
}

std::vector<std::string> ColumnSet::names() const {
  std::vector<std::string> names;
  for (const ColumnSpec& column : columns) names.push_back(column.name);
  return names;
}

Result<DataSpec> read_data_spec(const std::string& value) {
  if (value != "synthetic") return read_spec("--data", value);
  DataSpec spec;
  spec.synthetic = true;
  spec.train.origin = value;
  return spec;
}

Result<ColumnSet> read_eval_spec(const std::string& value) {
  if (value == "synthetic") {
    return input_error(
        "--eval-data: expected a folder or a YAML file, found 'synthetic', which has no end");
  }
  OFSDP_ASSIGN_OR_RETURN(DataSpec spec, read_spec("--eval-data", value));
  const bool own_columns = !is_yaml(value) && !spec.train.columns.empty();
  if (own_columns || !spec.eval) return std::move(spec.train);
  return *std::move(spec.eval);
}

}  // namespace ofsdp::runtime
