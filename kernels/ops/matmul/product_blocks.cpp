#include "kernels/ops/matmul/product_blocks.h"

#include <algorithm>

#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/matmul/blas_product.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kBlock = 1024;          // of rows, of columns, and of the inner axis
constexpr int64_t kWorthwhile = 1 << 18;  // multiplications, below which a call costs more
constexpr int64_t kConversionGrain = 16384;

// Part of a row-major matrix of 16-bit floats.
struct Part {
  std::byte* data;
  int64_t rows, columns, stride;  // stride: from row to row, in elements

  std::byte* row(int64_t i) const { return data + i * stride * 2; }
};

Part part_of(std::byte* matrix, int64_t stride, int64_t row, int64_t column, int64_t rows,
             int64_t columns) {
  return {matrix + (row * stride + column) * 2, rows, columns, stride};
}

template <typename Convert>
void each_row(const Part& part, const Convert& convert) {
  const int64_t grain = kConversionGrain / std::max<int64_t>(part.columns, 1) + 1;
  parallel_for(part.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) convert(i);
  });
}

// Blocks lie in the workspace without gaps, each row after the other.
void widen_block(DType dtype, const Part& from, float* to) {
  each_row(from, [&, span = width_span(dtype, DType::kFloat32)](int64_t i) {
    span(from.row(i), to + i * from.columns, 0, from.columns);
  });
}

void narrow_block(DType dtype, const float* from, const Part& to) {
  each_row(to, [&, span = width_span(DType::kFloat32, dtype)](int64_t i) {
    span(from + i * to.columns, to.row(i), 0, to.columns);
  });
}

struct Blocks {
  float *a, *b, *dst;
};

// The product of `rows` by `columns` elements of dst from (row, column) on.
void multiply_block(const MatrixProduct& whole, const KernelArgs& args, const Blocks& blocks,
                    int64_t row, int64_t column) {
  using Addend = MatrixProduct::Addend;
  MatrixProduct p = whole;
  p.rows = std::min(kBlock, whole.rows - row);
  p.columns = std::min(kBlock, whole.columns - column);
  const Part dst = part_of(args.outputs[0].data, whole.columns, row, column, p.rows, p.columns);
  if (whole.addend == Addend::kAccumulate) widen_block(p.dtype, dst, blocks.dst);
  if (whole.addend == Addend::kBias) {
    // A stride of 0 gives every row the same bias.
    widen_block(p.dtype, {args.inputs[2].data + column * 2, p.rows, p.columns, 0}, blocks.dst);
  }
  if (p.addend == Addend::kBias) p.addend = Addend::kAccumulate;
  for (int64_t k = 0; k < whole.inner; k += kBlock) {
    p.inner = std::min(kBlock, whole.inner - k);
    const Part a = p.transpose_a
                       ? part_of(args.inputs[0].data, whole.rows, k, row, p.inner, p.rows)
                       : part_of(args.inputs[0].data, whole.inner, row, k, p.rows, p.inner);
    const Part b = p.transpose_b
                       ? part_of(args.inputs[1].data, whole.inner, column, k, p.columns, p.inner)
                       : part_of(args.inputs[1].data, whole.columns, k, column, p.inner, p.columns);
    widen_block(p.dtype, a, blocks.a);
    widen_block(p.dtype, b, blocks.b);
    blas_multiply(p, blocks.a, blocks.b, blocks.dst);
    p.addend = Addend::kAccumulate;
  }
  narrow_block(p.dtype, blocks.dst, dst);
}

}  // namespace

Acceptance blocks_accept(const MatrixProduct& p) {
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) {
    return Acceptance::refuse("no 16-bit floats");
  }
  if (!p.batch_a.empty() || !p.batch_b.empty()) return Acceptance::refuse("a batch of matrices");
  const bool small = p.rows * p.columns < kWorthwhile / std::max<int64_t>(p.inner, 1);
  return accept_if(!small && p.rows * p.columns > 1, "too small to gain");
}

std::unique_ptr<Kernel> make_product_blocks(const MatrixProduct& p) {
  const int64_t rows = std::min(p.rows, kBlock), inner = std::min(p.inner, kBlock);
  const int64_t columns = std::min(p.columns, kBlock);
  const auto floats = static_cast<size_t>(rows * inner + inner * columns + rows * columns);
  auto run = [=](const KernelArgs& args) {
    auto* const a = reinterpret_cast<float*>(args.workspace);
    const Blocks blocks{a, a + rows * inner, a + rows * inner + inner * columns};
    for (int64_t row = 0; row < p.rows; row += kBlock) {
      for (int64_t column = 0; column < p.columns; column += kBlock) {
        multiply_block(p, args, blocks, row, column);
      }
    }
  };
  return make_kernel(run, floats * sizeof(float));
}

}  // namespace ofsdp::kernels::ops
