// Attributes and operands that graph passes add to nodes while planning. Passes write them; shape
// inference and kernels read them.
//
// HeadLayout says at which elements of a tensor the attention heads are, so that attention can read
// them where a matrix product wrote them. In head `h` of sample `b`, element (row, column) is
// tensor element
//
//   first + b * batch + h * head + row * row step + column
//
// (HeadStrides). The sizes are those of the operand, [batch, heads, rows, width], not of the
// tensor, which may hold q, k and v side by side.
//
// Fusion writes layouts as attributes on Attention (importer/passes/fusion/attention.cpp); the
// gradient inherits them. Inference, CPU kernels and device kernels read them through
// kernels/ops/attention/attention_shape.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

// Distances between samples, heads and rows, and the first element, in elements.
struct HeadStrides {
  int64_t batch = 0, head = 0, row = 0, first = 0;

  int64_t of(int64_t b, int64_t h, int64_t at_row = 0) const {
    return first + b * batch + h * head + at_row * row;
  }
};

struct HeadLayout {
  int64_t batch = 0, heads = 0, rows = 0, width = 0;
  HeadStrides at = {};

  // Returns the index after the last element; 0 if there is none.
  int64_t end() const {
    if (batch == 0 || heads == 0 || rows == 0 || width == 0) return 0;
    return at.of(batch - 1, heads - 1, rows - 1) + width;
  }
};

// Layout attributes. If k and v have layouts, these inputs may be absent: they lie in q's tensor,
// and one gradient serves all three.
inline constexpr const char* kQueryLayout = "ofsdp_q_layout";
inline constexpr const char* kKeyLayout = "ofsdp_k_layout";
inline constexpr const char* kValueLayout = "ofsdp_v_layout";
// Y, and dY for the gradient, are [batch, heads, queries, width] after a Transpose with this perm,
// which keeps the last axis last.
inline constexpr const char* kResultPerm = "ofsdp_result_perm";

// [left, right], -1: open. The mask shows to query i, of keys i - left .. i + right, those that it
// keeps for all queries; its element (i, i) tells if it keeps key i. Fusion proves it
// (importer/passes/fusion/mask_band.cpp); CPU kernels do not read it.
inline constexpr const char* kMaskBand = "ofsdp_mask_band";

// Largest addend of a score that hides a key: exporters add -10000 (bfloat16: -9984) or less, and
// no score brings the key back.
inline constexpr double kHiddenScore = -9984;

inline std::vector<int64_t> to_attribute(const HeadLayout& l) {
  return {l.batch,    l.heads,   l.rows,   l.width,  //
          l.at.batch, l.at.head, l.at.row, l.at.first};
}

// Returns none if the attribute is absent or has not eight numbers.
inline std::optional<HeadLayout> head_layout(const Attributes& attributes, const char* name) {
  const std::vector<int64_t> n = attributes.ints(name);
  if (n.size() != 8) return std::nullopt;
  return HeadLayout{n[0], n[1], n[2], n[3], {n[4], n[5], n[6], n[7]}};
}

// The float32 tensor [ranks, part] in which ofsdp.JoinRows returns all ranks' rows. A rank's part
// begins with a header; the header's first element is the row count; at most `most` rows of `width`
// elements follow. Parts fill whole cache lines, so that ranks write side by side.
class JoinedRows {
 public:
  static constexpr int64_t kHeader = 16;  // elements

  static int64_t part_of(int64_t most, int64_t width) {
    return (kHeader + most * width + kHeader - 1) / kHeader * kHeader;
  }

  // `shape`: [ranks, part_of(most, width)].
  JoinedRows(const float* data, const Shape& shape, int64_t most, int64_t width)
      : data_(data), ranks_(shape[0]), part_(shape[1]), most_(most), width_(width) {}

  int64_t ranks() const { return ranks_; }
  // Returns the row count in the header, clamped to the part even if the bytes are garbage.
  int64_t rows(int64_t rank) const {
    const float said = data_[rank * part_];
    return said > 0 ? static_cast<int64_t>(std::min(said, static_cast<float>(most_))) : 0;
  }
  const float* row(int64_t rank, int64_t i = 0) const {
    return data_ + rank * part_ + kHeader + i * width_;
  }
  int64_t rows() const {
    int64_t sum = 0;
    for (int64_t r = 0; r < ranks_; ++r) sum += rows(r);
    return sum;
  }

 private:
  const float* data_;
  int64_t ranks_, part_, most_, width_;
};

// Kept rows: rows with labels that the loss does not ignore, in tensors [N, ...] with one row per
// label. importer/passes/joined_nodes.h explains their use.
//
//   rows   int64 [N + 1]: the number of rows left out, the kept rows' indices in rising order, then
//          zeros. All zeros means that all rows are kept, so a kernel timed on zeros does all work
//
// A product has kernels for eight row counts and takes the smallest that holds the kept rows,
// rounded_rows. In the operands, rows after the last kept one are zeros.

inline int64_t kept_of(const int64_t* rows, int64_t n) { return n - rows[0]; }

// Sixteenths of N. From an eighth on, rounding adds at most half.
inline constexpr std::array<int64_t, 8> kRowSixteenths{1, 2, 3, 4, 6, 8, 12, 16};

constexpr int64_t rows_of_size(size_t size, int64_t n) {
  return (n * kRowSixteenths[size] + 15) / 16;
}
constexpr size_t size_for(int64_t kept, int64_t n) {
  size_t size = 0;
  while (rows_of_size(size, n) < kept) ++size;
  return size;
}
constexpr int64_t rounded_rows(int64_t kept, int64_t n) {
  return kept == 0 ? 0 : rows_of_size(size_for(kept, n), n);
}

// Returns whether `rows` fits tensors with n rows.
inline bool are_kept_rows(const TensorDesc& rows, int64_t n) {
  return rows.dtype == DType::kInt64 && rows.shape == Shape{n + 1};
}

// Attribute on a Gemm with a float32 result and operands in 16 bits. Devices alone have kernels.
inline constexpr const char* kWideResult = "ofsdp_wide";

// The operands of ofsdp.LinearCrossEntropy (kernels/ops/loss/loss_with_gradient.cpp).
namespace linear_loss {

enum In : size_t { kLossWeight, kX, kW, kLabels, kBias, kClassWeights, kRows };
enum Out : size_t { kLoss, kDX, kDW, kDBias };

inline bool is_turned(const Attributes& attributes) { return attributes.i("transB", 0) != 0; }

// A device's workspace, without the products' own: offsets, multiples of 256 bytes. Rows of scores
// lie `padded` elements apart, which fast products take. If that is not the number of classes,
// weights and bias are copied and padded too.
struct Rooms {
  int64_t chunk = 0, classes = 0, padded = 0, inner = 0;
  size_t scores = 0, weights = 0, bias = 0;
  size_t sums = 0;               // float32, dW's
  size_t columns = 0, more = 0;  // float32, dbias's sum, and one chunk's
  size_t bytes = 0;
  bool sums_apart = false;  // sums are not dW itself

  static Rooms of(const Problem& p) {
    Rooms r;
    const auto size = dtype_size(p.in(kX).dtype);
    const auto pack = static_cast<int64_t>(16 / size);
    r.chunk = std::min(p.attributes.i("chunk", 1), p.in(kX).shape[0]);
    r.classes = p.in(kW).shape[is_turned(p.attributes) ? 0 : 1];
    r.inner = p.in(kX).shape[1];
    r.padded = r.classes % pack == 0 ? r.classes : (r.classes + 63) / 64 * 64;
    const bool copies = r.padded != r.classes;
    r.sums_apart = p.has_out(kDW) && (copies || p.out(kDW).dtype != DType::kFloat32);
    const auto take = [&r](int64_t elements, size_t of) {
      const size_t offset = r.bytes;
      r.bytes += (static_cast<size_t>(elements) * of + 255) / 256 * 256;
      return offset;
    };
    r.scores = take(r.chunk * r.padded, size);
    if (copies) r.weights = take(r.padded * r.inner, size);
    if (copies && p.has_in(kBias)) r.bias = take(r.padded, size);
    if (r.sums_apart) r.sums = take(r.padded * r.inner, sizeof(float));
    if (p.has_out(kDBias)) r.columns = take(r.padded, sizeof(float));
    if (p.has_out(kDBias)) r.more = take(r.padded, sizeof(float));
    return r;
  }
};

}  // namespace linear_loss

// ofsdp.LayerNormalizationGrad adds this input to dx; planning makes it
// (importer/passes/joined_nodes.h, join_norm_addends).
inline constexpr size_t kNormAddend = 7;

// Returns whether a scale or bias, broadcast to x, is one row over the normalised axes [axis,
// x.rank()). The element count does not suffice: if x is [4, 4] and axis 1, a scale [4, 1] also has
// 4 elements, but one per row.
inline bool is_one_row(const Shape& operand, const Shape& x, int axis) {
  const int width = x.rank() - axis;
  for (int i = 1; i <= std::max(operand.rank(), width); ++i) {
    const int64_t given = i <= operand.rank() ? operand[operand.rank() - i] : 1;
    if (given != (i <= width ? x[x.rank() - i] : 1)) return false;
  }
  return true;
}

}  // namespace ofsdp::kernels
