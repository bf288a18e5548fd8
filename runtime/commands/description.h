// The lines of a YAML file for --data that feed a model, or any model: columns matched with the
// model's inputs by name, else by kind and shape, and labels.
//
// Each function returns the lines below `train:` or `eval:`. Files are named as `file` says,
// relative to the YAML file.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "importer/graph/graph.h"
#include "kernels/core/dtype.h"
#include "runtime/data/survey.h"

namespace ofsdp::runtime {

// The name of a tokenizer in the lines, next to the YAML file.
inline constexpr const char* kTokenizerFile = "tokenizer.json";

// A graph input that needs a column.
struct DataInput {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> dims;  // of a row; -1: open
};

std::string describe_table(const std::string& file, const std::vector<ColumnSurvey>& columns,
                           const std::vector<DataInput>& inputs);

// The tokens of a plain text follow each other; with a mask among the inputs each line is a row.
std::string describe_text(const std::string& file, const std::vector<DataInput>& inputs);

// Returns the first input, as it is written, for which no columns were found; empty: none.
std::string input_without_columns(const std::string& lines);

// Returns whether lines name kTokenizerFile; the lines with `file` in its place.
bool names_tokenizer(const std::string& lines);
std::string with_tokenizer(std::string lines, const std::string& file);

// The columns are arrays or images. `place` turns a path into one relative to the YAML file.
std::string describe_columns(const ColumnSet& set, const std::vector<ColumnSurvey>& columns,
                             const std::vector<DataInput>& inputs,
                             const std::function<std::string(const std::string&)>& place);

// A column of labels.
struct LabelRows {
  std::vector<int64_t> row = {};  // the axes with the samples' first; empty: there are no labels
  bool named = false, whole = false;
  bool binary = false;  // only 0 and 1
  int64_t classes = 0;  // names, or the largest whole number and 1; 0: not known
};

// Returns the loss that the prediction and the labels tell; empty: they leave it open.
std::string fitting_loss(const Graph& graph, const LabelRows& labels);

// Returns the number of scores in a row of the only prediction [batch, scores]; 0: there is none.
int64_t scores_a_row(const Graph& graph);

// Returns `split: 0.1`, by class if `columns` have few; empty if they have too few rows.
std::string describe_split(const std::vector<ColumnSurvey>& columns, const std::string& lines);

}  // namespace ofsdp::runtime
