// ofsdp.StoredMatMul(x, w, scale, zero_point): the product of x [.., inner] with a frozen matrix W
// [rows, columns] that stays in the type its file has, element (r, c) = (w - zero_point) * scale.
//
//   by_rows = 1    y = x W^T      dx = dy W       the same operator with by_rows = 0
//   by_rows = 0    y = x W        dx = dy W^T
//
// Attributes: rows, columns, by_rows; type, the TensorProto.DataType of the elements (int8, uint8,
// int4, uint4, float16, bfloat16); axis and block_size of the scales as in DequantizeLinear
// (kernels/core/scale_map.h). Floats have no scale. A pass puts it in the place of a product
// (importer/passes/frozen_weights.h).
// https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
#include "kernels/base/reject.h"
#include "kernels/core/scale_map.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/stored_matrix.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace stored_mat_mul {

Result<StoredType> type_of(int64_t onnx_type) {
  constexpr std::pair<int64_t, StoredType> kTypes[] = {
      {2, StoredType::kUInt8},     {3, StoredType::kInt8},   {10, StoredType::kFloat16},
      {16, StoredType::kBFloat16}, {21, StoredType::kUInt4}, {22, StoredType::kInt4}};
  for (const auto& [number, type] : kTypes) {
    if (number == onnx_type) return type;
  }
  return input_error("expected a matrix of 4 or 8 bits or half floats, found type {}", onnx_type);
}

struct Form {
  int64_t rows, columns;
  bool by_rows;

  explicit Form(const Attributes& a)
      : rows(a.i("rows", 0)), columns(a.i("columns", 0)), by_rows(a.i("by_rows", 1) != 0) {}
  int64_t inner() const { return by_rows ? columns : rows; }
  int64_t width() const { return by_rows ? rows : columns; }
};

TensorDesc operand(const std::vector<TensorDesc>& inputs, size_t i) {
  return i < inputs.size() ? inputs[i] : TensorDesc{};
}

// The scales of the elements, in the words of StoredMatrix.
Status set_scales(const Attributes& a, const TensorDesc& scale, StoredMatrix& m) {
  const int64_t axis = a.i("axis", 1), block = a.i("block_size", 0);
  OFSDP_RETURN_IF_ERROR(
      ScaleMap::make(Shape{m.rows, m.columns}, scale.shape, axis, block).status());
  m.scale_dtype = scale.dtype;
  if (scale.numel() == 1 && block == 0) return ok_status();
  const bool of_rows = axis == 0 || axis == -2;
  const int64_t shared = std::max<int64_t>(block, 1);
  if (of_rows) m.row_block = shared;
  if (!of_rows) m.column_block = shared;
  const bool both = block != 0;
  m.row_step = !both && of_rows ? 1
               : !both          ? 0
               : of_rows        ? m.columns
                                : (m.columns + block - 1) / block;
  m.column_step = both || !of_rows ? 1 : 0;
  return ok_status();
}

Result<StoredMatrix> matrix_of(const Attributes& a, const std::vector<TensorDesc>& inputs) {
  const Form form(a);
  StoredMatrix m;
  OFSDP_ASSIGN_OR_RETURN(m.type, type_of(a.i("type", 0)));
  m.rows = form.rows;
  m.columns = m.row_pitch = form.columns;
  const TensorDesc weight = operand(inputs, 1), scale = operand(inputs, 2),
                   zero = operand(inputs, 3);
  const auto bytes = static_cast<size_t>((m.rows * m.columns * stored_bits(m.type) + 7) / 8);
  OFSDP_REJECT_IF(weight.bytes() != bytes, "expected {} bytes of weights, found {}", bytes,
                  weight.text());
  const bool integers = stored_bits(m.type) <= 8;
  OFSDP_REJECT_IF(scale.present() != integers || (zero.present() && !integers),
                  "expected scales of integers alone, found {} with {}", weight.text(),
                  scale.text());
  if (!integers) return m;
  OFSDP_RETURN_IF_ERROR(set_scales(a, scale, m));
  OFSDP_REJECT_IF(zero.present() && zero.numel() != scale.numel(),
                  "expected as many zero points as scales ({}), found {}", scale.numel(),
                  zero.numel());
  m.has_zeros = zero.present();
  m.zero_type = stored_type(zero.dtype);
  m.zero_pitch = m.row_step;
  return m;
}

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
                           {.min_inputs = 2, .float32_only = true}));
}

}  // namespace ofsdp::kernels::ops
