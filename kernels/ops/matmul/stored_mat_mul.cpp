// ofsdp.StoredMatMul(x, w, scale, zero_point) multiplies x [.., inner] by a frozen matrix W
// [rows, columns] that keeps the file's type; element (r, c) = (w - zero_point) * scale.
//
//   by_rows = 1    y = x W^T      dx = dy W       the same operator with by_rows = 0
//   by_rows = 0    y = x W        dx = dy W^T
//
// Attributes: rows, columns, by_rows; type, the elements' TensorProto.DataType (int8, uint8, int4,
// uint4, float16, bfloat16); the scales' axis and block_size, as in DequantizeLinear
// (kernels/core/quantization.h). Floats have no scale. A pass replaces a product by it
// (importer/passes/trained_set.h).
// https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html

#include "kernels/base/status.h"
#include "kernels/core/op_def.h"
#include "kernels/core/quantization.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/stored_matrix.h"
#include "kernels/ops/matmul/stored_forms.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace stored_mat_mul {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Form form(c.attributes);
  OFSDP_RETURN_IF_ERROR(matrix_of(c.attributes, c.inputs).status());
  const TensorDesc& x = c.inputs[0];
  OFSDP_REJECT_IF(x.dtype != DType::kFloat32 || x.shape.rank() == 0 ||
                      x.shape[x.shape.rank() - 1] != form.inner(),
                  "expected float32 with a last axis of {}, found {}", form.inner(), x.text());
  std::vector<int64_t> axes = x.shape.axes();
  axes.back() = form.width();
  return std::vector{TensorDesc{DType::kFloat32, Shape(axes)}};
}

void grad(GradBuilder& b) {
  std::vector<Ref> operands{b.grad_output(0)};
  for (size_t i = 1; i < b.num_inputs(); ++i) operands.push_back(b.input(i));
  Attributes attributes = b.attributes();
  attributes.set("by_rows", int64_t{Form(attributes).by_rows ? 0 : 1});
  b.set_grad(0, b.emit1("ofsdp.StoredMatMul", operands, attributes));
}

// --- reference ---

double element(const RefTensor& weight, int64_t onnx_type, int64_t i) {
  if (onnx_type != 21 && onnx_type != 22) return weight[i];
  const auto byte = static_cast<int64_t>(weight[i / 2]);
  const int64_t q = i % 2 == 0 ? byte % 16 : byte / 16;
  return static_cast<double>(onnx_type == 22 && q > 7 ? q - 16 : q);
}

std::vector<double> matrix_values(const ReferenceContext& c, const Form& form) {
  const RefTensor *scale = given(c.inputs, 2), *zero = given(c.inputs, 3);
  std::vector<double> values;
  for (int64_t i = 0; i < form.rows * form.columns; ++i) {
    double value = element(c.inputs[1], c.attributes.i("type", 0), i);
    if (scale != nullptr) {
      const ScaleMap map =
          *ScaleMap::make(Shape{form.rows, form.columns}, scale->desc.shape,
                          c.attributes.i("axis", 1), c.attributes.i("block_size", 0));
      value = (value - (zero == nullptr ? 0 : (*zero)[map.index(i)])) * (*scale)[map.index(i)];
    }
    values.push_back(value);
  }
  return values;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Form form(c.attributes);
  const std::vector<double> matrix = matrix_values(c, form);
  RefTensor y = zeros(c.output_descs[0]);
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const int64_t row = i / form.width(), at = i % form.width();
    for (int64_t j = 0; j < form.inner(); ++j) {
      const int64_t place = form.by_rows ? at * form.columns + j : j * form.columns + at;
      y[i] += c.inputs[0][row * form.inner() + j] * matrix[static_cast<size_t>(place)];
    }
  }
  return {y};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  using Along = StoredProduct::Along;
  const Form form(p.attributes);
  const StoredProduct product(*matrix_of(p.attributes, p.inputs),
                              form.by_rows ? Along::kByRows : Along::kByColumns,
                              p.in(0).numel() / std::max<int64_t>(form.inner(), 1), p.threads);
  return make_kernel(
      [product](const KernelArgs& a) {
        const auto at = [&](size_t i) { return i < a.inputs.size() ? a.inputs[i].data : nullptr; };
        product.run({at(1), at(2), at(3), nullptr}, a.in<float>(0), nullptr, a.out<float>(0),
                    a.workspace);
      },
      product.workspace_bytes());
}

}  // namespace stored_mat_mul

void add_stored_mat_mul(Registry& registry) {
  using namespace stored_mat_mul;  // NOLINT: the operator's own names
  registry.add_own(make_op("StoredMatMul", {infer, grad, reference},
                           {{"tiles", accepts_plain_with_blas, create}},
                           {.min_inputs = 2, .float32_only = true, .float32_inputs = {1, 2, 3}}));
}

// com.microsoft.MatMulNBits(A, B, scales, zero_points, g_idx, bias): y = A W^T + bias with
//
//   W[n, k] = (q[n, k] - zero_point[n, group]) * scale[n, group]
//
// and group = g_idx[k], or k / block_size. B holds q in 4 or 8 bits (attribute bits), in blocks of
// block_size neighbours along k. Zero points are integers packed as q, or floats; if missing, 8 or
// 128. Attribute accuracy_level is a hint for other kernels. W stays as the file has it:
//   dA = dy W            ofsdp.MatMulNBitsGrad(dy, B, scales, zero_points, g_idx)
//   dbias = dy summed over rows
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits

namespace n_bits {

// The last axis changes from `from` to `to`.
template <bool backward>
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Sizes s(c.attributes);
  OFSDP_RETURN_IF_ERROR(matrix_of(c.attributes, c.inputs).status());
  const TensorDesc& a = c.inputs[0];
  const int64_t from = backward ? s.n : s.k, to = backward ? s.k : s.n;
  OFSDP_REJECT_IF(
      a.dtype != DType::kFloat32 || a.shape.rank() == 0 || a.shape[a.shape.rank() - 1] != from,
      "expected float32 with a last axis of {}, found {}", from, a.text());
  OFSDP_REJECT_IF(!backward && c.has(5) && c.inputs[5].numel() != s.n,
                  "expected a bias of {} elements, found {}", s.n, c.inputs[5].text());
  std::vector<int64_t> axes = a.shape.axes();
  axes.back() = to;
  return std::vector{TensorDesc{DType::kFloat32, Shape(axes)}};
}

void grad(GradBuilder& b) {
  std::vector<Ref> operands{b.grad_output(0)};
  for (size_t i = 1; i < std::min<size_t>(b.num_inputs(), 5); ++i) operands.push_back(b.input(i));
  while (!operands.back()) operands.pop_back();
  if (b.needs_grad(0)) {
    b.set_grad(0, b.emit1("ofsdp.MatMulNBitsGrad", operands, b.attributes()));
  }
  if (b.num_inputs() > 5 && b.input(5) && b.needs_grad(5)) {
    b.set_grad(5, b.sum_to(b.grad_output(0), b.input(5)));
  }
}

// --- reference ---

double weight_at(const ReferenceContext& c, const Sizes& s, int64_t n, int64_t k) {
  const int64_t at = (n * s.blocks * s.block + k);
  const auto byte = static_cast<int64_t>(c.inputs[1][at * s.bits / 8]);
  const int64_t q = s.bits == 8 ? byte : at % 2 == 0 ? byte % 16 : byte / 16;
  const RefTensor* groups = given(c.inputs, 4);
  const int64_t group = groups == nullptr ? k / s.block : static_cast<int64_t>((*groups)[k]);
  double zero = s.bits == 8 ? 128 : 8;
  if (const RefTensor* zeros = given(c.inputs, 3); zeros != nullptr) {
    if (zeros->desc.dtype != DType::kUInt8) {
      zero = (*zeros)[n * s.blocks + group];
    } else {
      const auto packed = static_cast<int64_t>((*zeros)[n * s.zero_row() + group * s.bits / 8]);
      zero = static_cast<double>(s.bits == 8 ? packed : group % 2 == 0 ? packed % 16 : packed / 16);
    }
  }
  return (static_cast<double>(q) - zero) * c.inputs[2][n * s.blocks + group];
}

template <bool backward>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Sizes s(c.attributes);
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor &a = c.inputs[0], *bias = backward ? nullptr : given(c.inputs, 5);
  const int64_t from = backward ? s.n : s.k, to = backward ? s.k : s.n;
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const int64_t row = i / to, column = i % to;
    double sum = bias == nullptr ? 0 : (*bias)[column];
    for (int64_t j = 0; j < from; ++j) {
      sum +=
          a[row * from + j] * (backward ? weight_at(c, s, j, column) : weight_at(c, s, column, j));
    }
    y[i] = sum;
  }
  return {y};
}

// --- kernels ---

const std::byte* bytes_at(const KernelArgs& a, size_t i) {
  return i < a.inputs.size() ? a.inputs[i].data : nullptr;
}

// A group outside the scales is an error in the file.
Status check_groups(const int32_t* groups, const Sizes& s) {
  for (int64_t k = 0; groups != nullptr && k < s.k; ++k) {
    if (groups[k] < 0 || groups[k] >= s.blocks) {
      return input_error("g_idx[{}]: expected 0 to {}, found {}", k, s.blocks - 1, groups[k]);
    }
  }
  return ok_status();
}

template <bool backward>
std::unique_ptr<Kernel> create(const Problem& p) {
  using Along = StoredProduct::Along;
  const Sizes s(p.attributes);
  const StoredMatrix matrix = *matrix_of(p.attributes, p.inputs);
  const StoredProduct product(matrix, backward ? Along::kByColumns : Along::kByRows,
                              p.in(0).numel() / (backward ? s.n : s.k), p.threads);
  return make_kernel(
      [product, s](const KernelArgs& a) {
        const StoredBytes bytes{bytes_at(a, 1), bytes_at(a, 2), bytes_at(a, 3),
                                reinterpret_cast<const int32_t*>(bytes_at(a, 4))};
        OFSDP_RETURN_IF_ERROR(check_groups(bytes.g_idx, s));
        product.run(bytes, a.in<float>(0),
                    backward ? nullptr : reinterpret_cast<const float*>(bytes_at(a, 5)),
                    a.out<float>(0), a.workspace);
        return ok_status();
      },
      product.workspace_bytes());
}

}  // namespace n_bits

void add_mat_mul_n_bits(Registry& registry) {
  using namespace n_bits;  // NOLINT: the operator's own names
  OpDef forward = make_op("MatMulNBits", {infer<false>, grad, reference<false>},
                          {{"tiles", accepts_plain_with_blas, create<false>}},
                          {.domain = "com.microsoft",
                           .min_inputs = 3,
                           .float32_only = true,
                           .float32_inputs = {1, 2, 3, 4},
                           .stored_inputs = {1, 2, 3, 4}});
  registry.add(std::move(forward));
  registry.add_own(make_op("MatMulNBitsGrad", {infer<true>, nullptr, reference<true>},
                           {{"tiles", accepts_plain_with_blas, create<true>}},
                           {.min_inputs = 3, .float32_only = true}));
}

}  // namespace ofsdp::kernels::ops
