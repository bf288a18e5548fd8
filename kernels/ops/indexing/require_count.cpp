// ofsdp.RequireCount(x, count), attributes axis, factor, expected: x, when exactly `expected` of
// its slices are there (kernels/ops/indexing/counted.h), as a graph whose exporter has written that number
// down needs it; another number ends the run. dx = dy.
#include "kernels/ops/indexing/counted.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.grad_output(0)); }

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const int64_t factor = p.attributes.i("factor", 1);
  const int64_t expected = p.attributes.i("expected", 0);
  return make_kernel([factor, expected, bytes = p.in(0).bytes()](const KernelArgs& a) {
    const int64_t found = *a.in<int64_t>(1) * factor;
    if (found != expected) {
      return input_error("the file was written for {} elements that are not 0, this batch has {}",
                         expected, found);
    }
    if (bytes > 0 && a.outputs[0].data != a.inputs[0].data) {
      std::memcpy(a.outputs[0].data, a.inputs[0].data, bytes);
    }
    return ok_status();
  });
}

SampleCase sample(const char* name, TensorDesc x, double count) {
  return {.name = name,
          .attributes = {{"expected", int64_t{4}}, {"factor", int64_t{2}}},
          .inputs = {std::move(x), {DType::kInt64, {1}}},
          .fill = fill_with(1, {count})};
}

std::vector<SampleCase> samples() {
  return {sample("floats", {DType::kFloat32, {5, 3}}, 2), sample("longs", {DType::kInt64, {4}}, 2),
          sample("empty", {DType::kFloat32, {4, 0}}, 2)};
}

}  // namespace

void add_require_count(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "RequireCount",
                .min_inputs = 2,
                .infer = infer_counted,
                .grad = grad,
                .reference = reference_of_view,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
