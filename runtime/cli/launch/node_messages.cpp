#include "runtime/cli/launch/node_messages.h"

#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/comm/communicator.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

namespace {

constexpr const char* kMagic = "fsdp-run rendezvous";
constexpr int kMaxProcesses = 4096;  // of a host
constexpr int kMaxStatus = 255;

}  // namespace

void list_fields(StoreFields& fields, NodeHello& hello) {
  fields.text("job", hello.job);
  fields.number("node_rank", -1, kMaxRanks - 1, hello.node_rank);
  fields.number("nnodes", 1, kMaxRanks, hello.nnodes);
  fields.number("nproc", 1, kMaxProcesses, hello.nproc);
  fields.number("free_port", 1, 65535, hello.free_port);
  fields.text("host", hello.host);
  fields.flag("own", hello.own);
}

void list_fields(StoreFields& fields, Refusal& refusal) {
  fields.text("why", refusal.why);
  fields.flag("again", refusal.again);
}

void list_fields(StoreFields& fields, StopOrder& stop) {
  fields.number("restart", 0, INT_MAX, stop.restart);
}

void list_fields(StoreFields& fields, Outcome& outcome) {
  fields.number("status", 0, kMaxStatus, outcome.status);
  fields.flag("spoke", outcome.spoke);
  fields.flag("interrupted", outcome.interrupted);
  fields.text("line", outcome.line);
  fields.number("free_port", 1, 65535, outcome.free_port);
}

void list_fields(StoreFields& fields, Turn& turn) {
  fields.flag("start", turn.start);
  fields.text("line", turn.line);
  if (!turn.start) return fields.number("status", 0, kMaxStatus, turn.status);
  Assignment& a = turn.assignment;
  fields.number("nodes", 1, kMaxRanks, a.nodes);
  fields.number("node", 0, a.nodes - 1, a.node);
  fields.number("world", 1, INT_MAX, a.world);
  fields.number("first_rank", 0, a.world - 1, a.first_rank);
  fields.number("first_world", 1, INT_MAX, a.first_world);
  fields.number("restart", 0, INT_MAX, a.restart);
  fields.flag("from_latest", a.from_latest);
  fields.text("run_id", a.run_id);
  fields.text("master_address", a.master_address);
  fields.number("master_port", 1, 65535, a.master_port);
  fields.text("notice", turn.notice);
}

Json hello_value(const NodeHello& hello) {
  Json value = to_value(hello);
  value["magic"] = kMagic;
  value["version"] = hello.version;
  return value;
}

std::optional<NodeHello> read_hello(const Json& value) {
  NodeHello hello;
  std::string magic;
  StoreFields fields(value);
  fields.text("magic", magic);
  fields.number("version", 1, INT_MAX, hello.version);
  if (!fields.good() || magic != kMagic) return std::nullopt;
  return hello.version == kRendezvousVersion ? from_value<NodeHello>(value) : hello;
}

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
                      .global_batch_size = {global, Source::kFlag},
                      .weights = options.batch.weights};
}

}  // namespace

RestartPoint::RestartPoint(const std::string& dir, int most, FindFolder find)
    : dir_(dir), most_(most), find_(std::move(find)), before_(latest_in(dir)) {}

RestartPoint::Latest RestartPoint::latest_in(const std::string& dir) {
  if (dir.empty()) return {};
  const Result<std::vector<std::string>> listed = complete_checkpoints(dir);
  if (!listed.ok() || listed->empty()) return {};
  const std::vector<std::string>& names = *listed;
  struct stat found {};
  const std::string manifest = join_path(join_path(dir, names.front()), kManifestName);
  if (stat(manifest.c_str(), &found) != 0) return {};
  return {names.front(), static_cast<uint64_t>(found.st_ino)};
}

std::string RestartPoint::text(const std::string& dir, bool saved) {
  if (saved) return format_text("from the latest checkpoint in {}", dir);
  if (dir.empty()) {
    return "from where the run began, for nothing is saved without --checkpoint-dir";
  }
  return format_text("from where the run began, for it has saved no checkpoint in {} yet", dir);
}

std::optional<std::string> RestartPoint::start_again(const Outcome& ended, Assignment& next) const {
  if (ended.status != 1 || ended.interrupted || next.restart == most_) return std::nullopt;
  const std::string folder = dir_.empty() && find_ ? find_(next.run_id) : "";
  const std::string dir = folder.empty() ? dir_ : join_path(folder, "checkpoints");
  const Latest now = latest_in(dir);
  next.from_latest = !now.name.empty() && now != before_;
  return format_text("restart {} of {}: {}", ++next.restart, most_, text(dir, next.from_latest));
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
