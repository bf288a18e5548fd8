// DeviceEngine's operations, as calls of the device.
#include <algorithm>

#include "runtime/engine/device/device_engine.h"

namespace ofsdp::runtime {

Status DeviceEngine::run_node(const Operation& op) {
  if (empty_ && !op.rowless) return {};
  const BoundRun& run = program_->runs[static_cast<size_t>(op.run)];
  step_.node = static_cast<uint64_t>(op.run) + 1;
  Status status = run.kernel->run({run.inputs, run.outputs, run.workspace, &step_});
  if (status.ok()) return status;
  return std::move(status).with_prefix(format_text("{}, step {}, rank {}",
                                                   program_->plan->graph.describe(*run.node),
                                                   numbers_.step, ranks_->rank()));
}

// If a loss is NaN on any rank, no rank updates.
Status DeviceEngine::check_loss(const Operation&) {
  const bool several = ranks_->several();
  if (!empty_) {
    ofsdp_stream* const stream = several ? device_.communication() : device_.compute();
    OFSDP_RETURN_IF_ERROR(note_losses(*program_, stream));
  }
  return several ? ranks_->agree_to_stop(&run_state()->stop) : Status{};
}

// Runs once, after all units, over all ranks.
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

// Each rank converts its shard into its place in the whole unit, or the copy up wrote it there.
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
  if (empty_ && !op.rowless) return {};
  OFSDP_RETURN_IF_ERROR(device_.copy(device_.compute(), op.dst.data, op.src.data, op.dst.bytes())
                            .with_prefix("a running statistic"));
  if (options_.buffer_dtype == DType::kFloat32) return {};
  return device_
      .round(device_.compute(), op.dst.floats(), number(options_.buffer_dtype),
             static_cast<int64_t>(op.dst.bytes() / sizeof(float)))
      .with_prefix("a running statistic");
}

// Uses the communication stream, so that the exchange needs no event.
Status DeviceEngine::place_rows(const Operation& op) {
  ofsdp_stream* const stream = device_.communication();
  if (empty_) return device_.clear(stream, op.dst.data, op.dst.bytes()).with_prefix(kJoinName);
  step_.stream = stream;
  Status status = run_node(op);
  step_.stream = nullptr;
  return status;
}

Status DeviceEngine::join_rows(const Operation& op) {
  return ranks_->join_rows(op.group, op.dst.data,
                           static_cast<size_t>(op.part.numel) * dtype_size(op.dst.dtype));
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
  const bool computes = op.lane == Lane::kCompute;
  return device_
      .convert(computes ? device_.compute() : device_.communication(), op.src.data,
               number(op.src.dtype), op.dst.data, number(op.dst.dtype), op.dst.count)
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
  if (!op.stages.update) return {};
  const bool adds = gradient.onto != nullptr;
  return advance(op.unit, adds ? GradientForm::kSlotOnto : GradientForm::kSlot,
                 {gradient.src, gradient.onto});
}

// Sums slices in order, so that the result does not depend on the rank count. The sum begins at 0
// and is never -0; the CPU drops -0 at the end.
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
  return op.stages.update ? advance(op.unit, GradientForm::kSum, {sum}) : Status{};
}

// Returns the elements that this rank owns, from the buffers of all ranks in order.
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
  if (!op.stages.norm) return {};
  const ofsdp_reduce reduce =
      reduction(op, {op.dst.data, number(DType::kFloat32), number(DType::kFloat32), nullptr});
  return device_.reduce(device_.communication(), &reduce).with_prefix("all-reduce");
}

// Returns the context for kernels on the communication stream.
DeviceStepContext DeviceEngine::update_context() const {
  DeviceStepContext step = step_;
  step.stream = device_.communication();
  step.fault = nullptr;
  return step;
}

Status DeviceEngine::advance(int unit, GradientForm form, const Updater::Gradient& gradient) {
  return context_.updater->advance(unit, form, gradient, nullptr, update_context())
      .with_prefix("the optimizer");
}

Status DeviceEngine::update(const Operation& op) {
  return advance(op.unit, scales_gradients() ? GradientForm::kScaled : GradientForm::kSum,
                 {op.src.data});
}

Status DeviceEngine::trust(const Operation&) {
  const int64_t squares = 2 * context_.updater->table().parameters();
  auto* const at = reinterpret_cast<double*>(context_.memory.io() + context_.io.squares);
  OFSDP_RETURN_IF_ERROR(
      device_.clear(device_.communication(), at, static_cast<size_t>(squares) * sizeof(double))
          .with_prefix("norms of parameters"));
  OFSDP_RETURN_IF_ERROR(
      context_.updater->add_norms(update_context()).with_prefix("norms of parameters"));
  return ranks_->sum_parameter_norms(at, squares);
}

// The next operations add up sums over ranks (lower.cpp).
Status DeviceEngine::sums(const Operation& op) {
  OFSDP_RETURN_IF_ERROR(device_.clear(device_.communication(), op.dst.data, op.dst.bytes())
                            .with_prefix("second moments of matrices"));
  return context_.updater->sum_squares(op.unit, op.src.floats(), op.dst.floats(), update_context())
      .with_prefix("second moments of matrices");
}

Status DeviceEngine::factors(const Operation& op) {
  return context_.updater->advance_factors(op.unit, op.src.floats(), update_context())
      .with_prefix("second moments of matrices");
}

// Runs for skipped updates too, which then take no step.
Status DeviceEngine::orthogonalize(const Operation& op) {
  return context_.updater->orthogonalize(op.unit, op.dst.floats(), op.onto.data, update_context())
      .with_prefix("orthogonal matrices");
}

// Between programs, so it waits for the device.
Status DeviceEngine::swap_average() {
  OFSDP_RETURN_IF_ERROR(start());
  OFSDP_RETURN_IF_ERROR(device_.synchronize().with_prefix("the average"));
  if (offload_ != nullptr) return offload_->swap_average();
  OFSDP_RETURN_IF_ERROR(
      context_.updater->swap_average(update_context()).with_prefix("the average"));
  return device_.synchronize().with_prefix("the average");
}

Status DeviceEngine::apply(const Operation& op) {
  return context_.updater->apply(op.unit, update_context()).with_prefix("the optimizer's step");
}

}  // namespace ofsdp::runtime
