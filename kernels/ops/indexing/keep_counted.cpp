// ofsdp.KeepCounted(x, count), attributes axis, factor: the slices of x that are there, zeros for
// the padding (kernels/ops/indexing/counted.h). dx is the same of dy.
#include "kernels/ops/indexing/counted.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.KeepCounted", {b.grad_output(0), b.input(1)}, b.attributes()));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const Lines lines = counted_lines(y.desc.shape, c.attributes);
  const double rows = c.inputs[1].values[0] * static_cast<double>(c.attributes.i("factor", 1));
  for (size_t i = 0; i < y.values.size(); ++i) {
    if (static_cast<double>(static_cast<int64_t>(i) / lines.inner % lines.n) >= rows) {
      y.values[i] = 0;
    }
  }
  return {y};
}

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = counted_lines(p.in(0).shape, p.attributes);
  const int64_t bytes = lines.inner * static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_kernel([lines, bytes, attributes = p.attributes](const KernelArgs& a) {
    const int64_t kept = counted_rows(lines, attributes, *a.in<int64_t>(1)) * bytes;
    const int64_t all = lines.n * bytes;
    for (int64_t o = 0; o < lines.outer && bytes > 0; ++o) {
      const std::byte* x = a.inputs[0].data + o * all;
      std::byte* y = a.outputs[0].data + o * all;
      if (x != y) std::copy(x, x + kept, y);
      std::fill(y + kept, y + all, std::byte{0});
    }
    return ok_status();
  });
}

SampleCase sample(const char* name, TensorDesc x, int64_t axis, int64_t factor, double count) {
  return {.name = name,
          .attributes = {{"axis", axis}, {"factor", factor}},
          .inputs = {std::move(x), {DType::kInt64, {1}}},
          .fill = fill_with(1, {count})};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {sample("rows", {f, {5, 3}}, 0, 1, 2),
          sample("columns", {f, {2, 6, 3}}, 1, 2, 2),
          sample("all", {f, {4}}, -1, 1, 4),
          sample("nothing", {f, {4, 2}}, 0, 1, 0),
          sample("bools", {DType::kBool, {5}}, 0, 1, 3),
          sample("empty", {f, {0, 3}}, 0, 1, 0)};
}

}  // namespace

void add_keep_counted(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "KeepCounted",
                .min_inputs = 2,
                .infer = infer_counted,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
