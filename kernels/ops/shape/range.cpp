// Range(start, limit, delta): start, start + delta, ... in front of limit; all three are known
// while planning. No gradient. https://onnx.ai/onnx/operators/onnx__Range.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

struct Progression {
  double start, delta;
  int64_t count;
};

double scalar_of(const Constant& constant) {
  return to_doubles(constant.desc, constant.bytes.data())[0];
}

Result<Progression> progression(const InferContext& c) {
  for (size_t i = 0; i < 3; ++i) {
    const Constant* value = c.constant(i);
    if (value == nullptr || value->desc.numel() != 1 || c.inputs[i].dtype != c.inputs[0].dtype) {
      return input_error("expected three known scalars of one type, found input {} {}", i,
                         c.inputs[i].text());
    }
  }
  const double start = scalar_of(*c.constant(0));
  const double limit = scalar_of(*c.constant(1));
  const double delta = scalar_of(*c.constant(2));
  const double count = std::max(std::ceil((limit - start) / delta), 0.0);
  if (!(count < 0x1p40)) {  // also NaN and infinity
    return input_error("from {} to {} by {} is no finite range", start, limit, delta);
  }
  return Progression{start, delta, static_cast<int64_t>(count)};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Progression made, progression(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, {made.count}}};
}

std::vector<double> values_of(double start, double delta, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(start + static_cast<double>(i) * delta);
  return values;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {{c.output_descs[0],
           values_of(c.inputs[0].values[0], c.inputs[2].values[0], c.output_descs[0].numel())}};
}

bool accepts(const Problem&) { return true; }

// Folded by the importer, so it may take its time: the values are made while planning.
std::unique_ptr<Kernel> create(const Problem& p) {
  const Progression made = *progression({p.attributes, p.inputs, p.constants, {}});
  std::vector<std::byte> bytes(p.out(0).bytes());
  from_doubles(values_of(made.start, made.delta, made.count), p.out(0), bytes.data());
  return make_kernel([bytes = std::move(bytes)](const KernelArgs& a) {
    if (!bytes.empty()) std::memcpy(a.outputs[0].data, bytes.data(), bytes.size());
    return ok_status();
  });
}

SampleCase sample(const char* name, DType dtype, std::vector<double> numbers) {
  return {.name = name,
          .inputs = {{dtype, {}}, {dtype, {}}, {dtype, {}}},
          .fill = [numbers](size_t i, std::vector<double>& values) { values[0] = numbers[i]; },
          .constant_inputs = {0, 1, 2}};
}

std::vector<SampleCase> samples() {
  return {sample("rising", DType::kInt64, {2, 9, 3}), sample("falling", DType::kInt64, {5, -1, -2}),
          sample("floats", DType::kFloat32, {0, 1, 0.25}),
          sample("nothing", DType::kInt32, {3, 3, 1})};
}

}  // namespace

void add_range(Registry& registry) {
  registry.add({.name = "Range",
                .min_inputs = 3,
                .first_opset = 11,
                .infer = infer,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .constant_inputs = {0, 1, 2}});
}

}  // namespace ofsdp::kernels::ops
