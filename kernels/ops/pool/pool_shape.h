// MaxPool and the gradient share this: the sizes, and the winners that forward leaves for the
// gradient.
//
// An output's winner is the number of the tap that held the maximum, in the window's row-major
// order: uint8 for windows with up to 255 taps, else int32. kNoWinner (all bits set) sends no
// gradient anywhere: the window saw only padding, or an activation stopped it.
#pragma once

#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::ops {

inline constexpr int32_t kNoWinner = -1;  // 255 as uint8

DType winner_dtype(int64_t taps);

// infer_pool checks the node; kInput. known_pool reads a node that has been checked.
Result<Window> infer_pool(const Attributes& attributes, const Shape& x);
Window known_pool(const Attributes& attributes, const Shape& x);
Shape pool_output(const Window& window, const Shape& x);

// For global pooling: the attributes of one window that covers x, and the result's shape.
Attributes global_window(const Shape& x);
Result<Shape> infer_global_pool(const InferContext& c);

// Returns the gradient node's attributes: the window and x_shape.
Attributes pool_attributes(const Attributes& attributes, const Window& window, const Shape& x);

// Returns which taps [begin, end) of kernel axis `axis` are inside x for output position `o`.
std::pair<int64_t, int64_t> tap_range(const Window& window, size_t axis, int64_t o);

// Returns spatial position `at` (row-major) as Indices counts it: storage_order 1 is column-major.
int64_t stored_place(const Window& window, int64_t at, bool column_major);

// MaxPool's kernel for float32, 1 to 3 spatial axes, x and y both plain or both channels last.
// Input 0 is x; output 0 is y, output 1 Indices (plain, int64) and output 2 winners, if present.
// Threads share the output rows.

// Returns whether y and winners have x's layout, and Indices are plain.
bool has_pool_layouts(const Problem& problem);

std::unique_ptr<Kernel> make_max_pool(const Problem& problem);

// The same for float64, int8 and uint8, by plain loops and without an activation.
Acceptance accepts_max_pool_loops(const Problem& problem);
std::unique_ptr<Kernel> make_max_pool_loops(const Problem& problem);

}  // namespace ofsdp::kernels::ops
