#include "kernels/cpu/stored_matrix.h"

#include <algorithm>

#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kInnerTile = 256;  // along the inner axis; even
constexpr int64_t kPartTile = 256;   // columns of dst at most; even
// Bytes widened at once: the usual block with 32 4-bit elements. gcc would vectorize a loop with
// unknown length for 64-byte registers, which such a block does not fill.
constexpr int64_t kWidened = 16;

int nibble(const std::byte* bytes, int64_t i) {
  const auto byte = static_cast<unsigned>(bytes[i / 2]);
  return static_cast<int>(i % 2 != 0 ? byte >> 4 : byte & 15U);
}

float element_at(StoredType type, const std::byte* bytes, int64_t i) {
  switch (type) {
    case StoredType::kUInt4:
      return static_cast<float>(nibble(bytes, i));
    case StoredType::kInt4:
      return static_cast<float>((nibble(bytes, i) ^ 8) - 8);
    case StoredType::kUInt8:
      return static_cast<float>(static_cast<uint8_t>(bytes[i]));
    case StoredType::kInt8:
      return static_cast<float>(static_cast<int8_t>(bytes[i]));
    case StoredType::kFloat16:
      return as_float(reinterpret_cast<const Half*>(bytes)[i]);
    case StoredType::kBFloat16:
      return as_float(reinterpret_cast<const BFloat16*>(bytes)[i]);
    case StoredType::kFloat32:
      return reinterpret_cast<const float*>(bytes)[i];
  }
  return 0;
}

struct Factors {
  float scale, zero;
};

// [Note: halves of a byte] One loop over bytes writes even and odd elements; the compiler turns it
// into unpacking of whole registers. Int4 is uint4 with an inverted sign bit, so the zero point is
// larger by 8.
template <StoredType type>
[[gnu::always_inline]] inline void widen_run(const std::byte* bytes, int64_t first, int64_t count,
                                             Factors f, float* dst) {
  if constexpr (type == StoredType::kUInt4 || type == StoredType::kInt4) {
    constexpr unsigned kFlip = type == StoredType::kInt4 ? 0x88 : 0;
    const float zero = type == StoredType::kInt4 ? f.zero + 8 : f.zero;
    const auto value = [&](unsigned q) {
      return (static_cast<float>(static_cast<int>(q)) - zero) * f.scale;
    };
    int64_t i = 0;
    if (first % 2 != 0 && count > 0) {
      dst[i++] = value((static_cast<unsigned>(bytes[first / 2]) ^ kFlip) >> 4);
    }
    const auto* src = reinterpret_cast<const uint8_t*>(bytes) + (first + i) / 2;
    const int64_t pairs = (count - i) / 2;
    float* to = dst + i;
    const auto pair = [&](int64_t k) {
      const unsigned byte = src[k] ^ kFlip;
      to[2 * k] = value(byte & 15U);
      to[2 * k + 1] = value(byte >> 4);
    };
    int64_t done = 0;
    for (; done + kWidened <= pairs; done += kWidened) {
#pragma GCC ivdep
      for (int64_t k = 0; k < kWidened; ++k) pair(done + k);
    }
    for (int64_t k = done; k < pairs; ++k) pair(k);
    if (i + 2 * pairs < count) to[2 * pairs] = value((src[pairs] ^ kFlip) & 15U);
  } else if constexpr (type == StoredType::kUInt8 || type == StoredType::kInt8) {
    using Integer = std::conditional_t<type == StoredType::kUInt8, uint8_t, int8_t>;
    const auto* src = reinterpret_cast<const Integer*>(bytes) + first;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) dst[i] = (static_cast<float>(src[i]) - f.zero) * f.scale;
  } else {
    using Float = std::conditional_t<type == StoredType::kFloat16, Half, BFloat16>;
    const auto* src = reinterpret_cast<const Float*>(bytes) + first;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) dst[i] = as_float(src[i]);
  }
}

template <StoredType type>
OFSDP_MULTIARCH void widen(const std::byte* bytes, int64_t first, int64_t count, Factors f,
                           float* dst) {
  widen_run<type>(bytes, first, count, f, dst);
}

OFSDP_MULTIARCH void apply_factors(const float* scales, const float* zeros, int64_t count,
                                   float* dst) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) dst[i] = (dst[i] - zeros[i]) * scales[i];
}

using WidenRun = void (*)(const std::byte*, int64_t, int64_t, Factors, float*);

WidenRun run_of(StoredType type) {
  switch (type) {
    case StoredType::kUInt4:
      return widen<StoredType::kUInt4>;
    case StoredType::kInt4:
      return widen<StoredType::kInt4>;
    case StoredType::kUInt8:
      return widen<StoredType::kUInt8>;
    case StoredType::kInt8:
      return widen<StoredType::kInt8>;
    case StoredType::kFloat16:
      return widen<StoredType::kFloat16>;
    default:
      OFSDP_CHECK(type == StoredType::kBFloat16, "float32 is not stored");
      return widen<StoredType::kBFloat16>;
  }
}

class TileWidener {
 public:
  TileWidener(const StoredMatrix& matrix, const StoredBytes& bytes)
      : m_(matrix),
        bytes_(bytes),
        run_(run_of(matrix.type)),
        scale_type_(stored_type(matrix.scale_dtype)) {}

  void row(int64_t r, int64_t column, int64_t columns, float* dst) {
    const int64_t first = r * m_.row_pitch + column;
    if (m_.scale_dtype == DType::kUndefined)
      return run_(bytes_.elements, first, columns, {1, 0}, dst);
    const int64_t group = r / m_.row_block;
    if (m_.column_step == 0) {
      return run_(bytes_.elements, first, columns, factors(group, 0), dst);
    }
    if (bytes_.g_idx != nullptr || m_.column_block == 1) {
      return by_element(group, first, column, columns, dst);
    }
    for (int64_t done = 0; done < columns;) {
      const int64_t at = column + done, block = at / m_.column_block;
      const int64_t count = std::min((block + 1) * m_.column_block - at, columns - done);
      run_(bytes_.elements, first + done, count, factors(group, block), dst + done);
      done += count;
    }
  }

 private:
  Factors factors(int64_t group, int64_t block) const {
    const int64_t at = group * m_.row_step + block * m_.column_step;
    float zero = m_.zero_otherwise;
    if (m_.has_zeros) {
      const int64_t zero_at = group * m_.zero_pitch + block * m_.column_step;
      zero = element_at(m_.zero_type, bytes_.zeros, zero_at);
    }
    return {element_at(scale_type_, bytes_.scales, at), zero};
  }

  // Neighbours along the row have scales of their own; rows in one group share them.
  void by_element(int64_t group, int64_t first, int64_t column, int64_t columns, float* dst) {
    for (int64_t done = 0; done < columns; done += kFactors) {
      const int64_t count = std::min(kFactors, columns - done);
      find_factors(group, column + done, count);
      run_(bytes_.elements, first + done, count, {1, 0}, dst + done);
      apply_factors(scales_, zeros_, count, dst + done);
    }
  }

  void find_factors(int64_t group, int64_t column, int64_t count) {
    if (group == group_ && column == column_ && count <= count_) return;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t c = column + i;
      const Factors f =
          factors(group, bytes_.g_idx != nullptr ? bytes_.g_idx[c] : c / m_.column_block);
      scales_[i] = f.scale;
      zeros_[i] = f.zero;
    }
    group_ = group;
    column_ = column;
    count_ = count;
  }

  static constexpr int64_t kFactors = 256;

  const StoredMatrix& m_;
  const StoredBytes& bytes_;
  WidenRun run_;
  StoredType scale_type_;
  float scales_[kFactors], zeros_[kFactors];  // for these columns
  int64_t group_ = -1, column_ = -1, count_ = 0;
};

}  // namespace

void widen_tile(const StoredMatrix& matrix, const StoredBytes& bytes, const StoredTile& tile,
                float* dst, int64_t pitch) {
  TileWidener widener(matrix, bytes);
  for (int64_t r = 0; r < tile.rows; ++r) {
    widener.row(tile.row + r, tile.column, tile.columns, dst + r * pitch);
  }
}

StoredProduct::StoredProduct(const StoredMatrix& matrix, Along along, int64_t rows, int threads)
    : matrix_(matrix),
      along_(along),
      rows_(rows),
      inner_(along == Along::kByRows ? matrix.columns : matrix.rows),
      width_(along == Along::kByRows ? matrix.rows : matrix.columns),
      threads_(threads) {
  const int64_t share = (width_ + threads_ - 1) / threads_;
  part_ = std::clamp<int64_t>((share + 15) / 16 * 16, 16, kPartTile);
  depth_ = std::clamp<int64_t>(inner_, 1, kInnerTile);
}

size_t StoredProduct::workspace_bytes() const {
  return static_cast<size_t>(threads_ * part_ * depth_) * sizeof(float);
}

void StoredProduct::run(const StoredBytes& bytes, const float* a, const float* bias, float* dst,
                        std::byte* workspace) const {
  for (int64_t r = 0; r < rows_; ++r) {
    if (bias != nullptr) std::copy_n(bias, width_, dst + r * width_);
    if (bias == nullptr && inner_ == 0) std::fill_n(dst + r * width_, width_, 0.0f);
  }
  if (rows_ == 0) return;
  const int64_t parts = (width_ + part_ - 1) / part_;
  parallel_each(threads_, 1, [&](int64_t thread) {
    float* tile = reinterpret_cast<float*>(workspace) + thread * part_ * depth_;
    for (int64_t part = parts * thread / threads_; part < parts * (thread + 1) / threads_; ++part) {
      const int64_t first = part * part_;
      add_tiles(bytes, a, bias != nullptr, {first, std::min(part_, width_ - first)}, tile, dst);
    }
  });
}

void StoredProduct::add_tiles(const StoredBytes& bytes, const float* a, bool adds,
                              const Columns& columns, float* tile, float* dst) const {
  const auto [first, width] = columns;
  for (int64_t i = 0; i < inner_; i += depth_) {
    const int64_t depth = std::min(depth_, inner_ - i);
    if (along_ == Along::kByRows) {
      widen_tile(matrix_, bytes, {first, width, i, depth}, tile, depth_);
    } else {
      widen_tile(matrix_, bytes, {i, depth, first, width}, tile, part_);
    }
    const bool turned = along_ == Along::kByRows;
    blas_product({rows_, depth, width}, 1, {a + i, inner_, false},
                 {tile, turned ? depth_ : part_, turned}, i > 0 || adds, dst + first, width_);
  }
}

}  // namespace ofsdp::kernels
