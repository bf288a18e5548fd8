#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "kernels/core/device_operators.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/planned_operands.h"
#include "kernels/ops/attention/device_attention.h"
#include "runtime/compile/compile.h"

namespace ofsdp::runtime {
namespace {

// Has a kernel for the operators for which the CUDA library has one, but not for nodes that a pass
// would join: only the library knows which results its kernels accept.
class PlanningDevice final : public Device {
 public:
  explicit PlanningDevice(const Registry& registry) {
    for (const auto& [name, op] : registry.all()) {
      const bool has_kernel = !op.joined && has_device_kernel(op.full_name());
      if (!has_kernel) refused_.insert(op.full_name());
    }
  }

  std::string description() const override { return "a GPU that is not here"; }
  // An opaque handle; no caller reads it.
  Result<ofsdp_stream*> make_stream(bool) override { return reinterpret_cast<ofsdp_stream*>(this); }
  void* native_stream(ofsdp_stream* stream) override { return stream; }
  Status allow(uint32_t) override { return {}; }
  std::unique_ptr<Kernel> make_kernel(const std::string& op, const Problem& problem,
                                      KernelChoice* choice) override {
    if (refused_.contains(op) || !problem.all_dense()) return nullptr;
    if (op == "ofsdp.LayerNormalizationGrad" && problem.has_in(kNormAddend)) return nullptr;
    const bool attends = op == "Attention" || op == "ofsdp.AttentionGrad";
    if (choice != nullptr && attends) *choice = kernels::ops::device_choice(op, problem);
    const size_t workspace =
        op == "ofsdp.LinearCrossEntropy" ? linear_loss::Rooms::of(problem).bytes : 0;
    return kernels::make_kernel([](const KernelArgs&) { return fault("it only plans"); },
                                workspace);
  }

 private:
  std::set<std::string> refused_;
};

// Returns the reason if an option needs the CPU; else empty.
std::string only_on_cpu(const Options& options) {
  if (!options.report.html.empty()) return "--html draws times, which nobody has measured on GPUs";
  const bool offloads =
      options.sharding.cpu_offload != CpuOffload::kNone || updates_in_host_memory(options);
  const std::string name(name_of(options.optimizer.kind));
  const OptimizerDef* const optimizer = find_optimizer(name);
  if (options.launch.deterministic == Determinism::kAcrossRanks) {
    if (optimizer != nullptr && optimizer->needs_norms()) {
      return "--deterministic across_ranks with --optimizer " + name +
             " needs exact norms of parameters, which the CPU alone has so far";
    }
    if (offloads) return "--deterministic across_ranks with --cpu-offload is not built yet for it";
  }
  if (optimizer != nullptr && optimizer->keeps_gradient()) {
    if (offloads) return "--cpu-offload with --optimizer " + name + " is not built yet for it";
  }
  const bool watches = options.files.watch > 0 && options.command != Command::kEval;
  if (watches && !traits(StepKind::kWatch).on_device) {
    return "--watch keeps norms of the CPU's updates alone so far";
  }
  return "";
}

std::string missing_line(const Device& device) {
  std::string text = device.missing();
  for (size_t at; (at = text.find('\n')) != std::string::npos && at + 1 < text.size();) {
    text.replace(at, 1, "; ");
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Returns the reason if `sharing` ranks on one device cannot be joined; else empty, and `engine`
// names the library that joins them.
std::string not_joined(const Device& device, int sharing, std::string& engine) {
  const Status joined = device.can_join(sharing, engine);
  return joined.ok() ? "" : joined.message();
}

// 52 bits of the identity, exact in a double.
double identity_of(const Device& device) { return static_cast<double>(device.identity() >> 12); }

class Chooser {
 public:
  Chooser(const Options& options, const Registry& registry, const Communicator& communicator)
      : options_(options),
        registry_(registry),
        communicator_(communicator),
        must_(options.launch.device == DeviceChoice::kCuda) {}

  // Chooses only for this rank. `plan` opens the first GPU, since no other rank runs.
  Result<ChosenDevice> run() const {
    const bool plans = options_.command == Command::kPlan;
    const auto devices = count_devices();
    const std::string why = only_on_cpu(options_);
    const bool unusable = !devices.ok() && devices.error().kind() == ErrorKind::kFault;
    if (unusable) return Status(ErrorKind::kFault, devices.error().message());
    if (!devices.ok() && !(plans && must_)) return none(devices.error().message());
    if (!why.empty()) return none(why);
    if (!devices.ok()) return only_planned(devices.error().message());
    return open(*devices, !plans && communicator_.size() > 1);
  }

  // Takes a device on all ranks or on none. Ranks count sharers by device identities, since their
  // device numbers may differ.
  Result<ChosenDevice> agree(ChosenDevice mine, Communicator& communicator) const {
    const bool has = mine.device != nullptr;
    const std::array<double, 2> said{has ? 1.0 : 0.0, has ? identity_of(*mine.device) : 0.0};
    std::vector<double> all(2 * static_cast<size_t>(communicator.size()));
    OFSDP_RETURN_IF_ERROR(communicator.exchange(said, all, {"choice of devices", -1, 0}));
    std::map<double, int> sharing;
    int without = -1;
    for (int r = communicator.size() - 1; r >= 0; --r) {
      const double* rank = &all[2 * static_cast<size_t>(r)];
      if (rank[0] == 0) without = r;
      if (rank[0] != 0) ++sharing[rank[1]];
    }
    if (sharing.empty()) return mine;
    if (without >= 0) {
      return none(
          format_text("rank {} has no GPU that it can use; --device cuda says why", without));
    }
    int most = 0;
    for (const auto& [device, ranks] : sharing) most = std::max(most, ranks);
    std::string engine;
    const std::string why = most == 1 ? "" : not_joined(*mine.device, most, engine);
    if (!why.empty()) return none(ranks_text() + why);
    return mine;
  }

 private:
  uint32_t permissions() const {
    const bool tf32 = options_.sharding.matmul_precision == MatmulPrecision::kHigh;
    const bool vary = options_.launch.deterministic == Determinism::kOff;
    uint32_t what = 0;
    if (tf32) what |= OFSDP_MAY_ROUND_TO_TF32;
    if (vary) what |= OFSDP_MAY_VARY;
    return what;
  }

  Result<ChosenDevice> open(int devices, bool several) const {
    if (several && communicator_.ranks_on_each_host() == 0) {
      return none("several hosts have different numbers of ranks");
    }
    const int here = several ? communicator_.rank() % communicator_.ranks_on_each_host() : 0;
    ChosenDevice chosen;
    OFSDP_ASSIGN_OR_RETURN(chosen.device, find_device(here % devices));
    OFSDP_RETURN_IF_ERROR(chosen.device->allow(permissions()));
    chosen.notice = "device: " + chosen.device->description();
    if (several) {
      std::string engine;
      const std::string why = not_joined(*chosen.device, 1, engine);
      if (!why.empty()) return none(ranks_text() + why);
      chosen.notice += ", " + engine;
    }
    if (const std::string missing = missing_line(*chosen.device); !missing.empty()) {
      chosen.notice += "\nwithout " + missing;
    }
    return chosen;
  }

  // Plans on a host without a GPU.
  Result<ChosenDevice> only_planned(const std::string& why) const {
    ChosenDevice chosen;
    OFSDP_ASSIGN_OR_RETURN(chosen.device,
                           with_streams(std::make_unique<PlanningDevice>(registry_)));
    chosen.notice = format_text("device: {}: {}", chosen.device->description(), why);
    return chosen;
  }

  std::string ranks_text() const { return format_text("{} ranks: ", communicator_.size()); }

  // Says nothing if the program has no CUDA library: it never promised a GPU.
  Result<ChosenDevice> none(const std::string& why) const {
    if (must_) return input_error("--device cuda: {}", why);
    ChosenDevice chosen;
    if (!why.starts_with("this build has no CUDA")) chosen.notice = "device: the CPU, since " + why;
    return chosen;
  }

  const Options& options_;
  const Registry& registry_;
  const Communicator& communicator_;
  bool must_;
};

}  // namespace

bool only_plans(const Device& device) {
  return dynamic_cast<const PlanningDevice*>(&device) != nullptr;
}

bool updates_in_host_memory(const Options& options) {
  const OptimizerOptions& o = options.optimizer;
  return o.kind == OptimizerKind::kPlugin ||
         std::ranges::any_of(o.groups, [](const GroupOptions& group) {
           return group.kind == OptimizerKind::kPlugin;
         });
}

Result<ChosenDevice> choose_device(const Options& options, const Registry& registry,
                                   Communicator& communicator) {
  if (options.launch.device == DeviceChoice::kCpu) return ChosenDevice{};
  const Chooser chooser(options, registry, communicator);
  OFSDP_ASSIGN_OR_RETURN(ChosenDevice chosen, chooser.run());
  if (communicator.size() == 1 || options.command == Command::kPlan) return chosen;
  return chooser.agree(std::move(chosen), communicator);
}

}  // namespace ofsdp::runtime
