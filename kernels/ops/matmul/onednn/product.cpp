#include <algorithm>
#include <bit>

#include "kernels/cpu/onednn/bridge.h"
#include "kernels/cpu/products.h"
#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp::kernels::ops {
namespace {

using onednn::Desc;
using onednn::Dims;

// Describes [batch..., rows, columns] over row-major bytes, or over swapped ones if transposed.
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

// [Note: layout of B] oneDNN reads a row-major B as it is, or its own blocked layout after a
// reorder (0.25 ms for 768 x 3072). Measured with one thread, 128 to 2048 rows, 512 to 5000
// columns. AVX2 alone: as it is, about 5 % faster for 40 of 42 shapes. AVX-512 (Zen 5, Sapphire and
// Emerald Rapids): from 1024 rows on a reorder costs nothing and gains up to 13 %. Below, it costs
// 2 to 15 %, except if columns are a multiple of 512 and no power of two: there oneDNN reads B in
// an order that halves the rate for 3072 columns and costs 2560 columns a quarter. A transposed B
// never gains.
bool reorder_b(const MatrixProduct& p) {
  if (!onednn::has_avx512() || !p.batch_b.empty() || p.transpose_b) return false;
  if (p.inner * p.columns < 1 << 18) return false;
  if (p.rows >= 1024) return true;
  const bool slow_as_it_is = p.columns % 512 == 0 && p.columns >= 1536 &&
                             !std::has_single_bit(static_cast<uint64_t>(p.columns));
  return p.rows >= 128 && slow_as_it_is;
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

}  // namespace

bool onednn_may_multiply(const MatrixProduct& p) {
  if (!onednn::has_type(p.dtype)) return false;
  // oneDNN's bias comes before its post-ops, so alpha would scale it too.
  return p.alpha == 1.0f || p.addend != MatrixProduct::Addend::kBias;
}

bool onednn_multiplies(const MatrixProduct& p) {
  const auto pd = describe(p);
  return p.dtype == DType::kFloat32 ? pd.get(true) != nullptr : onednn::is_fast(pd);
}

std::unique_ptr<Kernel> make_onednn_product(const MatrixProduct& p) {
  const Operands o = operands(p);
  std::vector<onednn::Binding> bindings = {{DNNL_ARG_SRC, false, 0, o.a},
                                           {DNNL_ARG_WEIGHTS, false, 1, o.b},
                                           {DNNL_ARG_DST, true, 0, o.dst}};
  if (p.addend == MatrixProduct::Addend::kBias) {
    bindings.push_back({DNNL_ARG_BIAS, false, 2, o.bias});
  }
  return onednn::make_kernel(describe(p), bindings);
}

}  // namespace ofsdp::kernels::ops
