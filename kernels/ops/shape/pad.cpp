// Pad(data, pads, constant_value, axes), attribute mode: puts pads[i] elements before axis i and
// pads[r + i] after it: a constant, or, by reflect, edge and wrap, elements of the data. A negative
// pad crops. Any dtype. If the mode is constant, d data is dy padded by -pads, and d constant_value
// sums the rest of dy. For the other modes, ofsdp.PadGrad sums dy over all outputs that show an
// element, in output order.
// https://onnx.ai/onnx/operators/onnx__Pad.html
//
// CenterCropPad(x, shape): each axis in attribute axes (default: all) gets the size in input shape:
// both sides are cropped or padded with zeros, floor(difference / 2) in front. So the gradient is
// CenterCropPad(dy, x's shape).
// https://onnx.ai/onnx/operators/onnx__CenterCropPad.html

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/base/budgets.h"
#include "kernels/core/element_types.h"
#include "kernels/core/tensor.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels {
namespace {

// --- which source index each output index shows ---
//
//   pad_axis(n, before, after, mode)  the source index for each output index; -1: the constant
//   PadMap                            all axes, as loops over rows along the last axis
//
// Negative pads crop first; the rest is padded. kReflect mirrors at the edge elements without
// repeating them, kEdge repeats them, kWrap goes round; all as often as necessary. Planning makes
// the maps; threads share the rows.
enum class PadMode { kConstant, kReflect, kEdge, kWrap };

class PadMap {
 public:
  PadMap(const Shape& src, const std::vector<int64_t>& before, const std::vector<int64_t>& after,
         PadMode mode);

  template <typename T>
  void pad(const T* src, T value, T* dst) const;

  // diff_src = the sum of diff_dst over all output elements that show a source element, in output
  // order. REQUIRES: not kConstant; that gradient is a padding itself.
  template <typename T>
  void pad_grad(const T* diff_dst, T* diff_src) const;

 private:
  // places[begins[i]] .. places[begins[i + 1]-1] are the outputs that show source index i of an
  // axis.
  struct Inverse {
    std::vector<int64_t> begins, places;
  };
  static Inverse inverted(const std::vector<int64_t>& map, int64_t n);

  template <typename T>
  void add_rows(size_t axis, int64_t row, const int64_t* index, const T* diff_dst, T* to) const;

  Shape src_, dst_;
  std::vector<std::vector<int64_t>> maps_;
  std::vector<Inverse> inverses_;
  // The longest run along the last axis that is one piece of the source: dst [begin, end) from
  // `from`.
  int64_t run_begin_ = 0, run_end_ = 0, run_from_ = 0;
};

// Returns which of n elements position i on the endless axis shows.
int64_t folded(int64_t i, int64_t n, PadMode mode) {
  if (i >= 0 && i < n) return i;
  if (mode == PadMode::kConstant) return -1;
  if (mode == PadMode::kEdge || n == 1) return std::clamp<int64_t>(i, 0, n - 1);
  const int64_t period = mode == PadMode::kWrap ? n : 2 * (n - 1);
  const int64_t at = ((i % period) + period) % period;
  return at < n ? at : period - at;
}

std::vector<int64_t> pad_axis(int64_t n, int64_t before, int64_t after, PadMode mode) {
  const int64_t cropped = std::max<int64_t>(-before, 0);
  const int64_t left = n - cropped - std::max<int64_t>(-after, 0);
  std::vector<int64_t> map;
  for (int64_t i = -std::max<int64_t>(before, 0); i < left + std::max<int64_t>(after, 0); ++i) {
    const int64_t at = folded(i, left, mode);
    map.push_back(at < 0 ? -1 : at + cropped);
  }
  return map;
}

PadMap::Inverse PadMap::inverted(const std::vector<int64_t>& map, int64_t n) {
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(n));
  for (size_t at = 0; at < map.size(); ++at) {
    places[static_cast<size_t>(map[at])].push_back(static_cast<int64_t>(at));
  }
  Inverse inverse{{0}, {}};
  for (const auto& list : places) {
    inverse.places.insert(inverse.places.end(), list.begin(), list.end());
    inverse.begins.push_back(static_cast<int64_t>(inverse.places.size()));
  }
  return inverse;
}

PadMap::PadMap(const Shape& src, const std::vector<int64_t>& before,
               const std::vector<int64_t>& after, PadMode mode) {
  std::vector<int64_t> from = src.axes(), to;
  if (from.empty()) from.push_back(1);  // a scalar is a row of one
  for (size_t axis = 0; axis < from.size(); ++axis) {
    const bool padded = axis < before.size();
    maps_.push_back(
        pad_axis(from[axis], padded ? before[axis] : 0, padded ? after[axis] : 0, mode));
    to.push_back(static_cast<int64_t>(maps_.back().size()));
    if (mode != PadMode::kConstant) inverses_.push_back(inverted(maps_.back(), from[axis]));
  }
  src_ = Shape(from);
  dst_ = Shape(to);
  const bool given = !before.empty();
  run_begin_ = given ? std::max<int64_t>(before.back(), 0) : 0;
  run_end_ = to.back() - (given ? std::max<int64_t>(after.back(), 0) : 0);
  run_from_ = given ? std::max<int64_t>(-before.back(), 0) : 0;
  run_end_ = std::max(run_end_, run_begin_);
}

template <typename T>
void PadMap::pad(const T* src, T value, T* dst) const {
  const int last = dst_.rank() - 1;
  const int64_t n = dst_[last];
  const std::vector<int64_t>& map = maps_.back();
  parallel_each(dst_.numel(0, last), kElementGrain / (n + 1) + 1, [&](int64_t row) {
    int64_t rest = row, at = 0, step = 1;
    for (int axis = last; axis-- > 0 && at >= 0;) {
      const int64_t i = maps_[static_cast<size_t>(axis)][static_cast<size_t>(rest % dst_[axis])];
      rest /= dst_[axis];
      at = i < 0 ? -1 : at + i * step;
      step *= src_[axis];
    }
    T* to = dst + row * n;
    if (at < 0) {
      std::fill_n(to, n, value);
      return;
    }
    const T* from = src + at * src_[last];
    auto put = [&](int64_t first, int64_t stop) {
      for (int64_t i = first; i < stop; ++i) {
        const int64_t j = map[static_cast<size_t>(i)];
        to[i] = j < 0 ? value : from[j];
      }
    };
    put(0, run_begin_);
    std::copy_n(from + run_from_, run_end_ - run_begin_, to + run_begin_);
    put(run_end_, n);
  });
}

template <typename T>
void PadMap::add_rows(size_t axis, int64_t row, const int64_t* index, const T* diff_dst,
                      T* to) const {
  if (axis + 1 < maps_.size()) {
    const Inverse& inverse = inverses_[axis];
    const auto i = static_cast<size_t>(index[axis]);
    for (int64_t k = inverse.begins[i]; k < inverse.begins[i + 1]; ++k) {
      const int64_t place = inverse.places[static_cast<size_t>(k)];
      add_rows(axis + 1, row * dst_[static_cast<int>(axis)] + place, index, diff_dst, to);
    }
    return;
  }
  const int64_t n = dst_[dst_.rank() - 1];
  const T* from = diff_dst + row * n;
  const std::vector<int64_t>& map = maps_.back();
  for (int64_t i = 0; i < run_begin_; ++i) to[map[static_cast<size_t>(i)]] += from[i];
  T* run = to + run_from_;
  for (int64_t i = run_begin_; i < run_end_; ++i) run[i - run_begin_] += from[i];
  for (int64_t i = run_end_; i < n; ++i) to[map[static_cast<size_t>(i)]] += from[i];
}

template <typename T>
void PadMap::pad_grad(const T* diff_dst, T* diff_src) const {
  const int last = src_.rank() - 1;
  parallel_each(src_.numel(0, last), kElementGrain / (dst_[last] + 1) + 1, [&](int64_t row) {
    std::array<int64_t, kMaxLoopAxes> index{};
    int64_t rest = row;
    for (int axis = last; axis-- > 0;) {
      index[static_cast<size_t>(axis)] = rest % src_[axis];
      rest /= src_[axis];
    }
    T* to = diff_src + row * src_[last];
    std::fill_n(to, src_[last], T{0});
    add_rows(0, 0, index.data(), diff_dst, to);
  });
}

}  // namespace
}  // namespace ofsdp::kernels

namespace ofsdp::kernels::ops {

// --- the operators ---

namespace pad {

struct Pads {
  std::vector<int64_t> before, after;  // per axis
};

Result<PadMode> pad_mode(const Attributes& attributes) {
  const std::string mode = attributes.s("mode", "constant");
  if (mode == "constant") return PadMode::kConstant;
  if (mode == "reflect") return PadMode::kReflect;
  if (mode == "edge") return PadMode::kEdge;
  if (mode == "wrap") return PadMode::kWrap;
  return input_error("attribute 'mode': expected constant, reflect, edge or wrap, found '{}'",
                     mode);
}

// Calls f(element of data or -1, element of y).
void reference_pad_walk(const Shape& data, const Shape& y, const Pads& pads, PadMode mode,
                        const auto& f) {
  for (int64_t i = 0; i < y.numel(); ++i) {
    auto index = unravel(y, i);
    bool inside = true;
    for (size_t axis = 0; axis < index.size(); ++axis) {
      index[axis] = pad_axis(data[static_cast<int>(axis)], pads.before[axis], pads.after[axis],
                             mode)[static_cast<size_t>(index[axis])];
      inside &= index[axis] >= 0;
    }
    f(inside ? static_cast<int64_t>(ravel(data, index)) : -1, static_cast<size_t>(i));
  }
}

Result<Pads> pads_of(const InferContext& c) {
  const int rank = c.inputs[0].shape.rank();
  OFSDP_ASSIGN_OR_RETURN(const auto given, known_ints(c, 1, "pads"));
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) {
    OFSDP_ASSIGN_OR_RETURN(axes, known_ints(c, 3, "axes"));
    OFSDP_RETURN_IF_ERROR(unique_axes(axes, rank).status());
  }
  if (given.size() != 2 * axes.size()) {
    return input_error("expected {} pads for {} axes, found {}", 2 * axes.size(), axes.size(),
                       given.size());
  }
  Pads pads{std::vector<int64_t>(static_cast<size_t>(rank)),
            std::vector<int64_t>(static_cast<size_t>(rank))};
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(axes[i] < 0 ? axes[i] + rank : axes[i]);
    pads.before[axis] = given[i];
    pads.after[axis] = given[axes.size() + i];
  }
  return pads;
}

constexpr int64_t kMaxPad = int64_t{1} << 40;

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  OFSDP_ASSIGN_OR_RETURN(const Pads pads, pads_of(c));
  OFSDP_ASSIGN_OR_RETURN(const PadMode mode, pad_mode(c.attributes));
  if (c.has(2) && (c.inputs[2].dtype != x.dtype || c.inputs[2].numel() != 1)) {
    return input_error("expected a constant_value of one {}, found {}", dtype_name(x.dtype),
                       c.inputs[2].text());
  }
  std::vector<int64_t> axes = x.shape.axes();
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t before = std::clamp(pads.before[i], -kMaxPad, kMaxPad);
    const int64_t after = std::clamp(pads.after[i], -kMaxPad, kMaxPad);
    const int64_t kept = axes[i] + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    axes[i] += before + after;
    if (before != pads.before[i] || after != pads.after[i] || kept < 0 ||
        (kept == 0 && axes[i] > 0 && mode != PadMode::kConstant)) {
      return input_error("axis {} of {} cannot be padded by {} and {}", i, x.text(), pads.before[i],
                         pads.after[i]);
    }
  }
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  return std::vector{TensorDesc{x.dtype, Shape(axes)}};
}

std::vector<int64_t> joined(const std::vector<int64_t>& before, const std::vector<int64_t>& after,
                            int64_t sign) {
  std::vector<int64_t> pads;
  for (int64_t pad : before) pads.push_back(sign * pad);
  for (int64_t pad : after) pads.push_back(sign * pad);
  return pads;
}

void grad(GradBuilder& b) {
  const InferContext c = context_of(b);
  const Pads pads = *pads_of(c);
  const Ref dy = b.grad_output(0);
  if (*pad_mode(b.attributes()) != PadMode::kConstant) {
    b.set_grad(0, b.emit1("ofsdp.PadGrad", {dy},
                          {{"shape", c.inputs[0].shape.axes()},
                           {"pads", joined(pads.before, pads.after, 1)},
                           {"mode", b.attributes().s("mode", "")}}));
    return;
  }
  const Ref dx = b.emit1("Pad", {dy, b.ints(joined(pads.before, pads.after, -1))});
  b.set_grad(0, dx);
  if (!b.needs_grad(2)) return;
  const Attributes scalar{{"keepdims", int64_t{0}}};
  const Ref all = b.emit1("ReduceSum", {dy}, scalar);
  const Ref of_data = b.emit1("ReduceSum", {dx}, scalar);
  b.set_grad(2, reshape_like(b, b.sub(all, of_data), b.input(2)));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  InferContext known{c.attributes, {}, {}, {}};
  for (const RefTensor& in : c.inputs) {
    known.inputs.push_back(in.desc);
    std::vector<std::byte> bytes(in.desc.present() ? in.desc.bytes() : 0);
    if (in.desc.present()) from_doubles(in.values, in.desc, bytes.data());
    known.constants.push_back(std::make_shared<const Constant>(Constant{in.desc, bytes}));
  }
  const double value = known.has(2) ? c.inputs[2].values[0] : 0;
  RefTensor y{c.output_descs[0], {}};
  reference_pad_walk(
      c.inputs[0].desc.shape, y.desc.shape, *pads_of(known), *pad_mode(c.attributes),
      [&](int64_t from, size_t) { y.values.push_back(from < 0 ? value : c.inputs[0][from]); });
  return {y};
}

Acceptance accepts(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse("not plain");
  int64_t places = 0;
  for (const Shape& shape : {p.in(0).shape, p.out(0).shape}) {
    for (const int64_t axis : shape.axes()) places += axis;
  }
  if (places > kMaxTableEntries) {
    return Acceptance::refuse("longer axes than a table of their places may have");
  }
  return accept_if(p.in(0).shape.rank() <= kMaxLoopAxes, "too many axes");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Pads pads = *pads_of(context_of(p));
  const PadMap map(p.in(0).shape, pads.before, pads.after, *pad_mode(p.attributes));
  return with_bits(dtype_size(p.out(0).dtype), [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([map, valued = p.has_in(2)](const KernelArgs& a) {
      map.pad(a.in<T>(0), valued ? *a.in<T>(2) : T{0}, a.out<T>(0));
    });
  });
}

// --- ofsdp.PadGrad(dy), attributes shape (data's), pads (two per axis), mode ---

Pads attribute_pads(const Attributes& attributes) {
  const auto pads = attributes.ints("pads");
  const auto half = pads.begin() + static_cast<std::ptrdiff_t>(pads.size() / 2);
  return {{pads.begin(), half}, {half, pads.end()}};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  reference_pad_walk(dx.desc.shape, c.inputs[0].desc.shape, attribute_pads(c.attributes),
                     *pad_mode(c.attributes),
                     [&](int64_t to, size_t from) { dx[to] += c.inputs[0].values[from]; });
  return {dx};
}

Acceptance grad_accepts(const Problem& p) {
  const bool loop = p.in(0).dtype == DType::kFloat32 || p.in(0).dtype == DType::kFloat64;
  return loop ? accepts(p) : Acceptance::refuse("not float32 or float64");
}

std::unique_ptr<Kernel> grad_create(const Problem& p) {
  const Pads pads = attribute_pads(p.attributes);
  const PadMap map(p.out(0).shape, pads.before, pads.after, *pad_mode(p.attributes));
  return make_kernel([map, single = p.in(0).dtype == DType::kFloat32](const KernelArgs& a) {
    if (single) map.pad_grad(a.in<float>(0), a.out<float>(0));
    if (!single) map.pad_grad(a.in<double>(0), a.out<double>(0));
  });
}

Result<std::vector<TensorDesc>> center_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, known_ints(c, 1, "shape"));
  TensorDesc y = c.inputs[0];
  std::vector<int64_t> axes = c.attributes.ints("axes");
  for (int i = 0; i < y.shape.rank() && !c.attributes.has("axes"); ++i) axes.push_back(i);
  if (axes.size() != sizes.size()) {
    return input_error("shape: expected {} sizes, found {}", axes.size(), sizes.size());
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(axes[i], y.shape.rank()));
    if (sizes[i] < 0) return input_error("shape: expected sizes from 0 on, found {}", sizes[i]);
    y.shape[axis] = sizes[i];
  }
  return std::vector{y};
}

void center_grad(GradBuilder& b) {
  b.set_grad(0,
             b.emit1("CenterCropPad", {b.grad_output(0), b.ints(b.desc(b.input(0)).shape.axes())}));
}

// Returns where x begins on one axis of y; negative if cut.
int64_t shift(int64_t in, int64_t out) { return out >= in ? (out - in) / 2 : -((in - out) / 2); }

std::vector<RefTensor> center_reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    std::vector<int64_t> at = unravel(y.desc.shape, i);
    bool inside = true;
    for (size_t k = 0; k < at.size(); ++k) {
      const int64_t in = x.desc.shape.axes()[k];
      at[k] -= shift(in, y.desc.shape.axes()[k]);
      inside = inside && at[k] >= 0 && at[k] < in;
    }
    y.values.push_back(inside ? x.values[ravel(x.desc.shape, at)] : 0);
  }
  return {y};
}

std::unique_ptr<Kernel> center_create(const Problem& p) {
  const TensorDesc &x = p.in(0), &y = p.out(0);
  Shape common = x.shape;
  const std::vector<int64_t> src = strides_of(x), dst = strides_of(y);
  int64_t from = 0, to = 0;
  for (int i = 0; i < common.rank(); ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t s = shift(x.shape[i], y.shape[i]);
    common[i] = std::min(x.shape[i], y.shape[i]);
    (s < 0 ? from : to) += (s < 0 ? -s * src[at] : s * dst[at]);
  }
  const size_t size = dtype_size(x.dtype);
  const StridedCopy copy(common, src, dst, size);
  return make_kernel([copy, from = static_cast<size_t>(from) * size,
                      to = static_cast<size_t>(to) * size, bytes = y.bytes(),
                      count = common.numel(), covers = common == y.shape](const KernelArgs& a) {
    if (!covers && bytes > 0) std::memset(a.outputs[0].data, 0, bytes);
    if (count > 0) copy.run(a.inputs[0].data + from, a.outputs[0].data + to);
  });
}

}  // namespace pad

void add_pad(Registry& registry) {
  using namespace pad;
  registry.add(make_op("Pad", {infer, grad, reference}, {{"rows", accepts, create}},
                       {.min_inputs = 2,
                        .first_opset = 11,
                        .narrow_types = true,
                        .reads_number = true,
                        .constant_inputs = {1, 3}}));
  registry.add_own(make_op("PadGrad", {infer_shape_of("shape"), nullptr, grad_reference},
                           with_half_floats<grad_accepts, grad_create>("rows")));
  registry.add(make_op("CenterCropPad", {center_infer, center_grad, center_reference},
                       {{"copy", accepts_plain, center_create}},
                       {.min_inputs = 2, .first_opset = 18, .constant_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
