// Surveys data for people: types, shapes, ranges and missing values of columns, from all rows.
//
// Errors: kInput if a file cannot be read at all. A column that a run would refuse has `problem`.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

// A row that can be seen: RGB, or one value for each of its pixels.
struct Picture {
  int64_t height = 0, width = 0, depth = 0;  // depth 1 or 3, the last axis
  std::vector<std::byte> pixels;
};

struct ColumnSurvey {
  std::string name;
  std::string file;
  std::string type;  // "float32", "int64", "class", "text", "date", "tokens", "list", "nothing"
  std::vector<int64_t> row;  // the axes of a row; -1: lengths differ
  int64_t rows = 0, missing = 0;
  int64_t not_finite = 0;  // numbers that are NaN or infinite
  std::optional<double> least, most;
  int64_t distinct = 0;              // texts; at most kMostDistinct + 1 are counted
  std::vector<std::string> classes;  // the texts, sorted, if there are few
  std::vector<std::string> first;    // the first rows, at most kFirstRows
  std::string problem;               // one line; empty: none
  // Evenly spaced rows, if asked for: bytes as pictures, and rows of one number as text.
  std::vector<Picture> pictures;
  std::vector<std::string> captions;

  bool is_number() const { return least.has_value() && type != "tokens"; }
};

inline constexpr int64_t kMostDistinct = 1000;
inline constexpr size_t kFirstRows = 3;

// Returns true for a .csv, .tsv or .jsonl file.
bool is_table(const std::string& path);

// Returns every column of a table, in its order, or every field; a.b is field b in object a.
Result<std::vector<ColumnSurvey>> survey_table(const std::string& path);

// Returns the lines of a plain text as one column.
Result<ColumnSurvey> survey_text(const std::string& path);

// A part of the data: "train" or "eval"; "" for a file that no description names.
struct SurveyedPart {
  std::string name;
  std::vector<ColumnSurvey> columns;
};

// Returns the columns of each part, as the description has them, with at most so many pictures.
// Each file is opened once, also for two parts of a split.
std::vector<SurveyedPart> survey_parts(const DataSpec& spec, int64_t pictures = 0);

}  // namespace ofsdp::runtime
