#include "kernels/ops/matmul/stored_forms.h"

#include "kernels/core/quantization.h"

namespace ofsdp::kernels::ops {
namespace stored_mat_mul {
namespace {

Result<StoredType> type_of(int64_t onnx_type) {
  constexpr std::pair<int64_t, StoredType> kTypes[] = {
      {2, StoredType::kUInt8},     {3, StoredType::kInt8},   {10, StoredType::kFloat16},
      {16, StoredType::kBFloat16}, {21, StoredType::kUInt4}, {22, StoredType::kInt4}};
  for (const auto& [number, type] : kTypes) {
    if (number == onnx_type) return type;
  }
  return input_error("expected a matrix of 4 or 8 bits or half floats, found type {}", onnx_type);
}

// Sets the scales in a StoredMatrix.
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

}  // namespace

Result<StoredMatrix> matrix_of(const Attributes& a, const std::vector<TensorDesc>& inputs) {
  const Form form(a);
  StoredMatrix m;
  OFSDP_ASSIGN_OR_RETURN(m.type, type_of(a.i("type", 0)));
  m.rows = form.rows;
  m.columns = m.row_pitch = form.columns;
  const TensorDesc weight = operand_or_none(inputs, 1), scale = operand_or_none(inputs, 2),
                   zero = operand_or_none(inputs, 3);
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

}  // namespace stored_mat_mul

namespace n_bits {
namespace {

struct NBitsOperands {
  TensorDesc weight, scales, zero_points, g_idx;
};

Status check_sizes(const Sizes& s) {
  OFSDP_REJECT_IF(s.bits != 4 && s.bits != 8, "bits: expected 4 or 8, found {}", s.bits);
  OFSDP_REJECT_IF(s.block < 16 || (s.block & (s.block - 1)) != 0,
                  "block_size: expected a power of two from 16 on, found {}", s.block);
  OFSDP_REJECT_IF(s.n < 1 || s.k < 1, "K and N: expected at least 1, found {} and {}", s.k, s.n);
  return ok_status();
}

Status check_weight(const Sizes& s, const NBitsOperands& o) {
  const int64_t bytes = s.n * s.blocks * s.block * s.bits / 8;
  OFSDP_REJECT_IF(o.weight.dtype != DType::kUInt8 || o.weight.numel() != bytes,
                  "expected a weight of uint8 with {} bytes (N {}, {} blocks of {}), found {}",
                  bytes, s.n, s.blocks, s.block, o.weight.text());
  OFSDP_REJECT_IF(!is_32_or_16_bit_float(o.scales.dtype) || o.scales.numel() != s.n * s.blocks,
                  "expected {} scales, found {}", s.n * s.blocks, o.scales.text());
  const TensorDesc& zero = o.zero_points;
  const int64_t zeros = zero.dtype == DType::kUInt8 ? s.n * s.zero_row() : s.n * s.blocks;
  OFSDP_REJECT_IF(
      zero.present() && !(zero.dtype == DType::kUInt8 || is_32_or_16_bit_float(zero.dtype)),
      "expected zero points of uint8 or floats, found {}", zero.text());
  OFSDP_REJECT_IF(zero.present() && zero.numel() != zeros,
                  "expected zero points of {} elements, found {}", zeros, zero.text());
  const TensorDesc& groups = o.g_idx;
  OFSDP_REJECT_IF(groups.present() && (groups.dtype != DType::kInt32 || groups.numel() < s.k),
                  "expected g_idx of int32 with {} elements, found {}", s.k, groups.text());
  return ok_status();
}

}  // namespace

Result<StoredMatrix> matrix_of(const Attributes& attributes,
                               const std::vector<TensorDesc>& inputs) {
  const Sizes s(attributes);
  const NBitsOperands operands{operand_or_none(inputs, 1), operand_or_none(inputs, 2),
                               operand_or_none(inputs, 3), operand_or_none(inputs, 4)};
  OFSDP_RETURN_IF_ERROR(check_sizes(s));
  OFSDP_RETURN_IF_ERROR(check_weight(s, operands));
  StoredMatrix matrix;
  matrix.type = s.bits == 4 ? StoredType::kUInt4 : StoredType::kUInt8;
  matrix.rows = s.n;
  matrix.columns = s.k;
  matrix.row_pitch = s.blocks * s.block;
  matrix.scale_dtype = operands.scales.dtype;
  matrix.row_step = s.blocks;
  matrix.column_block = s.block;
  matrix.column_step = 1;
  matrix.zero_otherwise = s.bits == 4 ? 8 : 128;
  matrix.has_zeros = operands.zero_points.present();
  if (!matrix.has_zeros) return matrix;
  const bool packed = operands.zero_points.dtype == DType::kUInt8;
  matrix.zero_type = packed ? matrix.type : stored_type(operands.zero_points.dtype);
  matrix.zero_pitch = packed ? s.zero_row() * 8 / s.bits : s.blocks;
  return matrix;
}

}  // namespace n_bits

namespace gather_block {

Result<Table> table_of(const Attributes& a, const TensorDesc& data) {
  Table t;
  t.block = a.i("block_size", 128);
  OFSDP_REJECT_IF(t.block < 16 || (t.block & (t.block - 1)) != 0,
                  "block_size: expected a power of two from 16 on, found {}", t.block);
  const int64_t bits = a.i("bits", 4), type = a.i("ofsdp_type", 0);
  if (type == kInt4Type || type == kUInt4Type) {
    t.shape = Shape(a.ints("ofsdp_shape"));
    t.type = type == kInt4Type ? StoredType::kInt4 : StoredType::kUInt4;
    t.bytes = false;
  } else {
    OFSDP_REJECT_IF(data.dtype != DType::kUInt8 || data.shape.rank() == 0,
                    "expected data of int4, uint4 or uint8, found {}", data.text());
    OFSDP_REJECT_IF(bits != 4 && bits != 8, "bits: expected 4 or 8, found {}", bits);
    std::vector<int64_t> axes = data.shape.axes();
    axes.back() *= 8 / bits;
    t.shape = Shape(axes);
    t.type = bits == 4 ? StoredType::kUInt4 : StoredType::kUInt8;
  }
  OFSDP_ASSIGN_OR_RETURN(t.gather, normalize_axis(a.i("gather_axis", 0), t.shape.rank()));
  OFSDP_ASSIGN_OR_RETURN(t.quantize, normalize_axis(a.i("quantize_axis", 1), t.shape.rank()));
  const int last = t.shape.rank() - 1;
  OFSDP_REJECT_IF(t.bytes && (t.quantize != last || (t.gather != 0 && last > 0)),
                  "expected gather_axis 0 and quantize_axis {} of data in uint8, found {} and {}",
                  last, t.gather, t.quantize);
  OFSDP_REJECT_IF(
      t.shape.numel(0, t.quantize) > 1 && t.quantize != last && t.shape[t.quantize] % t.block != 0,
      "expected whole blocks of {} along axis {}, found {} elements", t.block, t.quantize,
      t.shape[t.quantize]);
  return t;
}

Result<StoredMatrix> matrix_of(const Table& t, const std::vector<TensorDesc>& inputs) {
  const TensorDesc &data = inputs[0], &scales = inputs[2];
  const TensorDesc zero = operand_or_none(inputs, 3);
  const int last = t.shape.rank() - 1;
  const bool along = t.quantize == last;
  const int64_t bits = stored_bits(t.type);
  StoredMatrix m;
  m.type = t.type;
  m.columns = m.row_pitch = along ? t.shape[last] : t.shape.numel(t.quantize + 1, last + 1);
  m.rows = t.shape.numel() / std::max<int64_t>(m.columns, 1);
  const auto bytes = static_cast<size_t>((t.shape.numel() * bits + 7) / 8);
  OFSDP_REJECT_IF(data.bytes() != bytes, "expected {} bytes of data, found {}", bytes, data.text());
  OFSDP_REJECT_IF(!is_32_or_16_bit_float(scales.dtype) || scales.shape != t.scales(),
                  "expected scales {}, found {}", t.scales().text(), scales.text());
  m.scale_dtype = scales.dtype;
  (along ? m.column_block : m.row_block) = t.block;
  m.row_step = along ? (m.columns + t.block - 1) / t.block : m.columns;
  m.column_step = 1;
  m.has_zeros = zero.present();
  OFSDP_REJECT_IF(m.has_zeros && static_cast<int64_t>(zero.bytes()) != t.zero_bytes(),
                  "expected zero points of {} bytes, found {}", t.zero_bytes(), zero.text());
  m.zero_type = t.type;
  m.zero_pitch = t.bytes && bits == 4 ? (m.row_step + 1) / 2 * 2 : m.row_step;
  if (t.bytes) m.zero_otherwise = bits == 4 ? 8 : 128;
  return m;
}

TensorDesc operand(const std::vector<TensorDesc>& inputs, size_t i) {
  return i < inputs.size() ? inputs[i] : TensorDesc{};
}

}  // namespace gather_block
}  // namespace ofsdp::kernels::ops
