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

}  // namespace max_pool

void add_max_pool(Registry& registry) {
  using namespace max_pool;
  registry.add(make_op("MaxPool", {infer, grad, reference},
                       {{"loops", accepts, make_max_pool},
                        {"plain_loops", accepts_max_pool_loops, make_max_pool_loops},
                        in_float32<accepts, make_max_pool>()},
                       channels_last({0}, {0, 2})));
  registry.add(make_op("GlobalMaxPool", {global_infer, global_grad, global_reference},
                       with_half_floats<global_accepts, global_create>("loops"),
                       channels_last({0}, {})));
}

}  // namespace ofsdp::kernels::ops
