#include "runtime/data/dataset.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/data/row_decoding.h"
#include "runtime/data/token_rows.h"
#include "runtime/remote/address.h"

namespace ofsdp::runtime {

namespace {

constexpr size_t kLabelBlock = 8192;  // elements

int64_t label_at(const BoundColumn& column, const std::byte* labels, int64_t i) {
  if (column.dtype == DType::kInt64) return reinterpret_cast<const int64_t*>(labels)[i];
  OFSDP_CHECK(column.dtype == DType::kInt32, "labels of {}", dtype_name(column.dtype));
  return reinterpret_cast<const int32_t*>(labels)[i];
}

double weight_of(const LabelRule& rule, int64_t label) {
  if (label == rule.range.ignore_index) return 0;
  return rule.class_weights.empty() ? 1 : rule.class_weights[static_cast<size_t>(label)];
}

// Returns the first row that holds the element at `byte`; rows may overlap.
int64_t label_row(const ColumnLayout& layout, uint64_t byte) {
  const uint64_t at = byte - layout.first_byte, row = layout.row_bytes();
  return static_cast<int64_t>(at < row ? 0 : (at - row) / layout.row_stride + 1);
}

Status fractional_label(const std::string& source, const std::string& column, int64_t sample,
                        const std::string& label) {
  return input_error("{}: column '{}', sample {}: expected a class, a whole number, found {}",
                     source, column, sample, label);
}

Status unnamed_label(const ColumnFile& file, const ColumnSpec& spec, int64_t sample,
                     const std::string& label) {
  return input_error("{}: column '{}', sample {}: expected a class of {} ({}), found {}",
                     file.path(), escaped(spec.name), sample,
                     escaped(joined(file.classes(), ", ").substr(0, 200)), spec.known.source,
                     label);
}

}  // namespace

Status wrong_label(const std::string& source, const std::string& column, int64_t sample,
                   int64_t label, const LabelRange& range) {
  return input_error(
      "{}: column '{}', sample {}: expected a label of 0..{} or the ignore-index {}, found {}",
      source, column, sample, range.classes - 1, range.ignore_index, label);
}

Result<double> count_kept(const LabelRule& rule, const BoundColumn& column,
                          std::span<const int64_t> samples, const std::byte* labels) {
  const int64_t row = column.row.numel();
  const auto total = static_cast<int64_t>(samples.size()) * row;
  double kept = 0;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t label = label_at(column, labels, i);
    if (!rule.range.allows(label)) {
      return wrong_label(column.source, column.name, samples[static_cast<size_t>(i / row)], label,
                         rule.range);
    }
    kept += weight_of(rule, label);
  }
  return kept;
}

// If rows touch or overlap (token files with a small stride), they are one range, read once.
Status Dataset::check_labels(const std::string& name, const LabelRange& range) {
  const Column* column = find(name);
  OFSDP_CHECK(column != nullptr, "column '{}' was not opened", name);
  const std::vector<std::string> names = classes(name);
  OFSDP_REJECT_IF(
      range.classes > 0 && std::ssize(names) > range.classes,
      "{}: column '{}': expected at most {} classes, as the prediction has, found {}: {}",
      column->file.path(), name, range.classes, names.size(),
      escaped(joined(names, ", ").substr(0, 200)));
  if (column->file.decoder() != nullptr) return ok_status();  // too many to decode them all
  const ColumnLayout& layout = column->file.layout();
  if (layout.row_stride <= layout.row_bytes()) {
    return check_label_range(*column, layout.first_byte, layout.end_byte(), range);
  }
  for (int64_t row = 0; row < layout.count; ++row) {
    const uint64_t begin = layout.first_byte + static_cast<uint64_t>(row) * layout.row_stride;
    OFSDP_RETURN_IF_ERROR(check_label_range(*column, begin, begin + layout.row_bytes(), range));
  }
  return ok_status();
}

Status Dataset::check_label_range(const Column& column, uint64_t begin, uint64_t end,
                                  const LabelRange& range) {
  const ColumnLayout& layout = column.file.layout();
  const size_t size = dtype_size(layout.dtype);
  std::optional<Converter> widen =
      Converter::between(layout.dtype, DType::kInt64, {}, /*of_text=*/false, /*classes=*/true);
  if (!widen) return ok_status();
  if (!column.file.class_labels().empty()) {
    widen->name_classes(column.file.class_labels(), DType::kInt64);
  }
  std::vector<int64_t> labels(kLabelBlock);
  for (size_t count = 0; begin < end; begin += count * size) {
    count = std::min<uint64_t>(kLabelBlock, (end - begin) / size);
    OFSDP_RETURN_IF_ERROR(read_raw(column, begin, count));
    const size_t good =
        widen->run(scratch_.data(), count, reinterpret_cast<std::byte*>(labels.data()));
    for (size_t i = 0; i < count; ++i) {
      if (i < good && range.allows(labels[i])) continue;
      if (i >= good && !column.file.class_labels().empty()) {
        return unnamed_label(column.file, column.spec, label_row(layout, begin + i * size),
                             element_text(layout.dtype, scratch_.data() + i * size));
      }
      if (i >= good && is_floating(layout.dtype)) {
        return fractional_label(column.file.path(), column.spec.name,
                                label_row(layout, begin + i * size),
                                element_text(layout.dtype, scratch_.data() + i * size));
      }
      const int64_t sample = label_row(layout, begin + i * size);
      const int64_t label = i < good ? labels[i] : std::numeric_limits<int64_t>::max();
      return wrong_label(column.file.path(), column.spec.name, sample, label, range);
    }
  }
  return ok_status();
}

namespace {

constexpr size_t kScratchBytes = 64 * 1024;
constexpr char kBatchOrigin[] = "the batch";

// Returns how a YAML file makes one column of several in a table.
std::string table_remark(const ColumnSet& set, const std::string& name,
                         const std::vector<std::string>& names) {
  const DataFormat* const format = find_format(set.origin);
  const bool table = format != nullptr && std::string_view(format->part) == "column";
  std::vector<std::string> spare = set.names();
  std::erase_if(spare, [&](const auto& one) { return std::ranges::count(names, one) > 0; });
  if (!table || spare.empty()) return "";
  return format_text(
      "; a YAML file for --data makes it of some: train: {{{}: {{file: {}, column: [{}]}}}}", name,
      is_address(set.origin) ? format_text("'{}'", set.origin) : set.origin, joined(spare, ", "));
}

Status missing(const ColumnSet& set, const std::string& name,
               const std::vector<std::string>& names) {
  const std::vector<std::string> there = set.names();
  const std::string list = there.empty() ? "no columns" : format_text("{}", joined(there, ", "));
  const std::string near = did_you_mean(name, there), made = table_remark(set, name, names);
  const bool misspelt = !near.empty() && (name.size() > 2 || made.empty());
  return input_error("{}: no column '{}' (wanted: {}; found: {}){}", set.origin, name,
                     joined(names, ", "), list, misspelt ? near : made);
}

// Pixels become 0..1 unless a key says otherwise, or the graph takes bytes.
std::optional<Normalization> normalization_for(const ColumnSpec& spec, DType wanted) {
  const bool of_images = spec.images && spec.images->has_pixels();
  if (spec.normalization || !of_images || wanted != DType::kFloat32) return spec.normalization;
  return Normalization{.scale = kPixelScale};
}

// Returns how many adjacent elements of a row belong to one channel. The row's first axis has the
// channels, else its last; those of images are where their layout says.
Result<int64_t> channel_elements(const ColumnSpec& spec, const Normalization& by,
                                 const Shape& row) {
  const auto channels = static_cast<int64_t>(by.channels());
  if (channels == 1) return int64_t{1};
  if (spec.images && spec.images->layout == ImageLayout::kHwc && row.rank() == 3 &&
      row[2] == channels) {
    return int64_t{1};
  }
  if (row.rank() > 0 && row[0] == channels) return row.numel() / channels;
  if (row.rank() > 0 && row[row.rank() - 1] == channels) return int64_t{1};
  return input_error(
      "mean and std have {} numbers, one a channel: expected rows with {} channels on the first or "
      "the last axis, found {}",
      channels, channels, row.text());
}

Status missing_array(const std::string& name, std::span<const ColumnArray> arrays) {
  return missing(column_set(arrays, kBatchOrigin), name, {name});
}

std::string dims_text(const std::vector<int64_t>& dims) {
  std::vector<std::string> axes;
  for (int64_t dim : dims) axes.push_back(dim < 0 ? "?" : std::to_string(dim));
  return format_text("[{}]", joined(axes, ", "));
}

bool same_axes(const Shape& row, const std::vector<int64_t>& dims) {
  auto fits = [](int64_t axis, int64_t dim) { return dim < 0 || axis == dim; };
  return std::ranges::equal(row.axes(), dims, fits);
}

// Returns the axes, except if the size is 1.
std::vector<int64_t> long_axes(const std::vector<int64_t>& axes) {
  std::vector<int64_t> kept;
  for (const int64_t axis : axes) {
    if (axis != 1) kept.push_back(axis);
  }
  return kept;
}

// Returns true if element counts agree and axes are only merged or split, not replaced.
bool same_numel(const Shape& row, const std::vector<int64_t>& dims) {
  const std::vector<int64_t> own = long_axes(row.axes()), others = long_axes(dims);
  const bool open = std::ranges::any_of(dims, [](int64_t dim) { return dim < 0; });
  if (!open && own.size() == others.size() && own != others) return false;
  int64_t known = 1;
  bool any = false;
  for (int64_t dim : dims) {
    if (dim < 0)
      any = true;
    else
      known *= dim;
  }
  return any ? known > 0 && row.numel() % known == 0 : row.numel() == known;
}

// Returns the keys that make texts rows of `dims`.
std::string length_remedy(const ColumnSpec& spec, const std::vector<int64_t>& dims) {
  if (!spec.tokenizer || dims.size() != 1 || dims[0] < 1) return "";
  if (spec.sequence_length) return format_text(": `sequence_length: {}`", dims[0]);
  return format_text(": `max_length: {}` with `pad_to: {}`", dims[0], dims[0]);
}

}  // namespace

Result<std::vector<int64_t>> row_classes(const std::string& name, const ColumnFile& file) {
  const ColumnLayout& layout = file.layout();
  const auto widen = Converter::between(layout.dtype, DType::kInt64, {}, /*of_text=*/false,
                                        /*classes=*/true);
  OFSDP_REJECT_IF(layout.row.numel() != 1 || !widen || file.decoder() != nullptr,
                  "{}: stratify: expected one class a sample in column '{}', found {}{}",
                  file.path(), name, dtype_name(layout.dtype), layout.row.text());
  std::vector<int64_t> classes(static_cast<size_t>(layout.count));
  std::array<std::byte, sizeof(int64_t)> stored{};
  for (int64_t row = 0; row < layout.count; ++row) {
    const auto element = std::span(stored).first(layout.row_bytes());
    OFSDP_RETURN_IF_ERROR(file.read_row(row, element));
    if (layout.big_endian) swap_bytes(element.data(), 1, element.size());
    auto* const made = reinterpret_cast<std::byte*>(&classes[static_cast<size_t>(row)]);
    if (widen->run(element.data(), 1, made) == 1) continue;
    return fractional_label(file.path(), name, row, element_text(layout.dtype, element.data()));
  }
  return classes;
}

Dataset::Dataset() : scratch_(kScratchBytes) {}
Dataset::~Dataset() = default;

Result<std::unique_ptr<Dataset>> Dataset::open(const ColumnSet& set, std::vector<std::string> names,
                                               Communicator& communicator, MemoryLedger& ledger) {
  std::unique_ptr<Dataset> dataset(new Dataset());
  if (set.split && !set.split->stratify.empty()) names.push_back(set.split->stratify);
  for (const std::string& name : names) {
    if (set.find(name) == nullptr) return missing(set, name, names);
    OFSDP_REJECT_IF(std::ranges::count(set.columns, name, &ColumnSpec::name) > 1,
                    "{}: column '{}' is given twice", set.origin, escaped(name));
  }
  EncodedTexts texts;
  for (const std::string& name : names) {
    if (dataset->find(name) != nullptr) continue;  // named twice, opened once
    const ColumnSpec& spec = *set.find(name);
    Result<ColumnFile> file = ColumnFile::open(spec, communicator, ledger, &texts);
    if (!file.ok()) return std::move(file).status().with_prefix(format_text("column '{}'", name));
    dataset->columns_.push_back(std::make_shared<Column>(Column{spec, *std::move(file)}));
  }
  OFSDP_RETURN_IF_ERROR(dataset->check_lengths(set.origin));
  OFSDP_RETURN_IF_ERROR(dataset->choose_part(set));
  OFSDP_RETURN_IF_ERROR(dataset->prepare_decoding(ledger));
  return dataset;
}

Result<std::unique_ptr<Dataset>> Dataset::open_part(const ColumnSet& set, const Dataset& first,
                                                    MemoryLedger& ledger) {
  OFSDP_CHECK(first.split_ && set.split, "{}: no split", set.origin);
  std::unique_ptr<Dataset> dataset(new Dataset());
  dataset->columns_ = first.columns_;
  dataset->owns_columns_ = false;
  dataset->split_ = first.split_;
  dataset->evaluation_ = set.split->evaluation;
  OFSDP_RETURN_IF_ERROR(dataset->prepare_decoding(ledger));
  return dataset;
}

Status Dataset::check_lengths(const std::string& origin) const {
  for (const auto& column : columns_) {
    const Column& first = *columns_.front();
    if (column->file.layout().count == first.file.layout().count) continue;
    return input_error("{}: columns differ in length: '{}' has {} samples, '{}' has {}", origin,
                       first.spec.name, first.file.layout().count, column->spec.name,
                       column->file.layout().count);
  }
  return ok_status();
}

Status Dataset::choose_part(const ColumnSet& set) {
  if (!set.split || columns_.empty()) return ok_status();
  const int64_t rows = columns_.front()->file.layout().count;
  std::vector<int64_t> classes;
  if (!set.split->stratify.empty()) {
    const std::string& name = set.split->stratify;
    OFSDP_ASSIGN_OR_RETURN(classes, row_classes(name, find(name)->file));
  }
  OFSDP_ASSIGN_OR_RETURN(
      split_, RowSplit::make(set.origin, rows, set.split->part, set.split->seed, classes));
  evaluation_ = set.split->evaluation;
  return ok_status();
}

int64_t Dataset::stored_rows() const {
  if (columns_.empty()) return 0;
  return split_ ? split_->size(evaluation_) : columns_.front()->file.layout().count;
}

const Dataset::Column* Dataset::find(const std::string& name) const {
  const auto found =
      std::ranges::find_if(columns_, [&](const auto& column) { return column->spec.name == name; });
  return found == columns_.end() ? nullptr : found->get();
}

const ColumnLayout* Dataset::stored(const std::string& name) const {
  const Column* column = find(name);
  return column == nullptr ? nullptr : &column->file.layout();
}

const std::string& Dataset::path_of(const std::string& name) const {
  const Column* const column = find(name);
  OFSDP_CHECK(column != nullptr, "column '{}' was not opened", name);
  return column->file.path();
}

Shape Dataset::row_shape(const std::string& name) const {
  const Column* const column = find(name);
  OFSDP_CHECK(column != nullptr, "column '{}' was not opened", name);
  return column->spec.one_hot > 0 ? Shape{column->spec.one_hot} : column->file.layout().row;
}

namespace {

// Returns the entries of a row up to the last that has a byte other than 0.
int64_t used_entries(std::span<const std::byte> row, int64_t entries) {
  const auto last =
      std::find_if(row.rbegin(), row.rend(), [](std::byte b) { return b != std::byte{}; });
  const auto used = static_cast<uint64_t>(row.rend() - last);
  const uint64_t entry = row.size() / static_cast<uint64_t>(entries);
  return static_cast<int64_t>((used + entry - 1) / entry);
}

}  // namespace

Result<std::vector<int32_t>> Dataset::read_lengths(const std::string& name) const {
  const Column* const column = find(name);
  OFSDP_CHECK(column != nullptr, "column '{}' was not opened", name);
  const ColumnLayout& layout = column->file.layout();
  const bool number = layout.row.numel() == 1;
  const auto widen = Converter::between(layout.dtype, DType::kInt64, {}, /*of_text=*/true,
                                        /*classes=*/true);
  OFSDP_REJECT_IF(
      column->file.decoder() != nullptr || (number && !widen),
      "{}: column '{}': expected rows that end in zeros, or a length in each, found {}{}",
      column->file.path(), name, dtype_name(layout.dtype), layout.row.text());
  std::vector<std::byte> row(layout.row_bytes());
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < stored_rows(); ++i) {
    const int64_t at = split_ ? split_->row(evaluation_, i) : i;
    OFSDP_RETURN_IF_ERROR(column->file.read_row(at, row));
    if (layout.big_endian)
      swap_bytes(row.data(), static_cast<size_t>(layout.row.numel()), dtype_size(layout.dtype));
    int64_t length = number ? 0 : used_entries(row, layout.row[0]);
    const bool whole =
        !number || widen->run(row.data(), 1, reinterpret_cast<std::byte*>(&length)) == 1;
    OFSDP_REJECT_IF(!whole || length < 0 || length > INT32_MAX,
                    "{}: column '{}', sample {}: expected a length, found {}", column->file.path(),
                    name, at, element_text(layout.dtype, row.data()));
    lengths.push_back(static_cast<int32_t>(length));
  }
  return lengths;
}

std::vector<std::string> Dataset::classes(const std::string& name) const {
  const Column* column = find(name);
  return column == nullptr ? std::vector<std::string>() : column->file.classes();
}

size_t Dataset::shared_bytes() const {
  size_t bytes = 0;
  if (!owns_columns_) return bytes;
  for (const auto& column : columns_) bytes += region_bytes(column->file.shared_bytes());
  return bytes;
}

Status Dataset::bind(const std::vector<WantedColumn>& wanted) {
  bound_.clear();
  bindings_.clear();
  for (const WantedColumn& one : wanted) OFSDP_RETURN_IF_ERROR(bind_column(one));
  samples_ = stored_rows();
  return ok_status();
}

Status Dataset::replace(std::span<const ColumnArray> arrays, int64_t first, int64_t stride) {
  first_ = first;
  stride_ = stride;
  for (const auto& column : columns_) {
    const std::string& name = column->spec.name;
    const auto array = std::ranges::find(arrays, name, &ColumnArray::name);
    if (array == arrays.end()) return missing_array(name, arrays);
    OFSDP_REJECT_IF(std::ranges::count(arrays, name, &ColumnArray::name) > 1,
                    "{}: column '{}' is given twice", kBatchOrigin, escaped(name));
    OFSDP_RETURN_IF_ERROR(column->file.replace(*array));
  }
  samples_ = stored_rows();
  return check_lengths(kBatchOrigin);
}

Status Dataset::bind_column(const WantedColumn& wanted) {
  const Column* found = find(wanted.name);
  OFSDP_CHECK(found != nullptr, "column '{}' was not opened", wanted.name);
  const Column& column = *found;
  const ColumnLayout& layout = column.file.layout();
  const std::string& path = column.file.path();
  if (column.spec.one_hot > 0) return bind_one_hot(wanted, found);
  const bool named = !column.file.class_labels().empty();
  OFSDP_REJECT_IF(!column.file.classes().empty() && !named && !wanted.classes,
                  "{}: column '{}': expected numbers, found text ('{}'), which only a loss over "
                  "classes takes",
                  path, wanted.name, escaped(column.file.classes()[0]));
  const int64_t ids = column.file.vocabulary();
  OFSDP_REJECT_IF(wanted.below > 0 && ids > wanted.below,
                  "{}: column '{}': the tokenizer {} has {} tokens, expected at most the {} of the "
                  "model's table: give the model's own tokenizer.json",
                  path, wanted.name, column.spec.tokenizer->path, ids, wanted.below);
  const std::optional<Normalization> normalization = normalization_for(column.spec, wanted.dtype);
  int64_t adjacent = 1;
  if (normalization) {
    OFSDP_ASSIGN_OR_RETURN(adjacent,
                           prefixed(format_text("{}: column '{}'", path, wanted.name),
                                    channel_elements(column.spec, *normalization, layout.row)));
  }
  std::optional<Converter> converter = Converter::between(layout.dtype, wanted.dtype, normalization,
                                                          layout.of_text, wanted.classes, adjacent);
  const bool pixels = column.spec.images && column.spec.images->has_pixels();
  OFSDP_REJECT_IF(pixels && wanted.dtype != DType::kFloat32 && wanted.dtype != DType::kUInt8,
                  "{}: column '{}': images become float32 or uint8, found an input of {}", path,
                  wanted.name, dtype_name(wanted.dtype));
  if (!converter && normalization) {
    return input_error(
        "{}: column '{}': scale, mean and std make float32 of uint8, floats or text; expected {}, "
        "found {}",
        path, wanted.name, dtype_name(wanted.dtype), dtype_name(layout.dtype));
  }
  if (!converter) {
    return input_error(
        "{}: column '{}': expected {}, found {}, which does not convert to it: numpy's "
        "astype('{}') does",
        path, wanted.name, dtype_name(wanted.dtype), dtype_name(layout.dtype),
        dtype_name(wanted.dtype));
  }
  // A number in text also fits [1], [1, 1], ...
  const bool one =
      layout.of_text && layout.row.numel() == 1 && !wanted.flat &&
      std::ranges::all_of(wanted.dims, [](int64_t dim) { return dim == 1 || dim < 0; });
  const bool fits =
      wanted.flat ? same_numel(layout.row, wanted.dims) : same_axes(layout.row, wanted.dims);
  if (!fits && !one) {
    return input_error("{}: column '{}': expected rows of {}, found {}{}", path, wanted.name,
                       dims_text(wanted.dims), layout.row.text(),
                       length_remedy(column.spec, wanted.dims));
  }
  if (named && wanted.classes) {
    converter->name_classes(column.file.class_labels(), wanted.dtype);
  }
  const auto index = std::ranges::find(columns_, found, &std::shared_ptr<Column>::get);
  bindings_.push_back(
      {static_cast<size_t>(index - columns_.begin()), *std::move(converter), wanted.below, 0});
  const Shape row = fits ? layout.row : Shape(std::vector<int64_t>(wanted.dims.size(), 1));
  bound_.push_back({wanted.name, path, wanted.dtype, row});
  // Labels have checks of their own. An integer always becomes a float.
  const bool fits_always = is_integer(layout.dtype) && is_floating(wanted.dtype);
  if (!layout.of_text || wanted.classes || fits_always) return ok_status();
  return check_table(static_cast<int>(bound_.size()) - 1);
}

Status Dataset::check_table(int column) {
  const ColumnLayout& layout = file_of(column).file.layout();
  if (bindings_[static_cast<size_t>(column)].converter.is_copy()) return ok_status();
  const auto most = static_cast<int64_t>(kScratchBytes / layout.row_bytes());
  const int64_t block = std::max<int64_t>(most, 1);
  std::vector<std::byte> made(bound_[static_cast<size_t>(column)].row_bytes() *
                              static_cast<size_t>(std::min(block, layout.count)));
  for (int64_t row = 0; row < layout.count; row += block) {
    OFSDP_RETURN_IF_ERROR(
        read_range(column, row, std::min(block, layout.count - row), made.data()));
  }
  return ok_status();
}

Status Dataset::read_rows(int column, std::span<const int64_t> samples, std::byte* dst) {
  const auto index = static_cast<size_t>(column);
  const ColumnLayout& layout = file_of(column).file.layout();
  if (file_of(column).file.decoder() != nullptr) return decode_rows(column, samples, dst);
  if (bindings_[index].one_hot > 0) {
    return read_one_hot(column, samples, reinterpret_cast<float*>(dst));
  }
  const bool dense = layout.row_stride == layout.row_bytes();
  const size_t row_bytes = bound_[index].row_bytes();
  for (size_t i = 0, run = 1; i < samples.size(); i += run, run = 1) {
    const int64_t row = row_of(samples[i]);
    // Adjacent rows are one read.
    const auto follows = [&](size_t at) {
      return row_of(samples[at]) == row_of(samples[at - 1]) + 1;
    };
    while (dense && i + run < samples.size() && follows(i + run)) ++run;
    OFSDP_RETURN_IF_ERROR(read_range(column, row, static_cast<int64_t>(run), dst + i * row_bytes));
  }
  return bindings_[index].below > 0 ? check_indices(column, samples, dst) : ok_status();
}

Status Dataset::check_indices(int column, std::span<const int64_t> samples,
                              const std::byte* rows) const {
  const BoundColumn& bound = bound_[static_cast<size_t>(column)];
  const int64_t below = bindings_[static_cast<size_t>(column)].below, row = bound.row.numel();
  const bool wide = bound.dtype == DType::kInt64;
  OFSDP_CHECK(wide || bound.dtype == DType::kInt32, "indices of {}", dtype_name(bound.dtype));
  for (int64_t i = 0; i < std::ssize(samples) * row; ++i) {
    const int64_t index = wide ? reinterpret_cast<const int64_t*>(rows)[i]
                               : reinterpret_cast<const int32_t*>(rows)[i];
    if (index >= -below && index < below) continue;
    return input_error("{}: column '{}', sample {}: expected an index of 0..{}, found {}",
                       bound.source, bound.name, row_of(samples[static_cast<size_t>(i / row)]),
                       below - 1, index);
  }
  return ok_status();
}

// Reads `rows` adjacent rows from row `begin`.
Status Dataset::read_range(int column, int64_t begin, int64_t rows, std::byte* dst) {
  const Column& from = file_of(column);
  const Converter& converter = bindings_[static_cast<size_t>(column)].converter;
  const ColumnLayout& layout = from.file.layout();
  const size_t stored_bytes = dtype_size(layout.dtype);
  const size_t dst_bytes = dtype_size(bound_[static_cast<size_t>(column)].dtype);
  const uint64_t offset = layout.first_byte + static_cast<uint64_t>(begin) * layout.row_stride;
  const auto total = static_cast<size_t>(rows * layout.row.numel());
  if (converter.is_copy() && !layout.big_endian) {
    return from.file.read(offset, {dst, total * stored_bytes});
  }
  const size_t block = kScratchBytes / stored_bytes;
  for (size_t done = 0, count = 0; done < total; done += count) {
    count = std::min(block, total - done);
    OFSDP_RETURN_IF_ERROR(read_raw(from, offset + done * stored_bytes, count));
    const size_t good = converter.run(scratch_.data(), count, dst + done * dst_bytes, done);
    if (good < count) {
      const auto at = static_cast<int64_t>(done + good), row = layout.row.numel();
      return wrong_value(column, begin + at / row, at % row, scratch_.data() + good * stored_bytes);
    }
  }
  return ok_status();
}

// Reads elements as stored, made little-endian, into the scratch memory.
Status Dataset::read_raw(const Column& column, uint64_t offset, size_t elements) {
  const ColumnLayout& layout = column.file.layout();
  const size_t size = dtype_size(layout.dtype);
  OFSDP_RETURN_IF_ERROR(column.file.read(offset, {scratch_.data(), elements * size}));
  if (layout.big_endian) swap_bytes(scratch_.data(), elements, size);
  return ok_status();
}

Status Dataset::wrong_value(int column, int64_t sample, int64_t index,
                            const std::byte* element) const {
  const BoundColumn& bound = bound_[static_cast<size_t>(column)];
  const ColumnFile& file = file_of(column).file;
  const std::vector<std::string>& parts = file_of(column).spec.parts;
  const DType stored = file.layout().dtype;
  if (!file.class_labels().empty()) {
    return unnamed_label(file, file_of(column).spec, sample, element_text(stored, element));
  }
  const bool several = file.layout().of_text && parts.size() > 1 && index < std::ssize(parts);
  const std::string part =
      several ? format_text(" ('{}')", escaped(parts[static_cast<size_t>(index)])) : "";
  const bool whole = is_floating(stored) && !is_floating(bound.dtype);
  return input_error(
      "{}: column '{}'{}, sample {}: value {} does not fit {} ({}{}): change it or leave the row "
      "out",
      bound.source, bound.name, part, sample, element_text(stored, element),
      dtype_name(bound.dtype), whole ? "whole, " : "", range_text(bound.dtype));
}

}  // namespace ofsdp::runtime
