// RankGroup: some of the ranks, at equal distances: those that share one copy of a unit (stride 1),
// or those that hold the same shard of different copies (stride: ranks of a copy).
//
// Ownership: a value. Threads: any.
#pragma once

namespace ofsdp::fsdp {

struct RankGroup {
  int first = 0;
  int count = 1;
  int stride = 1;

  int rank(int index) const { return first + index * stride; }
  int index_of(int rank) const { return (rank - first) / stride; }
  bool operator==(const RankGroup&) const = default;
};

}  // namespace ofsdp::fsdp
