// RowSource: gives rows by sample number, from files (Dataset) or made up (SyntheticData).
//
// One thread at a time may read, since an implementation may hold scratch memory. A wrong value is
// kInput with file, column and sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"

namespace ofsdp::runtime {

inline constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// A column in the graph's type and shape.
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
  virtual int64_t samples() const = 0;  // kEndless: no limit
  virtual std::span<const BoundColumn> columns() const = 0;
  // The epoch of the rows that are read next; random changes depend on it.
  virtual void begin_epoch(int64_t) {}
  // Writes the rows one after the other. Does not allocate on success.
  virtual Status read_rows(int column, std::span<const int64_t> samples, std::byte* dst) = 0;
};

// SyntheticData: endless rows made from the seed, for runs that need no data.
//
// An element depends only on the seed, the column name, the sample number and the index in the row,
// so ranks in any number see the same samples. The graph decides each column's kind (a Gather's
// index, a mask, labels, ...). Any floating type, integer or bool. read_rows does not allocate.
enum class SyntheticKind { kNormal, kUniform, kBelow, kBits, kOnes, kZeros };

struct SyntheticColumn {
  std::string name;
  DType dtype = DType::kUndefined;
  Shape row;
  SyntheticKind kind = SyntheticKind::kNormal;
  int64_t below = 1;  // kBelow: integers 0 .. below-1
};

class SyntheticData : public RowSource {
 public:
  SyntheticData(uint64_t seed, const std::vector<SyntheticColumn>& columns);

  int64_t samples() const override { return kEndless; }
  std::span<const BoundColumn> columns() const override { return bound_; }
  Status read_rows(int column, std::span<const int64_t> samples, std::byte* dst) override;

 private:
  struct Recipe {
    SyntheticKind kind;
    int64_t below;
    uint64_t key;
  };

  std::vector<BoundColumn> bound_;
  std::vector<Recipe> recipes_;
};

}  // namespace ofsdp::runtime
