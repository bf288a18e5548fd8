// DataSpec: the values of `--data` and `--eval-data`: the file of each column, and how to read it.
// A caller of the library brings arrays instead of files.
//
// A value is a folder (columns are its NAME.npy; `eval/` inside holds the evaluation columns), a
// YAML file with `train:` and `eval:` mappings of columns, one file of several columns (.npz,
// .safetensors, .csv, .tsv, .jsonl: all that it holds), or the word `synthetic`. The mapping may
// also stand in a configuration file under `data:`; then its text and folder come here. Relative
// paths are relative to the YAML file. Nothing is opened but the folder, the YAML and the names in
// a file of several columns: columns are opened by Dataset, which knows what the graph wants.
//
// Errors: kInput naming the file (and line) or the flag, what was
// expected and what was found; unknown keys with the nearest known one.
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

// float32 value = (x * scale - mean) / std of a uint8 x, each operation in float32 as torchvision's
// ToTensor and Normalize do it.
struct Normalization {
  float scale = 1, mean = 0, std = 1;
};

// Rows that the caller of the library brings: C order, the first axis of `dims` being samples.
struct ColumnArray {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  const std::byte* data = nullptr;  // the caller's; read during the call that brings it
};

// Rows of different length, made alike.
struct Padding {
  std::optional<int64_t> to;  // none: as long as the longest row of the column
  double value = 0;
  bool mask = false;  // instead of the rows: 1 where they have an element, 0 where they are padded
};

struct ColumnSpec {
  std::string name;
  std::string path;
  // In a file of several columns: the array, the tensor, the field (a.b is a field in a field) or
  // the columns of text, side by side in a row.
  std::vector<std::string> parts;
  std::optional<Padding> padding;
  std::optional<ColumnArray> array;  // instead of a file; `path` then names it in messages
  std::optional<Normalization> normalization;  // given at all: then the file must hold uint8
  std::optional<Shape> row;                    // `shape`: the row seen as these axes
  // Token files (.bin) only.
  std::optional<int64_t> sequence_length, stride;
  std::optional<DType> dtype;  // uint16 or uint32; absent: told from the bytes
  bool next_token = false;     // row s starts at s * stride + 1
  bool reserve_next = false;   // another column reads the next token: so many rows and no more
};

struct ColumnSet {
  std::string origin;  // for messages: "data/" or "mnist.yaml: train"
  std::vector<ColumnSpec> columns;

  const ColumnSpec* find(const std::string& name) const;
  std::vector<std::string> names() const;
};

// The columns of a caller's arrays; `origin` names them together in messages.
ColumnSet column_set(std::span<const ColumnArray> arrays, const std::string& origin);

struct DataSpec {
  bool synthetic = false;  // then `train` has no columns
  ColumnSet train;
  std::optional<ColumnSet> eval;
};

// The value of `--data`.
Result<DataSpec> read_data_spec(const std::string& value);

// The mapping as YAML text. `origin` names the file in messages.
Result<DataSpec> parse_data_yaml(const std::string& text, const std::string& folder,
                                 const std::string& origin);

// The value of `--eval-data`: a folder's own columns (its eval/ where it has none), a YAML file's
// `eval:` part, else its `train:` part.
Result<ColumnSet> read_eval_spec(const std::string& value);

}  // namespace ofsdp::runtime
