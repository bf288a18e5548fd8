// Shared by MaxPool and the gradient: the numbers of the problem, and the winners that the forward
// leaves for the gradient.
//
// The winner of an output is the number of the tap, in row-major order of the window, that held the
// maximum: uint8 for windows of up to 255 taps, else int32. kNoWinner (all bits set) sends no
// gradient anywhere: the window saw only padding, or an activation stopped it.
#pragma once

#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::ops {

inline constexpr int32_t kNoWinner = -1;  // 255 as uint8

DType winner_dtype(int64_t taps);

Result<Window> infer_pool(const Attributes& attributes, const Shape& x);
Window known_pool(const Attributes& attributes, const Shape& x);
Shape pool_output(const Window& window, const Shape& x);

// For the global poolings: the attributes of one window that covers x, and the shape of the result.
Attributes global_window(const Shape& x);
Result<Shape> infer_global_pool(const InferContext& c);

// The attributes of the gradient node: the window, x_shape.
Attributes pool_attributes(const Attributes& attributes, const Window& window, const Shape& x);

// The taps [begin, end) of kernel axis `axis` that are inside x for output position `o`.
std::pair<int64_t, int64_t> tap_range(const Window& window, size_t axis, int64_t o);

// Place of spatial position `at` (row-major) as Indices counts it: storage_order 1 is column-major.
int64_t stored_place(const Window& window, int64_t at, bool column_major);

// MaxPool's kernel for float32, 1 to 3 spatial axes, x and y both plain or both channels last. It
// takes x as input 0; gives y as output 0, Indices (plain, int64) as output 1 and winners as output
// 2 if present. Rows of outputs go to the pool of threads.

// Returns whether y and winners have the layout of x, and Indices the plain one.
bool has_pool_layouts(const Problem& problem);

std::unique_ptr<Kernel> make_max_pool(const Problem& problem);

// The same for other types (float64, int8, uint8), by plain loops and without an activation.
Acceptance accepts_max_pool_loops(const Problem& problem);
std::unique_ptr<Kernel> make_max_pool_loops(const Problem& problem);

}  // namespace ofsdp::kernels::ops
