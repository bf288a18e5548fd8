// Resize: y = (M_1 x M_2 x ... x M_rank) x, a linear map per axis. Row o of M holds the weights
// with which output position o reads x (nearest, linear or cubic, at the position in x that
// coordinate_transformation_mode defines; resize.h). With tf_crop_and_resize, a position outside x
// gives extrapolation_value. dx uses every M transposed (ofsdp.ResizeGrad(dy, roi, scales, sizes),
// attribute x_shape), and sums rows in output order.
// https://onnx.ai/onnx/operators/onnx__Resize.html
#include "kernels/ops/shape/resize.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/budgets.h"
#include "kernels/core/memory.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/formulas/cubic.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace resize {

std::vector<double> known(const Constant* constant) {
  if (constant == nullptr) return {};
  return to_doubles(constant->desc, constant->bytes.data());
}

Result<ResizeMaps> infer_maps(const InferContext& c, const Shape& x) {
  const char* names[] = {"roi", "scales", "sizes"};
  for (size_t i = 1; i < 4; ++i) {
    if (c.has(i) && c.constant(i) == nullptr && c.inputs[i].numel() > 0) {
      return input_error("input '{}' must be known before the run, found {}", names[i - 1],
                         c.inputs[i].text());
    }
  }
  return resolve_resize(c.attributes, x,
                        {known(c.constant(1)), known(c.constant(2)), known(c.constant(3))});
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const ResizeMaps maps, infer_maps(c, c.inputs[0].shape));
  return std::vector{TensorDesc{c.inputs[0].dtype, maps.y}};
}

void grad(GradBuilder& b) {
  std::vector<Ref> inputs = {b.grad_output(0)};
  for (size_t i = 1; i < b.num_inputs(); ++i) inputs.push_back(b.input(i));
  Attributes attributes = b.attributes();
  attributes.set("x_shape", b.desc(b.input(0)).shape.axes());
  b.set_grad(0, b.emit1("ofsdp.ResizeGrad", inputs, attributes));
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  const Shape x(c.attributes.ints("x_shape"));
  OFSDP_ASSIGN_OR_RETURN(const ResizeMaps maps, infer_maps(c, x));
  if (maps.y != c.inputs[0].shape) {
    return input_error("expected {}, found {}", maps.y.text(), c.inputs[0].shape.text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, x}};
}

ResizeMaps known_maps(const Problem& p, const Shape& x) {
  return *resolve_resize(p.attributes, x,
                         {known(p.constant(1)), known(p.constant(2)), known(p.constant(3))});
}

// Calls f(index in x, index in y, weight) for every product in the map.
void for_each_weight(const ReferenceContext& c, const Shape& x, const auto& f) {
  const auto given = [&](size_t i) {
    return i < c.inputs.size() ? c.inputs[i].values : std::vector<double>{};
  };
  const ResizeMaps maps = *resolve_resize(c.attributes, x, {given(1), given(2), given(3)});
  const auto walk = [&](const auto& self, size_t axis, size_t in, size_t out, double w) -> void {
    if (axis == maps.axes.size()) return f(in, out, w);
    const AxisMap& m = maps.axes[axis];
    for (size_t o = 0; o < static_cast<size_t>(m.out); ++o) {
      if (m.outside[o])
        self(self, axis + 1, in * static_cast<size_t>(m.in), out * static_cast<size_t>(m.out) + o,
             NAN);
      for (auto k = static_cast<size_t>(m.first[o]); k < static_cast<size_t>(m.first[o + 1]); ++k) {
        self(self, axis + 1, in * static_cast<size_t>(m.in) + static_cast<size_t>(m.index[k]),
             out * static_cast<size_t>(m.out) + o, w * m.weight[k]);
      }
    }
  };
  walk(walk, 0, 0, 0, 1.0);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const auto fill = static_cast<double>(c.attributes.f("extrapolation_value", 0.0f));
  for_each_weight(c, c.inputs[0].desc.shape, [&](size_t in, size_t out, double w) {
    y.values[out] = w == w ? y.values[out] + w * c.inputs[0].values[in] : fill;
  });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  for_each_weight(c, dx.desc.shape, [&](size_t in, size_t out, double w) {
    if (w == w) dx.values[in] += w * c.inputs[0].values[out];
  });
  return {dx};
}

Acceptance accepts_grad(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  if (p.in(0).layout != p.out(0).layout) {
    return Acceptance::refuse("input and output of two layouts");
  }
  return accept_if(dtype == DType::kFloat32 || dtype == DType::kFloat64,
                   "weights need float32 or float64");
}
Acceptance accepts(const Problem& p) {
  const bool moves = is_nearest(p.attributes) && p.in(0).layout == p.out(0).layout;
  return moves ? accept_if(true, "") : accepts_grad(p);
}
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_resize(p, known_maps(p, p.in(0).shape),
                     static_cast<double>(p.attributes.f("extrapolation_value", 0.0f)));
}
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_resize_grad(p, known_maps(p, p.out(0).shape));
}

}  // namespace resize

void add_resize(Registry& registry) {
  using namespace resize;
  registry.add(
      make_op("Resize", {infer, grad, reference}, with_half_floats<accepts, create>("axes"),
              channels_last(
                  {0}, {0},
                  {.first_opset = 11, .constant_inputs = {1, 2, 3}, .float32_inputs = {1, 2, 3}})));
  registry.add_own(make_op("ResizeGrad", {infer_grad, nullptr, grad_reference},
                           with_half_floats<accepts_grad, create_grad>("axes"),
                           channels_last({0}, {0}, {.constant_inputs = {1, 2, 3}})));
}

namespace {

// Maps [outer, in, inner] to [outer, out, inner] along one axis.
template <typename T>
struct Pass {
  int64_t outer, in, out, inner;
  std::vector<int64_t> first, index;
  std::vector<T> weight;
};

template <typename T>
OFSDP_MULTIARCH void sum_spans(const T* x, const int64_t* index, const T* weight, int64_t count,
                               int64_t n, T* y) {
  const T* src = x + index[0] * n;
  const T w = weight[0];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = w * src[i];
  for (int64_t k = 1; k < count; ++k) {
    const T* more = x + index[k] * n;
    const T v = weight[k];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] += v * more[i];
  }
}

// Along the last axis: y[o] = sum of weights times elements in one row of x.
template <typename T>
OFSDP_MULTIARCH void sum_line(const T* x, const int64_t* first, const int64_t* index,
                              const T* weight, int64_t n, T* y) {
  for (int64_t o = 0; o < n; ++o) {
    T sum = 0;
    for (int64_t k = first[o]; k < first[o + 1]; ++k) sum += weight[k] * x[index[k]];
    y[o] = sum;
  }
}

template <typename T, bool weighted>
void run_row(const Pass<T>& p, const T* x, int64_t o, T* y) {
  const int64_t begin = p.first[static_cast<size_t>(o)];
  const int64_t count = p.first[static_cast<size_t>(o) + 1] - begin;
  if (count == 0) {
    std::fill_n(y, p.inner, T{0});
  } else if constexpr (weighted) {
    sum_spans(x, p.index.data() + begin, p.weight.data() + begin, count, p.inner, y);
  } else {
    std::copy_n(x + p.index[static_cast<size_t>(begin)] * p.inner, p.inner, y);
  }
}

template <typename T, bool weighted>
void run_pass(const Pass<T>& p, const T* x, T* y) {
  if (p.inner == 1 && weighted) {
    parallel_each(p.outer, kElementGrain / (p.out + 1) + 1, [&](int64_t i) {
      if constexpr (weighted) {
        sum_line(x + i * p.in, p.first.data(), p.index.data(), p.weight.data(), p.out,
                 y + i * p.out);
      }
    });
    return;
  }
  parallel_each(p.outer * p.out, kElementGrain / (p.inner + 1) + 1, [&](int64_t i) {
    run_row<T, weighted>(p, x + i / p.out * p.in * p.inner, i % p.out, y + i * p.inner);
  });
}

// Returns the axes in memory order.
std::vector<size_t> memory_order(const TensorDesc& desc) {
  std::vector<size_t> order;
  for (size_t i = 0; i < desc.shape.axes().size(); ++i) order.push_back(i);
  if (desc.layout == Layout::kChannelsLast) {
    std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  }
  return order;
}

template <typename T, bool weighted>
class Resize final : public Kernel {
 public:
  Resize(const TensorDesc& from, const TensorDesc& to, const std::vector<AxisMap>& maps,
         double fill)
      : fill_(static_cast<T>(fill)), count_(to.numel()) {
    if (count_ == 0) return;
    std::vector<int64_t> sizes;
    std::vector<const AxisMap*> ordered;
    for (size_t axis : memory_order(from)) {
      ordered.push_back(&maps[axis]);
      sizes.push_back(maps[axis].in);
      outside_.push_back(maps[axis].outside);
      holes_ = holes_ || std::ranges::find(maps[axis].outside, true) != maps[axis].outside.end();
    }
    for (const bool shrinking : {true, false}) {
      for (size_t i = 0; i < ordered.size(); ++i) {
        if (ordered[i]->is_identity() || (ordered[i]->out < ordered[i]->in) != shrinking) continue;
        passes_.push_back(pass(*ordered[i], sizes, i));
        sizes[i] = ordered[i]->out;
        largest_ = std::max(largest_, Shape(sizes).numel());
      }
    }
    buffer_bytes_ = align_up(static_cast<size_t>(largest_) * sizeof(T), kTensorAlignment);
  }

  size_t workspace_bytes() const override {
    return passes_.size() < 2 ? 0 : std::min<size_t>(passes_.size() - 1, 2) * buffer_bytes_;
  }

  Status run(const KernelArgs& a) override {
    const T* src = a.in<T>(0);
    T* dst = a.out<T>(0);
    if (passes_.empty() && count_ > 0) std::copy_n(src, count_, dst);
    for (size_t i = 0; i < passes_.size(); ++i) {
      T* to = i + 1 == passes_.size() ? dst
                                      : reinterpret_cast<T*>(a.workspace + (i % 2) * buffer_bytes_);
      run_pass<T, weighted>(passes_[i], src, to);
      src = to;
    }
    if (holes_) fill_holes(dst);
    return ok_status();
  }

 private:
  static Pass<T> pass(const AxisMap& map, const std::vector<int64_t>& sizes, size_t axis) {
    Pass<T> made{1, map.in, map.out, 1, map.first, map.index, {}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i != axis) (i < axis ? made.outer : made.inner) *= sizes[i];
    }
    for (double w : map.weight) made.weight.push_back(static_cast<T>(w));
    return made;
  }

  void fill_holes(T* y) const {
    for (int64_t i = 0; i < count_; ++i) {
      int64_t rest = i;
      bool hole = false;
      for (size_t axis = outside_.size(); axis-- > 0;) {
        const auto size = static_cast<int64_t>(outside_[axis].size());
        hole = hole || outside_[axis][static_cast<size_t>(rest % size)];
        rest /= size;
      }
      if (hole) y[i] = fill_;
    }
  }

  std::vector<Pass<T>> passes_;
  std::vector<std::vector<bool>> outside_;
  T fill_;
  int64_t count_, largest_ = 0;
  bool holes_ = false;
  size_t buffer_bytes_ = 0;
};

// Passes the fill value as the bits of an element.
template <typename T>
std::unique_ptr<Kernel> make_moved(const Problem& p, const ResizeMaps& maps, double fill) {
  std::byte bytes[8] = {};
  from_doubles(std::span(&fill, 1), {p.out(0).dtype, {}}, bytes);
  T bits;
  std::memcpy(&bits, bytes, sizeof(T));
  return std::make_unique<Resize<T, false>>(p.in(0), p.out(0), maps.axes,
                                            static_cast<double>(bits));
}

}  // namespace

std::unique_ptr<Kernel> make_resize(const Problem& p, const ResizeMaps& maps, double fill) {
  const bool moves = is_nearest(p.attributes);
  if (p.in(0).dtype == DType::kFloat64) {
    return std::make_unique<Resize<double, true>>(p.in(0), p.out(0), maps.axes, fill);
  }
  if (!moves) return std::make_unique<Resize<float, true>>(p.in(0), p.out(0), maps.axes, fill);
  switch (dtype_size(p.in(0).dtype)) {
    case 1:
      return make_moved<uint8_t>(p, maps, fill);
    case 2:
      return make_moved<uint16_t>(p, maps, fill);
    case 4:
      return make_moved<uint32_t>(p, maps, fill);
    default:
      return make_moved<int64_t>(p, maps, fill);
  }
}

std::unique_ptr<Kernel> make_resize_grad(const Problem& p, const ResizeMaps& maps) {
  std::vector<AxisMap> back;
  for (const AxisMap& map : maps.axes) back.push_back(map.transposed());
  if (p.in(0).dtype == DType::kFloat64) {
    return std::make_unique<Resize<double, true>>(p.in(0), p.out(0), back, 0);
  }
  return std::make_unique<Resize<float, true>>(p.in(0), p.out(0), back, 0);
}

}  // namespace ofsdp::kernels::ops
