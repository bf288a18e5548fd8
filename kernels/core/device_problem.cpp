#include "kernels/core/device_problem.h"

namespace ofsdp::kernels {
namespace {

// A constant without elements is not an absent one.
const void* bytes_of(const Constant* constant) {
  static constexpr std::byte kNothing{};
  if (constant == nullptr) return nullptr;
  return constant->bytes.empty() ? &kNothing : constant->bytes.data();
}

ofsdp_device_operand operand(const TensorDesc& desc, const Constant* constant) {
  return {static_cast<int32_t>(desc.dtype),
          static_cast<int32_t>(desc.layout),
          desc.shape.rank(),
          0,
          desc.shape.axes().data(),
          bytes_of(constant)};
}

TensorDesc desc_of(const ofsdp_device_operand& o) {
  return {static_cast<DType>(o.dtype), Shape(std::vector<int64_t>(o.axes, o.axes + o.rank)),
          static_cast<Layout>(o.layout)};
}

ConstantPtr constant_of(const ofsdp_device_operand& o) {
  if (o.constant == nullptr) return nullptr;
  Constant made{desc_of(o), {}};
  const auto* bytes = static_cast<const std::byte*>(o.constant);
  made.bytes.assign(bytes, bytes + made.desc.bytes());
  return std::make_shared<const Constant>(std::move(made));
}

template <typename T>
std::vector<T> list(const ofsdp_device_attribute& a) {
  const T* values = static_cast<const T*>(a.values);
  return {values, values + a.count};
}

std::vector<std::string> strings(const ofsdp_device_attribute& a) {
  std::vector<std::string> out;
  const char* at = static_cast<const char*>(a.values);
  for (int64_t i = 0; i < a.count; ++i) {
    out.emplace_back(at);
    at += out.back().size() + 1;
  }
  return out;
}

Attribute attribute_of(const ofsdp_device_attribute& a) {
  switch (a.kind) {
    case OFSDP_ATTRIBUTE_INT:
      return *static_cast<const int64_t*>(a.values);
    case OFSDP_ATTRIBUTE_FLOAT:
      return *static_cast<const float*>(a.values);
    case OFSDP_ATTRIBUTE_STRING:
      return std::string(static_cast<const char*>(a.values), static_cast<size_t>(a.count));
    case OFSDP_ATTRIBUTE_INTS:
      return list<int64_t>(a);
    case OFSDP_ATTRIBUTE_FLOATS:
      return list<float>(a);
    case OFSDP_ATTRIBUTE_STRINGS:
      return strings(a);
    default:
      return constant_of(*static_cast<const ofsdp_device_operand*>(a.values));
  }
}

}  // namespace

EncodedProblem::EncodedProblem(const std::string& op, const Problem& problem) {
  for (const auto& [name, value] : problem.attributes.all()) add(name, value);
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    inputs_.push_back(operand(problem.inputs[i], problem.constant(i)));
  }
  for (const TensorDesc& desc : problem.outputs) outputs_.push_back(operand(desc, nullptr));
  strings_.push_back(op);
  problem_ = {strings_.back().c_str(),
              attributes_.data(),
              static_cast<int64_t>(attributes_.size()),
              inputs_.data(),
              static_cast<int64_t>(inputs_.size()),
              outputs_.data(),
              static_cast<int64_t>(outputs_.size()),
              problem.node_seed};
}

void EncodedProblem::add(const std::string& name, const Attribute& value) {
  auto put = [&](int32_t kind, size_t count, const void* values) {
    attributes_.push_back({name.c_str(), kind, 0, static_cast<int64_t>(count), values});
  };
  if (const auto* i = std::get_if<int64_t>(&value)) {
    put(OFSDP_ATTRIBUTE_INT, 1, i);
  } else if (const auto* f = std::get_if<float>(&value)) {
    put(OFSDP_ATTRIBUTE_FLOAT, 1, f);
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    put(OFSDP_ATTRIBUTE_STRING, s->size(), s->data());
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    put(OFSDP_ATTRIBUTE_INTS, ints->size(), ints->data());
  } else if (const auto* floats = std::get_if<std::vector<float>>(&value)) {
    put(OFSDP_ATTRIBUTE_FLOATS, floats->size(), floats->data());
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    std::string& joined = strings_.emplace_back();
    for (const std::string& text : *texts) joined += text + '\0';
    put(OFSDP_ATTRIBUTE_STRINGS, texts->size(), joined.data());
  } else if (const auto& tensor = std::get<ConstantPtr>(value); tensor != nullptr) {
    tensors_.push_back(operand(tensor->desc, tensor.get()));
    put(OFSDP_ATTRIBUTE_TENSOR, 1, &tensors_.back());
  }
}

Problem decode(const ofsdp_problem& c) {
  Problem problem;
  for (int64_t i = 0; i < c.num_attributes; ++i) {
    problem.attributes.set(c.attributes[i].name, attribute_of(c.attributes[i]));
  }
  for (int64_t i = 0; i < c.num_inputs; ++i) {
    problem.inputs.push_back(desc_of(c.inputs[i]));
    problem.constants.push_back(constant_of(c.inputs[i]));
  }
  for (int64_t i = 0; i < c.num_outputs; ++i) problem.outputs.push_back(desc_of(c.outputs[i]));
  problem.node_seed = c.node_seed;
  return problem;
}

}  // namespace ofsdp::kernels
