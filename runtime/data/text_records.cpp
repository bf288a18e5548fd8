#include "runtime/data/text_records.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "importer/file/tensor_file.h"
#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

// Spreadsheets write semicolons where the comma is the decimal point.
char separator_of(std::string_view text, TextKind kind) {
  if (kind == TextKind::kTab) return '\t';
  bool quoted = false, semicolon = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == ',') return ',';
    if (c == '\n' || c == '\r') break;
    semicolon = semicolon || c == ';';
  }
  return semicolon ? ';' : ',';
}

}  // namespace

Result<std::string> whole_text(const ByteSource& source) {
  OFSDP_ASSIGN_OR_RETURN(const bool gzip, is_gzip(source));
  std::string text(gzip ? 0 : source.size(), '\0');
  if (gzip) {
    OFSDP_ASSIGN_OR_RETURN(text, inflate_text(source));
  } else {
    OFSDP_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(text))));
  }
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

std::string lower_text(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return lower;
}

std::string_view trimmed_text(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::string shown(std::string_view text) { return escaped(std::string(text.substr(0, 40))); }

bool is_missing_cell(std::string_view text) {
  constexpr std::string_view kWords[] = {"", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-"};
  return std::ranges::find(kWords, lower_text(text)) != std::end(kWords);
}

bool is_missing_class(std::string_view text, const ColumnSpec& spec) {
  if (text.empty() || !spec.missing || !is_missing_cell(text)) return text.empty();
  return std::ranges::find(spec.known.names, text) == spec.known.names.end();
}

std::string_view missing_remark(bool label) {
  return label ? ", a missing value: -100, the ignore-index, leaves a row out of the loss"
               : ", a missing value: `missing: NUMBER` in a YAML file gives the number to take";
}

bool is_date_cell(std::string_view text) {
  size_t at = 0;
  for (int group = 0; group < 3; ++group) {
    const size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
    if (end == at || end - at > 4) return false;
    at = end;
    if (group == 2) break;
    const bool separated =
        at < text.size() && std::string_view("-/.").find(text[at]) != std::string_view::npos;
    if (!separated) return false;
    ++at;
  }
  return at == text.size() || text[at] == ' ' || text[at] == 'T';
}

std::optional<CellNumber> cell_number(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return int64_t{1};
  if (text == "false" || text == "False" || text == "FALSE") return int64_t{0};
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  int64_t whole = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), whole);
  if (error == std::errc() && end == text.end()) return whole;
  uint64_t large = 0;
  const auto [tail, bad] = std::from_chars(text.begin(), text.end(), large);
  if (bad == std::errc() && tail == text.end()) return large;
  double real = 0;
  const auto [stop, wrong] = std::from_chars(text.begin(), text.end(), real);
  const bool number = wrong == std::errc() && stop == text.end() && std::isfinite(real);
  return number ? std::optional<CellNumber>(real) : std::nullopt;
}

Records::Records(const std::string& path, std::string_view text, TextKind kind)
    : path_(path),
      text_(text),
      separator_(separator_of(text, kind)),
      ends_{separator_, '\n', '\r'} {}

Result<std::vector<std::string>> Records::header() {
  std::vector<std::string> names;
  const bool wide = text_.starts_with("\xff\xfe") || text_.starts_with("\xfe\xff");
  OFSDP_REJECT_IF(wide, "{}: expected text in UTF-8, found UTF-16: save it as UTF-8", path_);
  OFSDP_ASSIGN_OR_RETURN(const bool any, read(names, /*trims=*/true));
  OFSDP_REJECT_IF(!any, "{}: expected a header with the names of columns, found an empty file",
                  path_);
  for (auto name = names.begin(); name != names.end(); ++name) {
    const bool twice = !name->empty() && std::find(names.begin(), name, *name) != name;
    OFSDP_REJECT_IF(twice, "{} line {}: column '{}' stands twice in the header", path_, line(),
                    escaped(*name));
  }
  columns_ = names.size();
  return names;
}

Result<bool> Records::next(std::vector<std::string>& fields) {
  OFSDP_ASSIGN_OR_RETURN(const bool more, read(fields));
  OFSDP_REJECT_IF(more && fields.size() != columns_,
                  "{} line {}: expected {} fields as in the header, found {}", path_, line(),
                  columns_, fields.size());
  return more;
}

// `trims`: fields without quotes lose the blanks around them.
Result<bool> Records::read(std::vector<std::string>& fields, bool trims) {
  while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) skip_line_end();
  if (at_ == text_.size()) return false;
  fields.clear();
  begun_ = line_;
  while (true) {
    const bool quoted = at_ < text_.size() && text_[at_] == '"';
    std::string& field = fields.emplace_back();
    OFSDP_RETURN_IF_ERROR(read_field(field));
    if (trims && !quoted) field = trimmed_text(field);
    if (at_ == text_.size() || text_[at_] != separator_) break;
    ++at_;
  }
  if (at_ < text_.size()) skip_line_end();
  return true;
}

void Records::skip_line_end() {
  if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
  ++at_;
  ++line_;
}

Status Records::read_field(std::string& field) {
  if (at_ < text_.size() && text_[at_] == '"') return read_quoted(field);
  const size_t end = std::min(text_.find_first_of(std::string_view(ends_, 3), at_), text_.size());
  field = text_.substr(at_, end - at_);
  at_ = end;
  return {};
}

Status Records::read_quoted(std::string& field) {
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
  const bool ends =
      at_ == text_.size() || std::string_view(ends_, 3).find(text_[at_]) != std::string_view::npos;
  OFSDP_REJECT_IF(!ends, "{} line {}: expected a separator after a quoted field, found '{}'", path_,
                  line_, shown(text_.substr(at_, 1)));
  return {};
}

Result<nlohmann::json> parse_object(const std::string& at, std::string_view line) {
  OFSDP_ASSIGN_OR_RETURN(nlohmann::json object, prefixed(at, parse_unique(line)));
  OFSDP_REJECT_IF(!object.is_object(), "{}: expected a JSON object, found '{}'", at, shown(line));
  return object;
}

const nlohmann::json* find_field(const nlohmann::json& object, const std::string& path) {
  const nlohmann::json* found = &object;
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

}  // namespace ofsdp::runtime
