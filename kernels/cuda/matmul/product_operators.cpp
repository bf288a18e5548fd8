// MatMul, ofsdp.MatMul, com.microsoft.FusedMatMul, Gemm and ofsdp.GemmEpilogue by cuBLASLt;
// kernels/ops/matmul has the formulas. Leading axes that both operands have, or only one, become a
// strided batch. If B is one matrix and A is not transposed, the batch becomes rows of one large
// product. Operands and result may be pitched (TensorDesc::pitch).
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/shape/movement.h"

namespace ofsdp::kernels::cuda {
namespace {

// An operand as [batch, rows, columns].
struct Matrices {
  int64_t batch = 1, rows = 1, columns = 1;
};

Matrices matrices_of(const Shape& shape, bool left, bool fold) {
  const int rank = shape.rank();
  if (rank == 1) return left ? Matrices{1, 1, shape[0]} : Matrices{1, shape[0], 1};
  if (fold) return {1, shape.numel(0, rank - 1), shape[rank - 1]};
  return {shape.numel(0, rank - 2), shape[rank - 2], shape[rank - 1]};
}

// Returns whether the leading axes agree, or one operand has a single matrix.
bool batches_agree(const Shape& a, const Shape& b) {
  const auto leading = [](const Shape& s) {
    const int count = s.rank() - 2;
    return std::vector<int64_t>(s.axes().begin(), s.axes().begin() + (count > 0 ? count : 0));
  };
  const auto one = [](const Shape& s) { return s.rank() <= 2 || s.numel(0, s.rank() - 2) == 1; };
  return one(a) || one(b) || leading(a) == leading(b);
}

Acceptance accepts_matrices(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept(
      {plain(p), floats(dtype), alike(p.in(1).dtype == dtype), some(p.in(0)), some(p.in(1))});
}

ProductShape shape_of(const Problem& p) {
  const bool fold = p.attributes.i("fold_batch", 0) != 0;
  const Matrices a = matrices_of(p.in(0).shape, true, fold);
  const Matrices b = matrices_of(p.in(1).shape, false, fold);
  ProductShape s;
  s.dtype = p.in(0).dtype;
  s.alpha = p.attributes.f("alpha", 1.0f);
  s.transpose_a = p.attributes.i("transA", 0) != 0;
  s.transpose_b = p.attributes.i("transB", 0) != 0;
  s.rows = s.transpose_a ? a.columns : a.rows;
  s.inner = s.transpose_a ? a.rows : a.columns;
  s.columns = s.transpose_b ? b.rows : b.columns;
  s.batch = std::max(a.batch, b.batch);
  s.ld_a = p.in(0).pitch;
  s.ld_b = p.in(1).pitch;
  s.ld_d = p.out(0).pitch;
  s.stride_a = a.batch == 1 ? 0 : a.rows * s.row_a();
  s.stride_b = b.batch == 1 ? 0 : b.rows * s.row_b();
  s.stride_d = s.rows * s.row_d();
  if (b.batch == 1 && !s.transpose_a) {
    s.rows *= s.batch;
    s.batch = 1;
    s.stride_a = 0;
  }
  if (s.batch == 1) s.stride_a = s.stride_b = s.stride_d = 0;
  return s;
}

Acceptance accepts_matmul(const Problem& p) {
  const Acceptance accepted = accepts_matrices(p);
  const bool folds = p.attributes.i("fold_batch", 0) != 0;
  const bool apart = accepted && p.out(0).pitch != 0;
  return accepted ? accept({{folds || batches_agree(p.in(0).shape, p.in(1).shape),
                             "batches of the operands differ"},
                            dense_but(p, {&p.in(0), &p.in(1), &p.out(0)}),
                            {!apart || p.out(0).row() == shape_of(p).columns,
                             "rows that are apart are none of the product"}})
                  : accepted;
}

std::unique_ptr<CudaKernel> create_matmul(DeviceState& device, const Problem& p) {
  std::shared_ptr<MatrixProduct> product = make_product(device, shape_of(p));
  if (product == nullptr) return nullptr;
  const size_t bytes = product->workspace_bytes();
  return make_cuda_kernel(
      [product](cudaStream_t stream, const Launch& l) {
        return product->run(stream, l.in(0), l.in(1), nullptr, l.out(0), l.workspace);
      },
      bytes);
}

// Returns whether Gemm's C is a bias row, which the epilogue adds; any other C is broadcast to D
// first.
bool is_row(const Shape& c, int64_t columns) {
  return c.rank() >= 1 && c.numel() == columns && c[c.rank() - 1] == columns;
}

// Factors and result may be pitched. An addend must have the result's shape and pitch; one that
// broadcasts is copied to a dense result first.
Condition rows_fit(const Problem& p, size_t addend) {
  const TensorDesc& y = p.out(0);
  if (!p.has_in(addend)) return dense_but(p, {&p.in(0), &p.in(1), &y});
  const TensorDesc& c = p.in(addend);
  const bool alike = c == y || (c.pitch == 0 && y.pitch == 0);
  return alike ? dense_but(p, {&p.in(0), &p.in(1), &c, &y})
               : Condition{false, "rows of the result are apart, and not so those of an addend"};
}

Acceptance accepts_gemm(const Problem& p) {
  const std::string activation = p.attributes.s("ofsdp_activation", "");
  const Acceptance accepted = accepts_matrices(p);
  const bool row = p.has_in(2) && p.in(2).pitch == 0 && p.attributes.f("beta", 1.0f) == 1.0f &&
                   is_row(p.in(2).shape, shape_of(p).columns);
  return accepted
             ? accept({{activation.empty() || activation == "relu",
                        "the fused activation is not relu"},
                       alike(!p.has_in(2) || p.in(2).dtype == p.in(0).dtype),
                       {p.out(0).dtype == p.in(0).dtype || (p.out(0).dtype == DType::kFloat32 &&
                                                            !p.has_in(2) && activation.empty()),
                        "only a bare product has another type than its operands"},
                       {activation.empty() || p.out(0).pitch == 0,
                        "relu is a pass over rows that are not apart"},
                       row ? dense_but(p, {&p.in(0), &p.in(1), &p.out(0)}) : rows_fit(p, 2)})
             : accepted;
}

// relu runs as a separate pass, since cuBLASLt's epilogue would hide NaN. A C of D's shape is read
// in place, else it is broadcast to D first.
std::unique_ptr<CudaKernel> create_gemm(DeviceState& device, const Problem& p) {
  ProductShape shape = shape_of(p);
  const float beta = p.attributes.f("beta", 1.0f);
  const bool relu = p.attributes.s("ofsdp_activation", "") == "relu";
  shape.bias = p.has_in(2) && beta == 1.0f && is_row(p.in(2).shape, shape.columns);
  const bool adds = p.has_in(2) && !shape.bias;
  const bool starts = adds && p.in(2) != p.out(0);
  if (adds) shape.beta = beta;
  shape.wide = p.out(0).dtype != shape.dtype;
  std::shared_ptr<MatrixProduct> product = make_product(device, shape);
  if (product == nullptr) return nullptr;
  const std::vector<int64_t> y = p.out(0).shape.axes();
  const auto from = starts ? broadcast_strides(p.in(2).shape.axes(), y) : std::vector<int64_t>{};
  const size_t bytes = product->workspace_bytes();
  return make_cuda_kernel(
      [=, bias = shape.bias, dtype = shape.dtype, numel = p.out(0).numel()](cudaStream_t stream,
                                                                            const Launch& l) {
        if (starts) {
          OFSDP_CUDA_TRY(strided_copy(dtype_size(dtype), y, from, dense_strides(y), l.in(2),
                                      l.out(0), stream));
        }
        OFSDP_CUDA_TRY(product->run(stream, {.a = l.in(0),
                                             .b = l.in(1),
                                             .c = adds && !starts ? l.in(2) : nullptr,
                                             .bias = bias ? l.in(2) : nullptr,
                                             .d = l.out(0),
                                             .workspace = l.workspace}));
        if (!relu) return cudaSuccess;
        return pointwise(Pointwise::kRelu, dtype, l.out(0), nullptr, l.out(0), numel, {}, stream);
      },
      bytes);
}

ProductShape epilogue_shape(const Problem& p) {
  ProductShape s = shape_of(p);
  const std::string activation = p.attributes.s("activation", "");
  const std::string bias_grad = p.attributes.s("bias_grad", "");
  s.bias = p.has_in(2);
  s.beta = p.has_in(3) ? 1.0f : 0.0f;
  if (activation == "gelu_tanh") s.activation = Activation::kGelu;
  if (activation == "gelu_tanh_grad") s.activation = Activation::kGeluGrad;
  if (bias_grad == "a") s.bias_grad = BiasGrad::kOfA;
  if (bias_grad == "b") s.bias_grad = BiasGrad::kOfB;
  if (bias_grad == "y") s.bias_grad = BiasGrad::kOfD;
  s.aux = p.has_in(4) || (bias_grad.empty() && p.has_out(1));
  return s;
}

Acceptance accepts_epilogue(const Problem& p) {
  const Acceptance accepted = accepts_matrices(p);
  if (!accepted) return accepted;
  const ProductShape shape = epilogue_shape(p);
  return accept({{p.has_out(0) && product_has_epilogue(shape), "cuBLASLt has no such epilogue"},
                 {epilogue_is_wanted(shape), "OFSDP_EPILOGUES leaves it out"},
                 rows_fit(p, 3)});
}

// Returns nullptr if cuBLASLt has no algorithm; the graph then keeps the separate nodes
// (importer/passes/joined_nodes.h).
std::unique_ptr<CudaKernel> create_epilogue(DeviceState& device, const Problem& p) {
  const ProductShape shape = epilogue_shape(p);
  std::shared_ptr<MatrixProduct> product = make_product(device, shape);
  if (product == nullptr) return nullptr;
  const size_t bytes = product->workspace_bytes();
  return make_cuda_kernel(
      [product, shape](cudaStream_t stream, const Launch& l) {
        const bool sums = shape.bias_grad != BiasGrad::kNone;
        ProductOperands o{.a = l.in(0), .b = l.in(1), .workspace = l.workspace};
        o.d = l.out(0);
        if (shape.bias) o.bias = l.in(2);
        if (shape.beta != 0) o.c = l.in(3);
        if (shape.aux) o.aux = shape.activation == Activation::kGelu ? l.out(1) : l.in(4);
        if (sums) o.bias_grad = l.out(1);
        return product->run(stream, o);
      },
      bytes);
}

}  // namespace

void add_products(CudaImplementations& list) {
  list.insert(list.end(),
              {{"MatMul", "cublaslt", accepts_matmul, create_matmul, true},
               {"ofsdp.MatMul", "cublaslt", accepts_matmul, create_matmul, true},
               {"com.microsoft.FusedMatMul", "cublaslt", accepts_matmul, create_matmul, true},
               {"Gemm", "cublaslt", accepts_gemm, create_gemm, true},
               {"ofsdp.GemmEpilogue", "cublaslt", accepts_epilogue, create_epilogue, true}});
}

}  // namespace ofsdp::kernels::cuda
