#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/data/column_file.h"
#include "runtime/data/text_records.h"
#include "runtime/data/tokenizer/unicode.h"

namespace ofsdp::runtime {
namespace {

using Json = nlohmann::json;

// Numbers as the file orders them; whole until one is not: int64, or uint64 if one needs it.
class Numbers {
 public:
  void add(int64_t value) {
    if (value < 0 && large_) make_real();  // no whole type has both
    negative_ = negative_ || value < 0;
    if (real_) return reals_.push_back(static_cast<double>(value));
    wholes_.push_back(value);
  }
  void add(uint64_t value) {
    if (std::in_range<int64_t>(value)) return add(static_cast<int64_t>(value));
    if (negative_) make_real();
    if (real_) return reals_.push_back(static_cast<double>(value));
    large_ = true;
    wholes_.push_back(std::bit_cast<int64_t>(value));
  }
  void add(double value) {
    make_real();
    reals_.push_back(value);
  }
  // Adds a whole number as such.
  void add_value(double value) {
    value == std::floor(value) && std::abs(value) < 0x1p53 ? add(static_cast<int64_t>(value))
                                                           : add(value);
  }
  DType dtype() const { return real_ ? DType::kFloat64 : large_ ? DType::kUInt64 : DType::kInt64; }
  // Makes the type one that has `value`, too.
  void make_room_for(double value) {
    const bool whole = value == std::floor(value) && std::abs(value) < 0x1p53;
    if (!whole || (value < 0 && large_)) make_real();
  }
  // 8 bytes for each number.
  const std::byte* at(size_t i) const {
    return real_ ? reinterpret_cast<const std::byte*>(reals_.data() + i)
                 : reinterpret_cast<const std::byte*>(wholes_.data() + i);
  }

 private:
  void make_real() {
    if (real_) return;
    real_ = true;
    for (const int64_t whole : wholes_) {
      reals_.push_back(large_ ? static_cast<double>(std::bit_cast<uint64_t>(whole))
                              : static_cast<double>(whole));
    }
    wholes_.clear();
  }

  bool real_ = false;
  bool negative_ = false, large_ = false;  // a whole number below 0; one above those of int64
  std::vector<int64_t> wholes_;            // if one is large, the bits of uint64
  std::vector<double> reals_;
};

constexpr size_t kNumberBytes = 8;
constexpr int64_t kMaxNumbers = int64_t{1} << 36;  // half a terabyte

// Rows before padding; lists may differ in length.
struct Rows {
  Numbers numbers;
  bool lists = false;          // else a row is a number
  std::vector<int64_t> inner;  // a list entry's axes
  std::vector<int64_t> lengths;
  std::vector<int64_t> lines;  // each row's line number, for messages
  bool named = false;          // rows are classes by name
  std::vector<std::string> names = {};
};

const std::string kNoClass;  // the name of a missing class

// Replaces names by numbers, and returns the names in their order.
Result<std::vector<std::string>> number_classes(const ColumnSpec& spec, Rows& rows) {
  std::vector<std::string> classes = spec.known.names;
  const std::set<std::string_view> known(classes.begin(), classes.end());
  const bool has_all = std::ranges::all_of(rows.names, [&](const std::string& name) {
    return name == kNoClass || known.contains(name);
  });
  if (classes.empty() || (!has_all && !spec.known.binding)) {
    classes = rows.names;
    std::ranges::sort(classes);
    const auto same = std::ranges::unique(classes);
    classes.erase(same.begin(), same.end());
    std::erase(classes, kNoClass);
  }
  std::map<std::string_view, int64_t> numbers;
  for (const std::string& name : classes) numbers.emplace(name, std::ssize(numbers));
  for (size_t i = 0; i < rows.names.size(); ++i) {
    if (rows.names[i] == kNoClass) {
      rows.numbers.add_value(*spec.missing);
      continue;
    }
    const auto found = numbers.find(rows.names[i]);
    OFSDP_REJECT_IF(found == numbers.end(), "{} line {}: expected a class of {} ({}), found '{}'{}",
                    spec.path, rows.lines[i], escaped(joined(classes, ", ").substr(0, 200)),
                    spec.known.source, escaped(rows.names[i].substr(0, 40)),
                    did_you_mean(rows.names[i], classes));
    rows.numbers.add(found->second);
  }
  return classes;
}

bool add_number(std::string_view text, Numbers& numbers) {
  const std::optional<CellNumber> number = cell_number(text);
  if (number) std::visit([&](auto value) { numbers.add(value); }, *number);
  return number.has_value();
}

// Returns why a cell is no number, with the remedy.
std::string cell_remark(std::string_view text, bool label = false) {
  if (is_missing_cell(text)) return std::string(missing_remark(label));
  if (is_date_cell(text)) return ", a date: write it as numbers, such as days or years";
  std::string point(text);
  const size_t comma = point.find(',');
  if (comma != std::string::npos) point[comma] = '.';
  if (comma != std::string::npos && cell_number(point))
    return ": expected a decimal point, no comma";
  if (label) return ": labels are all numbers or all names, as the first is";
  return ": only labels may be names; a column with a tokenizer may be text";
}

bool add_cell(const ColumnSpec& spec, std::string_view text, Numbers& numbers) {
  if (!spec.missing || !is_missing_cell(text)) return add_number(text, numbers);
  numbers.add_value(*spec.missing);
  return true;
}

struct Cell {
  std::string text;
  int64_t line;
};

// Takes a column of labels, which are classes by name if the first that has a value is text.
Status add_labels(const ColumnSpec& spec, const std::vector<Cell>& cells, Rows& rows) {
  const auto first =
      std::ranges::find_if(cells, [](const Cell& cell) { return !is_missing_cell(cell.text); });
  const auto& known = spec.known.names;
  rows.named = first != cells.end() &&
               (!cell_number(first->text) || std::ranges::find(known, first->text) != known.end());
  for (const Cell& cell : cells) {
    const bool missing = rows.named && is_missing_class(cell.text, spec);
    const bool taken =
        rows.named ? !missing || spec.missing.has_value() : add_cell(spec, cell.text, rows.numbers);
    OFSDP_REJECT_IF(!taken, "{} line {}: column '{}': expected a {}, found '{}'{}", spec.path,
                    cell.line, spec.parts[0], rows.named ? "class" : "number", shown(cell.text),
                    cell_remark(cell.text, /*label=*/true));
    OFSDP_REJECT_IF(rows.named && invalid_utf8(cell.text) != std::string_view::npos,
                    "{} line {}: column '{}': expected text in UTF-8, found '{}': save the file as "
                    "UTF-8",
                    spec.path, cell.line, spec.parts[0], shown(cell.text));
    if (rows.named) rows.names.push_back(missing ? kNoClass : cell.text);
    rows.lengths.push_back(1);
    rows.lines.push_back(cell.line);
  }
  return {};
}

Result<std::vector<size_t>> find_parts(const ColumnSpec& spec,
                                       const std::vector<std::string>& header) {
  std::vector<size_t> wanted;
  for (const std::string& part : spec.parts) {
    const auto found = std::ranges::find(header, part);
    OFSDP_REJECT_IF(found == header.end(), "{}: no column '{}' in its header{}", spec.path, part,
                    did_you_mean(part, header));
    wanted.push_back(static_cast<size_t>(found - header.begin()));
  }
  return wanted;
}

Result<Rows> read_records(const ColumnSpec& spec, const std::string& text, TextKind kind) {
  Records records(spec.path, text, kind);
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> header, records.header());
  OFSDP_ASSIGN_OR_RETURN(const std::vector<size_t> wanted, find_parts(spec, header));
  const bool labels = spec.classes && wanted.size() == 1;
  Rows rows;
  rows.lists = wanted.size() > 1;
  std::vector<Cell> cells;
  std::vector<std::string> fields;
  while (true) {
    OFSDP_ASSIGN_OR_RETURN(const bool more, records.next(fields));
    if (!more) break;
    if (labels) {
      cells.push_back({std::string(trimmed_text(fields[wanted[0]])), records.line()});
      continue;
    }
    for (const size_t i : wanted) {
      const std::string_view field = trimmed_text(fields[i]);
      OFSDP_REJECT_IF(!add_cell(spec, field, rows.numbers),
                      "{} line {}: column '{}': expected a number, found '{}'{}", spec.path,
                      records.line(), header[i], shown(field), cell_remark(field));
    }
    rows.lengths.push_back(static_cast<int64_t>(wanted.size()));
    rows.lines.push_back(records.line());
  }
  OFSDP_RETURN_IF_ERROR(add_labels(spec, cells, rows));
  return rows;
}

bool add_number(const Json& value, Numbers& numbers) {
  if (value.is_boolean()) return numbers.add(int64_t{value.get<bool>()}), true;
  if (value.is_number_unsigned()) return numbers.add(value.get<uint64_t>()), true;
  if (value.is_number_integer()) return numbers.add(value.get<int64_t>()), true;
  if (!value.is_number_float() || !std::isfinite(value.get<double>())) return false;
  return numbers.add(value.get<double>()), true;
}

// Appends `value`, which must have these axes.
bool add_nested(const Json& value, std::span<const int64_t> axes, Numbers& numbers) {
  if (axes.empty()) return add_number(value, numbers);
  if (!value.is_array() || std::ssize(value) != axes[0]) return false;
  return std::ranges::all_of(
      value, [&](const Json& entry) { return add_nested(entry, axes.subspan(1), numbers); });
}

constexpr size_t kMaxAxes = 8;

class ObjectLines {
 public:
  explicit ObjectLines(const ColumnSpec& spec) : spec_(spec) {}

  Status add(std::string_view line, int64_t number) {
    const std::string at = format_text("{} line {}", spec_.path, number);
    OFSDP_ASSIGN_OR_RETURN(const Json object, parse_object(at, line));
    const bool several = spec_.parts.size() > 1;
    if (rows_.lines.empty()) rows_.lists = several;
    for (const std::string& part : spec_.parts) {
      const Json* const value = find_field(object, part);
      const bool missing = value == nullptr || value->is_null();
      const std::string field = format_text("{}: field '{}'", at, part);
      OFSDP_REJECT_IF(value == nullptr && !spec_.missing, "{}: no field '{}'", at, part);
      OFSDP_RETURN_IF_ERROR(missing   ? add_missing(field)
                            : several ? add_one(field, *value, line)
                                      : add_value(field, *value, line));
    }
    if (several) rows_.lengths.push_back(std::ssize(spec_.parts));
    rows_.lines.push_back(number);
    return {};
  }

  Rows take() { return std::move(rows_); }

 private:
  Status add_missing(const std::string& field) {
    OFSDP_REJECT_IF(!spec_.missing, "{}: expected a {}, found null{}", field,
                    rows_.named ? "class" : "number",
                    missing_remark(spec_.classes && spec_.parts.size() == 1));
    const bool list = decided_ && rows_.lists && spec_.parts.size() == 1;
    OFSDP_REJECT_IF(list, "{}: expected a list as before, found a missing value", field);
    if (rows_.named) {
      rows_.names.push_back(kNoClass);
    } else {
      rows_.numbers.add_value(*spec_.missing);
      ++early_;
    }
    if (spec_.parts.size() == 1) rows_.lengths.push_back(1);
    return {};
  }

  // Adds one number of several fields.
  Status add_one(const std::string& field, const Json& value, std::string_view line) {
    OFSDP_REJECT_IF(!add_number(value, rows_.numbers), "{}: expected a number, found '{}'", field,
                    shown(line));
    return {};
  }

  Status add_value(const std::string& field, const Json& value, std::string_view line) {
    OFSDP_RETURN_IF_ERROR(decide(field, value));
    OFSDP_REJECT_IF(value.is_array() != rows_.lists, "{}: expected a {} as before", field,
                    rows_.lists ? "list" : "number");
    bool fits = true;
    if (rows_.named && value.is_string() && !value.get_ref<const std::string&>().empty()) {
      rows_.names.push_back(value.get<std::string>());
    } else if (rows_.lists) {
      for (const Json& entry : value) {
        if (!shaped_) learn_shape(entry);
        fits = fits && add_nested(entry, rows_.inner, rows_.numbers);
      }
    } else {
      fits = !rows_.named && add_number(value, rows_.numbers);
    }
    OFSDP_REJECT_IF(!fits && rows_.named, "{}: expected a class as before, found '{}'", field,
                    shown(line));
    OFSDP_REJECT_IF(!fits && value.is_string(),
                    "{}: expected numbers, found text, '{}': give it a tokenizer, or a class to "
                    "--labels",
                    field, shown(value.get_ref<const std::string&>()));
    OFSDP_REJECT_IF(!fits, "{}: expected {}, found '{}'", field,
                    rows_.inner.empty() ? "numbers" : "lists of numbers of one length",
                    shown(line));
    rows_.lengths.push_back(rows_.lists ? std::ssize(value) : 1);
    return {};
  }

  // The first value that is there decides for lists, numbers or classes.
  Status decide(const std::string& field, const Json& value) {
    if (decided_) return {};
    decided_ = true;
    rows_.lists = value.is_array();
    OFSDP_REJECT_IF(rows_.lists && early_ > 0,
                    "{}: expected a number, as `missing` gives one before, found a list", field);
    rows_.named = spec_.classes && value.is_string();
    if (!rows_.named) return {};
    rows_.names.assign(early_, kNoClass);
    rows_.numbers = {};
    return {};
  }

  void learn_shape(const Json& entry) {
    shaped_ = true;
    for (const Json* at = &entry; at->is_array() && rows_.inner.size() < kMaxAxes;) {
      rows_.inner.push_back(std::ssize(*at));
      if (at->empty()) return;
      at = &at->front();
    }
  }

  const ColumnSpec& spec_;
  Rows rows_;
  bool shaped_ = false, decided_ = false;
  size_t early_ = 0;  // missing values, before the first row that has one
};

// Returns how many entries every row gets.
Result<int64_t> row_length(const ColumnSpec& spec, const Rows& rows) {
  const auto longest = std::ranges::max_element(rows.lengths);
  const auto line = [&](auto at) {
    return rows.lines[static_cast<size_t>(at - rows.lengths.begin())];
  };
  if (spec.padding) {
    OFSDP_REJECT_IF(!rows.lists, "{}: pad_to is for lists, found numbers", spec.path);
    const int64_t to = spec.padding->to.value_or(*longest);
    OFSDP_REJECT_IF(*longest > to,
                    "{} line {}: expected at most the {} entries of pad_to, found {}", spec.path,
                    line(longest), to, *longest);
    return to;
  }
  const auto other = std::ranges::find_if(
      rows.lengths, [&](int64_t length) { return length != rows.lengths.front(); });
  OFSDP_REJECT_IF(other != rows.lengths.end(),
                  "{} line {}: rows differ in length ({} entries, {} before): expected pad_to",
                  spec.path, line(other), *other, rows.lengths.front());
  return *longest;
}

TextRows lengths_of(const Rows& rows) {
  TextRows made;
  made.dims = {std::ssize(rows.lengths)};
  const auto bytes = std::as_bytes(std::span(rows.lengths));
  made.bytes.assign(bytes.begin(), bytes.end());
  return made;
}

Result<TextRows> laid_out(const ColumnSpec& spec, Rows rows) {
  OFSDP_REJECT_IF(rows.lengths.empty(), "{}: expected at least 1 row, found none", spec.path);
  OFSDP_ASSIGN_OR_RETURN(const int64_t length, row_length(spec, rows));
  if (spec.padding && spec.padding->lengths) return lengths_of(rows);
  const bool mask = spec.padding && spec.padding->mask;
  TextRows made;
  made.dims = {std::ssize(rows.lengths)};
  if (rows.lists) made.dims.push_back(length);
  if (!mask) made.dims.insert(made.dims.end(), rows.inner.begin(), rows.inner.end());
  Result<int64_t> numel = checked_numel(made.dims);
  if (!numel.ok()) return std::move(numel).status().with_prefix(spec.path);
  OFSDP_REJECT_IF(*numel > kMaxNumbers, "{}: expected at most {} numbers after padding, found {}",
                  spec.path, kMaxNumbers, *numel);
  const double fill = spec.padding ? spec.padding->value.value_or(0) : 0;
  rows.numbers.make_room_for(fill);
  made.dtype = mask ? DType::kInt64 : rows.numbers.dtype();
  const auto whole = mask || !is_integer(made.dtype) ? int64_t{0} : static_cast<int64_t>(fill);
  std::byte filler[kNumberBytes];
  is_integer(made.dtype) ? std::memcpy(filler, &whole, sizeof whole)
                         : std::memcpy(filler, &fill, sizeof fill);
  made.bytes.resize(static_cast<size_t>(*numel) * kNumberBytes);
  const int64_t each = mask || rows.inner.empty() ? 1 : Shape(rows.inner).numel();
  std::byte* dst = made.bytes.data();
  size_t from = 0;
  for (const int64_t entries : rows.lengths) {
    const auto count = static_cast<size_t>(entries * each);
    for (size_t i = 0; i < count; ++i, ++from, dst += kNumberBytes) {
      const int64_t one = 1;
      std::memcpy(dst, mask ? reinterpret_cast<const std::byte*>(&one) : rows.numbers.at(from),
                  kNumberBytes);
    }
    const size_t rest = rows.lists ? static_cast<size_t>((length - entries) * each) : 0;
    for (size_t i = 0; i < rest; ++i, dst += kNumberBytes) std::memcpy(dst, filler, kNumberBytes);
  }
  return made;
}

Result<TextRows> numbered(const ColumnSpec& spec, Rows rows) {
  std::vector<std::string> classes;
  if (rows.named) {
    OFSDP_ASSIGN_OR_RETURN(classes, number_classes(spec, rows));
  }
  OFSDP_ASSIGN_OR_RETURN(TextRows made, laid_out(spec, std::move(rows)));
  made.classes = std::move(classes);
  return made;
}

}  // namespace

Result<TextRows> read_text_rows(const ColumnSpec& spec, const ByteSource& source, TextKind kind) {
  OFSDP_CHECK(!spec.parts.empty(), "{}: no part", spec.path);
  OFSDP_ASSIGN_OR_RETURN(const std::string text, whole_text(source));
  if (kind != TextKind::kJsonLines) {
    OFSDP_ASSIGN_OR_RETURN(Rows rows, read_records(spec, text, kind));
    return numbered(spec, std::move(rows));
  }
  ObjectLines lines(spec);
  OFSDP_RETURN_IF_ERROR(for_each_line(
      text, [&](std::string_view line, int64_t number) { return lines.add(line, number); }));
  return numbered(spec, lines.take());
}

Result<std::vector<std::string>> text_columns(const ByteSource& source, TextKind kind) {
  OFSDP_ASSIGN_OR_RETURN(const std::string text, whole_text(source));
  if (kind != TextKind::kJsonLines) return Records(source.path(), text, kind).header();
  const size_t first = text.find_first_not_of(" \t\r\n");
  const std::string line =
      first == std::string::npos ? "" : text.substr(first, text.find('\n', first) - first);
  OFSDP_ASSIGN_OR_RETURN(const Json object, parse_object(source.path(), line));
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

}  // namespace ofsdp::runtime
