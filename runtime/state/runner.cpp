#include "runtime/state/runner.h"

#include "kernels/cpu/float_width.h"

namespace ofsdp::runtime {
namespace {

class RunnerMaker {
 public:
  RunnerMaker(const RunPlan& plan, const ModelSetup& setup, Communicator& communicator,
              RunMemory& memory, const ExecutorOptions& options, Runner& runner)
      : plan_(plan),
        setup_(setup),
        communicator_(communicator),
        memory_(memory),
        options_(options),
        runner_(runner) {}

  Status on_cpu() {
    auto* const loss_weights =
        reinterpret_cast<float*>(memory_.host.kept.data() + plan_.kept.bytes());
    OFSDP_RETURN_IF_ERROR(make_optimizer(memory_.units));
    for (const Unit& unit : plan_.plan.units) runner_.optimizer->round(unit.id);
    runner_.executor = std::make_unique<CpuEngine>(plan_.plan, memory_.units, *runner_.optimizer,
                                                   communicator_, loss_weights, options_);
    bind_programs(memory_.host.bases(), loss_weights);
    return {};
  }

  Status on_device() {
    const MemoryBases bases = memory_.device.bases();
    round_images();
    OFSDP_RETURN_IF_ERROR(memory_.device.upload(memory_.host, memory_.shared_image.bytes()));
    runner_.device_units = unit_states(plan_.plan, communicator_.rank(), plan_.memory, bases);
    const bool offloads = plan_.plan.offload != CpuOffload::kNone;
    OFSDP_RETURN_IF_ERROR(make_optimizer(offloads ? memory_.units : runner_.device_units));
    OFSDP_ASSIGN_OR_RETURN(DeviceOptimizers optimizers, device_optimizers());
    const DeviceContext context{.device = *plan_.device,
                                .plan = plan_.plan,
                                .offsets = plan_.memory,
                                .io = plan_.device_io,
                                .memory = memory_.device,
                                .units = runner_.device_units,
                                .optimizer = *runner_.optimizer,
                                .rules = runner_.device_rules.get()};
    OFSDP_ASSIGN_OR_RETURN(auto ranks, join_devices());
    OFSDP_ASSIGN_OR_RETURN(auto offload, make_offload());
    OFSDP_ASSIGN_OR_RETURN(auto executor,
                           DeviceEngine::make(context, std::move(optimizers), options_,
                                              std::move(ranks), std::move(offload)));
    bind_programs(bases, executor->loss_weight());
    for (auto& [key, program] : runner_.programs) {
      OFSDP_RETURN_IF_ERROR(executor->prepare(program));
    }
    runner_.executor = std::move(executor);
    return {};
  }

 private:
  // Rounds the images for the time until the first update, which rounds on the device.
  void round_images() const {
    for (const Unit& unit : plan_.plan.units) {
      const UnitState& state = memory_.units[static_cast<size_t>(unit.id)];
      if (!unit.plan.rounded) continue;
      narrow(state.owned, plan_.plan.param_dtype, state.rounded, state.owned_numel);
    }
  }

  Status make_optimizer(const std::vector<UnitState>& units) {
    if (const UpdateRules* rules = setup_.source->updates()) {
      OFSDP_ASSIGN_OR_RETURN(runner_.update_program, UpdateProgram::make(*rules));
    }
    runner_.optimizer = std::make_unique<OptimizerStep>(plan_.updates, plan_.plan, units,
                                                        runner_.update_program.get(), plan_.rules,
                                                        plan_.orthogonal);
    return {};
  }

  // Makes the optimizers of all groups; empty if the device does not update, or runs the rules of
  // the model.
  Result<DeviceOptimizers> device_optimizers() {
    if (plan_.plan.offload != CpuOffload::kNone) return DeviceOptimizers();
    if (plan_.device_rules) {
      std::byte* const scratch = memory_.device.io() + plan_.device_io.rules;
      OFSDP_ASSIGN_OR_RETURN(
          runner_.device_rules,
          DeviceRules::make(*plan_.device, *plan_.device_rules, *runner_.update_program, scratch));
      return DeviceOptimizers();
    }
    DeviceOptimizers made;
    for (const UpdateGroup& group : plan_.updates.groups) {
      made.push_back(make_device_optimizer(*plan_.device, group.optimizer->name, group.settings));
      if (made.back() != nullptr) continue;
      return input_error("--optimizer {}: --device cuda does not have it; --device cpu does",
                         group.optimizer->name);
    }
    return made;
  }

  Result<std::unique_ptr<DeviceOffload>> make_offload() {
    const OffloadPlan& offload = plan_.memory.offload;
    if (offload.bytes == 0) return std::unique_ptr<DeviceOffload>();
    for (const Unit& unit : plan_.plan.units) runner_.optimizer->round(unit.id);
    std::byte* const slots = memory_.device.bases().state + plan_.memory.offload_slots;
    OFSDP_ASSIGN_OR_RETURN(
        auto made,
        DeviceOffload::make({*plan_.device, plan_.plan, plan_.memory, memory_.pinned.data(), slots,
                             memory_.units, runner_.device_units},
                            HostUpdate(*runner_.optimizer, memory_.units, offload,
                                       memory_.pinned.data(), plan_.plan, communicator_)));
    OFSDP_RETURN_IF_ERROR(made->publish());
    return made;
  }

  Result<std::unique_ptr<DeviceRanks>> join_devices() {
    auto* const mark = reinterpret_cast<int64_t*>(memory_.device.pinned() + plan_.device_io.mark);
    OFSDP_ASSIGN_OR_RETURN(auto ranks, DeviceRanks::join(*plan_.device, plan_.plan, communicator_,
                                                         mark, options_.timeout_seconds));
    // Gathered units have other addresses in the program of a shorter batch.
    const MemoryBases bases = memory_.device.bases();
    OFSDP_RETURN_IF_ERROR(ranks->make_known(bases.arena, plan_.memory.arena, false));
    OFSDP_RETURN_IF_ERROR(ranks->make_known(bases.shared, plan_.memory.shared, true));
    return ranks;
  }

  void bind_programs(const MemoryBases& bases, float* loss_weights) {
    const BindingContext context{.lowering = lowering(plan_, communicator_.rank()),
                                 .memory = bases,
                                 .host = memory_.pinned.data(),
                                 .loss_weights = loss_weights};
    for (const auto& [key, program] : plan_.programs) {
      runner_.programs.emplace(key, bind(program, context));
    }
  }

  const RunPlan& plan_;
  const ModelSetup& setup_;
  Communicator& communicator_;
  RunMemory& memory_;
  const ExecutorOptions& options_;
  Runner& runner_;
};

}  // namespace

Status make_runner(const RunPlan& plan, const ModelSetup& setup, Communicator& communicator,
                   RunMemory& memory, const ExecutorOptions& options, Runner& runner) {
  RunnerMaker maker(plan, setup, communicator, memory, options, runner);
  return plan.device == nullptr ? maker.on_cpu() : maker.on_device();
}

}  // namespace ofsdp::runtime
