#include "kernels/ops/matmul/product_blocks.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/core/memory.h"
#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kRows = 512;            // of a block
constexpr int64_t kBlock = 1024;          // its columns, and its part of the inner axis
constexpr int64_t kWorthwhile = 1 << 18;  // multiplications, below which a call costs more

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
  const int64_t grain = kElementGrain / std::max<int64_t>(part.columns, 1) + 1;
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

// A product by blocks, and the float32 products of its blocks: those at the ends are smaller, and
// those after the first of a sum add to it.
class BlockProducts final : public Kernel {
 public:
  explicit BlockProducts(const MatrixProduct& p) : whole_(p) {
    for (int64_t row = 0; row < p.rows; row += kRows) {
      for (int64_t column = 0; column < p.columns; column += kBlock) {
        for (int64_t k = 0; k < p.inner; k += kBlock) make(size_at(row, column, k), adds_at(k));
      }
    }
    const int64_t rows = std::min(p.rows, kRows), inner = std::min(p.inner, kBlock);
    const int64_t columns = std::min(p.columns, kBlock);
    b_ = rows * inner;
    dst_ = b_ + inner * columns;
    scratch_ =
        align_up(static_cast<size_t>(dst_ + rows * columns) * sizeof(float), kTensorAlignment);
  }

  size_t workspace_bytes() const override {
    size_t scratch = 0;
    for (const auto& [key, product] : products_)
      scratch = std::max(scratch, product->workspace_bytes());
    return scratch_ + scratch;
  }

  Status run(const KernelArgs& args) override {
    for (int64_t column = 0; column < whole_.columns; column += kBlock) {
      for (int64_t row = 0; row < whole_.rows; row += kRows) {
        OFSDP_RETURN_IF_ERROR(run_block(args, row, column));
      }
    }
    return {};
  }

 private:
  using Size = std::tuple<int64_t, int64_t, int64_t>;  // rows, inner, columns

  Size size_at(int64_t row, int64_t column, int64_t k) const {
    return {std::min(kRows, whole_.rows - row), std::min(kBlock, whole_.inner - k),
            std::min(kBlock, whole_.columns - column)};
  }
  bool adds_at(int64_t k) const { return k > 0 || whole_.addend != MatrixProduct::Addend::kNone; }

  void make(const Size& size, bool adds) {
    auto& product = products_[{size, adds}];
    if (product != nullptr) return;
    MatrixProduct p = whole_;
    p.dtype = DType::kFloat32;
    std::tie(p.rows, p.inner, p.columns) = size;
    p.addend = adds ? MatrixProduct::Addend::kAccumulate : MatrixProduct::Addend::kNone;
    product = make_matrix_product(p);
  }

  // The block of dst from (row, column) on.
  Status run_block(const KernelArgs& args, int64_t row, int64_t column) {
    using Addend = MatrixProduct::Addend;
    const DType dtype = whole_.dtype;
    auto* const floats = reinterpret_cast<float*>(args.workspace);
    float *const a = floats, *const b = floats + b_, *const sum = floats + dst_;
    const auto [rows, first, columns] = size_at(row, column, 0);
    const Part dst = part_of(args.outputs[0].data, whole_.columns, row, column, rows, columns);
    if (whole_.addend == Addend::kAccumulate) widen_block(dtype, dst, sum);
    if (whole_.addend == Addend::kBias) {
      // A stride of 0 gives every row the same bias.
      widen_block(dtype, {args.inputs[2].data + column * 2, rows, columns, 0}, sum);
    }
    // Views without a desc, whose copy would be an allocation.
    const std::array<TensorView, 2> factors = {TensorView{reinterpret_cast<std::byte*>(a), {}},
                                               TensorView{reinterpret_cast<std::byte*>(b), {}}};
    const TensorView to{reinterpret_cast<std::byte*>(sum), {}};
    for (int64_t k = 0; k < whole_.inner; k += kBlock) {
      const Size size = size_at(row, column, k);
      widen_factors(args, row, column, k, size, a, b);
      Kernel& product = *products_.find({size, adds_at(k)})->second;
      OFSDP_RETURN_IF_ERROR(product.run({factors, {&to, 1}, args.workspace + scratch_, args.step}));
    }
    narrow_block(dtype, sum, dst);
    return {};
  }

  void widen_factors(const KernelArgs& args, int64_t row, int64_t column, int64_t k,
                     const Size& size, float* a, float* b) const {
    const MatrixProduct& p = whole_;
    const auto [rows, inner, columns] = size;
    widen_block(p.dtype,
                p.transpose_a ? part_of(args.inputs[0].data, p.rows, k, row, inner, rows)
                              : part_of(args.inputs[0].data, p.inner, row, k, rows, inner),
                a);
    if (row > 0 && p.inner <= kBlock) return;  // b is that of the rows before
    widen_block(p.dtype,
                p.transpose_b ? part_of(args.inputs[1].data, p.inner, column, k, columns, inner)
                              : part_of(args.inputs[1].data, p.columns, k, column, inner, columns),
                b);
  }

  MatrixProduct whole_;
  std::map<std::pair<Size, bool>, std::unique_ptr<Kernel>> products_;
  int64_t b_ = 0, dst_ = 0;  // where in the workspace, in floats; a is first
  size_t scratch_ = 0;       // in bytes, of the products
};

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
  return std::make_unique<BlockProducts>(p);
}

}  // namespace ofsdp::kernels::ops
