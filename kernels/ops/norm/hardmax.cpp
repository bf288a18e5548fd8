// Hardmax(x), attribute axis: 1 at the first largest element along the axis, 0 elsewhere. It is
// constant but for jumps, so dx = 0.
// https://onnx.ai/onnx/operators/onnx__Hardmax.html
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/softmax_loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank()).status());
  return std::vector{c.inputs[0]};
}

void grad(GradBuilder& b) {
  const TensorDesc& x = b.desc(b.input(0));
  b.set_grad(0, b.emit1("Expand", {b.scalar(x.dtype, 0), b.ints(x.shape.axes())}));
}

SoftmaxExtent extent(const Shape& shape, const Attributes& attributes) {
  const int64_t axis = attributes.i("axis", -1);
  return softmax_extent(shape, static_cast<int>(axis < 0 ? axis + shape.rank() : axis));
}

template <typename T>
void hardmax(const SoftmaxExtent& e, const T* x, T* y) {
  for_distributions(e, [&](int64_t first) {
    int64_t best = 0;
    for (int64_t k = 1; k < e.classes; ++k) {
      if (x[first + k * e.inner] > x[first + best * e.inner]) best = k;
    }
    for (int64_t k = 0; k < e.classes; ++k) y[first + k * e.inner] = k == best ? T{1} : T{0};
  });
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  hardmax(extent(y.desc.shape, c.attributes), c.inputs[0].values.data(), y.values.data());
  return {y};
}

template <typename T>
bool accepts(const Problem& p) {
  return p.all_dtype(std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64) && p.all_plain();
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    hardmax(e, a.in<T>(0), a.out<T>(0));
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {{.name = "rows", .inputs = {{f, {5, 7}}}},
          {.name = "columns", .attributes = {{"axis", int64_t{0}}}, .inputs = {{f, {5, 7}}}},
          {.name = "ties",
           .inputs = {{f, {2, 5}}},
           .fill = fill_with(0, {1, 3, 3, 0, 3}),
           .check_grad = false},
          {.name = "float64", .inputs = {{DType::kFloat64, {3, 4}}}, .check_grad = false},
          {.name = "float16", .inputs = {{DType::kFloat16, {3, 4}}}, .check_grad = false},
          {.name = "empty", .inputs = {{f, {0, 4}}}}};
}

}  // namespace

void add_hardmax(Registry& registry) {
  registry.add({.name = "Hardmax",
                .first_opset = 13,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts<float>, create<float>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
