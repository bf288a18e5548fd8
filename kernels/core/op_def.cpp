#include "kernels/core/op_def.h"

#include <exception>
#include <new>

namespace ofsdp::kernels {

Ref GraphBuilder::ints(const std::vector<int64_t>& values) {
  return constant(
      make_constant<int64_t>(DType::kInt64, Shape({static_cast<int64_t>(values.size())}), values));
}

Ref GraphBuilder::scalar(DType dtype, double value) {
  Constant made{{dtype, Shape{}}, std::vector<std::byte>(dtype_size(dtype))};
  from_doubles({&value, 1}, made.desc, made.bytes.data());
  return constant(std::make_shared<const Constant>(std::move(made)));
}

Ref GraphBuilder::sum(Ref a, const std::vector<int64_t>& axes) {
  return axes.empty() ? a : emit1("ReduceSum", {a, ints(axes)}, {{"keepdims", int64_t{1}}});
}

Ref GraphBuilder::reshape(Ref a, const Shape& shape) {
  if (desc(a).shape == shape) return a;
  return emit1("Reshape", {a, ints(shape.axes())}, {{"allowzero", int64_t{1}}});
}

Ref GraphBuilder::transpose(Ref a, const std::vector<int64_t>& order) {
  return emit1("Transpose", {a}, {{"perm", order}});
}

Ref GraphBuilder::slice(Ref a, int64_t axis, int64_t begin, int64_t end) {
  if (begin == 0 && end == desc(a).shape[static_cast<int>(axis)]) return a;
  return emit1("Slice", {a, ints({begin}), ints({end}), ints({axis})});
}

Ref GraphBuilder::cast(Ref a, DType dtype) {
  if (desc(a).dtype == dtype) return a;
  return emit1("Cast", {a}, {{"to", onnx_number(dtype)}});
}

Ref GradBuilder::sum_to(Ref grad, Ref target) {
  const Shape& shape = desc(target).shape;
  if (desc(grad).shape == shape) return grad;
  return emit1("ofsdp.SumTo", {grad}, {{"shape", shape.axes()}});
}

void Registry::add(OpDef op) {
  const auto key = std::make_pair(op.domain, op.name);
  OFSDP_CHECK(!ops_.contains(key), "operator {} is registered twice", op.full_name());
  ops_.emplace(key, std::move(op));
}

void Registry::add_own(OpDef op) {
  op.domain = kOwnDomain;
  add(std::move(op));
}

const OpDef* Registry::find(const std::string& domain, const std::string& name) const {
  const auto it = ops_.find({domain == "ai.onnx" ? "" : domain, name});
  return it == ops_.end() ? nullptr : &it->second;
}

const OpDef& Registry::get(const std::string& full_name) const {
  const size_t dot = full_name.rfind('.');
  const std::string domain = dot == std::string::npos ? "" : full_name.substr(0, dot);
  const OpDef* op = find(domain, full_name.substr(dot + 1));  // npos + 1 is 0
  OFSDP_CHECK(op != nullptr, "no operator {}", full_name);
  return *op;
}

namespace {

// Returns the implementation's kernel, or null and the reason. Libraries throw from constructors
// deep inside implementations (oneDNN for a description that it does not accept); catches all but
// std::bad_alloc.
std::unique_ptr<Kernel> created(const Implementation& implementation, const Problem& problem,
                                std::string& reason) {
  try {
    const Acceptance acceptance = implementation.accepts(problem);
    if (acceptance) return implementation.create(problem);
    reason = acceptance.reason();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<Kernel>> create_kernel(const OpDef& op, const Problem& problem,
                                              KernelChoice* choice) {
  std::string reasons;
  for (const Implementation& implementation : op.cpu) {
    std::string reason;
    auto kernel = created(implementation, problem, reason);
    if (choice != nullptr && kernel != nullptr) choice->taken = implementation.name;
    if (kernel != nullptr) return kernel;
    reasons += format_text("{}{}: {}", reasons.empty() ? "; " : ", ", implementation.name, reason);
    if (choice != nullptr) choice->refused.push_back({implementation.name, reason});
  }
  std::string inputs;
  for (const TensorDesc& desc : problem.inputs)
    inputs += (inputs.empty() ? "" : ", ") + desc.text();
  return input_error("operator {} has no kernel for ({}) {}{}", op.full_name(), inputs,
                     problem.attributes.text(), reasons);
}

}  // namespace ofsdp::kernels
