#include "kernels/ops/matmul/matrix_product.h"

#include <algorithm>

#include "kernels/cpu/fold.h"
#include "kernels/cpu/onednn_presence.h"
#include "kernels/ops/matmul/blas_product.h"
#include "kernels/ops/matmul/onednn_product.h"
#include "kernels/ops/matmul/product_blocks.h"

namespace ofsdp::kernels::ops {
namespace {

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
    p.batch_a = p.batch_b = count == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{count};
  }
  return p;
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

}  // namespace ofsdp::kernels::ops
