// How one element of an optimizer's state is stored in fewer bits than float32, written once for
// CPU loops and CUDA kernels. kernels/core/stored_state.h explains the forms, the rounding and the
// code books.
//
//   CodeBook              values and steps of an 8-bit form, computed by the compiler
//   largest_scale(a, b)   a block's scale from the largest bits of the magnitudes and of the values
//   code_of(book, x)      the code of x, a fraction of the scale
//   rounded_bits(v, r)    the bits of v as bfloat16, rounded up if the random bits r say so
//
// A GPU cannot index a compiler's constant: there a CodeBook must be a variable in device memory.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "kernels/base/formula.h"
#include "kernels/core/philox.h"

namespace ofsdp::kernels {

inline constexpr int kCodeDecades = 7;
inline constexpr uint32_t kCodeSign = 0x80;

// In decade d, magnitude x has the code floor(x slope[d] + shift[d]), clamped to [least[d], 2
// least[d]): bit least[d] = 2^n says the decade, the bits below count the parts.
struct CodeBook {
  float begin[kCodeDecades] = {};  // magnitudes from here on are nearest to this decade
  float slope[kCodeDecades] = {}, shift[kCodeDecades] = {}, least[kCodeDecades] = {};
  float one_begin = 0;  // from here on the code is 1's
  uint32_t one = 0;
  float values[256] = {};
};

// The next decade's codes are five times as far apart, so the middle between a decade's last value
// and the next one's first lies a part's width into the next decade.
constexpr CodeBook make_code_book(bool is_signed) {
  CodeBook book;
  book.one = is_signed ? kCodeSign : 1;
  book.values[book.one] = 1;
  double tenth = 1e-7, last = 0;
  for (uint32_t d = 0; d < kCodeDecades; ++d, tenth *= 10) {
    const uint32_t parts = 1u << (is_signed ? d : d + 1);
    const double width = 9 * tenth / parts;
    for (uint32_t k = 0; k < parts; ++k) {
      const double value = tenth + width * (k + 0.5);
      if (k == 0) book.begin[d] = static_cast<float>((last + value) / 2);
      last = value;
      book.values[parts + k] = static_cast<float>(value);
      if (is_signed) book.values[kCodeSign | (parts + k)] = static_cast<float>(-value);
    }
    book.slope[d] = static_cast<float>(1 / width);
    book.shift[d] = static_cast<float>(parts - tenth / width);
    book.least[d] = static_cast<float>(parts);
  }
  book.one_begin = static_cast<float>((last + 1) / 2);
  return book;
}

// `most`: the largest bits of the magnitudes, as integers, which order as floats with equal signs
// do; NaN counts as the largest. `most_positive`: the largest bits of the values.
OFSDP_HD float largest_scale(int32_t most, int32_t most_positive) {
  const float magnitude = __builtin_bit_cast(float, most);
  if (magnitude < FLT_MIN) return 0;  // the reciprocal may be infinite
  return most_positive == most ? magnitude : -magnitude;
}

template <bool is_signed>
OFSDP_HD uint8_t code_of(const CodeBook& book, float x) {
  const float magnitude = x < 0 ? -x : x;
  float slope = book.slope[0], shift = book.shift[0], least = book.least[0];
  for (int d = 1; d < kCodeDecades; ++d) {
    const bool reached = magnitude >= book.begin[d];
    slope = reached ? book.slope[d] : slope;
    shift = reached ? book.shift[d] : shift;
    least = reached ? book.least[d] : least;
  }
  const float most = 2 * least - 1;
  float place = magnitude * slope + shift;
  place = place > least ? place : least;  // NaN too
  place = place < most ? place : most;
  int32_t code = static_cast<int32_t>(place);
  if constexpr (is_signed) {
    code = magnitude >= book.begin[0] ? code | (x < 0 ? int32_t{kCodeSign} : 0) : 0;
    code = x >= book.one_begin ? static_cast<int32_t>(book.one) : code;
  } else {
    code = magnitude > 0 ? code : 0;
    code = magnitude >= book.one_begin ? static_cast<int32_t>(book.one) : code;
  }
  return static_cast<uint8_t>(code);
}

// Returns 32 random bits for an element of a parameter: MurmurHash3's finaliser over element number
// and key.
OFSDP_HD uint32_t rounding_bits(uint32_t element, const PhiloxKey& key) {
  uint32_t h = (element ^ key[1]) * 0x9e3779b1u + key[0];
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

// `random`: 16 bits.
OFSDP_HD uint16_t rounded_bits(float value, uint32_t random) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>((nan ? bits | 0x400000 : bits + random) >> 16);
}

}  // namespace ofsdp::kernels
