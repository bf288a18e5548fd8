// DataSpec: the value of `--data` or `--eval-data`: a file for each column, and how to read it. A
// library caller passes arrays instead.
//
// A value is a folder (columns are the files NAME.npy; `eval/` inside holds the evaluation
// columns), a YAML file with mappings `train:` and `eval:` or `split:`, one file with several
// columns (.npz, .safetensors, .csv, .tsv, .jsonl, .parquet), a folder of images, or the word
// `synthetic`. A configuration file may hold the mapping under `data:`; then its text and folder
// are parsed here. Paths are relative to the YAML file. Only the folder, the YAML and a file's
// column names are read here; Dataset opens the columns, since it knows the types that the graph
// needs.
//
// Errors are kInput with the file (and line) or the flag, the expected and the found value. An
// unknown key is reported with the nearest known one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"

namespace ofsdp::runtime {

// float32 value = (x * scale - mean) / std if x is uint8, a float or a number in text, which is
// rounded to float32 first. Each operation rounds to float32, like torchvision's ToTensor and
// Normalize.
struct Normalization {
  float scale = 1, mean = 0, std = 1;
  // One a channel, in place of mean and std: the first axis of a row has the channels, or the last.
  std::vector<float> means = {}, stds = {};

  size_t channels() const { return std::max({means.size(), stds.size(), size_t{1}}); }
};

inline constexpr float kPixelScale = 1.0f / 255;  // of images, unless a key says otherwise

// Rows that a library caller passes: C order, the first axis in `dims` counts samples.
struct ColumnArray {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  const std::byte* data = nullptr;  // owned by the caller; read only during the call that passes it
};

// Pads rows that differ in length: lists, texts and rows between offsets.
struct Padding {
  std::optional<int64_t> to;    // none: the column's longest row
  std::optional<double> value;  // none: 0, or the tokenizer's token for it
  bool mask = false;            // in place of rows: 1 for an element, 0 for padding
  bool lengths = false;         // in place of rows: the number of elements of each
};

// A text file and a tokenizer.json make the rows (runtime/data/token_rows.h).
struct TokenizerSpec {
  std::string path;                   // the tokenizer.json; ColumnSpec::path is the text
  std::string separator;              // a token after each text; empty: none
  std::optional<int64_t> max_length;  // longer texts are cut
};

// Columns with a file, or a member of a .tar shard, for each sample (image_column.h): pixels of
// images, classes, arrays.
enum class ImageLayout { kChw, kHwc };

// Random changes of images in training (augment.h).
struct Augmentation {
  std::optional<std::array<double, 2>> crop;  // the least and the greatest part of the area
  std::array<double, 2> crop_ratio{3.0 / 4, 4.0 / 3};  // of width to height
  double flip = 0;                                     // the chance to mirror left and right
  double mixup = 0, cutmix = 0;                        // of Beta(a, a); 0: none

  bool any() const { return crop || flip > 0 || mixes(); }
  bool mixes() const { return mixup > 0 || cutmix > 0; }
};

struct ImageSource {
  std::vector<std::string> folders;
  std::string left_out;                  // a subfolder of them that holds no samples
  std::vector<std::string> shards;       // .tar files, in place of folders
  std::string member;                    // of a sample in a shard: the extension
  bool classes = false;                  // in place of pixels: the number of the file's subfolder
  std::optional<int64_t> height, width;  // none: all files have one size
  std::optional<ImageLayout> layout;     // none: channels first
  std::optional<int64_t> channels;       // 1 or 3; other files are converted
  int64_t wanted_channels = 0;           // of the graph's input; 0: any
  Augmentation augmentation = {};
  int threads = 1;  // that decode

  bool has_pixels() const { return !classes && !member.ends_with("npy"); }
};

// The names of classes by number, and the file that has them, for messages.
struct ClassNames {
  std::vector<std::string> names = {};
  std::string source = {};
  bool binding = false;  // else the names count only if they have every name of the data
};

struct ColumnSpec {
  std::string name;  // of images in a folder: empty until the graph's inputs are known
  std::string path;
  // In a file with several columns: the array, the tensor, the field (a.b is field b in object a),
  // or the text columns that make one row.
  std::vector<std::string> parts;
  std::string offsets;  // .npy: where the samples begin (runtime/data/cut_rows.h); empty: none
  std::optional<TokenizerSpec> tokenizer;
  std::optional<Padding> padding;
  std::optional<double> missing;      // text: the number for missing values
  std::optional<ColumnArray> array;   // replaces a file; `path` then names it in messages
  std::optional<ImageSource> images;  // replaces a file; `path` is the first folder
  std::optional<Normalization> normalization;
  int64_t one_hot = 0;       // above 0: a class becomes so many floats, 1 for the class
  std::optional<Shape> row;  // `shape`: the axes that rows are viewed with
  // Token files (.bin) and texts with a tokenizer only.
  std::optional<int64_t> sequence_length, stride;
  std::optional<DType> dtype;  // .bin: uint16 or uint32; none: detected from the bytes
  bool next_token = false;     // row s starts at s * stride + 1
  bool reserve_next = false;   // another column reads the next token, so rows leave one token over
  // Labels: text becomes 0, 1, .. in the order of `known`, else sorted by its bytes.
  bool classes = false;
  ClassNames known = {};
};

// `split`: the set is a part of its columns' rows (row_split.h).
struct SplitPart {
  double part = 0;       // of the rows that evaluate, above 0 and below 1
  uint64_t seed = 0;     // not that of the run: another --seed keeps the parts
  std::string stratify;  // a column of classes; empty: none
  bool evaluation = false;
};

struct ColumnSet {
  std::string origin;  // for messages: "data/" or "mnist.yaml: train"
  std::vector<ColumnSpec> columns;
  std::optional<SplitPart> split = {};

  const ColumnSpec* find(const std::string& name) const;
  // Lets a column hold text that means classes.
  void take_classes(const std::string& name, const ClassNames& known);
  std::vector<std::string> names() const;
};

// Makes a set from a caller's arrays; messages call it `origin`.
ColumnSet column_set(std::span<const ColumnArray> arrays, const std::string& origin);

// The source of samples: a folder or YAML file, made up, or a YAML mapping under `data:`.
struct DataChoice {
  enum class Kind { kComputed, kNone, kPath, kSynthetic, kInline };
  Kind kind = Kind::kComputed;   // as the contract's default: next to the model, or in the data
  std::string path = {};         // kPath
  std::string yaml = {};         // kInline: the mapping as text
  std::string base_folder = {};  // kInline: the files are relative to it
  std::string origin = {};       // kInline: the file it stood in, for messages
};

struct DataSpec {
  bool synthetic = false;  // then `train` has no columns
  ColumnSet train;
  std::optional<ColumnSet> eval;
};

// Names of folders and files that have a part of the data, in any case: train, training; eval, val,
// valid, validation, dev, test. Each returns the place in its list, or -1: the name is no such
// name. Of several names the first in the list has the part.
int training_name(std::string_view name);
int evaluation_name(std::string_view name);

// Reads `--data`.
Result<DataSpec> read_data_spec(const std::string& value);

// Parses the mapping in YAML. Messages call the file `origin`.
Result<DataSpec> parse_data_yaml(const std::string& text, const std::string& folder,
                                 const std::string& origin);

// Reads `--eval-data`: a folder's `eval/` columns, or the folder itself if it has none; a YAML
// file's `eval:` mapping, or `train:` if it has none.
Result<ColumnSet> read_eval_spec(const std::string& value);

}  // namespace ofsdp::runtime
