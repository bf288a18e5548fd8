#include "runtime/cli/launch/restart.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/cli/options/option_value.h"

namespace ofsdp::cli {
namespace {

std::string variable(const EnvironmentLookup& lookup, const char* name) {
  const char* text = lookup ? lookup(name) : std::getenv(name);
  return text == nullptr ? "" : text;
}

Status keep_global_batch(Options& options, int64_t first_world, int64_t world) {
  Options first = options;
  OFSDP_RETURN_IF_ERROR(reconcile_batch(first, static_cast<int>(first_world)));
  const int64_t global = first.batch.global_batch_size;
  if (global % world != 0) {
    return input_error(
        "restart with {} ranks: --global-batch-size {} ({} ranks at first) is not a multiple of {}",
        world, global, first_world, world);
  }
  int64_t size = std::min(first.batch.batch_size, global / world);
  while (global / world % size != 0) --size;
  options.batch.given.batch_size = {size, Source::kFlag};
  options.batch.given.grad_accum = {global / world / size, Source::kFlag};
  options.batch.given.global_batch_size = {global, Source::kFlag};
  return {};
}

}  // namespace

Status apply_restart(Options& options, int world, const EnvironmentLookup& lookup) {
  const std::string restart = variable(lookup, "OFSDP_RESTART");
  if (restart.empty()) return {};
  if (restart == "latest" && options.command == Command::kTrain) {
    options.checkpoint.resume = "latest";
  }
  const int64_t first_world = parse_integer(variable(lookup, "OFSDP_FIRST_WORLD")).value_or(world);
  return first_world == world ? Status{} : keep_global_batch(options, first_world, world);
}

}  // namespace ofsdp::cli
