// Merges axes that are contiguous in every operand, since each axis costs every thread a division.
#include "kernels/cuda/pointwise/strided_index.h"

namespace ofsdp::kernels::cuda {

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

std::vector<int64_t> broadcast_strides(const std::vector<int64_t>& part,
                                       const std::vector<int64_t>& shape) {
  const std::vector<int64_t> dense = dense_strides(part);
  std::vector<int64_t> strides(shape.size(), 0);
  for (size_t k = 1; k <= part.size() && k <= shape.size(); ++k) {
    const size_t from = part.size() - k;
    if (part[from] != 1) strides[shape.size() - k] = dense[from];
  }
  return strides;
}

StridedIndex merge_dense_axes(const std::vector<int64_t>& shape,
                              const std::vector<std::vector<int64_t>>& strides) {
  struct Axis {
    int64_t size;
    int64_t strides[kMaxOperands];
  };
  std::vector<Axis> axes;
  StridedIndex walk;
  for (size_t a = 0; a < shape.size(); ++a) {
    walk.numel *= shape[a];
    if (shape[a] == 1) continue;
    Axis next{shape[a], {}};
    for (size_t k = 0; k < strides.size(); ++k) next.strides[k] = strides[k][a];
    bool joins = !axes.empty();
    for (size_t k = 0; k < strides.size() && joins; ++k) {
      joins = axes.back().strides[k] == next.strides[k] * next.size;
    }
    if (joins) {
      next.size *= axes.back().size;
      axes.back() = next;
    } else {
      axes.push_back(next);
    }
  }
  walk.rank = axes.size() > size_t{kMaxAxes} ? -1 : static_cast<int>(axes.size());
  walk.dense = walk.rank == 0 || walk.rank == 1;
  for (size_t k = 0; k < strides.size() && walk.rank == 1; ++k) {
    walk.dense = walk.dense && axes[0].strides[k] == 1;
  }
  for (int a = 0; a < walk.rank; ++a) {
    walk.shape[a] = axes[static_cast<size_t>(a)].size;
    for (int k = 0; k < kMaxOperands; ++k)
      walk.strides[k][a] = axes[static_cast<size_t>(a)].strides[k];
  }
  return walk;
}

int pack_of(const StridedIndex& walk, int operands, int pack) {
  if (walk.rank < 1 || walk.shape[walk.rank - 1] % pack != 0) return 1;
  for (int k = 0; k < operands; ++k) {
    const int64_t inner = walk.strides[k][walk.rank - 1];
    if (inner != 0 && inner != 1) return 1;
    for (int a = 0; a + 1 < walk.rank && inner == 1; ++a) {
      if (walk.strides[k][a] % pack != 0) return 1;
    }
  }
  return pack;
}

}  // namespace ofsdp::kernels::cuda
