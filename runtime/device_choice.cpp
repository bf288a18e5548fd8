#include "runtime/device_choice.h"

#include <algorithm>
#include <array>

namespace ofsdp {
namespace {

// What a run asks for that only the CPU path has so far; empty: nothing.
std::string only_on_cpu(const Options& options, const ModelSetup& setup) {
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

struct Place {
  int ordinal = 0;
  int sharing = 1;  // ranks of the host on one device
};

Place place_of(const Communicator& communicator, int devices) {
  const int here = communicator.ranks_of_each_host();
  return {communicator.rank() % here % devices, (here + devices - 1) / devices};
}

// Whether the ranks can be joined; `engine` is by what. Empty: they can.
std::string not_joined(const Device& device, int sharing, std::string& engine) {
  std::array<char, 512> text{};
  const bool can = device.table().can_join(device.handle(), sharing, text.data(), text.size()) != 0;
  if (can) engine = text.data();
  return can ? "" : text.data();
}

class Chooser {
 public:
  Chooser(const Options& options, const ModelSetup& setup, const Communicator& communicator)
      : options_(options),
        setup_(setup),
        communicator_(communicator),
        must_(options.launch.device == DeviceChoice::kCuda) {}

  // Of this rank.
  Result<ChosenDevice> run() const {
    const auto devices = count_devices();
    if (!devices.ok()) return none(devices.error().message());
    if (const std::string why = only_on_cpu(options_, setup_); !why.empty()) return none(why);
    const bool several = communicator_.size() > 1;
    if (several && communicator_.ranks_of_each_host() == 0) {
      return none("several hosts have different numbers of ranks");
    }
    const Place place = place_of(communicator_, *devices);
    ChosenDevice chosen;
    OFSDP_ASSIGN_OR_RETURN(chosen.device, find_device(place.ordinal));
    chosen.notice = "device: " + chosen.device->description();
    if (several) {
      std::string engine;
      const std::string why = not_joined(*chosen.device, place.sharing, engine);
      if (!why.empty()) return none(fmt::format("{} ranks: {}", communicator_.size(), why));
      chosen.notice += ", " + engine;
    }
    if (const std::string missing = missing_line(*chosen.device); !missing.empty()) {
      chosen.notice += "\nwithout " + missing;
    }
    return chosen;
  }

 private:
  // A program without the library never promised a device.
  Result<ChosenDevice> none(const std::string& why) const {
    if (must_) return input_error("--device cuda: {}", why);
    ChosenDevice chosen;
    if (!why.starts_with("no libofsdp_cuda.so")) chosen.notice = "device: the CPU, since " + why;
    return chosen;
  }

  const Options& options_;
  const ModelSetup& setup_;
  const Communicator& communicator_;
  bool must_;
};

// With --device auto: a device for all ranks, or for none.
Result<ChosenDevice> agreed(ChosenDevice mine, Communicator& communicator) {
  const double has = mine.device != nullptr ? 1 : 0;
  std::vector<double> all(static_cast<size_t>(communicator.size()));
  OFSDP_RETURN_IF_ERROR(communicator.exchange({&has, 1}, all, {"choice of devices", -1, 0}));
  const auto without = std::ranges::find(all, 0.0);
  const bool some = std::ranges::find(all, 1.0) != all.end();
  if (without == all.end() || !some) return mine;
  return ChosenDevice{nullptr, fmt::format("device: the CPU, since rank {} has no GPU that can be "
                                           "used; --device cuda says why",
                                           without - all.begin())};
}

}  // namespace

Result<ChosenDevice> choose_device(const Options& options, const ModelSetup& setup,
                                   Communicator& communicator) {
  if (options.launch.device == DeviceChoice::kCpu) return ChosenDevice{};
  OFSDP_ASSIGN_OR_RETURN(ChosenDevice chosen, Chooser(options, setup, communicator).run());
  if (communicator.size() == 1 || options.command == Command::kPlan) return chosen;
  return agreed(std::move(chosen), communicator);
}

}  // namespace ofsdp
