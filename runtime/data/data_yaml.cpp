// Reads the YAML mapping of data (docs/reference/data.md). No exception of yaml-cpp leaves it.
#include "runtime/data/data_yaml.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "kernels/base/names.h"
#include "kernels/base/text.h"
#include "runtime/data/column_file.h"
#include "runtime/data/image_list.h"
#include "runtime/remote/cache.h"

namespace ofsdp::runtime {
namespace {

Result<float> finite(const Place& place, const YAML::Node& node) {
  OFSDP_ASSIGN_OR_RETURN(const double value, scalar<double>(place, node, "a number"));
  if (!std::isfinite(static_cast<float>(value))) return wrong(place, node, "a finite number");
  return static_cast<float>(value);
}

Result<Shape> row_shape(const Place& place, const YAML::Node& node) {
  if (!node.IsSequence()) return wrong(place, node, "a list of axes such as [1, 28, 28]");
  std::vector<int64_t> axes;
  for (const YAML::Node& axis : node) {
    OFSDP_ASSIGN_OR_RETURN(const int64_t value, positive(place, axis));
    axes.push_back(value);
  }
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status().with_prefix(place.at(node)));
  return Shape(std::move(axes));
}

Status read_normalization(const Place& place, const std::string& key, const YAML::Node& value,
                          ColumnSpec& column) {
  if (!column.normalization) column.normalization.emplace();
  Normalization& made = *column.normalization;
  const bool list = value.IsSequence() && value.size() > 0 && key != "scale";
  std::vector<float> numbers;
  for (size_t i = 0; i < (list ? value.size() : 1); ++i) {
    const YAML::Node one = list ? value[i] : value;
    OFSDP_ASSIGN_OR_RETURN(const float number, finite(place, one));
    if (key == "std" && number == 0) return wrong(place, one, "a number other than 0");
    numbers.push_back(number);
  }
  if (list) {
    (key == "mean" ? made.means : made.stds) = std::move(numbers);
  } else {
    (key == "scale" ? made.scale : key == "mean" ? made.mean : made.std) = numbers[0];
  }
  return ok_status();
}

// Lists of mean and std must have a number for each of the same channels.
Status check_channels(const Place& place, const YAML::Node& node, const ColumnSpec& column) {
  if (!column.normalization) return ok_status();
  const size_t means = column.normalization->means.size(), stds = column.normalization->stds.size();
  if (means == 0 || stds == 0 || means == stds) return ok_status();
  return input_error("{}: expected as many numbers in mean as in std, found {} and {}",
                     place.at(node), means, stds);
}

Status read_dtype(const Place& place, const YAML::Node& value, ColumnSpec& column) {
  const char* expected = "uint16 or uint32";
  OFSDP_ASSIGN_OR_RETURN(const std::string name, scalar<std::string>(place, value, expected));
  column.dtype = dtype_from_name(name);
  const bool known = column.dtype == DType::kUInt16 || column.dtype == DType::kUInt32;
  return known ? ok_status() : wrong(place, value, expected);
}

// Reads `column`, `field`, `array` or `tensor`; `column` and `field` may be lists.
Status read_part(const Place& place, const YAML::Node& value, ColumnSpec& column) {
  if (!column.parts.empty()) return wrong(place, value, "one of column, field, array and tensor");
  if (value.IsScalar()) {
    column.parts = {value.Scalar()};
    return ok_status();
  }
  const bool may_list = place.path.ends_with(".column") || place.path.ends_with(".field");
  const bool list = value.IsSequence() && value.size() > 0 && may_list;
  if (!list) return wrong(place, value, "a name");
  for (const YAML::Node& name : value) {
    OFSDP_ASSIGN_OR_RETURN(std::string text, scalar<std::string>(place, name, "names"));
    column.parts.push_back(std::move(text));
  }
  return ok_status();
}

Status read_padding(const Place& place, const std::string& key, const YAML::Node& value,
                    ColumnSpec& column) {
  if (!column.padding) column.padding.emplace();
  if (key == "pad_value") {
    OFSDP_ASSIGN_OR_RETURN(column.padding->value, scalar<double>(place, value, "a number"));
    if (!std::isfinite(*column.padding->value)) return wrong(place, value, "a finite number");
  } else if (!value.IsScalar() || value.Scalar() != "longest") {
    const char* expected = "longest or a whole number of at least 1";
    OFSDP_ASSIGN_OR_RETURN(const int64_t to, scalar<int64_t>(place, value, expected));
    if (to < 1) return wrong(place, value, expected);
    column.padding->to = to;
  }
  return ok_status();
}

Status read_tokenizer(const Place& place, const std::string& key, const YAML::Node& value,
                      ColumnSpec& column) {
  if (!column.tokenizer) column.tokenizer.emplace();
  TokenizerSpec& made = *column.tokenizer;
  if (key == "max_length") {
    OFSDP_ASSIGN_OR_RETURN(made.max_length, positive(place, value));
  } else if (key == "tokenizer") {
    OFSDP_ASSIGN_OR_RETURN(made.path, scalar<std::string>(place, value, "a tokenizer.json"));
  } else {
    OFSDP_ASSIGN_OR_RETURN(made.separator, scalar<std::string>(place, value, "a token"));
  }
  return ok_status();
}

Status read_key(const Place& place, const std::string& key, const YAML::Node& value,
                ColumnSpec& column) {
  if (is_image_key(key)) return read_image_key(place, key, value, column);
  if (key == "pad_to" || key == "pad_value") return read_padding(place, key, value, column);
  if (key == "column" || key == "field" || key == "array" || key == "tensor") {
    return read_part(place, value, column);
  }
  if (key == "one_hot") {
    OFSDP_ASSIGN_OR_RETURN(column.one_hot, positive(place, value));
    return ok_status();
  }
  if (key == "missing") {
    OFSDP_ASSIGN_OR_RETURN(column.missing, scalar<double>(place, value, "a number"));
    if (!std::isfinite(*column.missing)) return wrong(place, value, "a finite number");
  } else if (key == "tokenizer" || key == "separator" || key == "max_length") {
    return read_tokenizer(place, key, value, column);
  } else if (key == "offsets") {
    OFSDP_ASSIGN_OR_RETURN(column.offsets, scalar<std::string>(place, value, "a .npy file"));
  } else if (key == "file" || key == "text") {
    OFSDP_ASSIGN_OR_RETURN(column.path, scalar<std::string>(place, value, "a file name"));
  } else if (key == "scale" || key == "mean" || key == "std") {
    return read_normalization(place, key, value, column);
  } else if (key == "shape") {
    OFSDP_ASSIGN_OR_RETURN(column.row, row_shape(place, value));
  } else if (key == "sequence_length") {
    OFSDP_ASSIGN_OR_RETURN(column.sequence_length, positive(place, value));
  } else if (key == "stride") {
    OFSDP_ASSIGN_OR_RETURN(column.stride, positive(place, value));
  } else if (key == "next_token") {
    OFSDP_ASSIGN_OR_RETURN(column.next_token, scalar<bool>(place, value, "true or false"));
  } else {
    return read_dtype(place, value, column);
  }
  return ok_status();
}

// Visits a mapping's pairs in order. A repeated key is an error; yaml-cpp would take either value.
template <typename Visit>
Status for_each_key(const Place& place, const YAML::Node& map, const char* expected, Visit visit) {
  if (!map.IsMap()) return wrong(place, map, expected);
  std::vector<std::string> seen;
  for (const auto& pair : map) {
    OFSDP_ASSIGN_OR_RETURN(const std::string key, scalar<std::string>(place, pair.first, "a name"));
    if (std::ranges::count(seen, key) > 0) {
      return input_error("{}: '{}' is given twice", place.at(pair.first), key);
    }
    seen.push_back(key);
    OFSDP_RETURN_IF_ERROR(visit(key, pair.first, pair.second));
  }
  return ok_status();
}

Status check_known(const Place& place, const YAML::Node& node, const std::string& key,
                   const std::vector<std::string>& known) {
  if (std::ranges::count(known, key) > 0) return ok_status();
  return input_error("{}: unknown key '{}' (expected one of {}){}", place.at(node), key,
                     joined(known, ", "), did_you_mean(key, known));
}

Status check_offsets(const Place& place, const YAML::Node& node, const ColumnSpec& column) {
  if (column.offsets.empty()) return ok_status();
  const auto ends = [](const std::string& path, std::initializer_list<const char*> extensions) {
    const std::string own = data_ending(path);
    return std::ranges::any_of(extensions, [&](const char* one) { return own == one; });
  };
  OFSDP_REJECT_IF(!ends(column.offsets, {".npy"}),
                  "{}: expected a .npy file of offsets, found '{}'", place.at(node),
                  column.offsets);
  OFSDP_REJECT_IF(!ends(column.path, {".npy", ".npz", ".safetensors"}),
                  "{}: offsets are for .npy, .npz and .safetensors files, found '{}'",
                  place.at(node), column.path);
  return ok_status();
}

Status check_part(const Place& place, const YAML::Node& node, const ColumnSpec& column) {
  const DataFormat* const format = find_format(column.path);
  const char* const own = format == nullptr ? nullptr : format->part;
  for (const char* key : {"column", "field", "array", "tensor"}) {
    if (!node[key] || (own != nullptr && std::string_view(key) == own)) continue;
    return input_error(
        "{}: '{}' is no key of '{}'{}", place.at(node), key, column.path,
        own == nullptr ? unknown_kind(column.path) : format_text(": expected '{}'", own));
  }
  const bool text = own != nullptr && (own == std::string_view("column") || format->pads);
  if (column.missing && !text) {
    return input_error("{}: missing is for tables and .jsonl files, found '{}'", place.at(node),
                       column.path);
  }
  OFSDP_RETURN_IF_ERROR(check_offsets(place, node, column));
  if (!column.padding || !column.offsets.empty() || (format != nullptr && format->pads)) {
    return ok_status();
  }
  return input_error(
      "{}: pad_to and pad_value are for lists in .jsonl and .parquet files and for offsets, found "
      "'{}'",
      place.at(node), column.path);
}

// Checks a column of text: rows are windows of one length, or padded texts.
Status check_text(const Place& place, const YAML::Node& node, const ColumnSpec& column) {
  const std::string at = place.at(node);
  OFSDP_REJECT_IF(!node["text"],
                  "{}: tokenizer, separator and max_length are for a column with "
                  "the key 'text', found none",
                  at);
  OFSDP_REJECT_IF(node["file"], "{}: expected 'text' or 'file', found both", at);
  OFSDP_REJECT_IF(!node["tokenizer"],
                  "{}: the text '{}' needs the key 'tokenizer', a "
                  "tokenizer.json, found none",
                  at, column.path);
  OFSDP_REJECT_IF(column.sequence_length.has_value() == column.padding.has_value(),
                  "{}: the text '{}' needs sequence_length (rows of one length) or pad_to (a row "
                  "for each text), found {}",
                  at, column.path, column.padding ? "both" : "neither");
  const bool windows = column.sequence_length.has_value();
  OFSDP_REJECT_IF(windows && column.tokenizer->max_length,
                  "{}: max_length is for rows with "
                  "pad_to, found sequence_length",
                  at);
  OFSDP_REJECT_IF(!windows && column.stride,
                  "{}: stride is for rows of a sequence_length, found "
                  "pad_to",
                  at);
  for (const char* key :
       {"scale", "mean", "std", "dtype", "missing", "array", "tensor", "offsets"}) {
    OFSDP_REJECT_IF(node[key], "{}: '{}' is no key of a text", at, key);
  }
  const std::string extension = data_ending(column.path);
  const bool table = extension == ".csv" || extension == ".tsv" || extension == ".parquet";
  OFSDP_REJECT_IF(node["column"] && !table, "{}: 'column' is no key of '{}'", at, column.path);
  OFSDP_REJECT_IF(node["field"] && extension != ".jsonl", "{}: 'field' is no key of '{}'", at,
                  column.path);
  OFSDP_REJECT_IF(column.parts.size() > 1, "{}: expected one name of a text, found {}", at,
                  column.parts.size());
  return ok_status();
}

// Rejects keys of token files for other files, and requires them for a .bin file.
Status check_kind(const Place& place, const YAML::Node& node, ColumnSpec& column) {
  if (column.images) return check_images(place, node, column);
  if (node["text"] || column.tokenizer) return check_text(place, node, column);
  if (column.path.empty()) {
    return input_error("{}: expected the key 'file', found none", place.at(node));
  }
  const bool tokens = data_ending(column.path) == ".bin";
  if (tokens && !column.sequence_length) {
    return input_error("{}: the token file '{}' needs the key 'sequence_length', found none",
                       place.at(node), column.path);
  }
  OFSDP_RETURN_IF_ERROR(check_part(place, node, column));
  if (!tokens && (column.sequence_length || column.stride || column.next_token || column.dtype)) {
    return input_error(
        "{}: sequence_length, stride, next_token and dtype are for .bin files, found '{}'",
        place.at(node), column.path);
  }
  return ok_status();
}

// Returns the path of a file that a YAML file in `folder` names; fetches it from an address.
Result<std::string> placed(const std::string& folder, const std::string& name) {
  if (is_address(name)) return fetch_file(name);
  if (is_address(folder)) return fetch_file(address_in(folder, name));
  return (std::filesystem::path(folder) / name).string();
}

// Images are files of a folder, which no address has, or of shards.
Status place_all_images(const Place& place, const std::string& folder, ColumnSpec& column) {
  const bool far = is_address(folder);
  for (const std::string& one : column.images->folders) {
    OFSDP_REJECT_IF(far || is_address(one),
                    "{}: expected a folder of images on this machine or .tar shards, found the "
                    "address '{}'",
                    place.origin, far ? address_in(folder, one) : one);
  }
  for (std::string& shard : column.images->shards) {
    if (!far && !is_address(shard)) continue;
    OFSDP_ASSIGN_OR_RETURN(shard, placed(folder, shard));
  }
  place_images(far ? "" : folder, column);
  return {};
}

Result<ColumnSpec> read_column(const Place& place, const YAML::Node& node,
                               const std::string& folder) {
  std::vector<std::string> keys = {
      "file",      "scale",      "mean",      "std",     "shape", "sequence_length",
      "stride",    "next_token", "dtype",     "column",  "field", "array",
      "tensor",    "pad_to",     "pad_value", "missing", "text",  "tokenizer",
      "separator", "max_length", "one_hot",   "offsets"};
  keys.insert(keys.end(), image_keys().begin(), image_keys().end());
  ColumnSpec column;
  OFSDP_RETURN_IF_ERROR(for_each_key(
      place, node, "a mapping such as {file: x.npy}",
      [&](const std::string& key, const YAML::Node& at, const YAML::Node& value) -> Status {
        OFSDP_RETURN_IF_ERROR(check_known(place, at, key, keys));
        return read_key(place.below(key), key, value, column);
      }));
  OFSDP_RETURN_IF_ERROR(check_kind(place, node, column));
  const bool pixels = column.images && !column.images->member.ends_with("npy");
  if (pixels && column.normalization && !node["scale"]) {
    column.normalization->scale = kPixelScale;
  }
  OFSDP_RETURN_IF_ERROR(check_channels(place, node, column));
  if (column.images) {
    OFSDP_RETURN_IF_ERROR(place_all_images(place, folder, column));
    return column;
  }
  OFSDP_ASSIGN_OR_RETURN(column.path, placed(folder, column.path));
  if (column.tokenizer) {
    OFSDP_ASSIGN_OR_RETURN(column.tokenizer->path, placed(folder, column.tokenizer->path));
  }
  if (!column.offsets.empty()) {
    OFSDP_ASSIGN_OR_RETURN(column.offsets, placed(folder, column.offsets));
  }
  return column;
}

// `attention_mask: auto`: 1 for each element in the padded column. If several columns are padded
// (labels aside), all are padded alike, and the first is used.
Status add_mask(const std::string& name, const std::string& at, ColumnSet& set) {
  const auto padded = std::ranges::find_if(set.columns, [](const ColumnSpec& column) {
    return column.padding && !column.padding->mask && column.name != "labels";
  });
  if (padded == set.columns.end()) {
    return input_error("{}: auto needs a column with pad_to, found none", at);
  }
  ColumnSpec mask = *padded;
  mask.name = name;
  if (mask.parts.empty() && !mask.tokenizer) mask.parts = {padded->name};
  mask.padding->mask = true;
  mask.row.reset();
  set.columns.push_back(std::move(mask));
  return ok_status();
}

Result<ColumnSet> read_set(const Place& place, const YAML::Node& node, const std::string& folder) {
  ColumnSet set{place.origin + ": " + place.path, {}};
  std::vector<std::pair<std::string, std::string>> masks;  // names, and their positions in the file
  OFSDP_RETURN_IF_ERROR(for_each_key(
      place, node, "a mapping of columns",
      [&](const std::string& name, const YAML::Node& at, const YAML::Node& value) -> Status {
        if (value.IsScalar() && value.Scalar() == "auto") {
          masks.emplace_back(name, place.below(name).at(at));
          return ok_status();
        }
        OFSDP_ASSIGN_OR_RETURN(ColumnSpec column, read_column(place.below(name), value, folder));
        column.name = name;
        set.columns.push_back(std::move(column));
        return ok_status();
      }));
  for (const auto& [name, at] : masks) OFSDP_RETURN_IF_ERROR(add_mask(name, at, set));
  const bool shifted = std::ranges::any_of(set.columns, &ColumnSpec::next_token);
  for (ColumnSpec& column : set.columns) column.reserve_next = shifted;
  return set;
}

// `split`, `split_seed` and `stratify`: the evaluation part of the columns under `train:`.

constexpr const char* kSplitKeys[] = {"split", "split_seed", "stratify"};

Status read_split(const Place& place, const std::string& key, const YAML::Node& value,
                  SplitPart& split) {
  if (key == "split") {
    const char* expected = "a part above 0 and below 1, such as 0.1";
    OFSDP_ASSIGN_OR_RETURN(split.part, scalar<double>(place, value, expected));
    if (!(split.part > 0 && split.part < 1)) return wrong(place, value, expected);
  } else if (key == "split_seed") {
    OFSDP_ASSIGN_OR_RETURN(split.seed,
                           scalar<uint64_t>(place, value, "a whole number of at least 0"));
  } else {
    OFSDP_ASSIGN_OR_RETURN(split.stratify, scalar<std::string>(place, value, "a column's name"));
  }
  return ok_status();
}

Status apply_split(const Place& top, const SplitPart& split, DataSpec& spec) {
  OFSDP_REJECT_IF(split.part == 0, "{}: split_seed and stratify need the key 'split', found none",
                  top.origin);
  OFSDP_REJECT_IF(spec.eval.has_value(),
                  "{}: expected 'split' or 'eval', found both: eval has the evaluation data",
                  top.origin);
  OFSDP_REJECT_IF(spec.train.columns.empty(),
                  "{}: split: expected columns under 'train', found none", top.origin);
  spec.train.split = split;
  spec.eval = spec.train;
  spec.eval->split->evaluation = true;
  return ok_status();
}

Result<DataSpec> read_parts(const YAML::Node& root, const std::string& folder, const Place& top) {
  DataSpec spec;
  bool train = false;
  std::optional<SplitPart> split;
  OFSDP_RETURN_IF_ERROR(for_each_key(
      top, root, "a mapping with 'train:' and 'eval:'",
      [&](const std::string& key, const YAML::Node& at, const YAML::Node& value) -> Status {
        OFSDP_RETURN_IF_ERROR(
            check_known(top, at, key, {"train", "eval", "split", "split_seed", "stratify"}));
        if (std::ranges::count(kSplitKeys, std::string_view(key)) > 0) {
          if (!split) split.emplace();
          return read_split(top.below(key), key, value, *split);
        }
        OFSDP_ASSIGN_OR_RETURN(ColumnSet set, read_set(top.below(key), value, folder));
        train = train || key == "train";
        if (key == "train")
          spec.train = std::move(set);
        else
          spec.eval = std::move(set);
        return ok_status();
      }));
  if (!train) spec.train.origin = top.origin;
  if (split) OFSDP_RETURN_IF_ERROR(apply_split(top, *split, spec));
  return spec;
}

}  // namespace

Result<DataSpec> parse_data_yaml(const std::string& text, const std::string& folder,
                                 const std::string& origin) {
  try {
    return read_parts(YAML::Load(text), folder, {origin, ""});
  } catch (const YAML::Exception& e) {
    return input_error("{}:{}: expected YAML: {}", origin, e.mark.line + 1, e.msg);
  }
}

}  // namespace ofsdp::runtime
