#include "runtime/data/parquet_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/base/names.h"
#include "kernels/base/text.h"
#include "kernels/core/tensor.h"
#include "runtime/data/parquet/reader.h"
#include "runtime/data/text_records.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kMostStored = int64_t{1} << 36;  // numbers, as of text

std::vector<std::string> field_names(const ParquetReader& reader) {
  std::vector<std::string> names;
  for (const ParquetField& field : reader.fields()) names.push_back(field.name);
  return names;
}

Result<size_t> field_index(const std::string& path, const ParquetReader& reader,
                           const std::string& name) {
  const std::vector<std::string> names = field_names(reader);
  const auto found = std::ranges::find(names, name);
  OFSDP_REJECT_IF(found == names.end(), "{}: no column '{}' (found: {}){}", path, escaped(name),
                  escaped(joined(names, ", ").substr(0, 200)), did_you_mean(name, names));
  OFSDP_REJECT_IF(std::ranges::count(names, name) > 1, "{}: column '{}' is given twice", path,
                  escaped(name));
  return static_cast<size_t>(found - names.begin());
}

// Reads the next rows of the field that was begun; returns false at its end.
Result<bool> next_rows(const std::string& path, ParquetReader& reader, size_t field,
                       ParquetBatch& batch) {
  std::string error;
  OFSDP_REJECT_IF(!reader.next(batch, error),
                  "{}: column '{}': expected whole data, found damage in {}: write the file again",
                  path, escaped(reader.fields()[field].name), escaped(error.substr(0, 200)));
  return batch.rows > 0;
}

// Calls visit(batch) for all rows of a field.
template <typename Visit>
Status for_each_batch(const std::string& path, ParquetReader& reader, size_t field, Visit visit) {
  ParquetBatch batch;
  reader.begin(field);
  while (true) {
    OFSDP_ASSIGN_OR_RETURN(const bool more, next_rows(path, reader, field, batch));
    if (!more) return {};
    OFSDP_RETURN_IF_ERROR(visit(std::as_const(batch)));
  }
}

bool is_there(const ParquetBatch& batch, size_t value) {
  return batch.present.empty() || batch.present[value] != 0;
}

template <typename T>
T stored_number(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double real_number(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kFloat16:
      return static_cast<double>(half_to_float(stored_number<uint16_t>(at)));
    case DType::kFloat32:
      return static_cast<double>(stored_number<float>(at));
    case DType::kFloat64:
      return stored_number<double>(at);
    case DType::kInt8:
      return stored_number<int8_t>(at);
    case DType::kInt16:
      return stored_number<int16_t>(at);
    case DType::kInt32:
      return stored_number<int32_t>(at);
    case DType::kInt64:
      return static_cast<double>(stored_number<int64_t>(at));
    case DType::kUInt8:
      return stored_number<uint8_t>(at);
    case DType::kUInt16:
      return stored_number<uint16_t>(at);
    case DType::kUInt32:
      return stored_number<uint32_t>(at);
    default:
      return static_cast<double>(stored_number<uint64_t>(at));
  }
}

// Returns none if the number is above the range of int64.
std::optional<int64_t> whole_number(DType dtype, const std::byte* at) {
  if (dtype == DType::kInt64) return stored_number<int64_t>(at);
  if (dtype != DType::kUInt64) return static_cast<int64_t>(real_number(dtype, at));
  const auto value = stored_number<uint64_t>(at);
  if (!std::in_range<int64_t>(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

// Writes a number that fits `dtype`, as `widened` has made sure.
void put_number(double value, DType dtype, std::byte* dst) {
  const auto put = [dst](auto number) { std::memcpy(dst, &number, sizeof number); };
  if (dtype == DType::kFloat64) return put(value);
  if (dtype == DType::kFloat32) return put(static_cast<float>(value));
  if (dtype == DType::kFloat16) return put(float_to_half(static_cast<float>(value)));
  if (dtype == DType::kUInt64) return put(static_cast<uint64_t>(value));
  const auto whole = static_cast<int64_t>(value);
  std::memcpy(dst, &whole, dtype_size(dtype));  // little-endian: the low bytes
}

// Returns the type that holds what `dtype` holds, and `value`.
DType widened(DType dtype, double value) {
  if (is_floating(dtype)) {
    const double above = dtype == DType::kFloat16 ? 65520 : 0x1.ffffffp127;  // rounds to infinity
    return std::abs(value) < above ? dtype : DType::kFloat64;
  }
  if (value != std::floor(value) || std::abs(value) >= 0x1p53) return DType::kFloat64;
  const auto bits = static_cast<int>(8 * dtype_size(dtype));
  const bool is_signed = dtype == DType::kInt8 || dtype == DType::kInt16 ||
                         dtype == DType::kInt32 || dtype == DType::kInt64;
  const double most = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  if (value >= (is_signed ? -most : 0) && value < most) return dtype;
  return DType::kInt64;
}

DType common_type(DType a, DType b) {
  if (a == b) return a;
  return is_integer(a) && is_integer(b) ? DType::kInt64 : DType::kFloat64;
}

// Returns why a type is not read, with the remedy.
std::string type_remark(const ParquetField& field) {
  if (field.kind == ParquetField::Kind::kDate)
    return "a date: write it as numbers, such as days or years";
  if (field.type.find("decimal") != std::string::npos) return "write it as float64";
  if (field.kind == ParquetField::Kind::kText) {
    return field.lists > 0 ? "expected numbers, lists of numbers or text"
                           : "only labels may be names; a column with a tokenizer may be text";
  }
  return "expected numbers, lists of numbers or text";
}

// One column of a data set, of one field or several.
class ParquetColumn {
 public:
  ParquetColumn(const ColumnSpec& spec, ParquetReader& reader) : spec_(spec), reader_(reader) {}

  Status prepare() {
    OFSDP_RETURN_IF_ERROR(find_fields());
    OFSDP_RETURN_IF_ERROR(check_types());
    if (named_or_text()) OFSDP_RETURN_IF_ERROR(survey_texts());
    if (lists_ > 0) OFSDP_RETURN_IF_ERROR(survey_lists());
    return choose_type();
  }

  DType dtype() const { return dtype_; }
  std::vector<int64_t> dims() const {
    std::vector<int64_t> dims = {reader_.rows()};
    if (lists_ > 0) dims.push_back(length_);
    if (lists_ > 0 && !mask()) dims.insert(dims.end(), inner_.begin(), inner_.end());
    if (fields_.size() > 1) dims.push_back(std::ssize(fields_));
    return dims;
  }
  const std::vector<std::string>& classes() const { return classes_; }

  // Writes all rows, as `layout` says.
  Status fill(const ColumnLayout& layout, std::span<std::byte> dst) {
    row_bytes_ = layout.row_bytes();
    for (size_t i = 0; i < fields_.size(); ++i) {
      OFSDP_RETURN_IF_ERROR(
          for_each_batch(spec_.path, reader_, fields_[i], [&](const ParquetBatch& batch) {
            const auto first = static_cast<size_t>(batch.first_row);
            std::byte* const to = dst.data() + first * row_bytes_ + i * dtype_size(dtype_);
            if (named_or_text()) return fill_texts(batch, to);
            return lists_ > 0 ? fill_lists(batch, to) : fill_numbers(field(i), batch, to);
          }));
    }
    return {};
  }

 private:
  const ParquetField& field(size_t i) const { return reader_.fields()[fields_[i]]; }
  bool mask() const { return spec_.padding && spec_.padding->mask; }
  bool named_or_text() const { return field(0).kind == ParquetField::Kind::kText; }

  std::string at(const ParquetBatch& batch, int64_t row, size_t part = 0) const {
    return format_text("{} row {}: column '{}'", spec_.path, batch.first_row + row,
                       escaped(field(part).name));
  }

  Status find_fields() {
    for (const std::string& part : spec_.parts) {
      OFSDP_ASSIGN_OR_RETURN(const size_t found, field_index(spec_.path, reader_, part));
      fields_.push_back(found);
    }
    return {};
  }

  Status check_types() {
    const bool several = fields_.size() > 1;
    for (size_t i = 0; i < fields_.size(); ++i) {
      const ParquetField& own = field(i);
      const bool labels = spec_.classes && !several && own.lists == 0;
      const bool taken = own.kind == ParquetField::Kind::kNumber ||
                         (own.kind == ParquetField::Kind::kText && labels);
      OFSDP_REJECT_IF(!taken, "{}: column '{}': expected numbers, found {}: {}", spec_.path,
                      escaped(own.name), escaped(own.type), type_remark(own));
      OFSDP_REJECT_IF(several && own.lists > 0,
                      "{}: column '{}': expected a number in each of several columns, found {}",
                      spec_.path, escaped(own.name), escaped(own.type));
    }
    lists_ = field(0).lists;
    OFSDP_REJECT_IF(spec_.padding && lists_ == 0, "{}: pad_to is for lists, found numbers",
                    spec_.path);
    return {};
  }

  Status choose_type() {
    if (mask()) {
      dtype_ = DType::kInt64;
    } else if (named_or_text()) {
      dtype_ = real_ ? DType::kFloat64 : DType::kInt64;
    } else {
      dtype_ = field(0).dtype;
      for (size_t i = 1; i < fields_.size(); ++i) dtype_ = common_type(dtype_, field(i).dtype);
    }
    if (spec_.missing && lists_ == 0) dtype_ = widened(dtype_, *spec_.missing);
    if (spec_.padding && !mask()) dtype_ = widened(dtype_, spec_.padding->value.value_or(0));
    return {};
  }

  bool is_label() const { return spec_.classes && fields_.size() == 1; }

  // --- numbers

  static constexpr char kNull[] = "null", kNan[] = "NaN";

  Status fill_numbers(const ParquetField& of, const ParquetBatch& batch, std::byte* dst) const {
    OFSDP_REJECT_IF(batch.values != batch.rows, "{}: expected {} values, found {}", at(batch, 0),
                    batch.rows, batch.values);
    const size_t size = dtype_size(of.dtype), stride = row_bytes_;
    for (size_t i = 0; i < static_cast<size_t>(batch.rows); ++i) {
      const std::byte* const from = batch.numbers.data() + i * size;
      const char* const wrong = put_value(of.dtype, is_there(batch, i), from, dst + i * stride);
      if (wrong == nullptr) continue;
      const bool missing = wrong == kNull || wrong == kNan;
      return input_error("{} row {}: column '{}': expected a number, found {}{}", spec_.path,
                         batch.first_row + static_cast<int64_t>(i), escaped(of.name), wrong,
                         missing ? missing_remark(is_label()) : "");
    }
    return {};
  }

  // Returns the words for a value that cannot be taken, else null.
  const char* put_value(DType from_type, bool there, const std::byte* from, std::byte* dst) const {
    const bool floating = is_floating(from_type);
    const double real = floating && there ? real_number(from_type, from) : 0;
    if (!there || std::isnan(real)) {
      if (!spec_.missing || lists_ > 0) return there ? kNan : kNull;
      put_number(*spec_.missing, dtype_, dst);
      return nullptr;
    }
    return put_finite(from_type, floating, real, from, dst);
  }

  const char* put_finite(DType from_type, bool floating, double real, const std::byte* from,
                         std::byte* dst) const {
    if (floating && std::isinf(real)) return "an infinite one";
    if (from_type == dtype_) {
      std::memcpy(dst, from, dtype_size(dtype_));
    } else if (dtype_ == DType::kInt64) {
      const std::optional<int64_t> whole = whole_number(from_type, from);
      if (!whole) return "one above the range of int64";
      std::memcpy(dst, &*whole, sizeof *whole);
    } else {
      put_number(floating ? real : real_number(from_type, from), dtype_, dst);
    }
    return nullptr;
  }

  // --- lists

  // Finds the length of rows and the axes of an entry: of the first list that has one.
  Status survey_lists() {
    const bool longest = spec_.padding && !spec_.padding->to;
    bool shaped = false;
    ParquetBatch batch;
    reader_.begin(fields_[0]);
    while (!shaped || longest) {
      OFSDP_ASSIGN_OR_RETURN(const bool more, next_rows(spec_.path, reader_, fields_[0], batch));
      if (!more) break;
      const std::vector<int64_t>& lengths = batch.lengths[0];
      if (length_ < 0) OFSDP_RETURN_IF_ERROR(check_list(batch, 0, lengths[0]));
      if (length_ < 0) length_ = lengths[0];
      if (longest) length_ = std::max(length_, *std::ranges::max_element(lengths));
      shaped = shaped || learn_axes(batch);
    }
    if (spec_.padding && spec_.padding->to) length_ = *spec_.padding->to;
    inner_.resize(static_cast<size_t>(lists_ - 1), 1);
    return {};
  }

  bool learn_axes(const ParquetBatch& batch) {
    if (lists_ == 1) return true;
    if (batch.lengths[1].empty()) return false;
    inner_.clear();
    for (size_t depth = 1; depth < batch.lengths.size(); ++depth) {
      const auto& own = batch.lengths[depth];
      inner_.push_back(own.empty() ? 0 : std::max<int64_t>(own[0], 0));
    }
    return true;
  }

  // Lists inside lists have the axes of the first.
  Status check_inner(const ParquetBatch& batch) const {
    for (size_t depth = 1; depth < batch.lengths.size(); ++depth) {
      const int64_t expected = inner_[depth - 1];
      for (size_t i = 0; i < batch.lengths[depth].size(); ++i) {
        const int64_t found = batch.lengths[depth][i];
        OFSDP_REJECT_IF(found != expected,
                        "{}: expected lists of numbers of one length, {} as the first, found {}",
                        at(batch, row_of(batch, depth, i)), expected,
                        found < 0 ? "null" : std::to_string(found));
      }
    }
    return {};
  }

  // Returns the row that holds the list `index` of a depth, above which all lengths are right.
  int64_t row_of(const ParquetBatch& batch, size_t depth, size_t index) const {
    auto entry = static_cast<int64_t>(index);
    for (size_t d = depth - 1; d > 0; --d) entry /= std::max<int64_t>(inner_[d - 1], 1);
    int64_t row = 0;
    for (const int64_t length : batch.lengths[0]) {
      if (entry < length) break;
      entry -= std::max<int64_t>(length, 0);
      ++row;
    }
    return row;
  }

  Status check_list(const ParquetBatch& batch, int64_t row, int64_t found) const {
    OFSDP_REJECT_IF(found < 0, "{}: expected a list, found null: leave such rows out",
                    at(batch, row));
    return {};
  }

  Status check_length(const ParquetBatch& batch, int64_t row, int64_t found) const {
    OFSDP_RETURN_IF_ERROR(check_list(batch, row, found));
    if (spec_.padding) {
      OFSDP_REJECT_IF(found > length_, "{}: expected at most the {} entries of pad_to, found {}",
                      at(batch, row), length_, found);
      return {};
    }
    OFSDP_REJECT_IF(found != length_,
                    "{}: rows differ in length ({} entries, {} before): expected pad_to",
                    at(batch, row), found, length_);
    return {};
  }

  Status fill_lists(const ParquetBatch& batch, std::byte* dst) const {
    OFSDP_RETURN_IF_ERROR(check_inner(batch));
    int64_t each = 1;
    for (const int64_t axis : inner_) each *= axis;
    int64_t from = 0;
    for (int64_t row = 0; row < batch.rows; ++row, dst += row_bytes_) {
      const int64_t entries = batch.lengths[0][static_cast<size_t>(row)];
      OFSDP_RETURN_IF_ERROR(check_length(batch, row, entries));
      const int64_t end = from + entries * each;
      OFSDP_REJECT_IF(end > batch.values, "{}: expected {} values, found {}", at(batch, row), end,
                      batch.values);
      OFSDP_RETURN_IF_ERROR(mask() ? fill_mask(entries, dst)
                                   : fill_list(batch, row, from, end, dst));
      from = end;
    }
    return {};
  }

  Status fill_mask(int64_t entries, std::byte* dst) const {
    for (int64_t i = 0; i < length_; ++i, dst += sizeof(int64_t)) {
      put_number(i < entries ? 1 : 0, DType::kInt64, dst);
    }
    return {};
  }

  // Writes the values from `begin` to `end`, and fills the rest of the row.
  Status fill_list(const ParquetBatch& batch, int64_t row, int64_t begin, int64_t end,
                   std::byte* dst) const {
    const DType from = field(0).dtype;
    std::byte* const row_end = dst + row_bytes_;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const std::byte* const value = batch.numbers.data() + i * dtype_size(from);
      const char* const wrong = put_value(from, is_there(batch, i), value, dst);
      OFSDP_REJECT_IF(wrong != nullptr,
                      "{}: expected a list of numbers, found {}: leave such rows out",
                      at(batch, row), wrong);
      dst += dtype_size(dtype_);
    }
    for (; dst < row_end; dst += dtype_size(dtype_)) {
      put_number(spec_.padding->value.value_or(0), dtype_, dst);
    }
    return {};
  }

  // --- labels that are text

  bool is_missing(const ParquetBatch& batch, size_t i) const {
    if (!is_there(batch, i)) return true;
    return named_ ? is_missing_class(batch.texts[i], spec_)
                  : is_missing_cell(trimmed_text(batch.texts[i]));
  }

  // The first text that has a value decides: a class, or a number.
  Status survey_texts() {
    std::set<std::string, std::less<>> names;
    bool decided = false;
    OFSDP_RETURN_IF_ERROR(
        for_each_batch(spec_.path, reader_, fields_[0], [&](const ParquetBatch& batch) {
          for (const std::string_view text : batch.texts) {
            const std::string_view cell = trimmed_text(text);
            if (!decided && !is_missing_cell(cell)) {
              decided = true;
              const auto& known = spec_.known.names;
              named_ = !cell_number(cell) || std::ranges::find(known, text) != known.end();
            }
            if (named_ || !decided) {  // words for missing values before the first class are names
              if (!is_missing_class(text, spec_) && !names.contains(text)) names.emplace(text);
            } else if (const auto number = cell_number(cell)) {
              real_ = real_ || !std::holds_alternative<int64_t>(*number);
            }
          }
          return Status();
        }));
    if (!named_) return {};
    classes_ = spec_.known.names;
    const bool has_all = std::ranges::all_of(names, [&](const std::string& name) {
      return std::ranges::find(classes_, name) != classes_.end();
    });
    if (classes_.empty() || (!has_all && !spec_.known.binding)) {
      classes_.assign(names.begin(), names.end());
    }
    for (const std::string& name : classes_) numbers_.emplace(name, std::ssize(numbers_));
    return {};
  }

  Status fill_texts(const ParquetBatch& batch, std::byte* dst) const {
    const size_t stride = row_bytes_;
    for (size_t i = 0; i < batch.texts.size(); ++i, dst += stride) {
      OFSDP_RETURN_IF_ERROR(fill_text(batch, i, dst));
    }
    return {};
  }

  Status fill_text(const ParquetBatch& batch, size_t i, std::byte* dst) const {
    const std::string_view text = batch.texts[i];
    const auto row = static_cast<int64_t>(i);
    if (is_missing(batch, i)) {
      OFSDP_REJECT_IF(!spec_.missing, "{}: expected a {}, found {}{}", at(batch, row),
                      named_ ? "class" : "number",
                      is_there(batch, i) ? format_text("'{}'", shown(text)) : "null",
                      missing_remark(is_label()));
      put_number(*spec_.missing, dtype_, dst);
      return {};
    }
    if (named_) {
      const auto found = numbers_.find(text);
      OFSDP_REJECT_IF(found == numbers_.end(), "{}: expected a class of {}, found '{}'{}",
                      at(batch, row), escaped(joined(classes_, ", ").substr(0, 200)), shown(text),
                      did_you_mean(std::string(text.substr(0, 40)), classes_));
      put_number(static_cast<double>(found->second), dtype_, dst);
      return {};
    }
    const auto number = cell_number(trimmed_text(text));
    OFSDP_REJECT_IF(!number, "{}: expected a number as before, found '{}'", at(batch, row),
                    shown(text));
    if (dtype_ == DType::kInt64) {
      const int64_t whole = std::get<int64_t>(*number);
      std::memcpy(dst, &whole, sizeof whole);
    } else {
      put_number(std::visit([](auto value) { return static_cast<double>(value); }, *number), dtype_,
                 dst);
    }
    return {};
  }

  const ColumnSpec& spec_;
  ParquetReader& reader_;
  std::vector<size_t> fields_;
  DType dtype_ = DType::kUndefined;  // of the rows
  size_t row_bytes_ = 0;
  int lists_ = 0;
  int64_t length_ = -1;         // of a row of lists, before inner_
  std::vector<int64_t> inner_;  // an entry's axes
  bool named_ = false, real_ = false;
  std::vector<std::string> classes_;
  std::map<std::string, int64_t, std::less<>> numbers_;
};

}  // namespace

Result<std::vector<std::string>> parquet_columns(const ByteSource& source) {
  OFSDP_ASSIGN_OR_RETURN(const auto reader, open_parquet_reader(source.path()));
  return field_names(*reader);
}

Result<OpenedColumn> open_parquet(const ColumnSpec& spec, ByteSource, Communicator& communicator,
                                  MemoryLedger& ledger) {
  OFSDP_ASSIGN_OR_RETURN(const auto reader, open_parquet_reader(spec.path));
  ParquetColumn column(spec, *reader);
  OFSDP_RETURN_IF_ERROR(column.prepare());
  OpenedColumn opened;
  OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, column.dtype(), column.dims(), 0));
  opened.layout.of_text = true;
  opened.classes = column.classes();
  const ColumnLayout& layout = opened.layout;
  OFSDP_REJECT_IF(layout.row.numel() > kMostStored / layout.count,
                  "{}: expected at most {} numbers, found {} rows of {}", spec.path, kMostStored,
                  layout.count, layout.row.text());
  opened.shared_bytes = layout.end_byte();
  const auto fill = [&](std::span<std::byte> dst) { return column.fill(layout, dst); };
  OFSDP_ASSIGN_OR_RETURN(opened.source,
                         share_made(spec.path, opened.shared_bytes, fill, communicator, ledger));
  return opened;
}

Status for_each_parquet_text(
    const std::string& path, const std::string& column,
    const std::function<Status(std::string_view text, int64_t row)>& visit) {
  OFSDP_ASSIGN_OR_RETURN(const auto reader, open_parquet_reader(path));
  OFSDP_ASSIGN_OR_RETURN(const size_t index, field_index(path, *reader, column));
  const ParquetField& field = reader->fields()[index];
  OFSDP_REJECT_IF(field.kind != ParquetField::Kind::kText || field.lists > 0,
                  "{}: column '{}': expected text, found {}: the key 'column' names the text", path,
                  escaped(column), escaped(field.type));
  return for_each_batch(path, *reader, index, [&](const ParquetBatch& batch) -> Status {
    for (size_t i = 0; i < batch.texts.size(); ++i) {
      const int64_t row = batch.first_row + static_cast<int64_t>(i);
      OFSDP_REJECT_IF(!is_there(batch, i), "{} row {}: column '{}': expected a text, found null",
                      path, row, escaped(column));
      OFSDP_RETURN_IF_ERROR(visit(batch.texts[i], row));
    }
    return {};
  });
}

}  // namespace ofsdp::runtime
