// com.microsoft.GatherBlockQuantized(data, indices, scales, zero_points): y = Gather(w, indices)
// along gather_axis (0) of
//
//   w = (data - zero_point) * scale
//
// with a scale for each block of block_size (128) neighbours along quantize_axis (1). Data of uint8
// holds elements of `bits` (4, 8) side by side along its last axis, with zero points of the same
// form, 8 or 128 where they are missing; int4 and uint4 have 0 there. The importer says with
// ofsdp_shape and ofsdp_type (TensorProto.DataType) how data of 4 bits are to be read, which it
// hands over as bytes. Only the rows that are taken become float32. No gradient: they are frozen.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GatherBlockQuantized
#include "kernels/base/reject.h"
#include "kernels/cpu/indexed.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/stored_matrix.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace gather_block {

constexpr int64_t kUInt4Type = 21, kInt4Type = 22;  // of TensorProto.DataType

// The table as its elements lie, and the axes of its operator.
struct Table {
  Shape shape;
  StoredType type = StoredType::kUInt4;
  bool bytes = true;  // uint8 in the file: zero points start a byte in each row
  int gather = 0, quantize = 0;
  int64_t block = 0;

  Shape scales() const {
    std::vector<int64_t> axes = shape.axes();
    auto& axis = axes[static_cast<size_t>(quantize)];
    axis = (axis + block - 1) / block;
    return Shape(axes);
  }
  int64_t zero_bytes() const {
    const Shape s = scales();
    const int64_t bits = stored_bits(type), last = s[s.rank() - 1];
    if (!bytes) return (s.numel() * bits + 7) / 8;
    return s.numel() / std::max<int64_t>(last, 1) * ((last * bits + 7) / 8);
  }
};

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

Result<StoredMatrix> matrix_of(const Table& t, const TensorDesc& data, const TensorDesc& scales,
                               const TensorDesc& zero) {
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

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Table t, table_of(c.attributes, c.inputs[0]));
  OFSDP_RETURN_IF_ERROR(matrix_of(t, c.inputs[0], c.inputs[2], operand(c.inputs, 3)).status());
  if (c.inputs[1].dtype != DType::kInt64 && c.inputs[1].dtype != DType::kInt32) {
    return input_error("expected indices of int64 or int32, found {}", c.inputs[1].text());
  }
  std::vector<int64_t> axes = t.shape.axes();
  axes.erase(axes.begin() + t.gather);
  const auto& put = c.inputs[1].shape.axes();
  axes.insert(axes.begin() + t.gather, put.begin(), put.end());
  return std::vector{TensorDesc{DType::kFloat32, Shape(axes)}};
}

// --- reference ---

double integer_at(const RefTensor& packed, StoredType type, int64_t i) {
  if (stored_bits(type) == 8) return packed[i];
  const auto byte = static_cast<int64_t>(packed[i / 2]);
  const int64_t q = i % 2 == 0 ? byte % 16 : byte / 16;
  return static_cast<double>(type == StoredType::kInt4 && q > 7 ? q - 16 : q);
}

double value_at(const ReferenceContext& c, const Table& t, const std::vector<int64_t>& index) {
  std::vector<int64_t> block = index;
  block[static_cast<size_t>(t.quantize)] /= t.block;
  const Shape scales = t.scales();
  const auto k = static_cast<int64_t>(ravel(scales, block));
  double zero = !t.bytes ? 0 : stored_bits(t.type) == 4 ? 8 : 128;
  if (const RefTensor* zeros = given(c.inputs, 3); zeros != nullptr) {
    const int64_t last = scales[scales.rank() - 1];
    const int64_t padded = t.bytes && stored_bits(t.type) == 4 ? (last + 1) / 2 * 2 : last;
    zero = integer_at(*zeros, t.type, k / last * padded + k % last);
  }
  const auto at = static_cast<int64_t>(ravel(t.shape, index));
  return (integer_at(c.inputs[0], t.type, at) - zero) * c.inputs[2][k];
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Table t = *table_of(c.attributes, c.inputs[0].desc);
  RefTensor y = zeros(c.output_descs[0]);
  const Shape& taken = c.inputs[1].desc.shape;
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const std::vector<int64_t> place = unravel(y.desc.shape, i);
    std::vector<int64_t> index(place.begin(), place.begin() + t.gather), at;
    at.assign(place.begin() + t.gather, place.begin() + t.gather + taken.rank());
    const auto k = static_cast<int64_t>(c.inputs[1][static_cast<int64_t>(ravel(taken, at))]);
    index.push_back(k < 0 ? k + t.shape[t.gather] : k);
    index.insert(index.end(), place.begin() + t.gather + taken.rank(), place.end());
    y[i] = value_at(c, t, index);
  }
  return {y};
}

// --- kernel ---

template <typename Index>
std::unique_ptr<Kernel> create_as(const Problem& p) {
  const Table t = *table_of(p.attributes, p.in(0));
  const StoredMatrix m = *matrix_of(t, p.in(0), p.in(2), operand(p.inputs, 3));
  const int64_t outer = t.shape.numel(0, t.gather), n = t.shape[t.gather],
                inner = t.shape.numel(t.gather + 1, t.shape.rank()), count = p.in(1).numel();
  return make_kernel([=](const KernelArgs& a) {
    const Index* indices = a.in<Index>(1);
    OFSDP_RETURN_IF_ERROR(check_indices(indices, count, n));
    const StoredBytes bytes{a.inputs[0].data, a.inputs[2].data,
                            a.inputs.size() > 3 ? a.inputs[3].data : nullptr, nullptr};
    parallel_each(outer * count, 8192 / std::max<int64_t>(inner, 1) + 1, [&](int64_t run) {
      const int64_t from = (run / count * n + wrapped(indices[run % count], n)) * inner;
      const int64_t rows = std::max<int64_t>(inner / std::max<int64_t>(m.columns, 1), 1);
      const int64_t columns = std::min(inner, m.columns);
      if (columns == 0) return;
      widen_tile(m, bytes, {from / m.columns, rows, from % m.columns, columns},
                 a.out<float>(0) + run * inner, columns);
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_index(p.in(1).dtype, [&](auto index) { return create_as<decltype(index)>(p); });
}

}  // namespace gather_block

void add_gather_block_quantized(Registry& registry) {
  using namespace gather_block;  // NOLINT: the operator's own names
  OpDef op = make_op("GatherBlockQuantized", {infer, no_grad, reference},
                     {{"rows", accepts_plain, create}},
                     {.domain = "com.microsoft", .min_inputs = 3, .float32_only = true});
  registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
