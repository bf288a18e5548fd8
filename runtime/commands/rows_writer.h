// RowsWriter writes the outputs that `fsdp-run predict` computes, batch by batch, as rows in order:
// .npy holds one output, .npz each under its name, .csv a line for each sample.
//
// The file must exist and be empty; the caller makes it appear (write_whole). Threads: one.
// Errors: kInput if the format has no place for an output, kFault (disk).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"

namespace ofsdp::runtime {

// An output as rows: `row` is the shape of one sample.
struct Prediction {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape row;
  int64_t outer = 1;  // places before the samples (importer/passes/sample_order.h)

  int64_t inner() const { return row.numel() / outer; }
  size_t row_bytes() const { return static_cast<size_t>(row.numel()) * dtype_size(dtype); }
};

// Call `begin` once, `add` for each batch, `finish` once.
class RowsWriter {
 public:
  virtual ~RowsWriter() = default;
  virtual Status begin(const std::string& path, const std::vector<Prediction>& outputs,
                       int64_t rows) = 0;
  // `rows`: as many of each output, in the outputs' order.
  virtual Status add(const std::vector<std::vector<std::byte>>& rows, int64_t count) = 0;
  virtual Status finish() = 0;
};

// `extension`: .npy, .npz or .csv. `classes`: a .csv file gets a column `class`, the name of the
// largest number; there must be one output with one axis besides the samples, of as many numbers.
std::unique_ptr<RowsWriter> make_rows_writer(const std::string& extension,
                                             std::vector<std::string> classes);

}  // namespace ofsdp::runtime
