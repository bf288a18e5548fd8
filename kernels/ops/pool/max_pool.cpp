// MaxPool: y[n, c, o] = max over taps k of x[n, c, o s - p + k d] inside x; NaN wins. Output 1,
// Indices, is the place of the maximum in x (the first of equal ones); output 2 is our own and
// asked for by the gradient: the winning tap (pool_shape.h). dx by ofsdp.MaxPoolGrad(dy, winners),
// max_pool_grad.cpp. Attribute of our own, set by fusion: ofsdp_activation="relu", y = max(that,
// 0). The maximum of relus is the relu of the maximum, on fewer elements; stopped outputs get
// kNoWinner, so the gradient is exact. https://onnx.ai/onnx/operators/onnx__MaxPool.html
//
// GlobalMaxPool: [N, C, spatial...] -> [N, C, 1...], the maximum over the spatial axes: MaxPool
// with one window that covers x. Output 1 is our own, asked for by the gradient: the winning tap,
// the first of equal ones. https://onnx.ai/onnx/operators/onnx__GlobalMaxPool.html
#include <cmath>

#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/pool/pool_shape.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace max_pool {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const Window w, infer_pool(c.attributes, x));
  const Shape y = pool_output(w, x);
  const auto wanted = [&](size_t i) { return c.wanted.size() > i && c.wanted[i]; };
  std::vector<TensorDesc> outputs = {{c.inputs[0].dtype, y}, {}, {}};
  if (wanted(1)) outputs[1] = {DType::kInt64, y};
  if (wanted(2)) outputs[2] = {winner_dtype(w.taps()), y};
  return outputs;
}

void grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  const Window w = known_pool(b.attributes(), x);
  b.set_grad(0, b.emit1("ofsdp.MaxPoolGrad", {b.grad_output(0), b.output(2)},
                        pool_attributes(b.attributes(), w, x)));
}

void store(std::vector<RefTensor>& outputs, size_t index, size_t at, int64_t value) {
  if (outputs.size() <= index || !outputs[index].desc.present()) return;
  const bool narrow = outputs[index].desc.dtype == DType::kUInt8;
  outputs[index].values[at] = static_cast<double>(narrow ? value & 255 : value);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  const Window w = known_pool(c.attributes, x.desc.shape);
  const bool column_major = c.attributes.i("storage_order", 0) != 0;
  std::vector<RefTensor> outputs;
  for (const TensorDesc& desc : c.output_descs) {
    outputs.push_back(
        {desc, std::vector<double>(desc.present() ? static_cast<size_t>(desc.numel()) : 0)});
  }
  for (int64_t plane = 0; plane < x.desc.shape.numel(0, 2); ++plane) {
    std::vector<double> best(static_cast<size_t>(w.out_size()), -INFINITY);
    std::vector<int64_t> place(best.size(), 0), winner(best.size(), kNoWinner);
    for_each_tap(w, [&](int64_t out, int64_t tap, int64_t in) {
      const auto o = static_cast<size_t>(out);
      const double v = x[plane * w.in_size() + in];
      if (winner[o] != kNoWinner && !(v > best[o]) && v == v) return;
      best[o] = v;
      winner[o] = tap;
      place[o] = plane * w.in_size() + stored_place(w, in, column_major);
    });
    for (size_t o = 0; o < best.size(); ++o) {
      const size_t at = static_cast<size_t>(plane * w.out_size()) + o;
      if (has_relu(c.attributes) && !(best[o] > 0)) winner[o] = kNoWinner;
      if (has_relu(c.attributes) && best[o] < 0) best[o] = 0;
      outputs[0].values[at] = best[o];
      store(outputs, 1, at, place[o]);
      store(outputs, 2, at, winner[o]);
    }
  }
  return outputs;
}

Acceptance accepts(const Problem& p) {
  if (p.in(0).dtype != DType::kFloat32) return Acceptance::refuse("not float32");
  if (!has_pool_layouts(p)) return Acceptance::refuse("operands of several layouts");
  return accept_if(!p.has_out(1) || !has_relu(p.attributes), "Indices with a fused activation");
}

using Ints = std::vector<int64_t>;

SampleCase sample(std::string name, Shape x, Attributes attributes, size_t outputs = 3) {
  return make_sample(std::move(name), {{DType::kFloat32, std::move(x)}}, std::move(attributes), {},
                     {.num_outputs = outputs});
}

std::vector<SampleCase> samples() {
  const auto square = [](int64_t size, int64_t stride) {
    return Attributes{{"kernel_shape", Ints{size, size}}, {"strides", Ints{stride, stride}}};
  };
  const auto with = [](Attributes attributes, const char* name, Attribute value) {
    attributes.set(name, std::move(value));
    return attributes;
  };
  std::vector<SampleCase> cases = {
      sample("halves", {2, 5, 6, 8}, square(2, 2)),
      sample("y_only", {2, 5, 6, 8}, square(2, 2), 1),
      sample("odd_rest", {2, 3, 7, 9}, square(2, 2)),
      sample("overlapping", {2, 3, 7, 9}, square(3, 1)),
      sample("padded", {2, 3, 7, 9}, with(square(3, 2), "pads", Ints{1, 0, 1, 2})),
      sample("ceil_mode", {1, 2, 6, 7}, with(square(3, 2), "ceil_mode", int64_t{1})),
      sample("dilated", {1, 2, 9, 8}, with(square(3, 1), "dilations", Ints{2, 3})),
      sample("same", {1, 2, 7, 6}, with(square(3, 2), "auto_pad", std::string("SAME_LOWER"))),
      sample("column_major", {1, 2, 5, 6}, with(square(2, 2), "storage_order", int64_t{1})),
      sample("many_channels", {2, 70, 4, 4}, square(2, 2)),
      sample("large_window", {1, 2, 19, 18}, square(17, 1)),
      sample("many_taps", {2, 3, 12, 12}, square(6, 3)),
      sample("line", {2, 3, 140}, {{"kernel_shape", Ints{3}}, {"strides", Ints{3}}}),
      sample("volume", {1, 2, 5, 4, 6}, {{"kernel_shape", Ints{2, 2, 3}}}),
      sample("empty_batch", {0, 3, 4, 4}, square(2, 2))};
  Attributes relu = with(square(2, 2), kActivationAttribute, std::string("relu"));
  cases.push_back(sample("relu", {2, 5, 6, 8}, std::move(relu), 1));
  for (DType dtype : {DType::kFloat64, DType::kFloat16, DType::kInt8, DType::kUInt8}) {
    SampleCase made = sample(std::string(dtype_name(dtype)), {2, 3, 7, 9},
                             with(square(3, 2), "pads", Ints{1, 0, 1, 2}));
    made.inputs[0].dtype = dtype;
    made.check_grad = dtype == DType::kFloat64;
    cases.push_back(std::move(made));
  }
  return cases;
}

// --- GlobalMaxPool ---

Result<std::vector<TensorDesc>> global_infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const Shape y, infer_global_pool(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, y},
                     TensorDesc{winner_dtype(x.numel(2, x.rank())), y}};
}

void global_grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  const Attributes window = global_window(x);
  b.set_grad(0, b.emit1("ofsdp.MaxPoolGrad", {b.grad_output(0), b.output(1)},
                        pool_attributes(window, known_pool(window, x), x)));
}

std::vector<RefTensor> global_reference(const ReferenceContext& c) {
  const std::vector<double>& x = c.inputs[0].values;
  RefTensor y{c.output_descs[0], {}}, winners{{}, {}};
  if (c.output_descs.size() > 1) winners.desc = c.output_descs[1];
  const auto size =
      static_cast<size_t>(c.inputs[0].desc.shape.numel(2, c.inputs[0].desc.shape.rank()));
  for (size_t at = 0; at < x.size(); at += size) {
    size_t best = 0;
    for (size_t k = 1; k < size; ++k) {
      if (x[at + k] > x[at + best]) best = k;
    }
    y.values.push_back(x[at + best]);
    winners.values.push_back(static_cast<double>(best));
  }
  return {y, winners};
}

// As MaxPool has it: no Indices, the winners as output 2.
Problem as_max_pool(const Problem& p) {
  Problem made = p;
  made.attributes = global_window(p.in(0).shape);
  made.outputs = {p.out(0), {}, p.has_out(1) ? p.out(1) : TensorDesc{}};
  made.outputs[0].layout = made.outputs[2].layout = p.in(0).layout;  // the same bytes
  return made;
}

Acceptance global_accepts(const Problem& p) {
  if (p.in(0).dtype == DType::kFloat32) return accept_if(true, "");
  return accepts_max_pool_loops(as_max_pool(p));
}

std::unique_ptr<Kernel> global_create(const Problem& p) {
  const Problem pool = as_max_pool(p);
  std::unique_ptr<Kernel> kernel =
      p.in(0).dtype == DType::kFloat32 ? make_max_pool(pool) : make_max_pool_loops(pool);
  std::vector<TensorView> views;
  for (const TensorDesc& desc : pool.outputs) views.push_back({nullptr, desc});
  return make_kernel([kernel = std::move(kernel), views](const KernelArgs& a) mutable {
    views[0].data = a.outputs[0].data;
    if (a.outputs.size() > 1) views[2].data = a.outputs[1].data;
    return kernel->run({a.inputs, views, a.workspace, a.step});
  });
}

std::vector<SampleCase> global_samples() {
  const auto sample = [](const char* name, DType dtype, Shape x) {
    return SampleCase{.name = name, .inputs = {{dtype, std::move(x)}}, .num_outputs = 2};
  };
  const DType f = DType::kFloat32;
  std::vector<SampleCase> cases = {
      sample("image", f, {2, 3, 5, 7}),           sample("wide", f, {2, 130, 7, 7}),
      sample("many_taps", f, {2, 3, 19, 17}),     sample("line", f, {2, 3, 11}),
      sample("volume", f, {2, 3, 4, 3, 5}),       sample("double", DType::kFloat64, {2, 3, 4, 3}),
      sample("half", DType::kFloat16, {2, 3, 4}), sample("empty", f, {0, 3, 5, 7})};
  cases.push_back(sample("y_only", f, {2, 3, 5, 7}));
  cases.back().num_outputs = 1;
  return cases;
}

}  // namespace max_pool

void add_max_pool(Registry& registry) {
  using namespace max_pool;
  registry.add(make_op("MaxPool", {infer, grad, reference, samples},
                       {{"loops", accepts, make_max_pool},
                        {"plain_loops", accepts_max_pool_loops, make_max_pool_loops},
                        in_float32<accepts, make_max_pool>()},
                       channels_last({0}, {0, 2})));
  registry.add(
      make_op("GlobalMaxPool", {global_infer, global_grad, global_reference, global_samples},
              with_half_floats<global_accepts, global_create>("loops"), channels_last({0}, {})));
}

}  // namespace ofsdp::kernels::ops
