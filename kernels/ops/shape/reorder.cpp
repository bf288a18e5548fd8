// ofsdp.Reorder(x), attribute to = "plain" or "channels_last": the same logical [N, C, spatial...]
// tensor in the other layout. The planner puts it in after differentiation, so it has no gradient
// of its own.
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  TensorDesc y = c.inputs[0];
  const std::string to = c.attributes.s("to", "");
  if (to != "plain" && to != "channels_last") {
    return input_error("attribute 'to': expected plain or channels_last, found '{}'", to);
  }
  if (y.shape.rank() < 3) return input_error("expected [N, C, spatial...], found {}", y.text());
  y.layout = to == "plain" ? Layout::kPlain : Layout::kChannelsLast;
  return std::vector{y};
}

bool accepts(const Problem& p) { return p.in(0).shape == p.out(0).shape; }

std::unique_ptr<Kernel> create(const Problem& p) {
  StridedCopy copy(p.out(0).shape, strides_of(p.in(0)), strides_of(p.out(0)),
                   dtype_size(p.out(0).dtype));
  return make_kernel([copy](const KernelArgs& a) {
    copy.run(a.inputs[0].data, a.outputs[0].data);
    return ok_status();
  });
}

SampleCase sample(const char* name, Shape shape, Layout from, const char* to) {
  return {.name = name,
          .attributes = {{"to", std::string(to)}},
          .inputs = {{DType::kFloat32, std::move(shape), from}}};
}

std::vector<SampleCase> samples() {
  return {sample("to_last", {2, 3, 5, 7}, Layout::kPlain, "channels_last"),
          sample("to_plain", {2, 3, 5, 7}, Layout::kChannelsLast, "plain"),
          sample("tiles", {2, 70, 9, 9}, Layout::kPlain, "channels_last"),
          sample("tiles_back", {2, 70, 9, 9}, Layout::kChannelsLast, "plain"),
          sample("one_channel", {2, 1, 4, 4}, Layout::kPlain, "channels_last"),
          sample("empty", {0, 3, 4, 4}, Layout::kPlain, "channels_last")};
}

}  // namespace

void add_reorder(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "Reorder",
                .infer = infer,
                .reference = reference_of_view,
                .cpu = {{"tiles", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
