#include "runtime/data/labels.h"

#include <algorithm>
#include <cstring>

#include "runtime/data/dataset.h"

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

// Returns the first row that holds the element at `byte`: rows may overlap.
int64_t label_row(const ColumnLayout& layout, uint64_t byte) {
  const uint64_t at = byte - layout.first_byte, row = layout.row_bytes();
  return static_cast<int64_t>(at < row ? 0 : (at - row) / layout.row_stride + 1);
}

Status fractional_label(const std::string& source, const std::string& column, int64_t sample,
                        const std::string& label) {
  return input_error("{}: column '{}', sample {}: expected a class, a whole number, found {}",
                     source, column, sample, label);
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

// Rows that touch or overlap (token files with a small stride) are one range, read once.
Status Dataset::check_labels(const std::string& name, const LabelRange& range) {
  const Column* column = find(name);
  OFSDP_CHECK(column != nullptr, "column '{}' was not opened", name);
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
  const std::optional<Converter> widen =
      Converter::between(layout.dtype, DType::kInt64, {}, /*of_text=*/false, /*classes=*/true);
  if (!widen) return ok_status();
  std::vector<int64_t> labels(kLabelBlock);
  for (size_t count = 0; begin < end; begin += count * size) {
    count = std::min<uint64_t>(kLabelBlock, (end - begin) / size);
    OFSDP_RETURN_IF_ERROR(read_raw(column, begin, count));
    const size_t good =
        widen->run(scratch_.data(), count, reinterpret_cast<std::byte*>(labels.data()));
    for (size_t i = 0; i < count; ++i) {
      if (i < good && range.allows(labels[i])) continue;
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

}  // namespace ofsdp::runtime
