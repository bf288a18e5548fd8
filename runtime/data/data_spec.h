// DataSpec: the value of `--data` or `--eval-data`: a file for each column, and how to read it. A
// caller of the library passes arrays instead of files.
//
// A value is a folder (columns are the files NAME.npy; `eval/` inside holds the evaluation
// columns), a YAML file with mappings `train:` and `eval:`, one file with several columns (.npz,
// .safetensors, .csv, .tsv, .jsonl), or the word `synthetic`. A configuration file may hold the
// mapping under `data:`; then its text and folder are parsed here. Paths are relative to the YAML
// file. Only the folder, the YAML and the column names of a file are read here; Dataset opens the
// columns, since it knows the types that the graph needs.
//
// Errors are kInput with the file (and line) or the flag, the expected and the found value. An
// unknown key is reported with the nearest known one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/shape.h"

namespace ofsdp::runtime {

// float32 value = (x * scale - mean) / std of a uint8 x. Each operation rounds to float32, like
// torchvision's ToTensor and Normalize.
struct Normalization {
  float scale = 1, mean = 0, std = 1;
};

// Rows passed by a caller of the library: C order, the first axis of `dims` counts samples.
struct ColumnArray {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  const std::byte* data = nullptr;  // owned by the caller; read only during the call that passes it
};

// Pads rows of different length.
struct Padding {
  std::optional<int64_t> to;  // none: the length of the longest row of the column
  double value = 0;
  bool mask = false;  // instead of the rows: 1 for an element, 0 for padding
};

struct ColumnSpec {
  std::string name;
  std::string path;
  // In a file with several columns: the array, the tensor, the field (a.b is field b of object a),
  // or the text columns that make one row.
  std::vector<std::string> parts;
  std::optional<Padding> padding;
  std::optional<ColumnArray> array;  // instead of a file; `path` then names it in messages
  std::optional<Normalization> normalization;  // if given, the file must hold uint8
  std::optional<Shape> row;                    // `shape`: the axes that rows are viewed with
  // Token files (.bin) only.
  std::optional<int64_t> sequence_length, stride;
  std::optional<DType> dtype;  // uint16 or uint32; none: detected from the bytes
  bool next_token = false;     // row s starts at s * stride + 1
  bool reserve_next = false;   // another column reads the next token, so rows leave one token over
};

struct ColumnSet {
  std::string origin;  // for messages: "data/" or "mnist.yaml: train"
  std::vector<ColumnSpec> columns;

  const ColumnSpec* find(const std::string& name) const;
  std::vector<std::string> names() const;
};

// Makes a set from the arrays of a caller; messages call it `origin`.
ColumnSet column_set(std::span<const ColumnArray> arrays, const std::string& origin);

struct DataSpec {
  bool synthetic = false;  // then `train` has no columns
  ColumnSet train;
  std::optional<ColumnSet> eval;
};

// Reads the value of `--data`.
Result<DataSpec> read_data_spec(const std::string& value);

// Parses the mapping in YAML. Messages call the file `origin`.
Result<DataSpec> parse_data_yaml(const std::string& text, const std::string& folder,
                                 const std::string& origin);

// Reads the value of `--eval-data`: the `eval/` columns of a folder, or the folder itself if it has
// none; the `eval:` mapping of a YAML file, or `train:` if it has none.
Result<ColumnSet> read_eval_spec(const std::string& value);

}  // namespace ofsdp::runtime
