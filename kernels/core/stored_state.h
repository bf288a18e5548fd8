// Optimizer states in fewer bits than float32 (--state-dtype), and the update that decodes,
// advances and encodes them in one pass.
//
//   bfloat16   two bytes per element, rounded at random to a neighbour, so that the mean is the
//              value ([Note: rounding of states])
//   int8       one byte per element and one float32 scale per kStateBlock elements; the code book
//              is Dettmers's dynamic tree ([Note: the code book])
//
// [Note: rounding of states] A second moment moves by (1 - beta2) (g^2 - v), about a thousandth of
// v; the distance between bfloat16 neighbours is four to eight times that, so rounding to nearest
// would never change v. The random bits are a hash of seed, update, parameter and element index:
// there is no generator state, and every strategy and rank count gives the same bits. A value that
// already is a bfloat16 does not change.
//
// [Note: the code book] A block's scale is the element with the largest magnitude, with its sign,
// so that element is exact. Codes stand for fractions of the scale. Each decade of fractions (1e-7
// to 1e-6, ..., 0.1 to 1) is divided into 2^n equal parts, and a code is the middle of a part; n
// grows by one from each decade to the next. States that are never negative (second moments) use
// the sign bit for twice as many codes. Values round to the nearest code; but a second moment above
// 0 never becomes 0, because the step divides by the square root. Decoded values encode to the same
// bits. Blocks are counted from the parameter's first element.
//
// Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022
// (https://arxiv.org/abs/2110.02861).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/names.h"
#include "kernels/core/dtype.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/philox.h"

namespace ofsdp::kernels {

enum class StateDType : uint8_t { kFloat32, kBFloat16, kInt8 };
OFSDP_ENUM_NAMES(StateDType, {kFloat32, "float32"}, {kBFloat16, "bfloat16"}, {kInt8, "int8"})

// How a state tensor is stored. The two 8-bit forms have code books for signed values and for
// values from 0 on.
enum class StateForm : uint8_t { kFloat32, kBFloat16, kSigned8, kUnsigned8 };

inline constexpr int64_t kStateBlock = 256;  // 8-bit elements that share a scale
inline constexpr size_t kMaxStates = 2;      // stored states an optimizer may have

constexpr StateForm state_form(StateDType dtype, bool never_negative) {
  if (dtype == StateDType::kFloat32) return StateForm::kFloat32;
  if (dtype == StateDType::kBFloat16) return StateForm::kBFloat16;
  return never_negative ? StateForm::kUnsigned8 : StateForm::kSigned8;
}
// The dtype of a state operand in this form (kernels/core/update.h), and the form of that dtype.
constexpr DType state_operand_dtype(StateForm form) {
  if (form == StateForm::kBFloat16) return DType::kBFloat16;
  if (form == StateForm::kSigned8) return DType::kInt8;
  return form == StateForm::kUnsigned8 ? DType::kUInt8 : DType::kFloat32;
}
constexpr StateForm state_form(DType operand) {
  if (operand == DType::kBFloat16) return StateForm::kBFloat16;
  if (operand == DType::kInt8) return StateForm::kSigned8;
  return operand == DType::kUInt8 ? StateForm::kUnsigned8 : StateForm::kFloat32;
}
constexpr bool is_blocked(StateForm form) {
  return form == StateForm::kSigned8 || form == StateForm::kUnsigned8;
}

// A view of a state array in memory: the elements, followed for 8 bits by the block scales.
struct StoredState {
  StateForm form = StateForm::kFloat32;
  std::byte* elements = nullptr;
  float* scales = nullptr;

  float* floats() const { return reinterpret_cast<float*>(elements); }  // REQUIRES: kFloat32
  // Returns the array from element `first` on. REQUIRES: a block begins there.
  StoredState from(int64_t first) const {
    if (form == StateForm::kFloat32) return {form, elements + first * 4};
    if (form == StateForm::kBFloat16) return {form, elements + first * 2};
    return {form, elements + first, scales + first / kStateBlock};
  }
};

// Returns an array's bytes, scales included.
size_t stored_bytes(StateForm form, int64_t numel);
// Returns the array in `memory`, which has stored_bytes.
inline StoredState stored_state(StateForm form, std::byte* memory, int64_t numel) {
  StoredState state{form, memory};
  const int64_t blocks = (numel + kStateBlock - 1) / kStateBlock;
  if (is_blocked(form)) state.scales = reinterpret_cast<float*>(memory + blocks * kStateBlock);
  return state;
}

// Copies the first `count` elements, rounded up to whole blocks, to `memory`, which has
// stored_bytes.
StoredState copy_state(const StoredState& state, int64_t count, std::byte* memory);

// Decodes elements [first, first + count).
void read_state(const StoredState& state, int64_t first, int64_t count, float* out);

struct StateRounding {
  bool random = false;  // bfloat16: at random; else to nearest, ties to even
  PhiloxKey key = {};
  int64_t first = 0;  // the first element's index in the parameter
  int state = 0;      // 0 or 1: the state uses this half of the random bits

  static StateRounding of(uint64_t seed, int parameter, int64_t step) {
    return {.random = true, .key = philox_key(seed, static_cast<uint64_t>(parameter), step)};
  }
};

// Encodes the first `count` elements.
void write_state(const StoredState& state, const float* values, int64_t count,
                 const StateRounding& rounding);

// Updates `span` once: decodes `states`, runs the optimizer's update, and encodes the new states in
// place. `states` replace span.state and begin at the span's first element, which has the index
// rounding.first in the parameter.
void update_stored(const OptimizerDef& optimizer, const OptimizerSettings& settings,
                   const OptimizerSpan<float>& span, std::span<const StoredState> states,
                   StateRounding rounding);

// Returns the value of each 8-bit code as a fraction of the scale.
std::span<const float, 256> code_book(StateForm form);

}  // namespace ofsdp::kernels
