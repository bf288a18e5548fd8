// Operators that copy x with other strides. Any dtype.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Expand(x, shape)      x broadcast to shape and its own (an axis of 1 in `shape` keeps that of
//                         x); dx = dy summed over what was broadcast
//   Tile(x, repeats)      x repeated repeats[i] times along axis i; dx = dy summed over the
//                         repetitions
//   Transpose(x), perm    axis i of y is axis perm[i] of x; all axes reversed when absent; dx = dy
//                         under the inverse permutation
//   ofsdp.Copy(x)         x in bytes of its own (Identity is a view); dx = dy
//   ofsdp.Reorder(x), to  the same logical [N, C, spatial...] tensor in the layout "plain" or
//                         "channels_last". The planner inserts it after differentiation: no
//                         gradient.
#include <algorithm>
#include <numeric>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strided_copy.h"
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

// y with two axes, repetition and element, for each axis of x that is repeated.
struct Split {
  Shape tiled;                   // y
  Shape once;                    // the same with every repetition 1, which is x
  std::vector<int64_t> strides;  // of x in `tiled`: 0 along repetitions
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

// PyTorch's older exporter leaves negative axes in it, which ONNX does not speak of.
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
                       {.min_inputs = 2, .first_opset = 8, .constant_inputs = {1}}));
  registry.add_own(make_op("Reorder", {reorder_infer, nullptr, reference_of_view},
                           {{"tiles", reorder_accepts, reorder_create}}));
  registry.add(make_op("Tile", {tile_infer, tile_grad, tile_reference},
                       {{"copy", tile_accepts, tile_create}},
                       {.min_inputs = 2, .first_opset = 6, .constant_inputs = {1}}));
  registry.add(make_op("Transpose", {transpose_infer, transpose_grad, transpose_reference},
                       {{"copy", accepts_plain, transpose_create}}));
}

}  // namespace ofsdp::kernels::ops
