#include "kernels/core/stored_state.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {
namespace {

constexpr int kDecades = 7;
constexpr uint32_t kSignBit = 0x80;

// In decade d, magnitude x has the code floor(x slope[d] + shift[d]), clamped to [least[d], 2
// least[d]): bit least[d] = 2^n says the decade, the bits below count the parts.
struct CodeBook {
  std::array<float, kDecades> begin{};  // magnitudes from here on are nearest to this decade
  std::array<float, kDecades> slope{}, shift{}, least{};
  float one_begin = 0;  // from here on the code is 1's
  uint32_t one = 0;
  std::array<float, 256> values{};
};

// The next decade's codes are five times as far apart, so the middle between a decade's last value
// and the next one's first lies a part's width into the next decade.
constexpr CodeBook make_code_book(bool is_signed) {
  CodeBook book;
  book.one = is_signed ? kSignBit : 1;
  book.values[book.one] = 1;
  double tenth = 1e-7, last = 0;
  for (size_t d = 0; d < kDecades; ++d, tenth *= 10) {
    const uint32_t parts = 1u << (is_signed ? d : d + 1);
    const double width = 9 * tenth / parts;
    for (uint32_t k = 0; k < parts; ++k) {
      const double value = tenth + width * (k + 0.5);
      if (k == 0) book.begin[d] = static_cast<float>((last + value) / 2);
      last = value;
      book.values[parts + k] = static_cast<float>(value);
      if (is_signed) book.values[kSignBit | (parts + k)] = static_cast<float>(-value);
    }
    book.slope[d] = static_cast<float>(1 / width);
    book.shift[d] = static_cast<float>(parts - tenth / width);
    book.least[d] = static_cast<float>(parts);
  }
  book.one_begin = static_cast<float>((last + 1) / 2);
  return book;
}

constexpr CodeBook kSignedBook = make_code_book(true), kUnsignedBook = make_code_book(false);

template <bool is_signed>
constexpr const CodeBook& book_of() {
  return is_signed ? kSignedBook : kUnsignedBook;
}

// Integers order as floats with equal signs do, and gcc vectorises their maximum but not that of
// floats, where NaN may occur. NaN counts as the largest.
OFSDP_MULTIARCH float largest_of_block(const float* values, int64_t n) {
  int32_t most = 0, most_positive = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<int32_t>(values[i]);
    most = std::max(most, bits & 0x7fffffff);
    most_positive = std::max(most_positive, bits);
  }
  const auto magnitude = std::bit_cast<float>(most);
  if (magnitude < FLT_MIN) return 0;  // the reciprocal may be infinite
  return most_positive == most ? magnitude : -magnitude;
}

template <bool is_signed>
OFSDP_MULTIARCH void encode_block(const float* __restrict values, float scale,
                                  uint8_t* __restrict codes, int64_t n) {
  constexpr const CodeBook& kBook = book_of<is_signed>();
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (int64_t i = 0; i < n; ++i) {
    const float x = values[i] * inverse;
    const float magnitude = std::abs(x);
    float slope = kBook.slope[0], shift = kBook.shift[0], least = kBook.least[0];
    for (size_t d = 1; d < kDecades; ++d) {
      const bool reached = magnitude >= kBook.begin[d];
      slope = reached ? kBook.slope[d] : slope;
      shift = reached ? kBook.shift[d] : shift;
      least = reached ? kBook.least[d] : least;
    }
    const float most = 2 * least - 1;
    float place = magnitude * slope + shift;
    place = place > least ? place : least;  // NaN too
    place = place < most ? place : most;
    int32_t code = static_cast<int32_t>(place);
    if constexpr (is_signed) {
      code = magnitude >= kBook.begin[0] ? code | (x < 0 ? int32_t{kSignBit} : 0) : 0;
      code = x >= kBook.one_begin ? int32_t{kBook.one} : code;
    } else {
      code = magnitude > 0 ? code : 0;
      code = magnitude >= kBook.one_begin ? int32_t{kBook.one} : code;
    }
    codes[i] = static_cast<uint8_t>(code);
  }
}

OFSDP_MULTIARCH void decode_block(const uint8_t* __restrict codes, const float* __restrict book,
                                  float scale, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = book[codes[i]] * scale;
}

// MurmurHash3's finaliser over element number and key.
inline uint32_t random_bits(uint32_t element, const PhiloxKey& key) {
  uint32_t h = (element ^ key[1]) * 0x9e3779b1u + key[0];
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

OFSDP_MULTIARCH void round_randomly(const float* __restrict values, uint16_t* __restrict out,
                                    int64_t n, uint32_t first, PhiloxKey key, uint32_t shift) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t random = random_bits(first + static_cast<uint32_t>(i), key) >> shift & 0xffff;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t rounded = nan ? bits | 0x400000 : bits + random;
    out[i] = static_cast<uint16_t>(rounded >> 16);
  }
}

uint8_t* codes_of(const StoredState& state) { return reinterpret_cast<uint8_t*>(state.elements); }

void write_blocks(const StoredState& state, const float* values, int64_t count) {
  for (int64_t at = 0; at < count; at += kStateBlock) {
    const int64_t n = std::min(kStateBlock, count - at);
    const float scale = largest_of_block(values + at, n);
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

const std::array<float, 256>& code_book(StateForm form) {
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

StoredState stored_state(StateForm form, std::byte* memory, int64_t numel) {
  StoredState state{form, memory};
  const int64_t blocks = (numel + kStateBlock - 1) / kStateBlock;
  if (is_blocked(form)) state.scales = reinterpret_cast<float*>(memory + blocks * kStateBlock);
  return state;
}

StoredState StoredState::from(int64_t first) const {
  if (!is_blocked(form)) {
    const auto width = static_cast<int64_t>(stored_bytes(form, 1));
    return {form, elements + first * width};
  }
  OFSDP_CHECK(first % kStateBlock == 0, "a block of states is cut at {}", first);
  return {form, elements + first, scales + first / kStateBlock};
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
