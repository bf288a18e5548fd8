// Optimizer states in fewer bits than float32 (--state-dtype), and the update that decodes,
// advances and encodes them in one pass.
//
//   bfloat16   two bytes an element, rounded at random to a neighbour, so that the mean is the
//              value ([Note: rounding of states])
//   int8       a code an element and a float32 scale for each kStateBlock elements; the code
//              book is Dettmers's dynamic tree ([Note: the code book])
//
// [Note: rounding of states] A second moment moves by (1 - beta2) (g^2 - v), about a thousandth of
// v; a bfloat16 step is four to eight times that, so rounding to nearest would never change it. The
// random bits hash seed, update, parameter and element index: there is no generator state, and
// every strategy and rank count gives the same bits. A value that is a bfloat16 already stays.
//
// [Note: the code book] A block's scale is the element with the largest magnitude, with its sign,
// so that element is exact. The others are multiples of it: a decade, from 1e-7..1e-6 to 0.1..1,
// has 2^n values, the middles of as many equal parts; n grows by one from each decade to the next.
// States that are never negative use the sign bit for twice as many values. Values round to the
// nearest code, but there no value above 0 becomes 0, because the step divides by the root. Decoded
// values encode to the same bits. Blocks count from the parameter's first element.
//
// Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022
// (https://arxiv.org/abs/2110.02861).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/names.h"
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
constexpr bool is_blocked(StateForm form) {
  return form == StateForm::kSigned8 || form == StateForm::kUnsigned8;
}

// A view of a state array: the elements and, for 8 bits, then the block scales.
struct StoredState {
  StateForm form = StateForm::kFloat32;
  std::byte* elements = nullptr;
  float* scales = nullptr;

  float* floats() const { return reinterpret_cast<float*>(elements); }  // REQUIRES: kFloat32
  // Returns the array from element `first` on. REQUIRES: a block begins there.
  StoredState from(int64_t first) const;
};

// Returns an array's bytes, scales included.
size_t stored_bytes(StateForm form, int64_t numel);
// Returns the array in `memory`, which has stored_bytes.
StoredState stored_state(StateForm form, std::byte* memory, int64_t numel);

// Copies the first `count` elements, and their last block whole, to `memory`, which has
// stored_bytes.
StoredState copy_state(const StoredState& state, int64_t count, std::byte* memory);

// Decodes elements [first, first + count).
void read_state(const StoredState& state, int64_t first, int64_t count, float* out);

struct StateRounding {
  bool random = false;  // bfloat16: at random; else to nearest, ties to even
  PhiloxKey key = {};
  int64_t first = 0;  // the first element's number
  int state = 0;      // 0 or 1: which half of the random bits

  static StateRounding of(uint64_t seed, int parameter, int64_t step) {
    return {.random = true, .key = philox_key(seed, static_cast<uint64_t>(parameter), step)};
  }
};

// Encodes the first `count` elements.
void write_state(const StoredState& state, const float* values, int64_t count,
                 const StateRounding& rounding);

// Updates `span` once, with `states` in place of the span's states. Each begins at the span's first
// element, which has the index `rounding.first`.
void update_stored(const OptimizerDef& optimizer, const OptimizerSettings& settings,
                   const OptimizerSpan<float>& span, std::span<const StoredState> states,
                   StateRounding rounding);

// Each 8-bit code's value, in units of the scale.
const std::array<float, 256>& code_book(StateForm form);

}  // namespace ofsdp::kernels
