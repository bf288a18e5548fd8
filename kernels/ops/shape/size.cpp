// Size(x): the number of elements of x, an int64 scalar. Known as soon as the shape of x is, so the
// importer folds it. No gradient. https://onnx.ai/onnx/operators/onnx__Size.html
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext&) {
  return std::vector{TensorDesc{DType::kInt64, {}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {{c.output_descs[0], {static_cast<double>(c.inputs[0].desc.numel())}}};
}

bool accepts(const Problem&) { return true; }

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([n = p.in(0).numel()](const KernelArgs& a) {
    *a.out<int64_t>(0) = n;
    return ok_status();
  });
}

std::vector<SampleCase> samples() { return unary_samples(); }

}  // namespace

void add_size(Registry& registry) {
  registry.add({.name = "Size",
                .infer = infer,
                .reference = reference,
                .cpu = {{"count", accepts, create}},
                .samples = samples,
                .shape_only = true});
}

}  // namespace ofsdp::kernels::ops
