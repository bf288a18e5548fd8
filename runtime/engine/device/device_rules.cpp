#include "runtime/engine/device/device_rules.h"

#include <algorithm>
#include <array>

namespace ofsdp::runtime {
namespace {

Result<std::shared_ptr<Kernel>> scaling(int64_t count, Device& device) {
  Problem problem;
  problem.inputs = {{DType::kFloat32, Shape{count}}, {DType::kFloat32, Shape{}}};
  problem.outputs = {{DType::kFloat32, Shape{count}}};
  problem.constants.resize(2);
  std::shared_ptr<Kernel> kernel = device.make_kernel("Mul", problem);
  if (kernel == nullptr) return fault("the device has no kernel for Mul");
  return kernel;
}

}  // namespace

Result<DeviceRulesPlan> DeviceRulesPlan::make(const UpdateRules& updates,
                                              const std::vector<std::pair<int, int64_t>>& stretches,
                                              KernelCache& kernels) {
  if (updates.most_states() > kMaxOptimizerStates) {
    return input_error("{}: training_info keeps {} states of a parameter, expected at most {}",
                       updates.graph.file, updates.most_states(), kMaxOptimizerStates);
  }
  OFSDP_ASSIGN_OR_RETURN(const auto scalars, UpdateProgram::make(updates));
  DeviceRulesPlan plan;
  plan.scalar_bytes = scalars->scalars().size();
  const auto add = [&](int rule, int64_t count) -> Status {
    if (rule < 0 || count <= 0 || plan.parts.contains({rule, count})) return {};
    Part part;
    OFSDP_ASSIGN_OR_RETURN(part.program,
                           plan_rule(
                               updates, updates.parameters[static_cast<size_t>(rule)], count,
                               [&](ValueId id) { return scalars->is_scalar(id); }, kernels));
    OFSDP_ASSIGN_OR_RETURN(part.scale, scaling(count, *kernels.device()));
    plan.slots = std::max(plan.slots, part.program.slots);
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    plan.slot_bytes = std::max(plan.slot_bytes, align_up(bytes, kTensorAlignment));
    plan.workspace = std::max(plan.workspace, part.scale->workspace_bytes());
    for (const RuleStep& step : part.program.steps) {
      plan.workspace = std::max(plan.workspace, step.kernel->workspace_bytes());
    }
    plan.parts.emplace(std::pair(rule, count), std::move(part));
    return {};
  };
  for (const auto& [rule, count] : stretches) {
    if (count >= kPart) OFSDP_RETURN_IF_ERROR(add(rule, kPart));
    OFSDP_RETURN_IF_ERROR(add(rule, count % kPart));
  }
  return plan;
}

void DeviceRulesPlan::add_to(DeviceIoMap& io) const {
  const auto take = [](size_t& end, size_t bytes) {
    const size_t offset = align_up(end, kTensorAlignment);
    end = offset + bytes;
    return offset;
  };
  for (size_t slot = 0; slot < kMicroSlots; ++slot) {
    io.scalars[slot] = take(io.device_bytes, scalar_bytes);
    io.pinned_scalars[slot] = take(io.pinned_bytes, scalar_bytes);
  }
  io.rules = take(io.device_bytes, scratch_bytes());
}

DeviceRules::DeviceRules(Device& device, const DeviceRulesPlan& plan, UpdateProgram& scalars,
                         std::byte* scratch)
    : device_(device), plan_(plan), scalars_(scalars), scratch_(scratch), slots_(plan.slots) {
  std::byte* const behind = scratch_slot(plan.slots + 1);
  factor_ = reinterpret_cast<float*>(behind);
  workspace_ = behind + kTensorAlignment;
  size_t most = 0;
  for (const auto& [key, part] : plan.parts) {
    for (const RuleStep& step : part.program.steps) {
      most = std::max({most, step.in.size(), step.out.size()});
    }
  }
  in_.reserve(std::max<size_t>(most, 2));
  out_.reserve(std::max<size_t>(most, 1));
}

bool DeviceRules::make_assigns(int64_t count, DType copy) {
  for (const bool copies : {false, true}) {
    std::unique_ptr<Kernel>& made = assigns_[{count, copies}];
    if (made != nullptr || (copies && copy == DType::kUndefined)) continue;
    const TensorDesc values{DType::kFloat32, Shape{count}};
    Problem p = update_problem();
    p.inputs[UpdateIn::kGradient] = values;
    p.outputs.resize(UpdateOut::kStates);
    p.outputs[UpdateOut::kParam] = values;
    if (copies) p.outputs[UpdateOut::kCopy] = {copy, Shape{count}};
    const UpdateRow row{.end = count, .numel = count};
    p.attributes = update_attributes({}, {&row, 1});
    made = device_.make_kernel(update_op("assign", "advance"), p);
    if (made == nullptr) return false;
  }
  return true;
}

std::unique_ptr<Kernel> DeviceRules::kernel(const Problem& problem, std::vector<UpdateRow> rows) {
  const DType copy =
      problem.has_out(UpdateOut::kCopy) ? problem.out(UpdateOut::kCopy).dtype : DType::kUndefined;
  for (const auto& [key, part] : plan_.parts) {
    if (!make_assigns(key.second, copy)) return nullptr;
  }
  const UpdateSpec spec = update_spec(problem);
  const DType dtype = problem.in(UpdateIn::kGradient).dtype;
  return make_kernel(
      [this, spec, dtype, copy, rows = std::move(rows)](const KernelArgs& args) -> Status {
        for (const UpdateRow& row : rows) {
          const auto at = static_cast<size_t>(row.begin);
          ofsdp_device_update given{};
          const float* const onto = args.in<float>(UpdateIn::kOnto);
          given.gradient = {args.in<std::byte>(UpdateIn::kGradient) + at * dtype_size(dtype),
                            number(dtype), number(spec.round_to),
                            onto == nullptr ? nullptr : onto + row.begin};
          given.param = args.out<float>(UpdateOut::kParam) + row.begin;
          for (size_t i = UpdateOut::kStates; i < args.outputs.size(); ++i) {
            given.states[i - UpdateOut::kStates] = args.out<float>(i) + row.begin;
          }
          given.count = row.end - row.begin;
          given.scaled = spec.scaled ? 1 : 0;
          if (copy != DType::kUndefined) {
            given.copy = args.out<std::byte>(UpdateOut::kCopy) + at * dtype_size(copy);
            given.copy_dtype = number(copy);
          }
          given.state = args.in<ofsdp_run_state>(UpdateIn::kRunState);
          given.numbers = args.in<ofsdp_step_numbers>(UpdateIn::kNumbers);
          OFSDP_RETURN_IF_ERROR(
              update(row.rule, given, static_cast<const DeviceStepContext&>(*args.step)));
        }
        return {};
      });
}

size_t DeviceRules::write_scalars(int64_t number, std::byte* to) {
  scalars_.begin(number);
  std::ranges::copy(scalars_.scalars(), to);
  return scalars_.scalars().size();
}

Status DeviceRules::update(int rule, const ofsdp_device_update& stretch,
                           const DeviceStepContext& step) {
  if (rule < 0) return {};
  const size_t width = dtype_size(static_cast<DType>(stretch.gradient.dtype));
  for (int64_t at = 0; at < stretch.count; at += DeviceRulesPlan::kPart) {
    ofsdp_device_update given = stretch;
    given.count = std::min(DeviceRulesPlan::kPart, stretch.count - at);
    given.gradient.src =
        static_cast<const std::byte*>(stretch.gradient.src) + static_cast<size_t>(at) * width;
    if (given.gradient.onto != nullptr) given.gradient.onto += at;
    given.param += at;
    if (given.copy != nullptr) {
      given.copy = static_cast<std::byte*>(given.copy) +
                   static_cast<size_t>(at) * dtype_size(static_cast<DType>(given.copy_dtype));
    }
    for (float*& state : given.states) state = state == nullptr ? nullptr : state + at;
    OFSDP_RETURN_IF_ERROR(update_part(plan_.parts.at({rule, given.count}), given, step));
  }
  return {};
}

Status DeviceRules::update_part(const DeviceRulesPlan::Part& part, const ofsdp_device_update& given,
                                const DeviceStepContext& context) {
  OFSDP_RETURN_IF_ERROR(place(part.program, given));
  OFSDP_RETURN_IF_ERROR(take_gradient(part, given, context));
  for (const RuleStep& s : part.program.steps) {
    OFSDP_RETURN_IF_ERROR(run(s, context));
  }
  return assign(part.program, given, context);
}

// Kernels read parameter and states in place, unless they are not aligned or are still needed after
// a result is written.
Status DeviceRules::place(const RuleProgram& program, const ofsdp_device_update& given) {
  const size_t bytes = static_cast<size_t>(given.count) * sizeof(float);
  for (size_t i = 0; i < program.slots; ++i) slots_[i] = scratch_slot(i);
  const auto show = [&](int slot, float* values) -> Status {
    auto* const at = reinterpret_cast<std::byte*>(values);
    std::byte*& shown = slots_[static_cast<size_t>(slot)];
    if (program.in_place && is_aligned(at)) {
      shown = at;
      return {};
    }
    return device_.copy(device_.communication(), shown, at, bytes).with_prefix("an update");
  };
  OFSDP_RETURN_IF_ERROR(show(kParameterSlot, given.param));
  for (int slot = kFirstStateSlot; slot < static_cast<int>(program.inputs); ++slot) {
    OFSDP_RETURN_IF_ERROR(show(slot, given.states[slot - kFirstStateSlot]));
  }
  return {};
}

Status DeviceRules::take_gradient(const DeviceRulesPlan::Part& part,
                                  const ofsdp_device_update& given, const DeviceStepContext& step) {
  const bool scaled = given.scaled != 0;
  std::byte* const whole = scratch_slot(scaled ? plan_.slots : size_t{kGradientSlot});
  ofsdp_reduce reduce{};
  reduce.gradient = given.gradient;
  reduce.dst = reinterpret_cast<float*>(whole);
  reduce.count = given.count;
  reduce.state = const_cast<ofsdp_run_state*>(given.state);
  OFSDP_RETURN_IF_ERROR(device_.reduce(device_.communication(), &reduce).with_prefix("an update"));
  if (!scaled) return {};
  OFSDP_RETURN_IF_ERROR(
      device_.copy(device_.communication(), factor_, &given.state->gradient_factor, sizeof(float))
          .with_prefix("an update"));
  const TensorDesc desc{DType::kFloat32, Shape{given.count}};
  in_ = {{whole, desc}, {reinterpret_cast<std::byte*>(factor_), {DType::kFloat32, Shape{}}}};
  out_ = {{scratch_slot(kGradientSlot), desc}};
  return part.scale->run({in_, out_, workspace_, &step});
}

Status DeviceRules::run(const RuleStep& step, const DeviceStepContext& context) {
  // Nodes read scalars and write slots.
  const auto scalar = [&](ValueId id) {
    return const_cast<std::byte*>(on_device_) + scalars_.scalar_offset(id);
  };
  in_ = step.in_views;
  out_ = step.out_views;
  place_operands(step.in, slots_, scalar, in_);
  place_operands(step.out, slots_, scalar, out_);
  return step.kernel->run({in_, out_, workspace_, &context});
}

Status DeviceRules::assign(const RuleProgram& program, const ofsdp_device_update& given,
                           const DeviceStepContext& context) {
  std::array<TensorView, UpdateIn::kCount> in;
  std::array<TensorView, UpdateOut::kStates> out;
  const auto bytes = [](const void* data) {
    return static_cast<std::byte*>(const_cast<void*>(data));
  };
  in[UpdateIn::kNumbers].data = bytes(given.numbers);
  in[UpdateIn::kRunState].data = bytes(given.state);
  for (const RuleResult& result : program.results) {
    const bool parameter = result.target == kParameterSlot;
    in[UpdateIn::kGradient].data = slots_[static_cast<size_t>(result.slot)];
    out[UpdateOut::kParam].data =
        bytes(parameter ? given.param : given.states[result.target - kFirstStateSlot]);
    out[UpdateOut::kCopy].data = parameter ? bytes(given.copy) : nullptr;
    Kernel& kernel = *assigns_.at({given.count, parameter && given.copy != nullptr});
    OFSDP_RETURN_IF_ERROR(kernel.run({in, out, nullptr, &context}));
  }
  return {};
}

}  // namespace ofsdp::runtime
