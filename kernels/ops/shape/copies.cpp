// Operators that copy x with other strides. Any dtype.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Expand(x, shape)      broadcasts x to shape (if `shape` has 1, x's axis stays); dx = dy summed
//                         over the broadcast axes
//   Tile(x, repeats)      repeats x repeats[i] times along axis i; dx = dy summed over the
//                         repetitions
//   Transpose(x), perm    axis i of y is axis perm[i] of x; all axes reversed if perm is absent;
//                         dx = dy under the inverse permutation
//   ofsdp.Copy(x)         copies x into other bytes (Identity is a view); dx = dy
//   ofsdp.Reorder(x), to  the same logical [N, C, spatial...] tensor in the layout "plain" or
//                         "channels_last". The planner inserts it after differentiation: no
//                         gradient.

#include <algorithm>
#include <numeric>

#include "kernels/core/op_def.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace copies {

// --- copy ---

Acceptance copy_accepts(const Problem& p) {
  return accept_if(p.in(0) == p.out(0), "output unlike the input");
}

std::unique_ptr<Kernel> copy_create(const Problem& p) {
  return make_kernel([bytes = static_cast<int64_t>(p.out(0).bytes())](const KernelArgs& a) {
    parallel_for(bytes, int64_t{1} << 18, [&](int64_t begin, int64_t end) {
      std::memcpy(a.outputs[0].data + begin, a.inputs[0].data + begin,
                  static_cast<size_t>(end - begin));
    });
  });
}

void copy_body(BodyBuilder& b) { b.set_output(0, b.emit1("Identity", {b.input(0)})); }

// --- expand ---

Result<std::vector<TensorDesc>> expand_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto axes, known_ints(c, 1, "shape"));
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  OFSDP_ASSIGN_OR_RETURN(Shape shape, broadcast(c.inputs[0].shape, Shape(axes)));
  return std::vector{TensorDesc{c.inputs[0].dtype, std::move(shape)}};
}

void expand_grad(GradBuilder& b) { b.set_grad(0, b.sum_to(b.grad_output(0), b.input(0))); }

std::vector<RefTensor> expand_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    y.values.push_back(c.inputs[0].values[ravel_broadcast(c.inputs[0].desc.shape, index)]);
  }
  return {y};
}

std::unique_ptr<Kernel> expand_create(const Problem& p) {
  const TensorDesc& y = p.out(0);
  return make_copy_kernel(StridedCopy(y.shape, broadcast_strides(p.in(0), y.shape), strides_of(y),
                                      dtype_size(y.dtype)));
}

// --- reorder ---

Result<std::vector<TensorDesc>> reorder_infer(const InferContext& c) {
  TensorDesc y = c.inputs[0];
  const std::string to = c.attributes.s("to", "");
  if (to != "plain" && to != "channels_last") {
    return input_error("attribute 'to': expected plain or channels_last, found '{}'", to);
  }
  if (y.shape.rank() < 3) return input_error("expected [N, C, spatial...], found {}", y.text());
  y.layout = to == "plain" ? Layout::kPlain : Layout::kChannelsLast;
  return std::vector{y};
}

Acceptance reorder_accepts(const Problem& p) {
  return accept_if(p.in(0).shape == p.out(0).shape, "two shapes");
}

std::unique_ptr<Kernel> reorder_create(const Problem& p) {
  return make_copy_kernel(StridedCopy(p.out(0).shape, strides_of(p.in(0)), strides_of(p.out(0)),
                                      dtype_size(p.out(0).dtype)));
}

// --- tile ---

Result<std::vector<TensorDesc>> tile_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto repeats, known_ints(c, 1, "repeats"));
  std::vector<int64_t> axes = c.inputs[0].shape.axes();
  if (repeats.size() != axes.size()) {
    return input_error("expected {} repeats, one for each axis, found {}", axes.size(),
                       repeats.size());
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    if (repeats[i] < 0) return input_error("repeat {} of axis {} is negative", repeats[i], i);
    OFSDP_ASSIGN_OR_RETURN(axes[i], checked_numel({axes[i], repeats[i]}));
  }
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(axes)}};
}

// y with two axes, repetition and element, for each repeated axis of x.
struct Split {
  Shape tiled;                   // y
  Shape once;                    // the same with every repetition 1: x
  std::vector<int64_t> strides;  // x's strides in `tiled`: 0 along repetitions
};

Split split(const TensorDesc& x, const Shape& y) {
  const auto own = strides_of(x);
  std::vector<int64_t> tiled, once, strides;
  for (int i = 0; i < x.shape.rank(); ++i) {
    const int64_t repeats = x.shape[i] == 0 ? 1 : y[i] / x.shape[i];
    if (repeats != 1) {
      tiled.push_back(repeats);
      once.push_back(1);
      strides.push_back(0);
    }
    tiled.push_back(x.shape[i]);
    once.push_back(x.shape[i]);
    strides.push_back(own[static_cast<size_t>(i)]);
  }
  return {Shape(tiled), Shape(once), strides};
}

void tile_grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref x = b.input(0);
  const Split s = split(b.desc(x), b.desc(dy).shape);
  const Ref tiled = b.emit1("Reshape", {dy, b.ints(s.tiled.axes())}, {{"allowzero", int64_t{1}}});
  if (s.tiled == s.once) return b.set_grad(0, reshape_like(b, dy, x));
  const Ref sum = b.emit1("ofsdp.SumTo", {tiled}, {{"shape", s.once.axes()}});
  b.set_grad(0, reshape_like(b, sum, x));
}

std::vector<RefTensor> tile_reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    auto index = unravel(y.desc.shape, i);
    for (size_t axis = 0; axis < index.size(); ++axis) {
      index[axis] %= x.desc.shape[static_cast<int>(axis)];
    }
    y.values.push_back(x.values[ravel(x.desc.shape, index)]);
  }
  return {y};
}

Acceptance tile_accepts(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse("not plain");
  return accept_if(split(p.in(0), p.out(0).shape).tiled.rank() <= kMaxLoopAxes, "too many axes");
}

std::unique_ptr<Kernel> tile_create(const Problem& p) {
  const Split s = split(p.in(0), p.out(0).shape);
  return make_copy_kernel(StridedCopy(s.tiled, s.strides, strides_of({p.out(0).dtype, s.tiled}),
                                      dtype_size(p.out(0).dtype)));
}

// --- transpose ---

// PyTorch's older exporter leaves negative axes in perm, which ONNX does not define.
std::vector<int64_t> perm_of(const Attributes& attributes, int rank) {
  std::vector<int64_t> reversed(static_cast<size_t>(rank));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  std::vector<int64_t> perm = attributes.ints("perm", reversed);
  for (int64_t& axis : perm) axis += axis < 0 ? rank : 0;
  return perm;
}

Result<std::vector<TensorDesc>> transpose_infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const auto perm = perm_of(c.attributes, x.shape.rank());
  std::vector<int64_t> sorted = perm;
  std::ranges::sort(sorted);
  std::vector<int64_t> all(static_cast<size_t>(x.shape.rank()));
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) {
    return input_error("perm {} is no permutation of the {} axes of {}", Shape(perm).text(),
                       x.shape.rank(), x.text());
  }
  TensorDesc y{x.dtype, x.shape};
  for (int i = 0; i < x.shape.rank(); ++i) {
    y.shape[i] = x.shape[static_cast<int>(perm[static_cast<size_t>(i)])];
  }
  return std::vector{y};
}

void transpose_grad(GradBuilder& b) {
  const auto perm = perm_of(b.attributes(), b.desc(b.input(0)).shape.rank());
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  }
  b.set_grad(0, b.emit1("Transpose", {b.grad_output(0)}, {{"perm", inverse}}));
}

std::vector<RefTensor> transpose_reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  RefTensor y{c.output_descs[0], {}};
  const auto perm = perm_of(c.attributes, x.desc.shape.rank());
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto to = unravel(y.desc.shape, i);
    std::vector<int64_t> from(to.size());
    for (size_t axis = 0; axis < to.size(); ++axis) {
      from[static_cast<size_t>(perm[axis])] = to[axis];
    }
    y.values.push_back(x.values[ravel(x.desc.shape, from)]);
  }
  return {y};
}

std::unique_ptr<Kernel> transpose_create(const Problem& p) {
  const TensorDesc& y = p.out(0);
  const auto perm = perm_of(p.attributes, y.shape.rank());
  const auto own = strides_of(p.in(0));
  std::vector<int64_t> from;
  for (int64_t axis : perm) from.push_back(own[static_cast<size_t>(axis)]);
  return make_copy_kernel(StridedCopy(y.shape, from, strides_of(y), dtype_size(y.dtype)));
}

}  // namespace copies

void add_copies(Registry& registry) {
  using namespace copies;
  registry.add_own(make_op("Copy", {infer_same, grad_of_copy, reference_of_view},
                           {{"memcpy", copy_accepts, copy_create}},
                           {.body = copy_body, .layout = LayoutRule::kElementwise}));
  registry.add(make_op("Expand", {expand_infer, expand_grad, expand_reference},
                       {{"copy", accepts_plain, expand_create}},
                       {.min_inputs = 2,
                        .first_opset = 8,
                        .narrow_types = true,
                        .reads_number = true,
                        .constant_inputs = {1}}));
  registry.add_own(make_op("Reorder", {reorder_infer, nullptr, reference_of_view},
                           {{"tiles", reorder_accepts, reorder_create}}));
  registry.add(make_op(
      "Tile", {tile_infer, tile_grad, tile_reference}, {{"copy", tile_accepts, tile_create}},
      {.min_inputs = 2, .first_opset = 6, .narrow_types = true, .constant_inputs = {1}}));
  registry.add(make_op("Transpose", {transpose_infer, transpose_grad, transpose_reference},
                       {{"copy", accepts_plain, transpose_create}}, {.narrow_types = true}));
}

// DepthToSpace(x) and SpaceToDepth(x), attributes blocksize b and mode, move elements between
// [N, C b b, H, W] and [N, C, H b, W b]: each b b channels become a block of b x b pixels. The mode
// orders the block axes in the C b b channels: DCR (block row, block column, channel) or CRD
// (channel, row, column). Any dtype. Each operator is the other's gradient.
// https://onnx.ai/onnx/operators/onnx__DepthToSpace.html

namespace depth_space {

constexpr int64_t kMaxBlock = 65536;  // the square fits an int64

Status check_block(const InferContext& c) {
  const int64_t size = c.attributes.i("blocksize", 0);
  if (size < 1 || size > kMaxBlock) {
    return input_error("attribute 'blocksize': expected 1..{}, found {}", kMaxBlock, size);
  }
  const std::string mode = c.attributes.s("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") {
    return input_error("attribute 'mode': expected DCR or CRD, found '{}'", mode);
  }
  if (c.inputs[0].shape.rank() != 4) {
    return input_error("expected [N, C, H, W], found {}", c.inputs[0].text());
  }
  return ok_status();
}

// Both tensors seen with 6 axes: N, C, H, block row, W, block column.
struct BlockView {
  Shape shape;
  std::vector<int64_t> space;  // strides of [N, C, H b, W b]
  std::vector<int64_t> depth;  // strides of [N, C b b, H, W]
};

BlockView block_view(const Shape& space, const Attributes& attributes) {
  const int64_t b = attributes.i("blocksize", 1);
  const int64_t c = space[1], h = space[2] / b, w = space[3] / b;
  const int64_t plane = h * w;
  const bool dcr = attributes.s("mode", "DCR") == "DCR";
  const int64_t column = dcr ? c * plane : plane;
  return {{space[0], c, h, b, w, b},
          {c * plane * b * b, plane * b * b, w * b * b, w * b, b, 1},
          {c * plane * b * b, dcr ? plane : plane * b * b, w, column * b, 1, column}};
}

void block_grad(GradBuilder& b, const char* inverse) {
  b.set_grad(0, b.emit1(inverse, {b.grad_output(0)}, b.attributes()));
}

std::vector<RefTensor> block_reference(const BlockView& v, const ReferenceContext& c,
                                       const std::vector<int64_t>& from,
                                       const std::vector<int64_t>& to) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(v.shape, i);
    size_t x_at = 0, y_at = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) {
      x_at += static_cast<size_t>(index[axis] * from[axis]);
      y_at += static_cast<size_t>(index[axis] * to[axis]);
    }
    y.values[y_at] = c.inputs[0].values[x_at];
  }
  return {y};
}

Result<std::vector<TensorDesc>> to_space_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_block(c));
  const Shape& x = c.inputs[0].shape;
  const int64_t b = c.attributes.i("blocksize", 1);
  if (x[1] % (b * b) != 0) {
    return input_error("{} channels are no multiple of blocksize squared {}", x[1], b * b);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, {x[0], x[1] / (b * b), x[2] * b, x[3] * b}}};
}

void to_space_grad(GradBuilder& b) { block_grad(b, "SpaceToDepth"); }

std::vector<RefTensor> to_space_reference(const ReferenceContext& c) {
  const BlockView v = block_view(c.output_descs[0].shape, c.attributes);
  return block_reference(v, c, v.depth, v.space);
}

std::unique_ptr<Kernel> to_space_create(const Problem& p) {
  const BlockView v = block_view(p.out(0).shape, p.attributes);
  return make_copy_kernel(StridedCopy(v.shape, v.depth, v.space, dtype_size(p.out(0).dtype)));
}

Result<std::vector<TensorDesc>> to_depth_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_block(c));
  const Shape& x = c.inputs[0].shape;
  const int64_t b = c.attributes.i("blocksize", 1);
  if (x[2] % b != 0 || x[3] % b != 0) {
    return input_error("height {} and width {} are no multiples of blocksize {}", x[2], x[3], b);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, {x[0], x[1] * b * b, x[2] / b, x[3] / b}}};
}

void to_depth_grad(GradBuilder& b) { block_grad(b, "DepthToSpace"); }

std::vector<RefTensor> to_depth_reference(const ReferenceContext& c) {
  const BlockView v = block_view(c.inputs[0].desc.shape, c.attributes);
  return block_reference(v, c, v.space, v.depth);
}

std::unique_ptr<Kernel> to_depth_create(const Problem& p) {
  const BlockView v = block_view(p.in(0).shape, p.attributes);
  return make_copy_kernel(StridedCopy(v.shape, v.space, v.depth, dtype_size(p.out(0).dtype)));
}

}  // namespace depth_space

void add_depth_space(Registry& registry) {
  using namespace depth_space;
  registry.add(make_op("DepthToSpace", {to_space_infer, to_space_grad, to_space_reference},
                       {{"copy", accepts_plain, to_space_create}}, {.narrow_types = true}));
  registry.add(make_op("SpaceToDepth", {to_depth_infer, to_depth_grad, to_depth_reference},
                       {{"copy", accepts_plain, to_depth_create}}, {.narrow_types = true}));
}

// Trilu(x, k), attribute upper: keeps each matrix's upper triangle (elements with j - i >= k), or
// with upper = 0 the lower one (j - i <= k); zeros elsewhere. Any dtype. dx is the Trilu of dy.
// https://onnx.ai/onnx/operators/onnx__Trilu.html

namespace trilu {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() < 2) return input_error("expected at least two axes, found {}", x.text());
  if (c.has(1)) {
    OFSDP_ASSIGN_OR_RETURN(const auto k, known_ints(c, 1, "k"));
    if (k.size() != 1) return input_error("input 'k': expected one number, found {}", k.size());
  }
  return std::vector{TensorDesc{x.dtype, x.shape}};
}

void grad(GradBuilder& b) {
  std::vector<Ref> inputs{b.grad_output(0)};
  if (b.num_inputs() > 1 && b.input(1)) inputs.push_back(b.input(1));
  b.set_grad(0, b.emit1("Trilu", inputs, b.attributes()));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const double k = c.inputs.size() > 1 ? c.inputs[1].values[0] : 0;
  const bool upper = c.attributes.i("upper", 1) != 0;
  for (int64_t n = 0; n < y.desc.numel(); ++n) {
    const auto index = unravel(y.desc.shape, n);
    const auto above = static_cast<double>(index.back() - index[index.size() - 2]);
    if (upper ? above < k : above > k) y[n] = 0;
  }
  return {y};
}

// Row i keeps columns begin .. end-1.
struct Triangle {
  bool upper;
  int64_t k, rows, columns;

  int64_t begin(int64_t i) const { return upper ? std::clamp<int64_t>(i + k, 0, columns) : 0; }
  int64_t end(int64_t i) const {
    return upper ? columns : std::clamp<int64_t>(i + k + 1, 0, columns);
  }
};

std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const int rank = shape.rank();
  const int64_t k = p.has_in(1) ? (*int_values(*p.constant(1)))[0] : 0;
  const int64_t most = shape[rank - 1] + shape[rank - 2];
  const Triangle t{p.attributes.i("upper", 1) != 0, std::clamp(k, -most, most), shape[rank - 2],
                   shape[rank - 1]};
  const auto size = static_cast<int64_t>(dtype_size(p.out(0).dtype));
  return make_kernel([t, size, rows = shape.numel(0, rank - 1)](const KernelArgs& a) {
    parallel_for(rows, 65536 / (t.columns * size + 1) + 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t begin = t.begin(row % t.rows) * size;
        const int64_t end = std::max(t.end(row % t.rows) * size, begin);
        const std::byte* x = a.inputs[0].data + row * t.columns * size;
        std::byte* y = a.outputs[0].data + row * t.columns * size;
        if (x != y) std::copy(x + begin, x + end, y + begin);
        std::fill(y, y + begin, std::byte{0});
        std::fill(y + end, y + t.columns * size, std::byte{0});
      }
    });
  });
}

}  // namespace trilu

void add_trilu(Registry& registry) {
  using namespace trilu;
  registry.add(make_op("Trilu", {infer, grad, reference}, {{"rows", accepts_plain, create}},
                       {.first_opset = 14, .inplace_inputs = {0}, .constant_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
