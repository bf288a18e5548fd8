// Matrix products: which library multiplies, products by OpenBLAS, 16-bit float products by blocks.

#include "kernels/ops/matmul/matrix_product.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

int64_t product_of(const std::vector<int64_t>& axes) {
  int64_t product = 1;
  for (int64_t axis : axes) product *= axis;
  return product;
}

// oneDNN is faster with fewer axes: equal batches become one axis. If B has no batch, A's batch
// becomes rows, unless A is transposed: then the rows in a batch do not follow each other.
MatrixProduct simplified(MatrixProduct p) {
  if (product_of(p.batch_b) == 1 && !p.transpose_a) {
    p.rows *= product_of(p.batch_a);
    p.batch_a = p.batch_b = {};
  } else if (p.batch_a == p.batch_b) {
    const int64_t count = product_of(p.batch_a);
    p.batch_a = p.batch_b = count == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{count};
  }
  return p;
}

bool is_empty(const MatrixProduct& p) {
  return product_of(p.batch()) * p.rows * p.columns == 0 || p.inner == 0;
}

// Makes the kernel for an empty sum: the addend alone. REQUIRES: zero bytes are 0 in the dtype.
std::unique_ptr<Kernel> make_empty(const MatrixProduct& p) {
  const int64_t rows = product_of(p.batch()) * p.rows;
  const size_t row_bytes = static_cast<size_t>(p.columns) * dtype_size(p.dtype);
  return make_kernel([=, addend = p.addend](const KernelArgs& a) {
    for (int64_t row = 0; row < rows && row_bytes > 0; ++row) {
      std::byte* dst = a.outputs[0].data + static_cast<size_t>(row) * row_bytes;
      if (addend == MatrixProduct::Addend::kNone) std::memset(dst, 0, row_bytes);
      if (addend == MatrixProduct::Addend::kBias) std::memcpy(dst, a.inputs[2].data, row_bytes);
    }
  });
}

}  // namespace

std::vector<int64_t> MatrixProduct::batch() const {
  std::vector<int64_t> axes = batch_a;
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = batch_a[i] == 1 ? batch_b[i] : batch_a[i];
  return axes;
}

MatrixProduct gemm_product(const Attributes& attributes, const TensorDesc& a, const TensorDesc& y) {
  MatrixProduct p;
  p.dtype = a.dtype;
  p.rows = y.shape[0];
  p.columns = y.shape[1];
  p.transpose_a = attributes.i("transA", 0) != 0;
  p.transpose_b = attributes.i("transB", 0) != 0;
  p.inner = a.shape[p.transpose_a ? 0 : 1];
  p.alpha = attributes.f("alpha", 1.0f);
  return p;
}

bool onednn_accepts(const MatrixProduct& product) {
  if (!onednn_may_multiply(product)) return false;
  return is_empty(product) || onednn_multiplies(simplified(product));
}

Acceptance openblas_accepts(const MatrixProduct& product) {
  if (is_empty(product)) {
    return accept_if(!onednn::is_present() && product.dtype == DType::kFloat32, "an empty product");
  }
  return blas_accepts(simplified(product));
}

bool library_accepts(const MatrixProduct& product) {
  return onednn::is_present() ? onednn_accepts(product)
                              : static_cast<bool>(openblas_accepts(product));
}

Acceptance widening_accepts(const MatrixProduct& product) {
  if (is_empty(product)) return Acceptance::refuse("an empty product");
  return blocks_accept(simplified(product));
}

std::unique_ptr<Kernel> make_widening_product(const MatrixProduct& product) {
  return make_product_blocks(simplified(product));
}

std::unique_ptr<Kernel> make_matrix_product(const MatrixProduct& product) {
  if (is_empty(product)) return make_empty(product);
  const MatrixProduct p = simplified(product);
  if (blas_accepts(p)) return make_blas_product(p);
  return make_onednn_product(p);
}

std::pair<int64_t, int64_t> operands_of(const MatrixProduct& p, const std::vector<int64_t>& batch,
                                        int64_t m) {
  int64_t of_a = 0, of_b = 0, rest = m, step_a = 1, step_b = 1;
  for (size_t i = batch.size(); i-- > 0; rest /= batch[i]) {
    if (p.batch_a[i] != 1) of_a += rest % batch[i] * step_a;
    if (p.batch_b[i] != 1) of_b += rest % batch[i] * step_b;
    step_a *= p.batch_a[i];
    step_b *= p.batch_b[i];
  }
  return {of_a, of_b};
}

namespace {

// One matrix.
template <typename T>
void multiply(const MatrixProduct& p, const T* a, const T* b, T* dst) {
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t j = 0; j < p.columns; ++j) {
      SumOf<T> sum = 0;
      for (int64_t k = 0; k < p.inner; ++k) {
        sum += widened(a[p.transpose_a ? k * p.rows + i : i * p.inner + k]) *
               widened(b[p.transpose_b ? j * p.inner + k : k * p.columns + j]);
      }
      if constexpr (std::is_floating_point_v<T>) sum *= static_cast<double>(p.alpha);
      dst[i * p.columns + j] = static_cast<T>(sum);
    }
  }
}

}  // namespace

bool loops_accept(const MatrixProduct& p) {
  return (is_integer(p.dtype) && p.alpha == 1.0f) || p.dtype == DType::kFloat64;
}

std::unique_ptr<Kernel> make_matrix_loops(const MatrixProduct& p) {
  return with_wrapping_number(p.dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    const std::vector<int64_t> batch = p.batch();
    return make_kernel([p, batch, matrices = product_of(batch)](const KernelArgs& args) {
      for (int64_t m = 0; m < matrices; ++m) {
        const auto [of_a, of_b] = operands_of(p, batch, m);
        multiply(p, args.in<T>(0) + of_a * p.rows * p.inner,
                 args.in<T>(1) + of_b * p.inner * p.columns,
                 args.out<T>(0) + m * p.rows * p.columns);
      }
    });
  });
}

void reference_product(const MatrixProduct& p, const std::vector<double>& a,
                       const std::vector<double>& b, std::vector<double>& dst) {
  const std::vector<int64_t> batch = p.batch();
  const int64_t matrices = product_of(batch);
  dst.assign(static_cast<size_t>(matrices * p.rows * p.columns), 0.0);
  for (int64_t m = 0; m < matrices; ++m) {
    const auto [of_a, of_b] = operands_of(p, batch, m);
    const double* src = a.data() + of_a * p.rows * p.inner;
    const double* weights = b.data() + of_b * p.inner * p.columns;
    for (int64_t i = 0; i < p.rows; ++i) {
      for (int64_t j = 0; j < p.columns; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < p.inner; ++k) {
          sum += src[p.transpose_a ? k * p.rows + i : i * p.inner + k] *
                 weights[p.transpose_b ? j * p.inner + k : k * p.columns + j];
        }
        dst[static_cast<size_t>((m * p.rows + i) * p.columns + j)] = p.alpha * sum;
      }
    }
  }
}

namespace {

constexpr int64_t kPackedColumns = 4096;  // rows of dst per call: columns for OpenBLAS
constexpr int64_t kSmallest = 1 << 18;    // multiplications; below it a call costs more

// oneDNN reads such a B in place, and rows a multiple of 1 KB apart share few sets in the
// first-level cache.
bool onednn_reads_b_slowly(const MatrixProduct& p) {
  if (p.transpose_a || p.transpose_b || p.rows > 512) return false;
  return (p.columns % 512 == 0 && p.rows >= 8) || (p.columns % 256 == 0 && p.rows >= 128);
}

// oneDNN wins if sums are short: OpenBLAS copies the factors nevertheless.
bool onednn_turns_a_fast(const MatrixProduct& p) {
  return !p.transpose_b && p.inner <= 256 && p.rows >= 512 && p.columns >= 512;
}

bool fits(const MatrixProduct& p) { return blas_fits({p.rows, p.inner, p.columns}); }

// Computes `rows` rows of dst, from `first` on, with all threads or only the calling one.
void multiply_rows(const MatrixProduct& p, const float* a, const float* b, float* dst,
                   int64_t first, int64_t rows, bool by_parts) {
  const auto multiply = by_parts ? blas_product_by_parts : blas_product;
  multiply(
      {rows, p.inner, p.columns}, p.alpha,
      {a + first * (p.transpose_a ? 1 : p.inner), p.transpose_a ? p.rows : p.inner, p.transpose_a},
      {b, p.transpose_b ? p.inner : p.columns, p.transpose_b},
      p.addend != MatrixProduct::Addend::kNone, dst + first * p.columns, p.columns);
}

// One matrix; `bias` only for Addend::kBias.
void multiply_matrix(const MatrixProduct& p, const float* a, const float* b, const float* bias,
                     float* dst, bool by_parts) {
  for (int64_t first = 0; first < p.rows; first += kPackedColumns) {
    const int64_t rows = std::min(kPackedColumns, p.rows - first);
    if (p.addend == MatrixProduct::Addend::kBias) {
      for (int64_t row = first; row < first + rows; ++row)
        std::memcpy(dst + row * p.columns, bias, static_cast<size_t>(p.columns) * sizeof(float));
    }
    multiply_rows(p, a, b, dst, first, rows, by_parts);
  }
}

}  // namespace

Acceptance blas_accepts(const MatrixProduct& p) {
  if (p.dtype != DType::kFloat32) return Acceptance::refuse("not float32");
  if (!onednn::is_present())
    return accept_with_blas(accept_if(fits(p), "an axis of 2^31 elements or more"));
  if (onednn::has_avx512()) return Acceptance::refuse("oneDNN is faster with AVX-512");
  if (!p.batch_a.empty() || !p.batch_b.empty()) return Acceptance::refuse("a batch of matrices");
  if (!p.transpose_a && !p.transpose_b && !onednn_reads_b_slowly(p))
    return Acceptance::refuse("oneDNN is faster where no factor is transposed");
  if (p.transpose_a && onednn_turns_a_fast(p)) return Acceptance::refuse("a short inner axis");
  const bool small = p.rows * p.columns < kSmallest / std::max<int64_t>(p.inner, 1);
  return accept_with_blas(
      accept_if(!small && p.rows * p.columns > 1 && fits(p), "too small to gain"));
}

// If there are enough matrices in the batch, threads share them; else threads share each matrix.
std::unique_ptr<Kernel> make_blas_product(const MatrixProduct& p) {
  OFSDP_CHECK(blas_is_present());  // loads it if nothing asked before
  const std::vector<int64_t> batch = p.batch();
  int64_t matrices = 1;
  for (int64_t axis : batch) matrices *= axis;
  return make_kernel([p, batch, matrices](const KernelArgs& args) {
    const float* bias = p.addend == MatrixProduct::Addend::kBias ? args.in<float>(2) : nullptr;
    const bool by_parts = matrices < pool_threads();
    parallel_each(matrices, by_parts ? matrices : 1, [&](int64_t m) {
      const auto [of_a, of_b] = operands_of(p, batch, m);
      multiply_matrix(p, args.in<float>(0) + of_a * p.rows * p.inner,
                      args.in<float>(1) + of_b * p.inner * p.columns, bias,
                      args.out<float>(0) + m * p.rows * p.columns, by_parts);
    });
  });
}

namespace {

constexpr int64_t kRows = 512;            // rows per block
constexpr int64_t kBlock = 1024;          // columns per block, and inner elements
constexpr int64_t kWorthwhile = 1 << 18;  // multiplications; below it a call costs more

// Part of a row-major matrix with 16-bit floats.
struct Part {
  std::byte* data;
  int64_t rows, columns, stride;  // stride: elements from row to row

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

// Blocks lie in the workspace without gaps, row after row.
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

// A product by blocks, with float32 products for each block size: blocks at the ends are smaller,
// and in a sum all but the first add to dst.
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

  // Computes the dst block that begins at (row, column).
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
    // Views without a desc: copying one would allocate.
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
    if (row > 0 && p.inner <= kBlock) return;  // b holds the same block already
    widen_block(p.dtype,
                p.transpose_b ? part_of(args.inputs[1].data, p.inner, column, k, columns, inner)
                              : part_of(args.inputs[1].data, p.columns, k, column, inner, columns),
                b);
  }

  MatrixProduct whole_;
  std::map<std::pair<Size, bool>, std::unique_ptr<Kernel>> products_;
  int64_t b_ = 0, dst_ = 0;  // offsets in the workspace, in floats; a is first
  size_t scratch_ = 0;       // offset of the products' workspace, in bytes
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
