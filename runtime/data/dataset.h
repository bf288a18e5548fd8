// Dataset: the columns of a ColumnSet that a graph wants, opened, checked and read by sample.
//
// `open` takes names and gives columns of equal length; `bind` takes what the graph wants of each
// and settles conversions once; `read_rows` then decodes rows of columns()[i], the i-th wanted one.
//
// Ownership: owns the open files and 64 KiB of scratch. Threads: `open` is collective over the
// ranks; the rest one thread at a time. Errors: kInput naming column, file, and what was expected
// and found.
#pragma once

#include <memory>
#include <vector>

#include "runtime/data/column_file.h"
#include "runtime/data/convert.h"
#include "runtime/data/labels.h"
#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

struct WantedColumn {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;  // of a row: without the axis of samples; -1 is any length
  bool flat = false;          // only the number of elements counts (labels are flattened to fit)
  bool classes = false;       // labels: floats that are whole numbers are classes, too
};

class Dataset : public RowSource {
 public:
  static Result<std::unique_ptr<Dataset>> open(const ColumnSet& set,
                                               const std::vector<std::string>& names,
                                               Communicator& communicator, MemoryLedger& ledger);

  Status bind(const std::vector<WantedColumn>& wanted);

  // Takes the next arrays of a caller, with any number of rows, which are samples first, first +
  // stride, ... from now on. REQUIRES: opened from arrays.
  Status replace(std::span<const ColumnArray> arrays, int64_t first = 0, int64_t stride = 1);

  // Reads a whole integer column once and finds the first label that is out of range.
  Status check_labels(const std::string& name, const LabelRange& range);

  // As stored; null when the column was not opened.
  const ColumnLayout* stored(const std::string& name) const;
  size_t shared_bytes() const;  // of inflated files, held once a host

  int64_t samples() const override { return samples_; }
  std::span<const BoundColumn> columns() const override { return bound_; }
  Status read_rows(int column, std::span<const int64_t> samples, std::byte* dst) override;

 private:
  struct Column {
    ColumnSpec spec;
    ColumnFile file;
  };
  struct Binding {
    size_t column;  // of columns_
    Converter converter;
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
  Status check_label_range(const Column& column, uint64_t begin, uint64_t end,
                           const LabelRange& range);
  Status read_raw(const Column& column, uint64_t offset, size_t elements);

  std::vector<Column> columns_;
  std::vector<BoundColumn> bound_;  // in the order of `wanted`
  std::vector<Binding> bindings_;   // how bound_[i] is read
  std::vector<std::byte> scratch_;
  int64_t samples_ = 0;
  int64_t first_ = 0, stride_ = 1;  // the sample of the first row, and from a row to the next
};

}  // namespace ofsdp::runtime
