#include "kernels/core/stored_state.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/formulas/code_book.h"

namespace ofsdp::kernels {
namespace {

constexpr CodeBook kSignedBook = make_code_book(true), kUnsignedBook = make_code_book(false);

template <bool is_signed>
constexpr const CodeBook& book_of() {
  return is_signed ? kSignedBook : kUnsignedBook;
}

// gcc vectorises the maximum of integers but not that of floats, where NaN may occur.
OFSDP_MULTIARCH float scale_of_block(const float* values, int64_t n) {
  int32_t most = 0, most_positive = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<int32_t>(values[i]);
    most = std::max(most, bits & 0x7fffffff);
    most_positive = std::max(most_positive, bits);
  }
  return largest_scale(most, most_positive);
}

template <bool is_signed>
OFSDP_MULTIARCH void encode_block(const float* __restrict values, float scale,
                                  uint8_t* __restrict codes, int64_t n) {
  constexpr const CodeBook& kBook = book_of<is_signed>();
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (int64_t i = 0; i < n; ++i) codes[i] = code_of<is_signed>(kBook, values[i] * inverse);
}

OFSDP_MULTIARCH void decode_block(const uint8_t* __restrict codes, const float* __restrict book,
                                  float scale, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = book[codes[i]] * scale;
}

OFSDP_MULTIARCH void round_randomly(const float* __restrict values, uint16_t* __restrict out,
                                    int64_t n, uint32_t first, PhiloxKey key, uint32_t shift) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t random = rounding_bits(first + static_cast<uint32_t>(i), key);
    out[i] = rounded_bits(values[i], random >> shift & 0xffff);
  }
}

uint8_t* codes_of(const StoredState& state) { return reinterpret_cast<uint8_t*>(state.elements); }

void write_blocks(const StoredState& state, const float* values, int64_t count) {
  for (int64_t at = 0; at < count; at += kStateBlock) {
    const int64_t n = std::min(kStateBlock, count - at);
    const float scale = scale_of_block(values + at, n);
    state.scales[at / kStateBlock] = scale;
    uint8_t* const codes = codes_of(state) + at;
    state.form == StateForm::kSigned8 ? encode_block<true>(values + at, scale, codes, n)
                                      : encode_block<false>(values + at, scale, codes, n);
  }
}

void read_blocks(const StoredState& state, int64_t first, int64_t count, float* out) {
  const float* const book = code_book(state.form).data();
  int64_t done = 0;
  while (done < count) {
    const int64_t at = first + done;
    const int64_t n = std::min(count - done, kStateBlock - at % kStateBlock);
    decode_block(codes_of(state) + at, book, state.scales[at / kStateBlock], out + done, n);
    done += n;
  }
}

constexpr int64_t kPiece = 4 * kStateBlock;  // decoded states stay in the first-level cache

}  // namespace

std::span<const float, 256> code_book(StateForm form) {
  return form == StateForm::kSigned8 ? kSignedBook.values : kUnsignedBook.values;
}

size_t stored_bytes(StateForm form, int64_t numel) {
  const auto n = static_cast<size_t>(numel);
  if (form == StateForm::kFloat32) return n * sizeof(float);
  if (form == StateForm::kBFloat16) return n * sizeof(uint16_t);
  constexpr auto kBlock = static_cast<size_t>(kStateBlock);
  const size_t blocks = (n + kBlock - 1) / kBlock;
  return blocks * (kBlock + sizeof(float));
}

StoredState copy_state(const StoredState& state, int64_t count, std::byte* memory) {
  const StoredState to = stored_state(state.form, memory, count);
  if (!is_blocked(state.form)) {
    std::memcpy(to.elements, state.elements, stored_bytes(state.form, count));
    return to;
  }
  const int64_t blocks = (count + kStateBlock - 1) / kStateBlock;
  std::copy_n(state.elements, blocks * kStateBlock, to.elements);
  std::copy_n(state.scales, blocks, to.scales);
  return to;
}

void read_state(const StoredState& state, int64_t first, int64_t count, float* out) {
  if (is_blocked(state.form)) return read_blocks(state, first, count, out);
  if (state.form == StateForm::kFloat32) {
    std::memcpy(out, state.floats() + first, static_cast<size_t>(count) * sizeof(float));
  } else {
    widen(DType::kBFloat16, reinterpret_cast<const uint16_t*>(state.elements) + first, out, count);
  }
}

void write_state(const StoredState& state, const float* values, int64_t count,
                 const StateRounding& rounding) {
  if (is_blocked(state.form)) return write_blocks(state, values, count);
  if (state.form == StateForm::kFloat32) {
    std::memcpy(state.elements, values, static_cast<size_t>(count) * sizeof(float));
  } else if (!rounding.random) {
    narrow(values, DType::kBFloat16, state.elements, count);
  } else {
    round_randomly(values, reinterpret_cast<uint16_t*>(state.elements), count,
                   static_cast<uint32_t>(rounding.first), rounding.key,
                   rounding.state == 0 ? 0 : 16);
  }
}

void update_stored(const OptimizerDef& optimizer, const OptimizerSettings& settings,
                   const OptimizerSpan<float>& span, std::span<const StoredState> states,
                   StateRounding rounding) {
  alignas(64) std::array<std::array<float, kPiece>, kMaxStates> values;
  OFSDP_CHECK(states.size() <= kMaxStates, "{} states of an optimizer", states.size());
  std::array<float*, kMaxStates> pointers{values[0].data(), values[1].data()};
  const int64_t first = rounding.first;
  for (int64_t at = 0; at < span.count; at += kPiece) {
    OptimizerSpan<float> piece = span;
    piece.param += at;
    piece.grad += at;
    piece.state = pointers.data();
    piece.count = std::min(kPiece, span.count - at);
    for (size_t i = 0; i < states.size(); ++i) {
      read_state(states[i], at, piece.count, pointers[i]);
    }
    optimizer.update(settings, piece);
    rounding.first = first + at;
    for (size_t i = 0; i < states.size(); ++i) {
      rounding.state = static_cast<int>(i);
      write_state(states[i].from(at), pointers[i], piece.count, rounding);
    }
  }
}

}  // namespace ofsdp::kernels
