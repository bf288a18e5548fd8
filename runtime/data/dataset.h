// Dataset opens the columns that a graph needs, checks them and reads them by sample number.
//
// `open` opens columns by name; all must have the same length. `bind` fixes the conversion to the
// type and shape that the graph needs. `read_rows` then decodes rows from columns()[i], the i-th
// bound one.
//
// Rows that are decoded (images) are made by several threads, one row each at a time, in one order
// whatever their number.
//
// Owns the open files, 64 KiB scratch memory and that of decoding. `open` is collective; the rest
// must be called by one thread at a time. Errors are kInput with column, file, the expected and the
// found value; those of decoding are kFault.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "runtime/data/augment.h"
#include "runtime/data/column_file.h"
#include "runtime/data/data_spec.h"
#include "runtime/data/row_source.h"
#include "runtime/data/row_split.h"

namespace ofsdp::runtime {

// Labels: the allowed range, and the count that divides the loss.
//
// A label is kept if it is not the ignore-index. The mean over the global batch divides by the
// labels kept on all ranks, or by their class weights' sum if the loss has any. A run without
// labels divides by its samples.
//
// Labels are int32 or int64 of any shape. A label outside 0 .. classes-1 is kInput with file,
// column, sample and value.
struct LabelRange {
  int64_t classes = 0;  // labels are 0 .. classes-1; 0: no limit
  int64_t ignore_index = -100;

  bool allows(int64_t label) const {
    return classes == 0 || label == ignore_index || (label >= 0 && label < classes);
  }
};

struct LabelRule {
  int column = -1;  // index into RowSource::columns(); -1: no labels, every sample counts 1
  LabelRange range;
  std::vector<float> class_weights;  // one a class; empty: every kept label counts 1
};

Status wrong_label(const std::string& source, const std::string& column, int64_t sample,
                   int64_t label, const LabelRange& range);

// Returns the sum of the weights of the kept labels in `samples`. Does not allocate on success.
Result<double> count_kept(const LabelRule& rule, const BoundColumn& column,
                          std::span<const int64_t> samples, const std::byte* labels);

// Converter turns stored elements into the type that the graph needs: copies if the types are
// equal, changes the width of integers with a range check, makes float32 of float16, float64 (a
// finite number must stay finite) and (with a table of 256 values) uint8, and float16, bfloat16 and
// float64 of all that makes float32 but bytes. No other pair of types converts. `run` does not
// allocate.
class Converter {
 public:
  // Returns none if `from` does not convert to `to`, or if `normalization` is given and the types
  // allow none: it makes float32 of uint8, floats and tables. `of_text`, as in a table: integers
  // also convert to float32, float64 and bool, and floats to integers and bool if they are whole.
  // `classes`: floats also convert to integers if they are whole: labels saved as 1.0.
  // `channel_elements`: adjacent elements of one channel, if the normalization has several.
  static std::optional<Converter> between(DType from, DType to,
                                          const std::optional<Normalization>& normalization,
                                          bool of_text = false, bool classes = false,
                                          int64_t channel_elements = 1);

  // Labels become numbers of classes: label `labels[i]` becomes i. Negative ones that name no class
  // stay; others do not fit. `to`: the type of the labels, int64 or int32.
  void name_classes(std::span<const int64_t> labels, DType to);

  bool is_copy() const {
    return function_ == nullptr && from_floats_ == nullptr && table_.empty() && !normalization_ &&
           classes_.empty();
  }
  // Converts `count` little-endian elements, the first of which is element `first` of a row or of
  // several. Returns the index of the first that does not fit, or `count`.
  size_t run(const std::byte* src, size_t count, std::byte* dst, size_t first = 0) const;

 private:
  size_t look_up(const std::byte* src, size_t count, std::byte* dst, size_t first) const;
  void normalize(std::byte* floats, size_t count, size_t first) const;
  size_t run_through_floats(const std::byte* src, size_t count, std::byte* dst) const;
  template <typename Label>
  size_t number_classes(std::byte* labels, size_t count) const;

  size_t element_bytes_ = 0;  // when copying
  size_t (*function_)(const std::byte* src, size_t count, std::byte* dst) = nullptr;
  size_t (*from_floats_)(const std::byte* src, size_t count, std::byte* dst) = nullptr;  // after it
  size_t last_bytes_ = 0;                             // of an element that from_floats_ makes
  std::vector<std::pair<int64_t, int64_t>> classes_;  // label, number; sorted
  bool wide_classes_ = false;
  std::vector<float> table_;                    // uint8: 256 values for each channel
  std::optional<Normalization> normalization_;  // if there is no table
  size_t channel_elements_ = 1;
};

void swap_bytes(std::byte* data, size_t count, size_t element_bytes);  // in place

std::string element_text(DType dtype, const std::byte* element);  // for messages
std::string range_text(DType dtype);  // of integers, bool and float32: "-128..127"

struct WantedColumn {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;  // of a row, without the axis of samples; -1: any length
  bool flat = false;          // only the number of elements must match (for labels)
  bool classes = false;       // labels: whole floats convert to integers
  int64_t below = 0;          // above 0: elements index an axis of that length, also from its end
};

// Returns the class of each row in the column by which a `split` is stratified.
Result<std::vector<int64_t>> row_classes(const std::string& name, const ColumnFile& file);

class RowDecoding;

// Images of a column mix with each other.
struct RowMixing {
  const ImageSource* images = nullptr;
  int64_t height = 0, width = 0;
};

class Dataset : public RowSource {
 public:
  ~Dataset() override;
  static Result<std::unique_ptr<Dataset>> open(const ColumnSet& set, std::vector<std::string> names,
                                               Communicator& communicator, MemoryLedger& ledger);
  // Opens the other part of `split` over the columns of `first`, which both then own.
  static Result<std::unique_ptr<Dataset>> open_part(const ColumnSet& set, const Dataset& first,
                                                    MemoryLedger& ledger);

  // Returns how `split` cuts the rows; null without one.
  const std::shared_ptr<const RowSplit>& split() const { return split_; }

  Status bind(const std::vector<WantedColumn>& wanted);

  // Takes the next arrays of a caller, with any number of rows. Row i becomes sample first + i *
  // stride. REQUIRES: the dataset was opened from arrays.
  Status replace(std::span<const ColumnArray> arrays, int64_t first = 0, int64_t stride = 1);

  // Lets images be changed at random from now on, as their columns say, by draws of `seed`. Returns
  // kInput if rows are mixed, but their labels cannot be. REQUIRES: bind.
  Status augment(uint64_t seed);

  // Reads a whole integer column and returns an error for the first label out of range.
  Status check_labels(const std::string& name, const LabelRange& range);

  // Returns how many entries each row has: the number in the row, or the entries up to the last
  // whose bytes are not all 0. REQUIRES: the column was opened.
  Result<std::vector<int32_t>> read_lengths(const std::string& name) const;

  // Returns the texts of a column's classes, by number; empty if the file has numbers.
  std::vector<std::string> classes(const std::string& name) const;
  // Returns a row's shape before binding. REQUIRES: the column was opened.
  Shape row_shape(const std::string& name) const;
  // Returns the column's file or folder. REQUIRES: the column was opened.
  const std::string& path_of(const std::string& name) const;
  // Returns the layout in the file; null if the column was not opened.
  const ColumnLayout* stored(const std::string& name) const;
  size_t shared_bytes() const;    // decoded files, held once a host; 0 after open_part
  size_t decoding_bytes() const;  // scratch memory of the threads that decode rows

  int64_t samples() const override { return samples_; }
  std::span<const BoundColumn> columns() const override { return bound_; }
  Status read_rows(int column, std::span<const int64_t> samples, std::byte* dst) override;
  void begin_epoch(int64_t epoch) override { epoch_ = epoch; }

 private:
  struct Column {
    ColumnSpec spec;
    ColumnFile file;
  };
  struct Binding {
    size_t column;  // index into columns_
    Converter converter;
    int64_t below = 0;
    int64_t one_hot = 0;  // the classes of a row of floats
  };

  Dataset();
  Status prepare_decoding(MemoryLedger& ledger);
  Status decode_rows(int column, std::span<const int64_t> samples, std::byte* dst);
  Status decode_row(int column, int64_t sample, std::span<std::byte> scratch, std::byte* dst) const;
  Status mix_row(int column, int64_t sample, std::span<std::byte> scratch, float* dst) const;
  Status check_mixing() const;
  RowMix mix_of(int64_t sample) const;
  Status read_one_hot(int column, std::span<const int64_t> samples, float* dst);
  Result<size_t> class_of(int column, int64_t sample);
  Status check_lengths(const std::string& origin) const;
  Status choose_part(const ColumnSet& set);
  const Column* find(const std::string& name) const;
  const Column& file_of(int column) const {
    return *columns_[bindings_[static_cast<size_t>(column)].column];
  }
  Status bind_column(const WantedColumn& wanted);
  Status bind_one_hot(const WantedColumn& wanted, const Column* column);
  Status read_range(int column, int64_t begin, int64_t rows, std::byte* dst);
  // Reads a whole table, which is in memory, and returns an error for the first value that does not
  // fit: before the first step.
  Status check_table(int column);
  // `index`: of the element in its row.
  Status wrong_value(int column, int64_t sample, int64_t index, const std::byte* element) const;
  Status check_indices(int column, std::span<const int64_t> samples, const std::byte* rows) const;
  Status check_label_range(const Column& column, uint64_t begin, uint64_t end,
                           const LabelRange& range);
  Status read_raw(const Column& column, uint64_t offset, size_t elements);

  int64_t stored_rows() const;  // of this part
  // Returns the row in the files.
  int64_t row_of(int64_t sample) const {
    const int64_t row = (sample - first_) / stride_;
    OFSDP_CHECK(row >= 0 && row < samples_, "sample {}: row {} of {}", sample, row, samples_);
    return split_ ? split_->row(evaluation_, row) : row;
  }

  std::vector<std::shared_ptr<Column>> columns_;
  bool owns_columns_ = true;               // counts their shared bytes
  std::shared_ptr<const RowSplit> split_;  // null: all rows
  bool evaluation_ = false;
  std::vector<BoundColumn> bound_;  // in the order of `wanted`
  std::vector<Binding> bindings_;   // bindings_[i] reads bound_[i]
  std::vector<std::byte> scratch_;
  std::unique_ptr<RowDecoding> decoding_;  // null: no column is decoded row by row
  std::optional<uint64_t> augment_seed_;   // none: images stay as they are
  std::optional<RowMixing> mixing_;        // how rows are mixed, if they are
  int64_t epoch_ = 0;
  int64_t samples_ = 0;
  int64_t first_ = 0, stride_ = 1;  // row i is sample first_ + i * stride_
};

}  // namespace ofsdp::runtime
