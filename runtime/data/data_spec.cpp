#include "runtime/data/data_spec.h"

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <tuple>

#include "kernels/base/names.h"
#include "kernels/base/text.h"
#include "runtime/data/column_file.h"
#include "runtime/data/image_column.h"
#include "runtime/data/image_list.h"
#include "runtime/data/images/image.h"
#include "runtime/data/text_records.h"
#include "runtime/remote/cache.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;

// Returns the place of the name, in any case, in the list, or -1.
int place_in(std::initializer_list<std::string_view> list, std::string_view name) {
  const auto* const found = std::ranges::find(list, lower_text(name));
  return found == list.end() ? -1 : static_cast<int>(found - list.begin());
}

bool is_yaml(const std::string& path) {
  const std::string ending = last_ending(path);
  return ending == ".yaml" || ending == ".yml";
}

constexpr size_t kMostLookedAt = 1000;  // files

// Sorted by name, since every rank must open columns in the same order.
Result<ColumnSet> folder_columns(const fs::path& folder) {
  ColumnSet set{folder.string(), {}};
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const fs::path& path = i->path();
    if (last_ending(path.string()) != ".npy") continue;
    ColumnSpec& column = set.columns.emplace_back();
    column.name = path.stem().string();
    column.path = path.string();
  }
  if (error) return input_error("{}: cannot read the folder: {}", set.origin, error.message());
  std::ranges::sort(set.columns, {}, &ColumnSpec::name);
  return set;
}

// Describes a folder without columns: the first file in it, or in a folder of it, and a remedy.
Status no_columns(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator i(folder, error), end; !error && i != end;
       i.increment(error)) {
    if (i->is_regular_file(error)) files.push_back(i->path().string());
    if (files.size() == kMostLookedAt) break;
  }
  std::ranges::sort(files);
  const auto yaml = std::ranges::find_if(files, [](const std::string& f) { return is_yaml(f); });
  const std::string expected =
      format_text("{}: expected columns, files NAME.npy, found ", folder.string());
  if (files.empty()) return input_error("{}an empty folder", expected);
  if (yaml != files.end()) {
    return input_error("{}none beside '{}': give that file to --data", expected, *yaml);
  }
  const bool below = last_ending(files[0]) == ".npy";
  return input_error("{}'{}'{}", expected, files[0], below ? " below it" : file_remark(files[0]));
}

// A column of images without a name: it feeds the one input that takes them.
ColumnSet image_columns(const fs::path& folder, const std::string& left_out) {
  ColumnSpec column;
  column.path = folder.string();
  column.images.emplace();
  column.images->folders = {column.path};
  column.images->left_out = left_out;
  return {folder.string(), {std::move(column)}};
}

std::vector<fs::path> subfolders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    std::error_code broken;
    if (i->is_directory(broken)) found.push_back(i->path());
  }
  std::ranges::sort(found);
  return found;
}

// Returns the folder with the first name of a part's list; empty: there is none.
fs::path part_among(const std::vector<fs::path>& folders, int (*place)(std::string_view)) {
  fs::path best;
  int first = INT_MAX;
  for (const fs::path& one : folders) {
    const int at = place(one.filename().string());
    if (at >= 0 && at < first) std::tie(best, first) = std::pair(one, at);
  }
  return best;
}

// The folder's subfolders are classes; or it holds folders of parts, such as train/ and val/, with
// them. A folder `train` with images next to classes is a class: a picture shows a train.
Result<DataSpec> image_spec(const fs::path& folder) {
  DataSpec spec;
  const std::vector<fs::path> all = subfolders(folder);
  const fs::path train = part_among(all, training_name), eval = part_among(all, evaluation_name);
  const bool only_parts = std::ranges::all_of(all, [](const fs::path& one) {
    const std::string name = one.filename().string();
    return training_name(name) >= 0 || evaluation_name(name) >= 0;
  });
  if (!train.empty() && (only_parts || !subfolders(train).empty())) {
    spec.train = image_columns(train, "");
    if (!eval.empty()) spec.eval = image_columns(eval, "");
    return spec;
  }
  const bool beside = eval.filename() == "eval";
  OFSDP_REJECT_IF(!beside && !eval.empty() && !subfolders(eval).empty(),
                  "{}: expected a folder of classes, or 'train' for training next to '{}', found "
                  "folders in '{}'",
                  folder.string(), eval.filename().string(), eval.filename().string());
  spec.train = image_columns(folder, "eval");
  if (beside) spec.eval = image_columns(eval, "");
  return spec;
}

Result<DataSpec> folder_spec(const fs::path& folder) {
  DataSpec spec;
  OFSDP_ASSIGN_OR_RETURN(spec.train, folder_columns(folder));
  std::error_code error;
  if (fs::is_directory(folder / "eval", error)) {
    OFSDP_ASSIGN_OR_RETURN(spec.eval, folder_columns(folder / "eval"));
  }
  const bool none = spec.train.columns.empty() && (!spec.eval || spec.eval->columns.empty());
  if (none && holds_images(folder.string())) return image_spec(folder);
  if (none) return no_columns(folder);
  return spec;
}

Result<std::string> yaml_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return input_error("{}: cannot be read", path);
  return text.str();
}

Result<DataSpec> yaml_spec(const fs::path& path) {
  OFSDP_ASSIGN_OR_RETURN(const std::string text, yaml_text(path.string()));
  return parse_data_yaml(text, path.parent_path().string(), path.string());
}

// Takes each column under the name that it has in the file.
Result<DataSpec> file_spec(const std::string& path, const DataFormat& format) {
  DataSpec spec;
  spec.train.origin = path;
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(path));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, format.columns(source));
  for (const std::string& name : names) {
    ColumnSpec& column = spec.train.columns.emplace_back();
    column.name = name;
    column.path = path;
    column.parts = {name};
  }
  return spec;
}

// Shards with one image in each sample, and perhaps its class.
Result<DataSpec> shard_spec(const char* flag, const std::string& value) {
  ColumnSpec pixels;
  pixels.images.emplace();
  pixels.images->shards = numbered_shards(value);
  OFSDP_REJECT_IF(pixels.images->shards.empty(),
                  "{}: expected numbers of shards such as {{000..009}}, found '{}'", flag, value);
  for (std::string& shard : pixels.images->shards) {
    OFSDP_ASSIGN_OR_RETURN(shard, prefixed(flag, local_file(shard)));
  }
  pixels.path = pixels.images->shards[0];
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> members,
                         prefixed(flag, first_members(pixels.path)));
  const auto of_images = [](const std::string& name) {
    return image_kind_of("x." + name).has_value();
  };
  OFSDP_REJECT_IF(std::ranges::count_if(members, of_images) != 1,
                  "{}: {}: expected one image in each sample, found {}: a YAML file names the "
                  "member: train: {{NAME: {{tar: {}, member: jpg}}}}",
                  flag, pixels.path, joined(members, ", "), value);
  pixels.images->member = *std::ranges::find_if(members, of_images);
  DataSpec spec;
  spec.train = {value, {pixels}};
  if (std::ranges::count(members, "cls") == 0) return spec;
  pixels.name = "labels";
  pixels.images->member = "cls";
  pixels.images->classes = true;
  spec.train.columns.push_back(std::move(pixels));
  return spec;
}

std::string file_kinds() {
  std::string extensions = ".yaml";
  for (const DataFormat& one : data_formats()) extensions += format_text(", {}", one.extension);
  return extensions;
}

// Paths in a YAML file at an address are relative to the address.
Result<DataSpec> address_spec(const char* flag, const std::string& value) {
  OFSDP_ASSIGN_OR_RETURN(const Address address, prefixed(flag, parse_address(value)));
  const DataFormat* const format = find_format(value);
  OFSDP_REJECT_IF(format == nullptr && !is_yaml(value),
                  "{}: expected the address of a file ({} or .tar), found {}", flag, file_kinds(),
                  address.text);
  OFSDP_ASSIGN_OR_RETURN(const std::string local, prefixed(flag, fetch_file(value)));
  if (format != nullptr) {
    OFSDP_ASSIGN_OR_RETURN(DataSpec spec, file_spec(local, *format));
    spec.train.origin = address.text;
    return spec;
  }
  OFSDP_ASSIGN_OR_RETURN(const std::string text, yaml_text(local));
  return parse_data_yaml(text, value.substr(0, value.rfind('/')), address.text);
}

Result<DataSpec> read_spec(const char* flag, const std::string& value) {
  if (last_ending(value) == ".tar") return shard_spec(flag, value);
  if (is_address(value)) return address_spec(flag, value);
  std::error_code error;
  const fs::file_status status = fs::status(value, error);
  if (fs::is_directory(status)) return folder_spec(value);
  if (!fs::exists(status)) {
    return input_error("{}: expected a folder, a YAML file or 'synthetic', found no file '{}'",
                       flag, value);
  }
  const DataFormat* const format = find_format(value);
  if (format != nullptr) return file_spec(value, *format);
  if (!is_yaml(value)) {
    return input_error("{}: expected a folder, a file ({}) or 'synthetic', found the file '{}'{}",
                       flag, file_kinds(), value, file_remark(value));
  }
  return yaml_spec(value);
}

}  // namespace

int training_name(std::string_view name) { return place_in({"train", "training"}, name); }

int evaluation_name(std::string_view name) {
  return place_in({"eval", "val", "valid", "validation", "dev", "test"}, name);
}

const ColumnSpec* ColumnSet::find(const std::string& name) const {
  const auto found = std::ranges::find(columns, name, &ColumnSpec::name);
  return found == columns.end() ? nullptr : &*found;
}

void ColumnSet::take_classes(const std::string& name, const ClassNames& known) {
  for (ColumnSpec& column : columns) {
    if (column.name != name) continue;
    column.classes = true;
    column.known = known;
  }
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
