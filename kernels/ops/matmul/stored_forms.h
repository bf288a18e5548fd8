// How operators with frozen low-bit matrices describe them: attributes and operands as a
// StoredMatrix (kernels/core/stored_matrix.h), for the CPU's kernels and the CUDA library's.
//
// stored_mat_mul.cpp and kernels/ops/indexing/gather.cpp have the operators' semantics. Errors:
// kInput if attributes and operands do not fit.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/op_def.h"
#include "kernels/core/stored_matrix.h"

namespace ofsdp::kernels::ops {

// An absent operand is not present().
inline TensorDesc operand_or_none(const std::vector<TensorDesc>& inputs, size_t i) {
  return i < inputs.size() ? inputs[i] : TensorDesc{};
}

// ofsdp.StoredMatMul
namespace stored_mat_mul {

struct Form {
  int64_t rows, columns;
  bool by_rows;

  explicit Form(const Attributes& a)
      : rows(a.i("rows", 0)), columns(a.i("columns", 0)), by_rows(a.i("by_rows", 1) != 0) {}
  int64_t inner() const { return by_rows ? columns : rows; }
  int64_t width() const { return by_rows ? rows : columns; }
};

Result<StoredMatrix> matrix_of(const Attributes& a, const std::vector<TensorDesc>& inputs);

}  // namespace stored_mat_mul

// com.microsoft.MatMulNBits. It packs the weight as [N, blocks, block_size * bits / 8], with scales
// [N, blocks].
namespace n_bits {

struct Sizes {
  int64_t n, k, block, bits, blocks;

  explicit Sizes(const Attributes& a)
      : n(a.i("N", 0)),
        k(a.i("K", 0)),
        block(a.i("block_size", 0)),
        bits(a.i("bits", 4)),
        blocks(block > 0 ? (k + block - 1) / block : 0) {}
  int64_t zero_row() const { return (blocks * bits + 7) / 8; }  // bytes
};

// `inputs`: of MatMulNBits or its gradient.
Result<StoredMatrix> matrix_of(const Attributes& attributes, const std::vector<TensorDesc>& inputs);

}  // namespace n_bits

// com.microsoft.GatherBlockQuantized
namespace gather_block {

inline constexpr int64_t kUInt4Type = 21, kInt4Type = 22;  // TensorProto.DataType

// The stored table and the operator's axes.
struct Table {
  Shape shape;
  StoredType type = StoredType::kUInt4;
  bool bytes = true;  // uint8 in the file: each row's zero points start a byte
  int gather = 0, quantize = 0;
  int64_t block = 0;

  Shape scales() const {
    std::vector<int64_t> axes = shape.axes();
    auto& axis = axes[static_cast<size_t>(quantize)];
    axis = (axis + block - 1) / block;
    return Shape(axes);
  }
  int64_t zero_bytes() const {
    const Shape s = scales();
    const int64_t bits = stored_bits(type), last = s[s.rank() - 1];
    if (!bytes) return (s.numel() * bits + 7) / 8;
    return s.numel() / std::max<int64_t>(last, 1) * ((last * bits + 7) / 8);
  }
};

Result<Table> table_of(const Attributes& a, const TensorDesc& data);
// `inputs`: the operator's.
Result<StoredMatrix> matrix_of(const Table& t, const std::vector<TensorDesc>& inputs);

}  // namespace gather_block
}  // namespace ofsdp::kernels::ops
