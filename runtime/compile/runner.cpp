#include "runtime/compile/runner.h"

#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::runtime {

namespace {

// States must start at 0, and gaps between parameters must stay 0.
void clear_pages(const DeviceMemory& memory) {
  constexpr int64_t kPagesWorthAThread = 256;
  const auto pages = static_cast<int64_t>(memory.bytes() / kPageBytes);
  parallel_for(pages, kPagesWorthAThread, [&](int64_t first, int64_t last) {
    std::memset(memory.data() + static_cast<size_t>(first) * kPageBytes, 0,
                static_cast<size_t>(last - first) * kPageBytes);
  });
}

class RunnerMaker {
 public:
  RunnerMaker(const CompiledRun& plan, const ModelSetup& setup, Communicator& communicator,
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
    OFSDP_RETURN_IF_ERROR(make_updater_on_host());
    runner_.executor = std::make_unique<CpuEngine>(plan_.shards, memory_.units, *runner_.updater,
                                                   communicator_, loss_weights, options_);
    bind_programs(memory_.host.bases(), loss_weights);
    return {};
  }

  Status on_device() {
    const MemoryBases bases = memory_.device.bases();
    round_images();
    runner_.device_units = unit_states(plan_.shards, communicator_.rank(), plan_.memory, bases);
    const bool offloads = plan_.shards.offload != CpuOffload::kNone;
    OFSDP_RETURN_IF_ERROR(offloads ? make_updater_on_host() : make_updater_on_device());
    OFSDP_RETURN_IF_ERROR(memory_.device.upload(memory_.host, memory_.shared_image.bytes()));
    const DeviceContext context{.device = *plan_.device,
                                .plan = plan_.shards,
                                .offsets = plan_.memory,
                                .io = plan_.device_io,
                                .memory = memory_.device,
                                .units = runner_.device_units,
                                .updater = offloads ? nullptr : runner_.updater.get(),
                                .rules = runner_.device_rules.get()};
    OFSDP_ASSIGN_OR_RETURN(auto ranks, join_devices());
    OFSDP_ASSIGN_OR_RETURN(auto offload, make_offload());
    OFSDP_ASSIGN_OR_RETURN(
        auto executor, DeviceEngine::make(context, options_, std::move(ranks), std::move(offload)));
    bind_programs(bases, executor->loss_weights());
    for (auto& [key, program] : runner_.programs) {
      OFSDP_RETURN_IF_ERROR(executor->prepare(program));
    }
    runner_.executor = std::move(executor);
    return {};
  }

 private:
  // Rounds the parameters that nodes read before the first update; the update rounds on the device.
  void round_images() const {
    for (const Unit& unit : plan_.shards.units) {
      const UnitState& state = memory_.units[static_cast<size_t>(unit.id)];
      if (!unit.plan.rounded) continue;
      narrow(state.owned, plan_.shards.param_dtype, state.rounded, state.owned_numel);
    }
  }

  Status make_table() {
    const UpdateRules* const rules = setup_.source->updates();
    if (rules != nullptr) {
      OFSDP_ASSIGN_OR_RETURN(runner_.update_program, UpdateProgram::make(*rules));
    }
    runner_.update_table = std::make_unique<UpdateTable>(plan_.updates, plan_.shards,
                                                         communicator_.rank(), plan_.rules);
    return {};
  }

  // Rounds the parameters for the time until the first update.
  Status make_updater_on_host() {
    OFSDP_RETURN_IF_ERROR(make_table());
    UpdaterContext context{
        .table = *runner_.update_table, .units = memory_.units, .orthogonal = plan_.orthogonal};
    context.rules = [this](const Problem& problem, std::vector<UpdateRow> rows) {
      return runner_.update_program->kernel(problem, std::move(rows));
    };
    OFSDP_ASSIGN_OR_RETURN(runner_.updater, Updater::make(std::move(context)));
    for (const Unit& unit : plan_.shards.units) {
      OFSDP_RETURN_IF_ERROR(runner_.updater->round(unit.id, {}));
    }
    return {};
  }

  Status make_updater_on_device() {
    OFSDP_RETURN_IF_ERROR(make_table());
    std::byte* const io = memory_.device.io();
    const DeviceIoMap& places = plan_.device_io;
    UpdaterContext context{.device = plan_.device,
                           .table = *runner_.update_table,
                           .units = runner_.device_units,
                           .orthogonal = plan_.orthogonal,
                           .state = reinterpret_cast<ofsdp_run_state*>(io + places.state),
                           .squares = reinterpret_cast<double*>(io + places.squares),
                           .partials = reinterpret_cast<double*>(io + places.partials),
                           .means = reinterpret_cast<float*>(io + places.means)};
    if (plan_.device_rules) {
      runner_.device_rules = std::make_unique<DeviceRules>(
          *plan_.device, *plan_.device_rules, *runner_.update_program, io + places.rules);
    }
    context.rules = [this](const Problem& problem, std::vector<UpdateRow> rows) {
      return runner_.device_rules->kernel(problem, std::move(rows));
    };
    OFSDP_ASSIGN_OR_RETURN(runner_.updater, Updater::make(std::move(context)));
    return {};
  }

  Result<std::unique_ptr<DeviceOffload>> make_offload() {
    const OffloadMap& offload = plan_.memory.offload;
    if (offload.bytes == 0) return std::unique_ptr<DeviceOffload>();
    std::byte* const slots = memory_.device.bases().state + plan_.memory.offload_slots;
    OFSDP_ASSIGN_OR_RETURN(
        auto made,
        DeviceOffload::make({*plan_.device, plan_.shards, plan_.memory, memory_.pinned.data(),
                             slots, memory_.units, runner_.device_units},
                            HostUpdate(*runner_.updater, memory_.units, offload,
                                       memory_.pinned.data(), communicator_)));
    OFSDP_RETURN_IF_ERROR(made->publish());
    return made;
  }

  Result<std::unique_ptr<DeviceRanks>> join_devices() {
    auto* const mark = reinterpret_cast<int64_t*>(memory_.device.pinned() + plan_.device_io.mark);
    OFSDP_ASSIGN_OR_RETURN(auto ranks, DeviceRanks::join(*plan_.device, plan_.shards, communicator_,
                                                         mark, options_.timeout_seconds));
    // `false`: the programs of a short batch gather units at other offsets.
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

  const CompiledRun& plan_;
  const ModelSetup& setup_;
  Communicator& communicator_;
  RunMemory& memory_;
  const ExecutorOptions& options_;
  Runner& runner_;
};

}  // namespace

Status RunMemory::map(const CompiledRun& plan, Communicator& communicator, MemoryLedger& ledger) {
  if (plan.device != nullptr) {
    OFSDP_RETURN_IF_ERROR(map_images(plan, ledger, communicator.size() > 1));
  } else {
    OFSDP_ASSIGN_OR_RETURN(host, RankMemory::map(plan.memory, ledger, communicator));
  }
  units = unit_states(plan.shards, communicator.rank(), plan.memory, host.bases());
  if (plan.memory.offload.bytes > 0) {
    units =
        offloaded_units(plan.memory.offload, plan.shards.offload, pinned.data(), std::move(units));
  }
  return {};
}

Status RunMemory::map_images(const CompiledRun& plan, MemoryLedger& ledger, bool several) {
  const MemoryMap& bytes = plan.memory;
  OFSDP_ASSIGN_OR_RETURN(
      device, DeviceRankMemory::allocate(*plan.device, ledger, bytes, plan.device_io, several));
  OFSDP_ASSIGN_OR_RETURN(
      pinned,
      DeviceMemory::allocate(*plan.device, pinned_ledger, bytes.offload.bytes,
                             DeviceMemory::Place::kPinned, "what --cpu-offload keeps on the host"));
  clear_pages(pinned);
  const auto map = [](MemoryLedger& counted, size_t size, const char* name) {
    return Region::map(counted, size, Region::Sharing::kPrivate, name);
  };
  OFSDP_ASSIGN_OR_RETURN(host.kept, map(image_ledger, bytes.kept, "constants"));
  OFSDP_ASSIGN_OR_RETURN(host.state, map(image_ledger, bytes.state, "optimizer state"));
  OFSDP_ASSIGN_OR_RETURN(shared_image, map(image_ledger, bytes.shared, "shards and gradients"));
  host.shared = shared_image.data();
  OFSDP_ASSIGN_OR_RETURN(host.checkpoint, map(ledger, bytes.checkpoint, "the checkpoint's copy"));
  OFSDP_ASSIGN_OR_RETURN(host.trace, map(ledger, bytes.trace, "the trace"));
  OFSDP_ASSIGN_OR_RETURN(host.metrics, map(ledger, bytes.metrics, "metrics"));
  return {};
}

Status RunMemory::fetch(const CompiledRun& plan) {
  if (plan.device == nullptr) return {};
  // With --cpu-offload, state and parameters are on the host already.
  const bool offloaded = plan.shards.offload != CpuOffload::kNone;
  return device.download(host, shared_image.bytes(), offloaded);
}

Status RunMemory::fetch_kept(const CompiledRun& plan) {
  return plan.device == nullptr ? ok_status() : device.download(host, 0, true);
}

Status RunMemory::store_kept(const CompiledRun& plan) {
  return plan.device == nullptr ? ok_status() : device.upload(host, 0, true);
}

std::span<std::byte> RunMemory::staging() const {
  if (host.staging.bytes() > 0) return {host.staging.data(), host.staging.bytes()};
  return device.staging();
}

Status make_runner(const CompiledRun& plan, const ModelSetup& setup, Communicator& communicator,
                   RunMemory& memory, const ExecutorOptions& options, Runner& runner) {
  RunnerMaker maker(plan, setup, communicator, memory, options, runner);
  return plan.device == nullptr ? maker.on_cpu() : maker.on_device();
}

}  // namespace ofsdp::runtime
