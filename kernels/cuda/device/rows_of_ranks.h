// RowsOfRanks: the rows of all ranks that ofsdp.JoinRows gives, as kernels take them;
// kernels/core/joined_rows.h says how they lie. Views; nothing is owned.
#pragma once

#include <cstdint>

namespace ofsdp::kernels::cuda {

struct RowsOfRanks {
  const float* data = nullptr;  // device memory
  int64_t ranks = 1;
  int64_t part = 0;    // elements from one rank's part to the next
  int64_t header = 0;  // of a part, before its rows; 0: each rank has `most` rows
  int64_t most = 0, width = 0;
};

}  // namespace ofsdp::kernels::cuda
