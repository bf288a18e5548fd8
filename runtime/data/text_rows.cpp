#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "importer/file/tensor_file.h"
#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

using Json = nlohmann::json;

// Numbers as the file orders them; int64 until one is not whole.
class Numbers {
 public:
  void add(int64_t value) {
    if (real_) return reals_.push_back(static_cast<double>(value));
    wholes_.push_back(value);
  }
  void add(double value) {
    if (!real_) reals_.assign(wholes_.begin(), wholes_.end());
    real_ = true;
    wholes_.clear();
    reals_.push_back(value);
  }
  DType dtype() const { return real_ ? DType::kFloat64 : DType::kInt64; }
  void make_real() {
    if (!real_) reals_.assign(wholes_.begin(), wholes_.end());
    real_ = true;
  }
  // 8 bytes for each number.
  const std::byte* at(size_t i) const {
    return real_ ? reinterpret_cast<const std::byte*>(reals_.data() + i)
                 : reinterpret_cast<const std::byte*>(wholes_.data() + i);
  }

 private:
  bool real_ = false;
  std::vector<int64_t> wholes_;
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

// Takes a row of text as a class. Returns false if the column holds numbers; the first row decides.
bool add_class(const ColumnSpec& spec, std::string_view text, bool is_text, Rows& rows) {
  if (rows.lengths.empty()) {
    const auto& known = spec.class_names;
    rows.named = spec.classes && (is_text || std::ranges::find(known, text) != known.end());
  }
  if (!rows.named || text.empty()) return false;
  rows.names.emplace_back(text);
  return true;
}

// Replaces names by numbers, and returns the names in their order.
Result<std::vector<std::string>> number_classes(const ColumnSpec& spec, Rows& rows) {
  std::vector<std::string> classes = spec.class_names;
  if (classes.empty()) {
    classes = rows.names;
    std::ranges::sort(classes);
    const auto same = std::ranges::unique(classes);
    classes.erase(same.begin(), same.end());
  }
  std::map<std::string_view, int64_t> numbers;
  for (const std::string& name : classes) numbers.emplace(name, std::ssize(numbers));
  for (size_t i = 0; i < rows.names.size(); ++i) {
    const auto found = numbers.find(rows.names[i]);
    OFSDP_REJECT_IF(found == numbers.end(), "{} line {}: expected a class of {}, found '{}'{}",
                    spec.path, rows.lines[i], escaped(joined(classes, ", ").substr(0, 200)),
                    escaped(rows.names[i].substr(0, 40)), did_you_mean(rows.names[i], classes));
    rows.numbers.add(found->second);
  }
  return classes;
}

bool add_number(std::string_view text, Numbers& numbers) {
  int64_t whole = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), whole);
  if (error == std::errc() && end == text.end()) return numbers.add(whole), true;
  if (text == "true" || text == "True") return numbers.add(int64_t{1}), true;
  if (text == "false" || text == "False") return numbers.add(int64_t{0}), true;
  double real = 0;
  const auto [stop, wrong] = std::from_chars(text.begin(), text.end(), real);
  if (wrong != std::errc() || stop != text.end() || !std::isfinite(real)) return false;
  return numbers.add(real), true;
}

std::string_view trimmed_text(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::string shown(std::string_view text) { return escaped(std::string(text.substr(0, 40))); }

Result<std::string> whole_text(const ByteSource& source) {
  std::string text(source.size(), '\0');
  OFSDP_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(text))));
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte order mark
  return text;
}

// Iterates over a .csv file's records.
class Records {
 public:
  Records(const std::string& path, std::string_view text, char separator)
      : path_(path), text_(text), separator_(separator) {}

  int64_t line() const { return begun_; }

  // Returns false at the end. Skips empty lines.
  Result<bool> next(std::vector<std::string>& fields) {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) skip_line_end();
    if (at_ == text_.size()) return false;
    fields.clear();
    begun_ = line_;
    while (true) {
      OFSDP_RETURN_IF_ERROR(read_field(fields.emplace_back()));
      if (at_ == text_.size() || text_[at_] != separator_) break;
      ++at_;
    }
    if (at_ < text_.size()) skip_line_end();
    return true;
  }

 private:
  void skip_line_end() {
    if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
    ++at_;
    ++line_;
  }

  Status read_field(std::string& field) {
    if (at_ < text_.size() && text_[at_] == '"') return read_quoted(field);
    const size_t end = std::min(text_.find_first_of(std::string_view(ends_, 3), at_), text_.size());
    field = text_.substr(at_, end - at_);
    at_ = end;
    return {};
  }

  Status read_quoted(std::string& field) {
    for (++at_; at_ < text_.size(); ++at_) {
      const bool quote = text_[at_] == '"';
      if (quote && (at_ + 1 == text_.size() || text_[at_ + 1] != '"')) break;
      at_ += quote ? 1 : 0;  // a doubled quote is one
      line_ += text_[at_] == '\n' ? 1 : 0;
      field += text_[at_];
    }
    OFSDP_REJECT_IF(at_ == text_.size(), "{} line {}: expected the end of a quoted field", path_,
                    begun_);
    ++at_;
    const bool ends = at_ == text_.size() ||
                      std::string_view(ends_, 3).find(text_[at_]) != std::string_view::npos;
    OFSDP_REJECT_IF(!ends, "{} line {}: expected a separator after a quoted field, found '{}'",
                    path_, line_, shown(text_.substr(at_, 1)));
    return {};
  }

  const std::string& path_;
  std::string_view text_;
  const char separator_;
  const char ends_[3] = {separator_, '\n', '\r'};
  size_t at_ = 0;
  int64_t line_ = 1, begun_ = 1;
};

Result<std::vector<std::string>> read_column_names(const std::string& path, Records& records) {
  std::vector<std::string> header;
  OFSDP_ASSIGN_OR_RETURN(const bool any, records.next(header));
  OFSDP_REJECT_IF(!any, "{}: expected a header with the names of columns, found an empty file",
                  path);
  for (std::string& name : header) name = trimmed_text(name);
  for (auto name = header.begin(); name != header.end(); ++name) {
    const bool twice = !name->empty() && std::find(header.begin(), name, *name) != name;
    OFSDP_REJECT_IF(twice, "{} line {}: column '{}' stands twice in the header", path,
                    records.line(), escaped(*name));
  }
  return header;
}

bool is_number(std::string_view text) {
  Numbers numbers;
  return add_number(text, numbers);
}

bool may_be_class(const ColumnSpec& spec, const Rows& rows) {
  return spec.classes && !rows.lists && (rows.named || rows.lengths.empty());
}

Result<Rows> read_records(const ColumnSpec& spec, const std::string& text, char separator) {
  Records records(spec.path, text, separator);
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> header,
                         read_column_names(spec.path, records));
  std::vector<size_t> wanted;
  for (const std::string& part : spec.parts) {
    const auto found = std::ranges::find(header, part);
    OFSDP_REJECT_IF(found == header.end(), "{}: no column '{}' in its header{}", spec.path, part,
                    did_you_mean(part, header));
    wanted.push_back(static_cast<size_t>(found - header.begin()));
  }
  Rows rows;
  rows.lists = wanted.size() > 1;
  std::vector<std::string> fields;
  while (true) {
    OFSDP_ASSIGN_OR_RETURN(const bool more, records.next(fields));
    if (!more) return rows;
    OFSDP_REJECT_IF(fields.size() != header.size(),
                    "{} line {}: expected {} fields as in the header, found {}", spec.path,
                    records.line(), header.size(), fields.size());
    for (const size_t i : wanted) {
      const std::string_view field = trimmed_text(fields[i]);
      if (may_be_class(spec, rows) && add_class(spec, field, !is_number(field), rows)) continue;
      OFSDP_REJECT_IF(rows.named || !add_number(field, rows.numbers),
                      "{} line {}: column '{}': expected a {}, found '{}'", spec.path,
                      records.line(), header[i], rows.named ? "class" : "number", shown(fields[i]));
    }
    rows.lengths.push_back(static_cast<int64_t>(wanted.size()));
    rows.lines.push_back(records.line());
  }
}

// Returns field a.b.c in an object, or the field with that whole name; null if there is none.
const Json* find_field(const Json& object, const std::string& path) {
  const Json* found = &object;
  std::string rest = path;
  while (found->is_object()) {
    if (const auto whole = found->find(rest); whole != found->end()) return &*whole;
    const size_t dot = rest.find('.');
    if (dot == std::string::npos) return nullptr;
    const auto inner = found->find(rest.substr(0, dot));
    if (inner == found->end()) return nullptr;
    found = &*inner;
    rest = rest.substr(dot + 1);
  }
  return nullptr;
}

bool add_number(const Json& value, Numbers& numbers) {
  if (value.is_boolean()) return numbers.add(int64_t{value.get<bool>()}), true;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
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
    OFSDP_ASSIGN_OR_RETURN(const Json object, prefixed(at, parse_unique(line)));
    OFSDP_REJECT_IF(!object.is_object(), "{}: expected a JSON object, found '{}'", at, shown(line));
    const Json* value = find_field(object, spec_.parts[0]);
    OFSDP_REJECT_IF(value == nullptr, "{}: no field '{}'", at, spec_.parts[0]);
    if (rows_.lines.empty()) rows_.lists = value->is_array();
    OFSDP_REJECT_IF(value->is_array() != rows_.lists, "{}: field '{}': expected a {} as before", at,
                    spec_.parts[0], rows_.lists ? "list" : "number");
    bool fits = true;
    const bool text = value->is_string() && may_be_class(spec_, rows_);
    if (text && add_class(spec_, value->get<std::string>(), true, rows_)) {
      // a class
    } else if (rows_.lists) {
      for (const Json& entry : *value) {
        if (!shaped_) learn_shape(entry);
        fits = fits && add_nested(entry, rows_.inner, rows_.numbers);
      }
    } else {
      fits = !rows_.named && add_number(*value, rows_.numbers);
    }
    OFSDP_REJECT_IF(!fits && rows_.named, "{}: field '{}': expected a class as before, found '{}'",
                    at, spec_.parts[0], shown(line));
    OFSDP_REJECT_IF(!fits && value->is_string(),
                    "{}: field '{}': expected numbers, found text, '{}': give a tokenizer's "
                    "numbers, or a class to --labels",
                    at, spec_.parts[0], shown(value->get<std::string>()));
    OFSDP_REJECT_IF(!fits, "{}: field '{}': expected {}, found '{}'", at, spec_.parts[0],
                    rows_.inner.empty() ? "numbers" : "lists of numbers of one length",
                    shown(line));
    rows_.lengths.push_back(rows_.lists ? std::ssize(*value) : 1);
    rows_.lines.push_back(number);
    return {};
  }

  Rows take() { return std::move(rows_); }

 private:
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
  bool shaped_ = false;
};

// Calls `visit(line, number)` for each line that is not blank.
template <typename Visit>
Status for_each_line(std::string_view text, Visit visit) {
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      OFSDP_RETURN_IF_ERROR(visit(line, number));
    }
    at = end + 1;
  }
  return {};
}

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

Result<TextRows> laid_out(const ColumnSpec& spec, Rows rows) {
  OFSDP_REJECT_IF(rows.lengths.empty(), "{}: expected at least 1 row, found none", spec.path);
  OFSDP_ASSIGN_OR_RETURN(const int64_t length, row_length(spec, rows));
  const bool mask = spec.padding && spec.padding->mask;
  TextRows made;
  made.dims = {std::ssize(rows.lengths)};
  if (rows.lists) made.dims.push_back(length);
  if (!mask) made.dims.insert(made.dims.end(), rows.inner.begin(), rows.inner.end());
  Result<int64_t> numel = checked_numel(made.dims);
  if (!numel.ok()) return std::move(numel).status().with_prefix(spec.path);
  OFSDP_REJECT_IF(*numel > kMaxNumbers, "{}: expected at most {} numbers after padding, found {}",
                  spec.path, kMaxNumbers, *numel);
  const double fill = spec.padding ? spec.padding->value : 0;
  if (fill != std::floor(fill)) rows.numbers.make_real();
  made.dtype = mask ? DType::kInt64 : rows.numbers.dtype();
  const auto whole = mask ? int64_t{0} : static_cast<int64_t>(fill);
  std::byte filler[kNumberBytes];
  made.dtype == DType::kInt64 ? std::memcpy(filler, &whole, sizeof whole)
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
    OFSDP_ASSIGN_OR_RETURN(Rows rows,
                           read_records(spec, text, kind == TextKind::kTab ? '\t' : ','));
    return numbered(spec, std::move(rows));
  }
  ObjectLines lines(spec);
  OFSDP_RETURN_IF_ERROR(for_each_line(
      text, [&](std::string_view line, int64_t number) { return lines.add(line, number); }));
  return numbered(spec, lines.take());
}

Result<std::vector<std::string>> text_columns(const ByteSource& source, TextKind kind) {
  OFSDP_ASSIGN_OR_RETURN(const std::string text, whole_text(source));
  if (kind != TextKind::kJsonLines) {
    Records records(source.path(), text, kind == TextKind::kTab ? '\t' : ',');
    return read_column_names(source.path(), records);
  }
  const size_t first = text.find_first_not_of(" \t\r\n");
  const std::string line =
      first == std::string::npos ? "" : text.substr(first, text.find('\n', first) - first);
  OFSDP_ASSIGN_OR_RETURN(const Json object, prefixed(source.path(), parse_unique(line)));
  OFSDP_REJECT_IF(!object.is_object(), "{}: expected a JSON object a line, found '{}'",
                  source.path(), shown(line));
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

}  // namespace ofsdp::runtime
