#include "kernels/ops/matmul/matrix_product.h"

#include <algorithm>

#include "kernels/cpu/fold.h"
#include "kernels/cpu/onednn.h"
#include "kernels/ops/matmul/blas_product.h"
#include "kernels/ops/matmul/product_blocks.h"

namespace ofsdp::kernels::ops {
namespace {

using onednn::Desc;
using onednn::Dims;

int64_t product_of(const std::vector<int64_t>& axes) {
  int64_t product = 1;
  for (int64_t axis : axes) product *= axis;
  return product;
}

// Fewer axes are faster in oneDNN: equal batches become one axis; a B without a batch makes A's
// batch more rows (of a plain A only: with A transposed the rows of a batch do not follow each
// other).
MatrixProduct simplified(MatrixProduct p) {
  if (product_of(p.batch_b) == 1 && !p.transpose_a) {
    p.rows *= product_of(p.batch_a);
    p.batch_a = p.batch_b = {};
  } else if (p.batch_a == p.batch_b) {
    const int64_t count = product_of(p.batch_a);
    p.batch_a = p.batch_b = count == 1 ? Dims{} : Dims{count};
  }
  return p;
}

// [batch..., rows, columns] over row-major bytes, or over the swapped ones when transposed.
Desc matrix(DType dtype, Dims batch, int64_t rows, int64_t columns, bool transposed) {
  Dims dims = std::move(batch);
  dims.insert(dims.end(), {rows, columns});
  Dims strides(dims.size(), 1);
  int64_t stride = rows * columns;
  for (size_t i = dims.size() - 2; i > 0; --i) {
    strides[i - 1] = stride;
    stride *= dims[i - 1];
  }
  strides[dims.size() - 2] = transposed ? 1 : columns;
  strides[dims.size() - 1] = transposed ? rows : 1;
  return onednn::strided(dtype, dims, strides);
}

struct Operands {
  Desc a, b, bias, dst;
};

Operands operands(const MatrixProduct& p) {
  Dims bias(p.batch().size() + 2, 1);
  bias.back() = p.columns;
  return {matrix(p.dtype, p.batch_a, p.rows, p.inner, p.transpose_a),
          matrix(p.dtype, p.batch_b, p.inner, p.columns, p.transpose_b),
          p.addend == MatrixProduct::Addend::kBias ? onednn::row_major(p.dtype, bias) : Desc(),
          matrix(p.dtype, p.batch(), p.rows, p.columns, false)};
}

// [Note: layout of B] Measured on Zen 5 and Sapphire Rapids: oneDNN's brgemm reads plain strides
// about as fast as its own blocked layout, except for wide row-major B and many rows, where a
// reorder (0.25 ms for 768 x 3072) wins 6 % on the one and half of the time on the other. A
// transposed B never gains.
bool reorder_b(const MatrixProduct& p) {
  return p.batch_b.empty() && !p.transpose_b && p.rows >= 256 && p.inner * p.columns >= 1 << 18;
}

dnnl::primitive_attr attributes(const MatrixProduct& p) {
  dnnl::post_ops ops;
  if (p.alpha != 1.0f) ops.append_eltwise(dnnl::algorithm::eltwise_linear, p.alpha, 0.0f);
  if (p.addend == MatrixProduct::Addend::kAccumulate) ops.append_sum(1.0f);
  dnnl::primitive_attr made = onednn::attributes();
  made.set_post_ops(ops);
  return made;
}

dnnl::matmul::primitive_desc describe(const MatrixProduct& p) {
  const Operands o = operands(p);
  const Desc b = reorder_b(p) ? onednn::any(p.dtype, {p.inner, p.columns}) : o.b;
  return onednn::first_quiet([&] {
    if (p.addend != MatrixProduct::Addend::kBias) {
      return dnnl::matmul::primitive_desc(onednn::engine(), o.a, b, o.dst, attributes(p), true);
    }
    return dnnl::matmul::primitive_desc(onednn::engine(), o.a, b, o.bias, o.dst, attributes(p),
                                        true);
  });
}

bool is_empty(const MatrixProduct& p) {
  return product_of(p.batch()) * p.rows * p.columns == 0 || p.inner == 0;
}

// A sum of nothing: the addend alone. Any dtype of which all-zero bytes are zero.
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
  if (onednn::data_type(product.dtype) == dnnl::memory::data_type::undef) return false;
  // oneDNN's bias comes before its post-ops, so alpha would scale it too.
  if (product.alpha != 1.0f && product.addend == MatrixProduct::Addend::kBias) return false;
  return is_empty(product) || describe(simplified(product)).get(true) != nullptr;
}

Acceptance openblas_accepts(const MatrixProduct& product) {
  if (is_empty(product)) return Acceptance::refuse("an empty product");
  return blas_accepts(simplified(product));
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
  const Operands o = operands(p);
  std::vector<onednn::Binding> bindings = {{DNNL_ARG_SRC, false, 0, o.a},
                                           {DNNL_ARG_WEIGHTS, false, 1, o.b},
                                           {DNNL_ARG_DST, true, 0, o.dst}};
  if (p.addend == MatrixProduct::Addend::kBias) {
    bindings.push_back({DNNL_ARG_BIAS, false, 2, o.bias});
  }
  return onednn::make_kernel(describe(p), bindings);
}

namespace {

// Returns the matrices of A and B whose product is matrix `m` of the batch.
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

}  // namespace ofsdp::kernels::ops
