#include "kernels/cuda/recurrent/recurrent_parts.h"

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/shape/movement.h"

namespace ofsdp::kernels::cuda {
namespace {

GateFunction function_of(const ops::GateActivation& a) {
  static_assert(static_cast<int>(ops::GateActivation::Kind::kSigmoid) == 0 &&
                static_cast<int>(ops::GateActivation::Kind::kElu) == 8 &&
                static_cast<int>(ops::GateActivation::Kind::kSoftplus) == 10);
  return {static_cast<int32_t>(a.kind), a.alpha, a.beta, a.clip};
}

// From one row of a direction to the next, in elements.
int64_t state_step(const RecurrentExtent& e) {
  return (e.batch_first ? e.directions : 1) * e.hidden;
}

}  // namespace

ops::RecurrentShape recurrent_shape(ops::RecurrentKind kind, const Problem& p) {
  return ops::known_recurrent(kind, p.attributes, p.inputs);
}

RecurrentExtent recurrent_extent(const ops::RecurrentShape& s, int64_t direction) {
  RecurrentExtent e;
  e.kind = s.is_lstm()             ? CellKind::kLstm
           : !s.is_gru()           ? CellKind::kRnn
           : s.linear_before_reset ? CellKind::kGru
                                   : CellKind::kGruResetFirst;
  e.steps = s.steps;
  e.batch = s.batch;
  e.hidden = s.hidden;
  e.directions = s.directions;
  e.direction = direction;
  e.batch_first = s.batch_first;
  e.reversed = direction == 1 || s.first_reversed;
  e.input_forget = s.input_forget;
  GateFunction* const functions[] = {&e.f, &e.g, &e.h};
  for (size_t i = 0; i < s.functions(); ++i) {
    *functions[i] = function_of(s.activation(direction, i));
  }
  return e;
}

FloatOperands::Operand FloatOperands::operand(const TensorDesc& desc, Places& places) {
  Operand made;
  made.present = desc.present() && is_float(desc.dtype) && desc.numel() > 0;
  if (!made.present) return made;
  made.dtype = desc.dtype;
  made.numel = desc.numel();
  made.copied = desc.dtype != DType::kFloat32;
  if (made.copied) made.place = places.take(made.numel, sizeof(float));
  return made;
}

FloatOperands::FloatOperands(const Problem& p, Places& places) {
  for (const TensorDesc& desc : p.inputs) inputs_.push_back(operand(desc, places));
  for (const TensorDesc& desc : p.outputs) outputs_.push_back(operand(desc, places));
}

cudaError_t FloatOperands::read(const Launch& l, Addresses& made, cudaStream_t stream) const {
  const auto place = [&](const Operand& o, void* given) {
    return o.copied ? reinterpret_cast<float*>(at(l.workspace, o.place))
                    : static_cast<float*>(given);
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Operand& o = inputs_[i];
    if (!o.present) continue;
    made.in[i] = place(o, l.in(i));
    if (!o.copied) continue;
    OFSDP_CUDA_TRY(cast(o.dtype, l.in(i), DType::kFloat32, made.in[i], o.numel, stream));
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].present) made.out[i] = place(outputs_[i], l.out(i));
  }
  return cudaSuccess;
}

cudaError_t FloatOperands::write(const Launch& l, cudaStream_t stream) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Operand& o = outputs_[i];
    if (!o.present || !o.copied) continue;
    OFSDP_CUDA_TRY(
        cast(DType::kFloat32, at(l.workspace, o.place), o.dtype, l.out(i), o.numel, stream));
  }
  return cudaSuccess;
}

cudaError_t copy_states(const RecurrentExtent& e, const float* from, float* rows,
                        cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(e.batch * e.hidden) * sizeof(float);
  if (from == nullptr) return cudaMemsetAsync(rows, 0, bytes, stream);
  return strided_copy(sizeof(float), {e.batch, e.hidden}, {state_step(e), 1}, {e.hidden, 1},
                      from + e.state_row(0) * e.hidden, rows, stream);
}

cudaError_t put_states(const RecurrentExtent& e, const float* rows, float* to,
                       cudaStream_t stream) {
  if (to == nullptr) return cudaSuccess;
  return strided_copy(sizeof(float), {e.batch, e.hidden}, {e.hidden, 1}, {state_step(e), 1}, rows,
                      to + e.state_row(0) * e.hidden, stream);
}

void FloatProduct::make(DeviceState& device, int64_t rows, int64_t inner, int64_t columns,
                        bool transpose_a, bool transpose_b, bool bias, float beta, bool& made) {
  ProductShape s;
  s.rows = rows;
  s.inner = inner;
  s.columns = columns;
  s.transpose_a = transpose_a;
  s.transpose_b = transpose_b;
  s.bias = bias;
  s.beta = beta;
  // Of a direction, a step, a gate: whole rows from the start of a tensor.
  const bool packs = rows % 8 == 0 && inner % 8 == 0 && columns % 8 == 0;
  if (!packs) s.alignment = sizeof(float);
  product_ = make_product(device, s);
  made = made && product_ != nullptr;
}

Acceptance accepts_recurrent(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), some(p.in(0)), some(p.in(1)), some(p.in(2))});
}

}  // namespace ofsdp::kernels::cuda
