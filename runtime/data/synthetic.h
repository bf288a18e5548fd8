// SyntheticData: endless rows made from the seed, for runs that measure and need no data.
//
// An element depends on seed, column name, sample number and its place in the row, and on nothing
// else, so any number of ranks sees the same samples. The session says of each column what its
// numbers mean (an index of a Gather, a mask, labels, ...). Any floating type, integer or bool.
//
// Errors: none. Nothing allocates in read_rows.
#pragma once

#include <vector>

#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

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
