#include "runtime/engine/update_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/cpu/stored_floats.h"

namespace ofsdp::runtime {

namespace {

class RulePlanner {
 public:
  RulePlanner(const UpdateRules& updates, const UpdateRule& rule, int64_t count,
              const std::function<bool(ValueId)>& is_scalar, KernelCache& kernels)
      : graph_(updates.graph),
        rule_(rule),
        count_(count),
        is_scalar_(is_scalar),
        kernels_(kernels) {}

  Result<RuleProgram> make() {
    slots_[rule_.value] = kParameterSlot;
    if (rule_.gradient != 0) slots_[rule_.gradient] = kGradientSlot;
    for (size_t i = 0; i < rule_.states.size(); ++i) {
      slots_[rule_.states[i].value] = kFirstStateSlot + static_cast<int>(i);
    }
    made_.slots = made_.inputs = rule_.states.size() + static_cast<size_t>(kFirstStateSlot);
    for (const int index : rule_.nodes) {
      OFSDP_RETURN_IF_ERROR(add(graph_.nodes[static_cast<size_t>(index)]));
    }
    made_.results.push_back({slots_.at(rule_.next), kParameterSlot});
    for (size_t i = 0; i < rule_.states.size(); ++i) {
      if (rule_.states[i].next == 0) continue;
      made_.results.push_back(
          {slots_.at(rule_.states[i].next), kFirstStateSlot + static_cast<int>(i)});
    }
    // A result written first might be read by one written next.
    made_.in_place = std::ranges::none_of(made_.results, [&](const RuleResult& result) {
      return static_cast<size_t>(result.slot) < made_.inputs;
    });
    return std::move(made_);
  }

 private:
  Status add(const Node& node) {
    if (node.op->view) {
      slots_[node.outputs[0]] = slots_.at(node.inputs[0]);
      return {};
    }
    RuleStep step;
    Problem problem = problem_of(graph_, node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      problem.inputs[i] = part(problem.inputs[i], node.inputs[i]);
      step.in.push_back(operand(node.inputs[i]));
      step.in_views.push_back({nullptr, problem.inputs[i]});
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != 0) slots_[node.outputs[i]] = static_cast<int>(made_.slots++);
      problem.outputs[i] = part(problem.outputs[i], node.outputs[i]);
      step.out.push_back(operand(node.outputs[i]));
      step.out_views.push_back({nullptr, problem.outputs[i]});
    }
    auto kernel = kernels_.get(*node.op, problem);
    if (!kernel.ok()) return std::move(kernel).status().with_prefix(graph_.describe(node));
    step.kernel = *kernel;
    made_.steps.push_back(std::move(step));
    return {};
  }

  bool is_tensor(ValueId id) const { return id != 0 && !is_scalar_(id); }

  RuleOperand operand(ValueId id) const {
    if (is_tensor(id)) return {0, slots_.at(id)};
    return {id, -1};
  }

  TensorDesc part(TensorDesc desc, ValueId id) const {
    if (is_tensor(id)) desc.shape = Shape{count_};
    return desc;
  }

  const Graph& graph_;
  const UpdateRule& rule_;
  int64_t count_;
  const std::function<bool(ValueId)>& is_scalar_;
  KernelCache& kernels_;
  std::map<ValueId, int> slots_;
  RuleProgram made_;
};

constexpr size_t kSlotBytes = static_cast<size_t>(UpdateProgram::kBlock) * sizeof(float);

std::byte* aligned(std::vector<std::byte>& storage, size_t bytes) {
  storage.resize(bytes + kTensorAlignment);
  void* at = storage.data();
  size_t room = storage.size();
  return static_cast<std::byte*>(std::align(kTensorAlignment, bytes, at, room));
}

}  // namespace

Result<RuleProgram> plan_rule(const UpdateRules& updates, const UpdateRule& rule, int64_t count,
                              const std::function<bool(ValueId)>& is_scalar, KernelCache& kernels) {
  return RulePlanner(updates, rule, count, is_scalar, kernels).make();
}

Result<std::unique_ptr<UpdateProgram>> UpdateProgram::make(const UpdateRules& updates) {
  std::unique_ptr<UpdateProgram> made(new UpdateProgram(updates));
  made->place_scalars();
  OFSDP_RETURN_IF_ERROR(made->plan_scalars());
  size_t slots = 0;
  for (const UpdateRule& rule : updates.parameters) {
    OFSDP_ASSIGN_OR_RETURN(RuleProgram program, made->plan_block(rule));
    slots = std::max(slots, program.slots);
    made->programs_.push_back(std::move(program));
  }
  made->slots_.resize(slots);
  made->inputs_.resize(slots);
  made->states_.resize(updates.most_states());
  made->scratch_ = aligned(made->scratch_bytes_, slots * kSlotBytes);
  std::fill_n(reinterpret_cast<float*>(made->scratch_), slots * kBlock, 1.0f);
  size_t workspace = 0;
  const auto see = [&](const std::vector<RuleStep>& steps) {
    for (const RuleStep& step : steps)
      workspace = std::max(workspace, step.kernel->workspace_bytes());
  };
  see(made->scalar_steps_);
  for (const RuleProgram& program : made->programs_) see(program.steps);
  made->workspace_ = aligned(made->workspace_bytes_, workspace);
  return made;
}

// Gives each scalar (a value that is not a tensor of the update) bytes of its own.
void UpdateProgram::place_scalars() {
  const Graph& graph = updates_.graph;
  std::vector<bool> wanted(graph.values.size(), false);
  for (size_t id = 1; id < graph.values.size(); ++id)
    wanted[id] = graph.values[id].kind == ValueKind::kConstant;
  for (const UpdateState& scalar : updates_.scalars)
    wanted[static_cast<size_t>(scalar.value)] = true;
  for (const int index : updates_.scalar_nodes) {
    for (const ValueId id : graph.nodes[static_cast<size_t>(index)].outputs)
      wanted[static_cast<size_t>(id)] = id != 0;
  }
  std::vector<size_t> offsets(graph.values.size(), 0);
  size_t bytes = 0;
  for (size_t id = 1; id < graph.values.size(); ++id) {
    if (!wanted[id]) continue;
    offsets[id] = bytes;
    bytes += align_up(std::max<size_t>(graph.values[id].desc.bytes(), 1), kTensorAlignment);
  }
  std::byte* const base = aligned(scalar_bytes_, bytes);
  scalar_base_ = base;
  scalar_size_ = bytes;
  scalars_.assign(graph.values.size(), nullptr);
  for (size_t id = 1; id < graph.values.size(); ++id) {
    if (!wanted[id]) continue;
    scalars_[id] = base + offsets[id];
    const ConstantPtr& constant = graph.values[id].constant;
    if (graph.values[id].kind == ValueKind::kConstant && !constant->bytes.empty())
      std::memcpy(scalars_[id], constant->bytes.data(), constant->bytes.size());
  }
  for (const UpdateState& scalar : updates_.scalars) {
    std::memcpy(scalars_[static_cast<size_t>(scalar.value)], scalar.initial->bytes.data(),
                scalar.initial->bytes.size());
  }
}

Status UpdateProgram::plan_scalars() {
  const Graph& graph = updates_.graph;
  for (const int index : updates_.scalar_nodes) {
    const Node& node = graph.nodes[static_cast<size_t>(index)];
    if (node.op->view) {  // another name of the same bytes
      scalars_[static_cast<size_t>(node.outputs[0])] =
          scalars_[static_cast<size_t>(node.inputs[0])];
      continue;
    }
    RuleStep step;
    const Problem problem = problem_of(graph, node);
    OFSDP_ASSIGN_OR_RETURN(step.kernel, kernels_.get(*node.op, problem));
    const auto add = [](ValueId id, std::vector<RuleOperand>& operands,
                        std::vector<TensorView>& views, const TensorDesc& desc) {
      operands.push_back({id, -1});
      views.push_back({nullptr, desc});
    };
    for (size_t i = 0; i < node.inputs.size(); ++i)
      add(node.inputs[i], step.in, step.in_views, problem.inputs[i]);
    for (size_t i = 0; i < node.outputs.size(); ++i)
      add(node.outputs[i], step.out, step.out_views, problem.outputs[i]);
    scalar_steps_.push_back(std::move(step));
  }
  return {};
}

Result<RuleProgram> UpdateProgram::plan_block(const UpdateRule& rule) {
  return plan_rule(
      updates_, rule, kBlock, [this](ValueId id) { return is_scalar(id); }, kernels_);
}

void UpdateProgram::run_step(RuleStep& step) {
  const auto scalar = [this](ValueId id) { return scalars_[static_cast<size_t>(id)]; };
  place_operands(step.in, slots_, scalar, step.in_views);
  place_operands(step.out, slots_, scalar, step.out_views);
  const StepContext context;
  const Status status = step.kernel->run({step.in_views, step.out_views, workspace_, &context});
  OFSDP_CHECK(status.ok(), "update: {}", status.message());
}

void UpdateProgram::begin(int64_t update) {
  for (; begun_ < update; ++begun_) {
    for (const UpdateState& scalar : updates_.scalars) {
      if (begun_ == 0 || scalar.next == 0) continue;
      std::memcpy(scalars_[static_cast<size_t>(scalar.value)],
                  scalars_[static_cast<size_t>(scalar.next)],
                  updates_.graph.value(scalar.value).desc.bytes());
    }
    for (RuleStep& step : scalar_steps_) run_step(step);
    rates_[static_cast<size_t>(begun_ + 1) % rates_.size()] = current_rate();
  }
}

std::span<const std::byte> UpdateProgram::scalar_after(size_t scalar, int64_t updates) {
  begin(updates);
  const UpdateState& state = updates_.scalars[scalar];
  const ValueId id = updates > 0 && state.next != 0 ? state.next : state.value;
  return {scalars_[static_cast<size_t>(id)], updates_.graph.value(state.value).desc.bytes()};
}

double UpdateProgram::rate(int64_t update) const {
  const bool known = update <= begun_ && begun_ - update < static_cast<int64_t>(rates_.size());
  if (begun_ == 0) return current_rate();
  return rates_[static_cast<size_t>(known ? update : begun_) % rates_.size()];
}

double UpdateProgram::current_rate() const {
  if (updates_.rate == 0 || scalars_[static_cast<size_t>(updates_.rate)] == nullptr)
    return std::nan("");
  const TensorDesc& desc = updates_.graph.value(updates_.rate).desc;
  return to_doubles({desc.dtype, Shape{}}, scalars_[static_cast<size_t>(updates_.rate)])[0];
}

// A kernel takes whole blocks. It gets a copy of a short block, followed by harmless values.
void UpdateProgram::run_block(RuleProgram& program, float* const* inputs, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  for (size_t i = 0; i < program.slots; ++i) {
    slots_[i] = scratch_ + i * kSlotBytes;
    if (i >= program.inputs || inputs[i] == nullptr) continue;
    auto* const given = reinterpret_cast<std::byte*>(inputs[i]);
    if (program.in_place && count == kBlock && is_aligned(given)) {
      slots_[i] = given;
    } else {
      std::memcpy(slots_[i], given, bytes);
    }
  }
  for (RuleStep& step : program.steps) run_step(step);
  for (const RuleResult& result : program.results) {
    const std::byte* const made = slots_[static_cast<size_t>(result.slot)];
    auto* const target = reinterpret_cast<std::byte*>(inputs[static_cast<size_t>(result.target)]);
    if (made != target) std::memcpy(target, made, bytes);
  }
}

void UpdateProgram::update(int rule, float* param, const float* gradient, float* const* states,
                           int64_t count) {
  RuleProgram& program = programs_[static_cast<size_t>(rule)];
  for (int64_t at = 0; at < count; at += kBlock) {
    inputs_[0] = param + at;
    inputs_[1] = const_cast<float*>(gradient) + at;  // read only
    for (size_t i = 2; i < program.inputs; ++i) inputs_[i] = states[i - 2] + at;
    run_block(program, inputs_.data(), std::min(kBlock, count - at));
  }
}

std::unique_ptr<Kernel> UpdateProgram::kernel(const Problem& problem, std::vector<UpdateRow> rows) {
  const DType copy =
      problem.has_out(UpdateOut::kCopy) ? problem.out(UpdateOut::kCopy).dtype : DType::kUndefined;
  return make_kernel([this, copy, rows = std::move(rows)](const KernelArgs& args) {
    const auto& stretch = *args.in<Stretch>(UpdateIn::kStretch);
    float* const param = args.out<float>(UpdateOut::kParam);
    begin(args.in<ofsdp_run_state>(UpdateIn::kRunState)->optimizer_step);
    each_piece(rows, stretch, [&](const UpdateRow& row, int64_t at, int64_t n) {
      if (row.rule < 0) return;
      const size_t states = updates_.parameters[static_cast<size_t>(row.rule)].states.size();
      for (size_t i = 0; i < states; ++i) {
        states_[i] = args.out<float>(UpdateOut::kStates + i) + at;
      }
      update(row.rule, param + at, args.in<float>(UpdateIn::kGradient) + (at - stretch.begin),
             states_.data(), n);
      if (copy == DType::kUndefined) return;
      narrow(param + at, copy,
             args.out<std::byte>(UpdateOut::kCopy) + static_cast<size_t>(at) * dtype_size(copy), n);
    });
  });
}

}  // namespace ofsdp::runtime
