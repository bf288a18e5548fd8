#include "kernels/ops/training/training_update.h"

#include <array>

#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr size_t kMostOperands = 4;  // of one tensor: value, gradient, two states
constexpr int64_t kGrain = 1 << 15;

Status check_scalars(const InferContext& c, size_t operands) {
  const size_t tensors = c.inputs.size() < 2 ? 0 : c.inputs.size() - 2;
  if (tensors == 0 || tensors % operands != 0) {
    return input_error("expected R, T and a multiple of {} tensors, found {} inputs", operands,
                       c.inputs.size());
  }
  const TensorDesc& rate = c.inputs[0];
  if (!is_floating(rate.dtype) || rate.numel() != 1) {
    return input_error("R: expected a float scalar, found {}", rate.text());
  }
  if (c.inputs[1].dtype != DType::kInt64 || c.inputs[1].numel() != 1) {
    return input_error("T: expected int64[], found {}", c.inputs[1].text());
  }
  const std::string mode = c.attributes.s("mode", "standard");
  if (mode == "standard" || mode == "nesterov") return {};
  return input_error("mode: expected standard or nesterov, found '{}'", mode);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c, size_t states) {
  const size_t operands = states + 2;
  OFSDP_RETURN_IF_ERROR(check_scalars(c, operands));
  const size_t tensors = (c.inputs.size() - 2) / operands;
  std::vector<TensorDesc> outputs;
  for (size_t i = 0; i < tensors * operands; ++i) {
    const TensorDesc& value = c.inputs[2 + i % tensors];
    const TensorDesc& found = c.inputs[2 + i];
    if (found.dtype != value.dtype || !(found.shape == value.shape)) {
      return input_error("input {}: expected {}, as input {} has, found {}", 2 + i, value.text(),
                         2 + i % tensors, found.text());
    }
  }
  for (size_t i = 0; i < tensors * (states + 1); ++i) outputs.push_back(c.inputs[2 + i % tensors]);
  return outputs;
}

double scalar_of(const TensorView& view) {
  switch (view.desc.dtype) {
    case DType::kInt64:
      return static_cast<double>(*view.as<const int64_t>());
    case DType::kFloat64:
      return *view.as<const double>();
    case DType::kFloat16:
      return half_to_float(*view.as<const uint16_t>());
    case DType::kBFloat16:
      return bfloat16_to_float(*view.as<const uint16_t>());
    default:
      return *view.as<const float>();
  }
}

bool accepts(const Problem& p) {
  for (size_t i = 2; i < p.inputs.size(); ++i) {
    if (p.in(i).dtype != DType::kFloat32 || p.in(i).layout != Layout::kPlain) return false;
  }
  return true;
}

std::unique_ptr<Kernel> create(const Problem& p, const TrainingUpdate& update) {
  const size_t operands = static_cast<size_t>(update.states) + 2;
  const size_t tensors = (p.inputs.size() - 2) / operands;
  const auto run = update.update;
  return make_kernel([attributes = training_attributes(p.attributes), operands, tensors,
                      run](const KernelArgs& a) {
    const double rate = scalar_of(a.inputs[0]), updates = scalar_of(a.inputs[1]);
    for (size_t k = 0; k < tensors; ++k) {
      parallel_for(a.inputs[2 + k].desc.numel(), kGrain, [&](int64_t begin, int64_t end) {
        std::array<const float*, kMostOperands> in;
        std::array<float*, kMostOperands> out;
        for (size_t i = 0; i < operands; ++i) in[i] = a.in<float>(2 + i * tensors + k) + begin;
        for (size_t i = 0; i + 1 < operands; ++i) out[i] = a.out<float>(i * tensors + k) + begin;
        run(attributes, {in.data(), out.data(), end - begin, rate, updates});
      });
    }
    return ok_status();
  });
}

// T is `updates`; what Adam takes the root of is positive.
SampleCase sample(std::string name, const TrainingUpdate& update, const Attributes& attributes,
                  const std::vector<Shape>& shapes, double updates) {
  SampleCase made{.name = std::move(name), .attributes = attributes};
  made.inputs = {{DType::kFloat32, {}}, {DType::kInt64, {}}};
  const auto operands = static_cast<size_t>(update.states) + 2;
  for (size_t i = 0; i < operands; ++i) {
    for (const Shape& shape : shapes) made.inputs.push_back({DType::kFloat32, shape});
  }
  const size_t last = made.inputs.size() - shapes.size();  // the last kind: squares
  made.fill = [updates, last](size_t i, std::vector<double>& values) {
    if (i == 0) values[0] = 0.1;
    if (i == 1) values[0] = updates;
    if (i < last) return;
    for (double& v : values) v = v * v + 0.01;
  };
  made.num_outputs = shapes.size() * (operands - 1);
  made.check_grad = false;
  return made;
}

std::vector<SampleCase> samples_of(const TrainingUpdate& update) {
  std::vector<SampleCase> list;
  for (const Attributes& attributes : update.attributes) {
    list.push_back(sample("first", update, attributes, {{19}}, 0));
    list.push_back(sample("later", update, attributes, {{3, 5}}, 7));
  }
  list.push_back(sample("several", update, update.attributes[0], {{2, 9}, {33}}, 1));
  list.push_back(sample("empty", update, update.attributes[0], {{0}}, 1));
  return list;
}

}  // namespace

std::vector<RefTensor> training_reference(const TrainingUpdate& update, const ReferenceContext& c) {
  const size_t operands = static_cast<size_t>(update.states) + 2;
  const size_t tensors = (c.inputs.size() - 2) / operands;
  std::vector<RefTensor> outputs;
  for (const TensorDesc& desc : c.output_descs) {
    outputs.push_back({desc, std::vector<double>(static_cast<size_t>(desc.numel()))});
  }
  for (size_t k = 0; k < tensors; ++k) {
    std::array<const double*, kMostOperands> in;
    std::array<double*, kMostOperands> out;
    for (size_t i = 0; i < operands; ++i) in[i] = c.inputs[2 + i * tensors + k].values.data();
    for (size_t i = 0; i + 1 < operands; ++i) out[i] = outputs[i * tensors + k].values.data();
    update.reference(training_attributes(c.attributes),
                     {in.data(), out.data(), c.inputs[2 + k].desc.numel(), c.inputs[0].values[0],
                      c.inputs[1].values[0]});
  }
  return outputs;
}

OpDef training_update(const TrainingUpdate& update, ReferenceFn reference) {
  const auto states = static_cast<size_t>(update.states);
  OpDef op{.domain = kTrainingDomain, .name = update.name, .min_inputs = update.states + 4};
  op.infer = [states](const InferContext& c) { return infer(c, states); };
  op.reference = reference;
  op.cpu = {{"loops", accepts, [update](const Problem& p) { return create(p, update); }}};
  op.samples = [update] { return samples_of(update); };
  return op;
}

}  // namespace ofsdp::kernels::ops
