// The operations of a program as calls of a device.
#include <algorithm>

#include "runtime/engine/device/device_engine.h"

namespace ofsdp::runtime {

// With an offload the host takes the steps.
void DeviceEngine::make_step_lengths() {
  if (offload_ != nullptr || !context_.optimizer.needs_norms()) return;
  std::byte* const io = context_.memory.io();
  step_lengths_.emplace(
      DeviceNormsContext{device_, context_.plan, context_.units, context_.optimizer,
                         optimizer_.get(), reinterpret_cast<double*>(io + context_.io.squares),
                         reinterpret_cast<double*>(io + context_.io.partials), run_state()},
      *ranks_);
}

Status DeviceEngine::run_node(const Operation& op) {
  if (empty_) return {};
  const BoundRun& run = program_->runs[static_cast<size_t>(op.run)];
  step_.node = static_cast<uint64_t>(op.run) + 1;
  Status status = run.kernel->run({run.inputs, run.outputs, run.workspace, &step_});
  if (status.ok()) return status;
  return std::move(status).with_prefix(format_text("{}, step {}, rank {}",
                                                   program_->plan->graph.describe(*run.node),
                                                   numbers_.step, ranks_->rank()));
}

// No rank updates after a loss that is NaN on one of them.
Status DeviceEngine::check_loss(const Operation&) {
  const bool several = ranks_->several();
  if (!empty_) {
    ofsdp_stream* const stream = several ? device_.communication() : device_.compute();
    OFSDP_RETURN_IF_ERROR(
        device_
            .note_loss(stream, run_state(), program_->losses[0], program_->plan->options.training)
            .with_prefix("the loss"));
  }
  return several ? ranks_->agree_to_stop(&run_state()->stop) : Status{};
}

// Over all ranks, after all units.
Status DeviceEngine::clip(const Operation& op) {
  if (op.stages.exact) {
    auto* const limbs = reinterpret_cast<double*>(context_.memory.io() + context_.io.exact_limbs);
    OFSDP_RETURN_IF_ERROR(device_.take_exact_sum(device_.communication(), exact_sum(), limbs)
                              .with_prefix("the norm"));
    OFSDP_RETURN_IF_ERROR(ranks_->sum_norm(limbs, OFSDP_EXACT_LIMBS));
    OFSDP_RETURN_IF_ERROR(
        device_.exact_norm(device_.communication(), limbs, run_state()).with_prefix("the norm"));
  } else {
    OFSDP_RETURN_IF_ERROR(ranks_->sum_norm(&run_state()->squared_norm));
  }
  return device_.clip(device_.communication(), run_state(), options_.clip_norm, options_.scale_loss)
      .with_prefix("the norm");
}

Status DeviceEngine::signal(const Operation& op) {
  OFSDP_RETURN_IF_ERROR(offload_->decide(run_state()));
  return offload_->signal(op.unit);
}

// Each rank converts its part to where the unsharded one is, or has it sent there.
Status DeviceEngine::unshard(const Operation& op) {
  if (op.copied) OFSDP_RETURN_IF_ERROR(offload_->wait_for_copy());
  const size_t width = dtype_size(op.dst.dtype);
  if (op.converts && op.part.numel > 0) {
    OFSDP_RETURN_IF_ERROR(device_
                              .convert(device_.communication(), op.src.data, number(op.src.dtype),
                                       op.dst.data + static_cast<size_t>(op.part.begin) * width,
                                       number(op.dst.dtype), op.part.numel)
                              .with_prefix("all-gather"));
  }
  return ranks_->all_gather(op.unit, op.group, op.dst.data,
                            static_cast<size_t>(op.part.numel) * width);
}

Status DeviceEngine::buffer(const Operation& op) {
  if (empty_) return {};
  OFSDP_RETURN_IF_ERROR(device_.copy(device_.compute(), op.dst.data, op.src.data, op.dst.bytes())
                            .with_prefix("a running statistic"));
  if (options_.buffer_dtype == DType::kFloat32) return {};
  return device_
      .round(device_.compute(), op.dst.floats(), number(options_.buffer_dtype),
             static_cast<int64_t>(op.dst.bytes() / sizeof(float)))
      .with_prefix("a running statistic");
}

Status DeviceEngine::clear(const Operation& op) {
  const size_t width = dtype_size(op.dst.dtype);
  const auto clear = [&](int64_t begin, int64_t end) {
    return device_
        .clear(device_.compute(), op.dst.data + static_cast<size_t>(begin) * width,
               static_cast<size_t>(end - begin) * width)
        .with_prefix("a gradient slot");
  };
  if (empty_) return clear(0, op.dst.count);
  for (const auto& [begin, end] : op.gaps) OFSDP_RETURN_IF_ERROR(clear(begin, end));
  return {};
}

Status DeviceEngine::convert(const Operation& op) {
  return device_
      .convert(device_.compute(), op.src.data, number(op.src.dtype), op.dst.data,
               number(op.dst.dtype), op.dst.count)
      .with_prefix("accumulation");
}

Status DeviceEngine::add(const Operation& op) {
  return device_
      .add(device_.compute(), op.src.data, number(op.src.dtype), op.dst.floats(), op.dst.count)
      .with_prefix("accumulation");
}

ofsdp_reduce DeviceEngine::reduction(const Operation& op, const ofsdp_gradient& gradient) const {
  ofsdp_reduce reduce{};
  reduce.gradient = gradient;
  reduce.count = context_.units[static_cast<size_t>(op.unit)].owned_numel;
  reduce.norm_first = op.unique.begin;
  reduce.norm_count = op.stages.norm ? op.unique.numel : 0;
  reduce.partials = reinterpret_cast<double*>(context_.memory.io() + context_.io.partials);
  reduce.state = run_state();
  return reduce;
}

Status DeviceEngine::reduce(const Operation& op) {
  if (op.stages.ordered) return reduce_slices(op);
  OFSDP_RETURN_IF_ERROR(
      ranks_->reduce_scatter(op.unit, op.group, op.src.data, op.src.dtype, op.part.numel));
  if (op.copied) OFSDP_RETURN_IF_ERROR(offload_->wait_for_copy());
  if (op.slot >= 0) OFSDP_RETURN_IF_ERROR(offload_->wait_for_slot(op.slot));
  const ofsdp_gradient gradient{
      op.src.data + static_cast<size_t>(op.part.begin) * dtype_size(op.src.dtype),
      number(op.src.dtype), number(op.stages.round_to), op.onto.floats()};
  ofsdp_reduce reduce = reduction(op, gradient);
  reduce.dst = op.dst.floats();
  OFSDP_RETURN_IF_ERROR(
      device_.reduce(device_.communication(), &reduce).with_prefix("reduce-scatter"));
  return op.stages.update ? update_from(op.unit, gradient, false) : Status{};
}

// Sums where the result must not depend on the number of ranks. The sum begins at 0, so that it is
// never -0: the CPU drops that at its end.
Status DeviceEngine::reduce_slices(const Operation& op) {
  const SliceRoom room =
      slice_room(context_.plan, context_.plan.units[static_cast<size_t>(op.unit)],
                 context_.memory.io() + context_.io.slices);
  float* const sum = op.dst.data != nullptr ? op.dst.floats() : room.sum;
  const int64_t numel = op.part.numel;
  OFSDP_ASSIGN_OR_RETURN(const std::byte* parts, parts_of_all_ranks(op, room));
  ofsdp_stream* const stream = device_.communication();
  const auto clear = [&](float* values) {
    return device_.clear(stream, values, static_cast<size_t>(numel) * sizeof(float))
        .with_prefix("reduce-scatter");
  };
  const auto add = [&](const void* from, DType type, float* to) {
    return device_.add(stream, from, number(type), to, numel).with_prefix("reduce-scatter");
  };
  if (op.first) OFSDP_RETURN_IF_ERROR(clear(sum));
  const size_t bytes = static_cast<size_t>(numel) * dtype_size(op.src.dtype);
  for (int r = 0; r < op.group.count; ++r) {
    OFSDP_RETURN_IF_ERROR(add(parts + static_cast<size_t>(r) * bytes, op.src.dtype, sum));
  }
  if (!op.stages.norm) return {};
  if (op.stages.round_to != DType::kFloat32) {
    OFSDP_RETURN_IF_ERROR(device_.round(stream, sum, number(op.stages.round_to), numel)
                              .with_prefix("reduce-scatter"));
    OFSDP_RETURN_IF_ERROR(clear(room.rounded));
    OFSDP_RETURN_IF_ERROR(add(sum, DType::kFloat32, room.rounded));
    OFSDP_RETURN_IF_ERROR(
        device_.copy(stream, sum, room.rounded, static_cast<size_t>(numel) * sizeof(float))
            .with_prefix("reduce-scatter"));
  }
  const ofsdp_gradient gradient{sum, number(DType::kFloat32), number(DType::kFloat32), nullptr};
  if (op.stages.exact) {
    return device_.add_exact_squares(stream, sum + op.unique.begin, op.unique.numel, exact_sum())
        .with_prefix("the norm");
  }
  const ofsdp_reduce norm = reduction(op, gradient);
  OFSDP_RETURN_IF_ERROR(device_.reduce(stream, &norm).with_prefix("the norm"));
  return op.stages.update ? update_from(op.unit, gradient, false) : Status{};
}

// Gives what each rank's buffer has of the elements that this one owns.
Result<const std::byte*> DeviceEngine::parts_of_all_ranks(const Operation& op,
                                                          const SliceRoom& room) {
  if (!ranks_->several()) return static_cast<const std::byte*>(op.src.data);
  OFSDP_RETURN_IF_ERROR(
      ranks_->exchange_parts(op.unit, op.src.data, parts_[static_cast<size_t>(op.unit)], room.parts,
                             static_cast<size_t>(op.part.numel) * dtype_size(op.src.dtype)));
  return static_cast<const std::byte*>(room.parts);
}

Status DeviceEngine::clear_exact_sum() {
  return device_.clear(device_.upload(), exact_sum(), sizeof(ofsdp_exact_sum))
      .with_prefix("the norm");
}

Status DeviceEngine::all_reduce(const Operation& op) {
  OFSDP_RETURN_IF_ERROR(
      ranks_->all_reduce(op.unit, op.group, op.dst.data, DType::kFloat32, op.dst.count));
  if (op.stages.round_to != DType::kFloat32) {
    OFSDP_RETURN_IF_ERROR(device_
                              .round(device_.communication(), op.dst.floats(),
                                     number(op.stages.round_to), op.dst.count)
                              .with_prefix("all-reduce"));
  }
  const ofsdp_reduce reduce =
      reduction(op, {op.dst.data, number(DType::kFloat32), number(DType::kFloat32), nullptr});
  return device_.reduce(device_.communication(), &reduce).with_prefix("all-reduce");
}

Status DeviceEngine::update(const Operation& op) {
  return update_from(op.unit,
                     {op.src.data, number(DType::kFloat32), number(DType::kFloat32), nullptr},
                     scales_gradients());
}

Status DeviceEngine::trust(const Operation&) { return step_lengths_->agree(step_.numbers); }

Status DeviceEngine::apply(const Operation& op) {
  OFSDP_RETURN_IF_ERROR(step_lengths_->apply(op.unit, step_.numbers));
  const UnitState& state = context_.units[static_cast<size_t>(op.unit)];
  if (state.rounded == nullptr) return {};
  return device_
      .convert(device_.communication(), state.owned, number(DType::kFloat32), state.rounded,
               number(context_.plan.param_dtype), state.owned_numel)
      .with_prefix("the optimizer");
}

// One call for each stretch of the same rule and weight decay; where steps need norms of parameters
// it only advances the states.
Status DeviceEngine::update_from(int unit, const ofsdp_gradient& gradient, bool scaled) {
  const auto u = static_cast<size_t>(unit);
  const UnitState& state = context_.units[u];
  const size_t width = dtype_size(static_cast<DType>(gradient.dtype));
  const auto& segments = context_.optimizer.segments()[u];
  int64_t at = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const OptimizerStep::Segment& segment = segments[s];
    const bool goes_on = s + 1 < segments.size() && segments[s + 1].rule == segment.rule &&
                         segments[s + 1].weight_decay == segment.weight_decay;
    if (segment.end <= at || goes_on) continue;
    ofsdp_device_update update{};
    update.gradient = gradient;
    update.gradient.src =
        static_cast<const std::byte*>(gradient.src) + static_cast<size_t>(at) * width;
    if (gradient.onto != nullptr) update.gradient.onto = gradient.onto + at;
    update.param = state.owned + at;
    for (size_t i = 0; i < state.optimizer.size(); ++i) {
      update.states[i] = state.optimizer[i].floats() + at;
    }
    update.count = segment.end - at;
    update.weight_decay = segment.weight_decay;
    update.scaled = scaled ? 1 : 0;
    if (state.rounded != nullptr) {
      update.copy_dtype = number(context_.plan.param_dtype);
      update.copy = state.rounded + static_cast<size_t>(at) * dtype_size(context_.plan.param_dtype);
    }
    update.state = run_state();
    update.numbers = step_.numbers;
    OFSDP_RETURN_IF_ERROR(context_.rules != nullptr
                              ? context_.rules->update(segment.rule, update, step_, scalars_)
                              : device_.update(device_.communication(), optimizer_.get(), &update)
                                    .with_prefix("the optimizer"));
    at = segment.end;
  }
  return {};
}

}  // namespace ofsdp::runtime
