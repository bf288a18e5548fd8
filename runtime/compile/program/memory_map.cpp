#include "runtime/compile/program/memory_map.h"

#include <algorithm>

#include "kernels/base/text.h"
#include "kernels/core/device_values.h"
#include "runtime/compile/program/arena_map.h"

namespace ofsdp::runtime {

namespace {

// Sets dtype and origin of the host's gradient, as lower sends it.
void plan_gradient(const Plan& plan, const Unit& unit, bool accumulates, OffloadedUnit& made) {
  const bool summed = accumulates && unit.plan.shards_gradients;
  const bool summed_again = unit.plan.sums_copies && unit.plan.shards_gradients;
  made.summed = summed || summed_again;
  made.passes_slots = summed && !summed_again && plan.offload == CpuOffload::kParams;
  if (made.summed) return;
  made.landed = unit.plan.gradient_dtype;
  made.rounded_to = plan.reduce_dtype;
}

OffloadedUnit offload_unit(const Plan& plan, const Unit& unit, int optimizer_states,
                           bool accumulates, OffloadMap& offload) {
  const auto numel = static_cast<size_t>(plan.most_owned(unit));
  const size_t bytes = numel * sizeof(float), rest = numel * dtype_size(plan.rest_dtype);
  OffloadedUnit made;
  made.owned = made.rest = take(offload.bytes, bytes);
  offload.parameter_bytes += bytes;
  if (plan.rest_dtype != DType::kFloat32) {
    made.rest = take(offload.bytes, rest);
    offload.parameter_bytes += rest;
  }
  if (plan.offload == CpuOffload::kParams) {
    const size_t frozen =
        static_cast<size_t>(plan.owned_frozen(unit, 0).numel) * dtype_size(plan.param_dtype);
    made.frozen = take(offload.bytes, frozen);
    offload.parameter_bytes += frozen;
  }
  for (int i = 0; i < optimizer_states; ++i) {
    made.optimizer.push_back(take(offload.bytes, bytes));
    offload.optimizer_bytes += bytes;
  }
  made.gradient = take(offload.bytes, bytes);
  offload.gradient_bytes += bytes;
  plan_gradient(plan, unit, accumulates, made);
  return made;
}

// The first rank holds the bytes that align the next copy.
size_t bytes_in_common(const Plan& plan, const Unit& unit, int rank) {
  const size_t whole = copy_bytes(plan, unit);
  if (!plan.weighted()) return whole / static_cast<size_t>(unit.plan.shards);
  const size_t width = dtype_size(plan.param_dtype);
  const int64_t all = unit.padded_numel + unit.frozen_padded_numel;
  const int64_t held = plan.owned(unit, rank).numel + plan.owned_frozen(unit, rank).numel;
  const size_t gap = rank % unit.plan.shards == 0 ? whole - static_cast<size_t>(all) * width : 0;
  return static_cast<size_t>(held) * width + gap;
}

// `common` counts the whole host's bytes.
void place_in_common(const Plan& plan, int rank, const Unit& unit, UnitOffsets& offsets,
                     MemoryMap& memory) {
  const size_t bytes = copy_bytes(plan, unit);
  offsets.copies = static_cast<int64_t>(
      take(memory.common_whole, bytes * static_cast<size_t>(plan.common_ranks / unit.plan.shards)));
  const size_t held = bytes_in_common(plan, unit, rank);
  memory.common += held;
  memory.parameter_bytes += held;
  if (plan.param_dtype == DType::kFloat32) return;
  const size_t owned = static_cast<size_t>(plan.owned(unit, rank).numel) * sizeof(float);
  offsets.owned = take(memory.state, owned);
  memory.parameter_bytes += owned;
}

// Places the shard, and the whole unit if it is kept gathered.
void place_parameters(const Plan& plan, int rank, const Unit& unit, UnitOffsets& offsets,
                      MemoryMap& memory) {
  const bool rests_here = plan.offload != CpuOffload::kParams;
  const auto whole = static_cast<size_t>(unit.padded_numel) * dtype_size(plan.param_dtype);
  const size_t owned =
      static_cast<size_t>(plan.owned(unit, rank).numel) * dtype_size(plan.rest_dtype);
  offsets.owned_in_shared = unit.plan.unshard != Unshard::kNone;
  if (rests_here && unit.plan.residency == Residency::kUpdate &&
      plan.rest_dtype == plan.param_dtype) {
    offsets.whole = static_cast<int64_t>(take(memory.shared, whole));
    offsets.owned = static_cast<size_t>(offsets.whole);
    offsets.owned_stride = owned;
    memory.parameter_bytes += whole;
    return;
  }
  if (rests_here) {
    offsets.owned = take(offsets.owned_in_shared ? memory.shared : memory.state, owned);
    memory.parameter_bytes += owned;
  }
  if (unit.plan.residency != Residency::kUpdate && !unit.plan.rounded) return;
  offsets.whole = static_cast<int64_t>(take(memory.state, whole));
  memory.parameter_bytes += whole;
}

// Places the reduced gradient. It needs separate bytes if units share slots in turn, and shared
// memory if it is summed over copies or gathered. With an offload it waits on the host for the
// norm; under `params` also for the next micro-batch.
void place_gradient(const Plan& plan, int rank, const Unit& unit, const MemoryNeeds& needs,
                    UnitOffsets& offsets, MemoryMap& memory) {
  const bool summed_again = unit.plan.sums_copies || needs.share;
  const bool accumulate = plan.offload == CpuOffload::kNone
                              ? needs.accumulate || needs.keep
                              : needs.accumulate && plan.offload != CpuOffload::kParams;
  if (!unit.plan.shards_gradients || !(accumulate || summed_again)) return;
  const size_t bytes = static_cast<size_t>(plan.owned(unit, rank).numel) * sizeof(float);
  offsets.gradient_in_shared = summed_again;
  offsets.gradient = static_cast<int64_t>(take(summed_again ? memory.shared : memory.state, bytes));
  memory.gradient_bytes += bytes;
}

void place_frozen(const Plan& plan, int rank, const Unit& unit, UnitOffsets& offsets,
                  MemoryMap& memory) {
  const size_t frozen =
      static_cast<size_t>(plan.owned_frozen(unit, rank).numel) * dtype_size(plan.param_dtype);
  offsets.frozen = take(memory.shared, frozen);
  memory.parameter_bytes += frozen;
}

void place_matrices(const MemoryNeeds& needs, MemoryMap& memory) {
  memory.matrix_rooms = needs.matrices;
  int64_t most = 0;
  for (const MatrixRoom& room : needs.matrices) most = std::max(most, room.numel());
  const size_t bytes = static_cast<size_t>(most) * sizeof(float);
  memory.matrices = take(memory.shared, bytes);
  memory.gradient_bytes += bytes;
}

void place_read(const GradientSlots& slots, const MemoryNeeds& needs, MemoryMap& memory) {
  take(memory.shared, slots.bytes);
  memory.gradient_bytes += slots.bytes;
  place_matrices(needs, memory);
  memory.join_bytes = needs.joins.bytes;
  for (const size_t offset : needs.joins.offset) memory.joins.push_back(memory.shared + offset);
  take(memory.shared, needs.joins.bytes);
  memory.watch_slot = take(memory.shared, needs.watch_slot);
  memory.watch_slot_bytes = needs.watch_slot;
}

UnitOffsets place_unit(const Plan& plan, int rank, const Unit& unit, const MemoryNeeds& needs,
                       MemoryMap& memory) {
  UnitOffsets offsets;
  if (unit.plan.common) {
    place_in_common(plan, rank, unit, offsets, memory);
  } else {
    place_parameters(plan, rank, unit, offsets, memory);
    if (plan.offload != CpuOffload::kParams) place_frozen(plan, rank, unit, offsets, memory);
  }
  if (plan.offload == CpuOffload::kNone) {
    const std::vector<int64_t>& numels = needs.states[static_cast<size_t>(unit.id)];
    for (size_t state = 0; state < numels.size(); ++state) {
      const StateForm form = state < needs.forms.size() ? needs.forms[state] : StateForm::kFloat32;
      const size_t bytes = stored_bytes(form, numels[state]);
      offsets.optimizer.push_back({take(memory.state, bytes), numels[state], form});
      memory.optimizer_bytes += bytes;
    }
  }
  place_gradient(plan, rank, unit, needs, offsets, memory);
  return offsets;
}

Operand at(Area area, size_t offset, int64_t count, DType dtype) {
  return {.area = area, .offset = static_cast<int64_t>(offset), .count = count, .dtype = dtype};
}

// Counts a state in bytes if it has fewer than 32 bits.
Operand place_of(const StateOffset& state) {
  if (state.form == StateForm::kFloat32) {
    return at(Area::kState, state.offset, state.numel, DType::kFloat32);
  }
  const auto bytes = static_cast<int64_t>(stored_bytes(state.form, state.numel));
  return at(Area::kState, state.offset, bytes, DType::kUInt8);
}

// [Note: in place] in fsdp/plan/plan.h.
void place_in_common(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& o,
                     UnitPlaces& made) {
  const auto copy = static_cast<size_t>(rank % plan.common_ranks / unit.plan.shards);
  made.whole = at(Area::kCommon, static_cast<size_t>(o.copies) + copy * copy_bytes(plan, unit),
                  unit.padded_numel + unit.frozen_padded_numel, plan.param_dtype);
  made.owned = made.whole.part(made.span.begin, made.span.numel);
  if (plan.param_dtype != DType::kFloat32) {
    made.rounded = made.owned;
    made.owned = at(Area::kState, o.owned, made.span.numel, DType::kFloat32);
  }
  const Span frozen = plan.owned_frozen(unit, rank);
  made.frozen = made.whole.part(unit.padded_numel + frozen.begin, frozen.numel);
}

void place_parameters(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& o,
                      UnitPlaces& made) {
  const auto before = static_cast<size_t>(made.span.begin) * dtype_size(plan.rest_dtype);
  const bool rests_here = plan.offload != CpuOffload::kParams;
  if (rests_here) {
    made.owned = at(o.owned_in_shared ? Area::kShared : Area::kState,
                    o.owned + (o.owned_stride > 0 ? before : 0), made.span.numel, plan.rest_dtype);
    made.frozen =
        at(Area::kShared, o.frozen, plan.owned_frozen(unit, rank).numel, plan.param_dtype);
  }
  if (o.whole >= 0) {
    made.whole = at(o.owned_stride > 0 ? Area::kShared : Area::kState, static_cast<size_t>(o.whole),
                    unit.padded_numel, plan.param_dtype);
    if (unit.plan.rounded) made.rounded = made.whole;
  } else if (unit.plan.unshard == Unshard::kNone) {
    made.whole = made.owned;
  }
}

size_t take_wide(size_t& end, size_t bytes) {
  constexpr size_t kAlignment = 256;  // a GPU's widest loads and copies
  const size_t offset = end;
  end += align_up(bytes, kAlignment);
  return offset;
}

}  // namespace

OffloadMap map_offload(const Plan& plan, int optimizer_states, bool accumulates, int ahead) {
  OffloadMap offload;
  if (plan.offload == CpuOffload::kNone) return offload;
  offload.decision = take(offload.bytes, sizeof(ofsdp_run_state));
  offload.arrivals = take(offload.bytes, (plan.units.size() + 1) * sizeof(int64_t));
  for (const Unit& unit : plan.units) {
    offload.units.push_back(offload_unit(plan, unit, optimizer_states, accumulates, offload));
    if (!offload.units.back().passes_slots) continue;
    const size_t bytes = static_cast<size_t>(plan.most_owned(unit)) * sizeof(float);
    offload.slot_bytes = std::max(offload.slot_bytes, align_up(bytes, kTensorAlignment));
    offload.slots = std::max(2, ahead + 1);
  }
  return offload;
}

size_t MemoryMap::planned_bytes() const {
  return region_bytes(arena) + region_bytes(kept) + region_bytes(state) + region_bytes(shared) +
         region_bytes(common) + region_bytes(staging) + region_bytes(checkpoint) +
         region_bytes(trace) + region_bytes(metrics) + region_bytes(watch) +
         region_bytes(device_io) + region_bytes(pinned_io) + link + data;
}

size_t copy_bytes(const Plan& plan, const Unit& unit) {
  const auto numel = static_cast<size_t>(unit.padded_numel + unit.frozen_padded_numel);
  return align_up(numel * dtype_size(plan.param_dtype), kTensorAlignment);
}

// Slots and rooms that other ranks read come first, at equal places in all segments.
MemoryMap map_memory(const Plan& plan, int rank, const GradientSlots& slots,
                     const MemoryNeeds& needs) {
  MemoryMap memory;
  memory.arena = needs.arena;
  memory.kept = needs.kept;
  memory.staging = needs.staging;
  memory.data = needs.data;
  memory.data_elsewhere = needs.data_elsewhere;
  place_read(slots, needs, memory);
  for (const Unit& unit : plan.units) {
    memory.units.push_back(place_unit(plan, rank, unit, needs, memory));
    memory.units.back().slot = slots.offset[static_cast<size_t>(unit.id)];
  }
  if (!plan.weighted()) {
    const auto ranks = static_cast<size_t>(plan.common_ranks);
    memory.common = (memory.common_whole + ranks - 1) / ranks;
    memory.common_whole = ranks * region_bytes(memory.common);
  }
  memory.offload =
      map_offload(plan, static_cast<int>(needs.states.empty() ? 0 : needs.states[0].size()),
                  needs.accumulate, needs.prefetch_depth);
  memory.offload_slots =
      take(memory.state, static_cast<size_t>(memory.offload.slots) * memory.offload.slot_bytes);
  memory.checkpoint = needs.checkpoint;
  memory.trace = needs.trace;
  memory.metrics = needs.metrics;
  memory.watch = needs.watch;
  memory.device_io = needs.device_io;
  memory.pinned_io = needs.pinned_io;
  memory.link = needs.link;
  return memory;
}

namespace {

const char* name_of_states(const MemoryMap& memory) {
  for (const UnitOffsets& unit : memory.units) {
    for (const StateOffset& state : unit.optimizer) {
      if (state.form == StateForm::kBFloat16) return "optimizer state (bfloat16)";
      if (is_blocked(state.form)) return "optimizer state (int8)";
    }
  }
  return "optimizer state";
}

}  // namespace

std::string text(const MemoryMap& memory) {
  std::string out;
  auto row = [&](const char* name, size_t bytes) {
    out += format_text("{:<36} {:>9} {:>14}\n", name, readable_bytes(bytes), bytes);
  };
  row("parameters (owned)", memory.parameter_bytes);
  row(name_of_states(memory), memory.optimizer_bytes);
  row("gradients (slots, shards)", memory.gradient_bytes);
  if (memory.join_bytes > 0) row("rows of all ranks", memory.join_bytes);
  row("arena (activations, gathered, work)", memory.arena);
  row("constants and frozen parameters", memory.kept);
  row("input (staging, unpacked columns)", memory.staging + memory.data);
  if (memory.device_io > 0)
    row("in and out of the device (both ends)", memory.device_io + memory.pinned_io);
  if (memory.checkpoint > 0) row("checkpoint (copy being written)", memory.checkpoint);
  if (memory.link > 0) row("between hosts (pieces under way)", memory.link);
  if (memory.trace > 0) row("trace (recorded events)", memory.trace);
  if (memory.metrics > 0) row("metrics (sums and scores)", memory.metrics);
  if (memory.watch > 0)
    row("watched norms (of ranks, of updates)", memory.watch + memory.watch_slot_bytes);
  row("peak, in whole pages", memory.planned_bytes());
  return out;
}

UnitPlaces unit_places(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& o) {
  UnitPlaces made;
  made.span = plan.owned(unit, rank);
  if (o.copies >= 0) {
    place_in_common(plan, unit, rank, o, made);
  } else {
    place_parameters(plan, unit, rank, o, made);
  }
  for (const StateOffset& state : o.optimizer) made.optimizer.push_back(place_of(state));
  made.slot = at(Area::kShared, o.slot, unit.padded_numel, unit.plan.gradient_dtype);
  if (o.gradient >= 0) {
    made.gradient = at(o.gradient_in_shared ? Area::kShared : Area::kState,
                       static_cast<size_t>(o.gradient), made.span.numel, DType::kFloat32);
  } else if (!unit.plan.shards_gradients) {
    made.gradient = made.slot.part(made.span.begin, made.span.numel);
  }
  return made;
}

DeviceNormNeeds device_norm_needs(const Plan& plan) {
  DeviceNormNeeds norms;
  for (const Unit& unit : plan.units) {
    norms.most_parts = std::max(norms.most_parts, static_cast<int64_t>(unit.params.size()));
    for (const UnitParam& p : unit.params) {
      norms.parameters = std::max<int64_t>(norms.parameters, p.parameter + 1);
    }
  }
  return norms;
}

DeviceIoMap map_device_io(size_t inputs, size_t measured, int64_t batch_size, int64_t most_owned,
                          const DeviceNormNeeds& norms) {
  const size_t numbers =
      sizeof(ofsdp_step_numbers) + static_cast<size_t>(batch_size) * sizeof(int64_t);
  DeviceIoMap io;
  io.state = take_wide(io.device_bytes, sizeof(ofsdp_run_state));
  for (size_t& offset : io.numbers) offset = take_wide(io.device_bytes, numbers);
  for (size_t& offset : io.inputs) offset = take_wide(io.device_bytes, inputs);
  const int64_t blocks = most_owned / kReduceBlock;
  const int64_t partials =
      std::max(blocks + 2, norms.parameters > 0 ? 2 * (blocks + norms.most_parts) : 0);
  io.partials = take_wide(io.device_bytes, static_cast<size_t>(partials) * sizeof(double));
  io.squares =
      take_wide(io.device_bytes, 2 * static_cast<size_t>(norms.parameters) * sizeof(double));
  io.means = take_wide(io.device_bytes, static_cast<size_t>(norms.matrices) * sizeof(float));
  for (size_t& offset : io.pinned_numbers) offset = take_wide(io.pinned_bytes, numbers);
  for (size_t& offset : io.pinned_results) {
    offset = take_wide(io.pinned_bytes, sizeof(ofsdp_run_state));
  }
  for (size_t& offset : io.pinned_measured) offset = take_wide(io.pinned_bytes, measured);
  io.mark = take_wide(io.pinned_bytes, sizeof(int64_t));
  io.bounce = take_wide(io.pinned_bytes, kBounceBytes);
  return io;
}

SliceRoom slice_room(const Plan& plan, const Unit& unit, std::byte* slices) {
  const auto owned = static_cast<size_t>(plan.most_owned(unit));
  const auto ranks = static_cast<size_t>(plan.world == 1 ? 0 : plan.world);
  const size_t parts = ranks * owned * dtype_size(unit.plan.gradient_dtype);
  std::byte* const sum = slices + align_up(parts, kTensorAlignment);
  std::byte* const rounded = sum + align_up(owned * sizeof(float), kTensorAlignment);
  return {slices, reinterpret_cast<float*>(sum), reinterpret_cast<float*>(rounded)};
}

void add_slices(DeviceIoMap& io, const Plan& plan) {
  size_t most = 0;
  for (const Unit& unit : plan.units) {
    const SliceRoom room = slice_room(plan, unit, nullptr);
    const auto end = reinterpret_cast<uintptr_t>(room.rounded + plan.most_owned(unit));
    most = std::max(most, static_cast<size_t>(end));
  }
  io.slices = align_up(io.device_bytes, kTensorAlignment);
  io.exact_sum = io.slices + align_up(most, kTensorAlignment);
  io.exact_limbs = io.exact_sum + align_up(sizeof(ofsdp_exact_sum), kTensorAlignment);
  io.device_bytes = io.exact_limbs + OFSDP_EXACT_LIMBS * sizeof(double);
}

}  // namespace ofsdp::runtime
