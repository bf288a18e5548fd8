#include "runtime/device_choice.h"

namespace ofsdp {
namespace {

// What a run asks for that only the CPU path has so far; empty: nothing.
std::string only_on_cpu(const Options& options, const ModelSetup& setup,
                        const Communicator& communicator) {
  if (communicator.size() > 1) {
    return fmt::format("{} ranks need NCCL, which is not built yet; one rank can run",
                       communicator.size());
  }
  if (options.command == Command::kPlan) return "the command plan measures on the CPU alone so far";
  if (!options.files.trace.empty()) return "--trace is not built yet for it";
  if (options.launch.deterministic == Determinism::kAcrossRanks)
    return "--deterministic across_ranks is the CPU's alone so far";
  if (options.optimizer.kind == OptimizerKind::kPlugin) {
    return "optimizers of plug-ins run on the CPU alone so far";
  }
  if (options.optimizer.kind == OptimizerKind::kLamb) {
    return "--optimizer lamb needs norms of parameters, which the CPU alone has so far";
  }
  if (setup.rules) return "the model's own training_info is run on the CPU alone so far";
  if (setup.artifacts != nullptr) return "training artifacts run on the CPU alone so far";
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

}  // namespace

Result<ChosenDevice> choose_device(const Options& options, const ModelSetup& setup,
                                   const Communicator& communicator) {
  const DeviceChoice wish = options.launch.device;
  ChosenDevice chosen;
  if (wish == DeviceChoice::kCpu) return chosen;
  const bool must = wish == DeviceChoice::kCuda;
  const auto devices = count_devices();
  if (!devices.ok()) {
    if (must) return input_error("--device cuda: {}", devices.error().message());
    const bool no_library = devices.error().message().starts_with("no libofsdp_cuda.so");
    if (!no_library) chosen.notice = "device: the CPU, since " + devices.error().message();
    return chosen;
  }
  if (const std::string why = only_on_cpu(options, setup, communicator); !why.empty()) {
    if (must) return input_error("--device cuda: {}", why);
    chosen.notice = "device: the CPU, since " + why;
    return chosen;
  }
  OFSDP_ASSIGN_OR_RETURN(chosen.device, find_device(communicator.rank()));
  chosen.notice = "device: " + chosen.device->description();
  if (const std::string missing = missing_line(*chosen.device); !missing.empty()) {
    chosen.notice += "\nwithout " + missing;
  }
  return chosen;
}

}  // namespace ofsdp
