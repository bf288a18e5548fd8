// com.microsoft.MatMulNBits and its gradient, ofsdp.StoredMatMul and
// com.microsoft.GatherBlockQuantized. A frozen matrix in few bits becomes float32 in the workspace,
// and cuBLASLt multiplies by it. Nodes use the workspace in turn, so it is as large as the largest
// matrix.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/cuda/matmul/stored_product.h"
#include "kernels/ops/matmul/stored_forms.h"

namespace ofsdp::kernels::cuda {
namespace {

using ops::operand_or_none;

Acceptance accepts_stored(const Problem& p) {
  return accept({plain(p), supported(p.in(0).dtype == DType::kFloat32), some(p.in(0))});
}

StoredBytes bytes_of(const Launch& l, size_t elements, size_t scales, size_t zeros) {
  return {l.in<const std::byte>(elements), l.in<const std::byte>(scales),
          l.in<const std::byte>(zeros), nullptr};
}

// y = x W^T (by_rows), or x W, plus a bias.
struct StoredProduct {
  StoredMatrix matrix;
  bool by_rows = true, bias = false;
  int64_t rows = 0;    // of x
  int64_t groups = 0;  // MatMulNBits: of scales in a row of W

  size_t matrix_bytes() const {
    return round_up(static_cast<size_t>(matrix.rows * matrix.columns) * sizeof(float));
  }
  ProductShape shape() const {
    ProductShape s;
    s.rows = rows;
    s.inner = by_rows ? matrix.columns : matrix.rows;
    s.columns = by_rows ? matrix.rows : matrix.columns;
    s.transpose_b = by_rows;
    s.bias = bias;
    return s;
  }
};

std::unique_ptr<CudaKernel> multiply(DeviceState& device, const StoredProduct& given) {
  std::shared_ptr<MatrixProduct> product = make_product(device, given.shape());
  if (product == nullptr) return nullptr;
  return make_cuda_kernel(
      [product, given](cudaStream_t stream, const Launch& l) {
        StoredBytes bytes = bytes_of(l, 1, 2, 3);
        if (given.groups > 0) bytes.g_idx = l.in<const int32_t>(4);
        auto* const matrix = static_cast<float*>(l.workspace);
        OFSDP_CUDA_TRY(widen_stored(given.matrix, bytes, given.groups, l.fault(), matrix, stream));
        return product->run(stream, l.in(0), matrix, given.bias ? l.in(5) : nullptr, l.out(0),
                            static_cast<std::byte*>(l.workspace) + given.matrix_bytes());
      },
      given.matrix_bytes() + product->workspace_bytes());
}

std::unique_ptr<CudaKernel> create_stored_mat_mul(DeviceState& device, const Problem& p) {
  const ops::stored_mat_mul::Form form(p.attributes);
  const auto matrix = ops::stored_mat_mul::matrix_of(p.attributes, p.inputs);
  if (!matrix.ok() || form.inner() == 0) return nullptr;
  return multiply(
      device, {.matrix = *matrix, .by_rows = form.by_rows, .rows = p.in(0).numel() / form.inner()});
}

template <bool backward>
std::unique_ptr<CudaKernel> create_n_bits(DeviceState& device, const Problem& p) {
  const ops::n_bits::Sizes sizes(p.attributes);
  const auto matrix = ops::n_bits::matrix_of(p.attributes, p.inputs);
  if (!matrix.ok()) return nullptr;
  return multiply(device, {.matrix = *matrix,
                           .by_rows = !backward,
                           .bias = !backward && operand_or_none(p.inputs, 5).present(),
                           .rows = p.in(0).numel() / (backward ? sizes.n : sizes.k),
                           .groups = sizes.blocks});
}

Acceptance accepts_table(const Problem& p) { return accept({plain(p)}); }

std::unique_ptr<CudaKernel> create_table(DeviceState&, const Problem& p) {
  const auto table = ops::gather_block::table_of(p.attributes, p.in(0));
  if (!table.ok()) return nullptr;
  const auto matrix = ops::gather_block::matrix_of(*table, p.inputs);
  if (!matrix.ok() || matrix->columns == 0) return nullptr;
  const Shape& shape = table->shape;
  StoredRows rows{.outer = shape.numel(0, table->gather),
                  .size = shape[table->gather],
                  .inner = shape.numel(table->gather + 1, shape.rank()),
                  .count = p.in(1).numel(),
                  .wide = p.in(1).dtype == DType::kInt64};
  return make_cuda_kernel([matrix = *matrix, rows](cudaStream_t stream, const Launch& l) mutable {
    rows.indices = l.in(1);
    return gather_stored(matrix, bytes_of(l, 0, 2, 3), rows, l.fault(), l.out<float>(0), stream);
  });
}

}  // namespace

void add_stored_products(CudaImplementations& list) {
  list.insert(list.end(),
              {{"ofsdp.StoredMatMul", "widened", accepts_stored, create_stored_mat_mul},
               {"com.microsoft.MatMulNBits", "widened", accepts_stored, create_n_bits<false>},
               {"ofsdp.MatMulNBitsGrad", "widened", accepts_stored, create_n_bits<true>},
               {"com.microsoft.GatherBlockQuantized", "own", accepts_table, create_table}});
}

}  // namespace ofsdp::kernels::cuda
