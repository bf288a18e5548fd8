// ofsdp.Copy: y = x in bytes of its own (Identity is a view). dx = dy. Any dtype.
#include "kernels/core/standard_body.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.grad_output(0)); }

bool accepts(const Problem& p) { return p.in(0) == p.out(0); }

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([bytes = static_cast<int64_t>(p.out(0).bytes())](const KernelArgs& a) {
    parallel_for(bytes, int64_t{1} << 18, [&](int64_t begin, int64_t end) {
      std::memcpy(a.outputs[0].data + begin, a.inputs[0].data + begin,
                  static_cast<size_t>(end - begin));
    });
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = unary_samples();
  list.push_back({.name = "bools", .inputs = {{DType::kBool, {2, 3}}}});
  return list;
}

void copy_body(BodyBuilder& b) { b.set_output(0, b.emit1("Identity", {b.input(0)})); }

}  // namespace

void add_copy(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "Copy",
                .infer = infer_same,
                .grad = grad,
                .body = copy_body,
                .reference = reference_of_view,
                .cpu = {{"memcpy", accepts, create}},
                .samples = samples,
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::kernels::ops
