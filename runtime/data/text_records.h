// Reads text files of rows: records of .csv and .tsv (RFC 4180), objects of .jsonl and lines.
//
// Texts are not trusted. Views point into the caller's text. Errors are kInput with file and line,
// counted from 1.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/column_file.h"

namespace ofsdp::runtime {

// Returns the whole file, inflated if it is gzipped, without a byte order mark.
Result<std::string> whole_text(const ByteSource& source);

std::string lower_text(std::string_view text);         // ASCII letters in lower case
std::string_view trimmed_text(std::string_view text);  // without blanks and tabs at both ends
std::string shown(std::string_view text);              // at most 40 bytes, escaped, for messages

// The cells of a table, trimmed.

// Returns true for an empty cell, and for words for a missing value in spreadsheets, pandas, R and
// databases.
bool is_missing_cell(std::string_view text);
// Returns true if a class by name is missing: an empty cell, and such a word if the column has
// `missing` and no class of that name is known.
bool is_missing_class(std::string_view text, const ColumnSpec& spec);
// Returns ", a missing value: REMEDY"; that of a column of labels names the ignore-index.
std::string_view missing_remark(bool label);
// Returns true for 2024-01-31, 31.1.2024, 1/31/24 and the like, with or without a time.
bool is_date_cell(std::string_view text);
// Reads a number, True or False; none for another text and for infinite numbers.
using CellNumber = std::variant<int64_t, uint64_t, double>;  // the first type that has it
std::optional<CellNumber> cell_number(std::string_view text);

// Iterates over the records of a table. A .csv file whose header has semicolons and no comma is
// separated by semicolons. REQUIRES: `path` and `text` outlive it.
class Records {
 public:
  Records(const std::string& path, std::string_view text, TextKind kind);

  // Reads the first record: names of columns, none twice. A name in quotes keeps its blanks. Call
  // it before `next`.
  Result<std::vector<std::string>> header();
  // Returns false at the end. Skips empty lines. A record must have as many fields as the header.
  Result<bool> next(std::vector<std::string>& fields);
  int64_t line() const { return begun_; }  // where the record begins

 private:
  Result<bool> read(std::vector<std::string>& fields, bool trims = false);
  void skip_line_end();
  Status read_field(std::string& field);
  Status read_quoted(std::string& field);

  const std::string& path_;
  std::string_view text_;
  const char separator_;
  const char ends_[3];
  size_t at_ = 0, columns_ = 0;
  int64_t line_ = 1, begun_ = 1;
};

// Parses an object of .jsonl; `at` names the line.
Result<nlohmann::json> parse_object(const std::string& at, std::string_view line);

// Returns field a.b.c in an object, or the field with that whole name; null if there is none.
const nlohmann::json* find_field(const nlohmann::json& object, const std::string& path);

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

}  // namespace ofsdp::runtime
