// EyeLike(x), attributes dtype (that of x when absent), k: a matrix of the shape of x with ones on
// the diagonal j = i + k and zeros beside it. Only the shape of x counts. No gradient.
// https://onnx.ai/onnx/operators/onnx__EyeLike.html
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() != 2) return input_error("expected a matrix, found {}", x.text());
  const int64_t number = c.attributes.i("dtype", number_of_dtype(x.dtype));
  const DType dtype = dtype_of_number(number);
  if (dtype == DType::kUndefined) {
    return input_error("attribute 'dtype': expected a numeric type or bool, found type number {}",
                       number);
  }
  return std::vector{TensorDesc{dtype, x.shape}};
}

std::vector<double> values_of(const Shape& shape, int64_t k) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t j = 0; j < shape[1]; ++j) values.push_back(j - i == k ? 1 : 0);
  }
  return values;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {{c.output_descs[0], values_of(c.output_descs[0].shape, c.attributes.i("k", 0))}};
}

bool accepts(const Problem&) { return true; }

// Folded by the importer, so it may take its time: the values are made while planning.
std::unique_ptr<Kernel> create(const Problem& p) {
  std::vector<std::byte> bytes(p.out(0).bytes());
  from_doubles(values_of(p.out(0).shape, p.attributes.i("k", 0)), p.out(0), bytes.data());
  return make_kernel([bytes = std::move(bytes)](const KernelArgs& a) {
    if (!bytes.empty()) std::memcpy(a.outputs[0].data, bytes.data(), bytes.size());
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const TensorDesc x{DType::kFloat32, {3, 4}};
  const int64_t half = number_of_dtype(DType::kFloat16);
  return {{.name = "diagonal", .inputs = {x}},
          {.name = "above", .attributes = {{"k", int64_t{1}}}, .inputs = {x}},
          {.name = "below", .attributes = {{"k", int64_t{-2}}, {"dtype", half}}, .inputs = {x}},
          {.name = "outside", .attributes = {{"k", int64_t{9}}}, .inputs = {x}},
          {.name = "longs", .inputs = {{DType::kInt64, {4, 2}}}},
          {.name = "empty", .inputs = {{DType::kFloat32, {0, 4}}}}};
}

}  // namespace

void add_eye_like(Registry& registry) {
  registry.add({.name = "EyeLike",
                .first_opset = 9,
                .infer = infer,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .shape_only = true});
}

}  // namespace ofsdp::kernels::ops
