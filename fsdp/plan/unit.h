// Unit: the parameters that are gathered, reduced and resharded together; what FSDP calls a flat
// parameter.
//
// A unit's trained parameters lie one after another in a flat array of float32, each at a multiple
// of kParamAlignment elements; the end is padded so that every rank's shard is one span of
// padded_numel / world elements, itself a multiple of kParamAlignment. A rank's shard is elements
// [rank * shard, (rank + 1) * shard). Gaps hold zeros, in gradients too, so norms may run over
// them. The layout depends on the parameters and the world size alone, not on the strategy.
//
// Ownership: values. Threads: any. Follows PyTorch FSDP's FlatParameter (VLDB 2023, section 3.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ofsdp::fsdp {

inline constexpr int64_t kParamAlignment = 16;  // elements: 64 bytes, what vector kernels want

struct UnitParam {
  int parameter = 0;  // index in Graph::parameters
  std::string name;
  int64_t offset = 0;  // elements from the start of the unit
  int64_t numel = 0;
};

struct Unit {
  int id = 0;
  std::string name;
  std::vector<UnitParam> params;
  int64_t numel = 0;         // of the parameters alone
  int64_t padded_numel = 0;  // with gaps and padding
  // Frozen parameters, where parameters are sharded: a flat array of their own, without gradient or
  // optimizer state, in the type that nodes compute in. In a gathered unit it follows the other.
  std::vector<UnitParam> frozen;
  int64_t frozen_padded_numel = 0;
  int nodes = 0;            // that read one of its parameters, forward and backward
  bool replicated = false;  // whole on every rank under every strategy (--ignore)
};

// The spans [begin, end) of a unit that belong to no parameter, in order.
std::vector<std::pair<int64_t, int64_t>> gaps(const Unit& unit);

}  // namespace ofsdp::fsdp
