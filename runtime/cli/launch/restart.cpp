#include "runtime/cli/launch/restart.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "runtime/cli/options/option_value.h"

namespace ofsdp::cli {
namespace {

std::string variable(const EnvironmentLookup& lookup, const char* name) {
  const char* text = lookup ? lookup(name) : std::getenv(name);
  return text == nullptr ? "" : text;
}

Result<BatchOptions> keep_global_batch(const Options& options, int64_t first_world, int64_t world) {
  OFSDP_ASSIGN_OR_RETURN(const BatchSizes first,
                         resolve_batch(options, static_cast<int>(first_world)));
  const int64_t global = first.global_batch_size;
  if (global % world != 0) {
    return input_error(
        "restart with {} ranks: --global-batch-size {} ({} ranks at first) is not a multiple of {}",
        world, global, first_world, world);
  }
  int64_t size = std::min(first.batch_size, global / world);
  while (global / world % size != 0) --size;
  return BatchOptions{.batch_size = {size, Source::kFlag},
                      .grad_accum = {global / world / size, Source::kFlag},
                      .global_batch_size = {global, Source::kFlag}};
}

}  // namespace

RestartPoint::RestartPoint(const std::string& dir, int most)
    : dir_(dir), most_(most), before_(latest()) {}

RestartPoint::Latest RestartPoint::latest() const {
  if (dir_.empty()) return {};
  const Result<std::vector<std::string>> listed = complete_checkpoints(dir_);
  if (!listed.ok() || listed->empty()) return {};
  const std::vector<std::string>& names = *listed;
  struct stat found {};
  const std::string manifest = join_path(join_path(dir_, names.front()), kManifestName);
  if (stat(manifest.c_str(), &found) != 0) return {};
  return {names.front(), static_cast<uint64_t>(found.st_ino)};
}

std::string RestartPoint::text(bool saved) const {
  if (saved) return format_text("from the latest checkpoint in {}", dir_);
  if (dir_.empty()) {
    return "from where the run began, for nothing is saved without --checkpoint-dir";
  }
  return format_text("from where the run began, for it has saved no checkpoint in {} yet", dir_);
}

std::optional<std::string> RestartPoint::start_again(const Outcome& ended, Assignment& next) const {
  if (ended.status != 1 || ended.interrupted || next.restart == most_) return std::nullopt;
  const Latest now = latest();
  next.from_latest = !now.name.empty() && now != before_;
  return format_text("restart {} of {}: {}", ++next.restart, most_, text(next.from_latest));
}

Result<Options> after_restart(Options options, int world, const EnvironmentLookup& lookup) {
  const std::string restart = variable(lookup, "OFSDP_RESTART");
  if (restart.empty()) return options;
  if (restart == "latest" && options.command == Command::kTrain) {
    options.checkpoint.resume = "latest";
  }
  const int64_t first_world = parse_integer(variable(lookup, "OFSDP_FIRST_WORLD")).value_or(world);
  if (first_world == world) return options;
  OFSDP_ASSIGN_OR_RETURN(options.batch, keep_global_batch(options, first_world, world));
  return options;
}

}  // namespace ofsdp::cli
