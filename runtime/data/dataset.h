// Dataset opens the columns that a graph needs, checks them and reads them by sample number.
//
// `open` opens columns by name; all must have the same length. `bind` fixes the conversion to the
// type and shape that the graph needs. `read_rows` then decodes rows from columns()[i], the i-th
// bound one.
//
// Owns the open files and 64 KiB scratch memory. `open` is collective; the rest must be called by
// one thread at a time. Errors are kInput with column, file, the expected and the found value.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "runtime/data/column_file.h"
#include "runtime/data/data_spec.h"
#include "runtime/data/row_source.h"

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
// equal, changes the width of integers with a range check, makes float32 of float16, float64 and
// (with a table of 256 values) uint8. No other pair of types converts. `run` does not allocate.
class Converter {
 public:
  // Returns none if `from` does not convert to `to`, or if `normalization` is given and the types
  // allow none: it makes float32 of uint8, floats and text. `of_text`: int64 also converts to
  // float32 and bool, since text has no types.
  // `classes`: floats also convert to integers if they are whole: labels saved as 1.0.
  // `channel_elements`: adjacent elements of one channel, if the normalization has several.
  static std::optional<Converter> between(DType from, DType to,
                                          const std::optional<Normalization>& normalization,
                                          bool of_text = false, bool classes = false,
                                          int64_t channel_elements = 1);

  bool is_copy() const { return function_ == nullptr && table_.empty() && !normalization_; }
  // Converts `count` little-endian elements, the first of which is element `first` of a row or of
  // several. Returns the index of the first that does not fit, or `count`.
  size_t run(const std::byte* src, size_t count, std::byte* dst, size_t first = 0) const;

 private:
  size_t look_up(const std::byte* src, size_t count, std::byte* dst, size_t first) const;
  void normalize(std::byte* floats, size_t count, size_t first) const;

  size_t element_bytes_ = 0;  // when copying
  size_t (*function_)(const std::byte* src, size_t count, std::byte* dst) = nullptr;
  std::vector<float> table_;                    // uint8: 256 values for each channel
  std::optional<Normalization> normalization_;  // if there is no table
  size_t channel_elements_ = 1;
};

void swap_bytes(std::byte* data, size_t count, size_t element_bytes);  // in place

std::string element_text(DType dtype, const std::byte* element);  // for messages
std::string range_text(DType integer);                            // "-128..127"

struct WantedColumn {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;  // of a row, without the axis of samples; -1: any length
  bool flat = false;          // only the number of elements must match (for labels)
  bool classes = false;       // labels: whole floats convert to integers
  int64_t below = 0;          // above 0: elements index an axis of that length, also from its end
};

class Dataset : public RowSource {
 public:
  static Result<std::unique_ptr<Dataset>> open(const ColumnSet& set,
                                               const std::vector<std::string>& names,
                                               Communicator& communicator, MemoryLedger& ledger);

  Status bind(const std::vector<WantedColumn>& wanted);

  // Takes the next arrays of a caller, with any number of rows. Row i becomes sample first + i *
  // stride. REQUIRES: the dataset was opened from arrays.
  Status replace(std::span<const ColumnArray> arrays, int64_t first = 0, int64_t stride = 1);

  // Reads a whole integer column and returns an error for the first label out of range.
  Status check_labels(const std::string& name, const LabelRange& range);

  // Returns the texts of a column's classes, by number; empty if the file has numbers.
  std::vector<std::string> classes(const std::string& name) const;
  // Returns the layout in the file; null if the column was not opened.
  const ColumnLayout* stored(const std::string& name) const;
  size_t shared_bytes() const;  // decoded files, held once a host

  int64_t samples() const override { return samples_; }
  std::span<const BoundColumn> columns() const override { return bound_; }
  Status read_rows(int column, std::span<const int64_t> samples, std::byte* dst) override;

 private:
  struct Column {
    ColumnSpec spec;
    ColumnFile file;
  };
  struct Binding {
    size_t column;  // index into columns_
    Converter converter;
    int64_t below = 0;
  };

  Dataset();
  Status check_lengths(const std::string& origin) const;
  const Column* find(const std::string& name) const;
  const Column& file_of(int column) const {
    return columns_[bindings_[static_cast<size_t>(column)].column];
  }
  Status bind_column(const WantedColumn& wanted);
  Status read_range(int column, int64_t begin, int64_t rows, std::byte* dst);
  Status wrong_value(int column, int64_t sample, const std::byte* element) const;
  Status check_indices(int column, std::span<const int64_t> samples, const std::byte* rows) const;
  Status check_label_range(const Column& column, uint64_t begin, uint64_t end,
                           const LabelRange& range);
  Status read_raw(const Column& column, uint64_t offset, size_t elements);

  std::vector<Column> columns_;
  std::vector<BoundColumn> bound_;  // in the order of `wanted`
  std::vector<Binding> bindings_;   // bindings_[i] reads bound_[i]
  std::vector<std::byte> scratch_;
  int64_t samples_ = 0;
  int64_t first_ = 0, stride_ = 1;  // row i is sample first_ + i * stride_
};

}  // namespace ofsdp::runtime
