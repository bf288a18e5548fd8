// RowSource: the source of batches: rows of columns by sample number. Files (Dataset) or made-up
// numbers (SyntheticData); the loader knows no more than this.
//
// Threads: one at a time (an implementation may hold scratch). Ownership: `dst` is the caller's.
// Errors: kInput naming file, column and sample where a value is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/shape.h"

namespace ofsdp::runtime {

inline constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// A column as the graph gets it.
struct BoundColumn {
  std::string name;
  std::string source;  // the file, for messages
  DType dtype = DType::kUndefined;
  Shape row;

  size_t row_bytes() const { return static_cast<size_t>(row.numel()) * dtype_size(dtype); }
};

class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t samples() const = 0;  // kEndless: as many as one likes
  virtual std::span<const BoundColumn> columns() const = 0;
  // Writes the rows one after the other; does not allocate when it succeeds.
  virtual Status read_rows(int column, std::span<const int64_t> samples, std::byte* dst) = 0;
};

}  // namespace ofsdp::runtime
