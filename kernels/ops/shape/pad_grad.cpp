// ofsdp.PadGrad(dy), attributes shape (of data), pads (two for each axis), mode: the gradient of a
// Pad that is not constant. d data is the sum of dy over the places that show an element, in the
// order of y. No gradient of its own.
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/shape/pad.h"

namespace ofsdp::kernels::ops {

Result<PadMode> pad_mode(const Attributes& attributes) {
  const std::string mode = attributes.s("mode", "constant");
  if (mode == "constant") return PadMode::kConstant;
  if (mode == "reflect") return PadMode::kReflect;
  if (mode == "edge") return PadMode::kEdge;
  if (mode == "wrap") return PadMode::kWrap;
  return input_error("attribute 'mode': expected constant, reflect, edge or wrap, found '{}'",
                     mode);
}

namespace {

Pads attribute_pads(const Attributes& attributes) {
  const auto pads = attributes.ints("pads");
  const auto half = pads.begin() + static_cast<std::ptrdiff_t>(pads.size() / 2);
  return {{pads.begin(), half}, {half, pads.end()}};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(c.attributes.ints("shape"))}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], {}};
  dx.values.assign(static_cast<size_t>(dx.desc.numel()), 0.0);
  reference_pad_walk(dx.desc.shape, c.inputs[0].desc.shape, attribute_pads(c.attributes),
                     *pad_mode(c.attributes), [&](int64_t to, size_t from) {
                       dx.values[static_cast<size_t>(to)] += c.inputs[0].values[from];
                     });
  return {dx};
}

bool accepts(const Problem& p) {
  return p.all_plain() && p.in(0).shape.rank() <= kMaxLoopAxes &&
         (p.in(0).dtype == DType::kFloat32 || p.in(0).dtype == DType::kFloat64);
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Pads pads = attribute_pads(p.attributes);
  const PadMap map(p.out(0).shape, pads.before, pads.after, *pad_mode(p.attributes));
  return make_kernel([map, single = p.in(0).dtype == DType::kFloat32](const KernelArgs& a) {
    if (single) map.pad_grad(a.in<float>(0), a.out<float>(0));
    if (!single) map.pad_grad(a.in<double>(0), a.out<double>(0));
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  auto made = [](const char* name, TensorDesc dy, std::vector<int64_t> shape,
                 std::vector<int64_t> pads) {
    return SampleCase{.name = name,
                      .attributes = {{"shape", shape}, {"pads", pads}, {"mode", std::string(name)}},
                      .inputs = {std::move(dy)}};
  };
  const DType f = DType::kFloat32;
  return {made("reflect", {f, {4, 9}}, {3, 4}, {1, 3, 0, 2}),
          made("edge", {f, {2, 5, 4}}, {2, 3, 5}, {0, 1, -1, 0, 1, 0}),
          made("wrap", {DType::kFloat64, {12}}, {4}, {3, 5})};
}

}  // namespace

void add_pad_grad(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "PadGrad",
                .infer = infer,
                .reference = reference,
                .cpu = {{"rows", accepts, create}, in_float32<accepts, create>()},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
