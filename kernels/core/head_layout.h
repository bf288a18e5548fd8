// HeadLayout: where the heads of an operand of attention lie in a tensor, so that attention can
// read them where a product left them. Element `column` of row `row` of head `h` of sample `b` is
// element
//
//   first + b * batch + h * head + row * row step + column
//
// of the tensor (HeadStrides). Sizes describe the operand, [batch, heads, rows, width], not the
// tensor: q, k and v may lie side by side in one.
//
// Fusion writes layouts as attributes of Attention (importer/passes/fusion/attention.cpp), and they
// go on to the gradient. Inference and the kernels of the CPU and of a device read them, all
// through kernels/ops/attention/attention_shape.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/core/attributes.h"

namespace ofsdp::kernels {

// The distance of samples, heads and rows, and the first element, in elements.
struct HeadStrides {
  int64_t batch = 0, head = 0, row = 0, first = 0;

  int64_t of(int64_t b, int64_t h, int64_t at_row = 0) const {
    return first + b * batch + h * head + at_row * row;
  }
};

struct HeadLayout {
  int64_t batch = 0, heads = 0, rows = 0, width = 0;
  HeadStrides at = {};

  // Returns the index after the last element; 0: there is none.
  int64_t end() const {
    if (batch == 0 || heads == 0 || rows == 0 || width == 0) return 0;
    return at.of(batch - 1, heads - 1, rows - 1) + width;
  }
};

// The attributes. With a layout of k and v these inputs may be absent: they lie in q's tensor, with
// one gradient for all three.
inline constexpr const char* kQueryLayout = "ofsdp_q_layout";
inline constexpr const char* kKeyLayout = "ofsdp_k_layout";
inline constexpr const char* kValueLayout = "ofsdp_v_layout";
// Y, and dY of the gradient, are [batch, heads, queries, width] after a Transpose with this perm.
// The last axis stays the last.
inline constexpr const char* kResultPerm = "ofsdp_result_perm";

inline std::vector<int64_t> to_attribute(const HeadLayout& l) {
  return {l.batch,    l.heads,   l.rows,   l.width,  //
          l.at.batch, l.at.head, l.at.row, l.at.first};
}

// Returns none if the attribute is absent or not a list of eight.
inline std::optional<HeadLayout> head_layout(const Attributes& attributes, const char* name) {
  const std::vector<int64_t> n = attributes.ints(name);
  if (n.size() != 8) return std::nullopt;
  return HeadLayout{n[0], n[1], n[2], n[3], {n[4], n[5], n[6], n[7]}};
}

}  // namespace ofsdp::kernels
