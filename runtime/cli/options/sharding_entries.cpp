// The options about where parameters lie and who computes: strategy, units, precision, memory,
// launch.
#include "fsdp/comm/communicator.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

constexpr Choice<Strategy> kStrategies[] = {{"full_shard", Strategy::kFullShard},
                                            {"shard_grad_op", Strategy::kShardGradOp},
                                            {"no_shard", Strategy::kNoShard},
                                            {"hybrid_shard", Strategy::kHybridShard},
                                            {"hybrid_shard_zero2", Strategy::kHybridShardZero2},
                                            {"zero1", Strategy::kZero1},
                                            {"auto", Strategy::kAuto}};
constexpr Choice<WrapPolicy> kWraps[] = {{"transformer", WrapPolicy::kTransformer},
                                         {"size", WrapPolicy::kSize},
                                         {"none", WrapPolicy::kNone}};
constexpr Choice<DType> kDTypes[] = {
    {"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}};
constexpr Choice<MatmulPrecision> kPrecisions[] = {{"highest", MatmulPrecision::kHighest},
                                                   {"high", MatmulPrecision::kHigh}};
constexpr Choice<Recompute> kRecomputes[] = {
    {"none", Recompute::kNone}, {"unit", Recompute::kUnit}, {"auto", Recompute::kAuto}};
constexpr Choice<CpuOffload> kOffloads[] = {{"none", CpuOffload::kNone},
                                            {"params", CpuOffload::kParams},
                                            {"optimizer", CpuOffload::kOptimizer}};
constexpr Choice<BackwardPrefetch> kBackwardPrefetches[] = {{"pre", BackwardPrefetch::kPre},
                                                            {"post", BackwardPrefetch::kPost},
                                                            {"none", BackwardPrefetch::kNone}};
constexpr Choice<DeviceChoice> kDevices[] = {
    {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};
constexpr Choice<Determinism> kDeterminisms[] = {{"on", Determinism::kOn},
                                                 {"off", Determinism::kOff},
                                                 {"across_ranks", Determinism::kAcrossRanks}};

OptionEntry wrap_layers() {
  OptionEntry entry{"wrap-layers", "auto (found from the graph); class names or globs of scopes",
                    "repeated blocks of the transformer policy"};
  entry.set = [](Options& o, const std::string& text) {
    o.sharding.wrap_layers = text == "auto" ? std::vector<std::string>() : split_list(text);
    for (const std::string& layer : o.sharding.wrap_layers) {
      if (layer.empty()) return wrong("names between the commas");
    }
    return fine();
  };
  entry.show = [](const Options& o) {
    return o.sharding.wrap_layers.empty() ? "auto" : yaml_list(o.sharding.wrap_layers);
  };
  return entry;
}

OptionEntry memory_limit() {
  OptionEntry entry{"memory-limit", "none, or bytes such as 12GiB",
                    "most device memory of a rank; a plan over it is refused before anything runs"};
  entry.set = [](Options& o, const std::string& text) {
    o.sharding.memory_limit = parse_bytes(text);
    return fine_or(text == "none" || o.sharding.memory_limit, "none or bytes such as 12GiB");
  };
  entry.show = [](const Options& o) {
    return o.sharding.memory_limit ? show_bytes(*o.sharding.memory_limit) : std::string("none");
  };
  return entry;
}

// `auto` is all GPUs, else 1; without the CUDA backend it is 1.
OptionEntry nproc_per_node() {
  OptionEntry entry{"nproc-per-node", "1, N, auto (all GPUs, else 1)",
                    "ranks started on this host"};
  entry.set = [](Options& o, const std::string& text) {
    const std::optional<int64_t> count = text == "auto" ? 1 : parse_integer(text);
    o.launch.nproc_per_node = count.value_or(1);
    constexpr int64_t kMost = 4096;  // beyond that it is a slip of the pen, not a host
    const bool good = count && *count >= 1 && *count <= kMost;
    return fine_or(good, format_text("auto or a whole number from 1 to {}", kMost));
  };
  entry.show = [](const Options& o) { return format_text("{}", o.launch.nproc_per_node); };
  return entry;
}

// N, or MIN:MAX as torchrun writes it.
OptionEntry nnodes() {
  OptionEntry entry{"nnodes", "1, N, MIN:MAX", "hosts; MIN also sets --min-nodes"};
  entry.set = [](Options& o, const std::string& text) {
    const size_t colon = text.find(':');
    const std::optional<int64_t> most = parse_integer(text.substr(colon + 1));  // npos + 1 is 0
    std::optional<int64_t> least = most;
    if (colon != std::string::npos)
      least = o.launch.min_nodes = parse_integer(text.substr(0, colon));
    o.launch.nnodes = most.value_or(1);
    const bool good = least && most && *least >= 1 && *least <= *most && *most <= kMostRanks;
    return fine_or(good, format_text("a whole number from 1 to {}, or MIN:MAX", kMostRanks));
  };
  entry.show = [](const Options& o) { return format_text("{}", o.launch.nnodes); };
  return entry;
}

std::vector<OptionEntry> launch_entries() {
  using namespace entries;
  return {
      nproc_per_node(),
      integer_or("auto", "threads", "auto (cores / ranks of this host; OMP_NUM_THREADS), N",
                 "compute threads of a rank", 1, OFSDP_FIELD(launch.threads)),
      choice("device", kDevices, "where ranks compute", OFSDP_FIELD(launch.device)),
      toggle("cuda-graph", "on, off", "CUDA: a step is captured once and replayed",
             OFSDP_FIELD(launch.cuda_graph)),
      nnodes(),
      integer_or("none", "min-nodes", "none (all of --nnodes), N",
                 "hosts that are enough to start, or to start again", 1,
                 OFSDP_FIELD(launch.min_nodes)),
      integer_or("auto", "node-rank", "auto (in order of arrival), N",
                 "number of this host, from 0", 0, OFSDP_FIELD(launch.node_rank)),
      text("none", "rdzv-endpoint", "none, HOST[:PORT] (29400)",
           "where the fsdp-run of all hosts meet: an address of one of them",
           OFSDP_FIELD(launch.rdzv_endpoint)),
      text("none", "rdzv-id", "none, NAME", "name of the job at the meeting",
           OFSDP_FIELD(launch.rdzv_id)),
      integer("max-restarts", "0, N",
              "times that all ranks are started again, from the latest checkpoint, after a failure",
              0, OFSDP_FIELD(launch.max_restarts)),
      number("timeout", "300", "seconds a collective may take before the run stops", kAboveZero,
             OFSDP_FIELD(launch.timeout_seconds)),
      choice("deterministic", kDeterminisms,
             "same command, same kind of machine, same bits; off: on GPUs algorithms are chosen by "
             "time",
             OFSDP_FIELD(launch.deterministic)),
  };
}

}  // namespace

std::vector<OptionEntry> sharding_entries() {
  using namespace entries;
  std::vector<OptionEntry> table = {
      choice("strategy", kStrategies, "what is sharded, as PyTorch FSDP names it",
             OFSDP_FIELD(sharding.strategy)),
      integer_or("auto", "shard-size", "auto (ranks of one host), N",
                 "hybrid strategies: ranks that share one copy", 1,
                 OFSDP_FIELD(sharding.shard_size)),
      choice("wrap", kWraps, "what becomes an FSDP unit", OFSDP_FIELD(sharding.wrap)),
      wrap_layers(),
      integer("min-params", "100000", "size policy: the fewest parameters in a unit", 0,
              OFSDP_FIELD(sharding.min_params)),
      repeated("none", "ignore", "none; NAME or glob, repeated",
               "parameters kept whole on every rank", OFSDP_FIELD(sharding.ignore)),
      choice("param-dtype", kDTypes, "of gathered parameters and computation",
             OFSDP_FIELD(sharding.param_dtype)),
      choice("reduce-dtype", kDTypes, "of gradients on their way",
             OFSDP_FIELD(sharding.reduce_dtype)),
      choice("buffer-dtype", kDTypes, "of buffers such as running statistics",
             OFSDP_FIELD(sharding.buffer_dtype)),
      choice("matmul-precision", kPrecisions,
             "CUDA: products of float32, as PyTorch names it; high rounds operands to TF32",
             OFSDP_FIELD(sharding.matmul_precision)),
      choice("activation-checkpointing", kRecomputes, "what is computed again in backward",
             OFSDP_FIELD(sharding.activation_checkpointing)),
      choice("cpu-offload", kOffloads, "CUDA: where shards rest",
             OFSDP_FIELD(sharding.cpu_offload)),
      choice("backward-prefetch", kBackwardPrefetches, "when backward gathers the next unit",
             OFSDP_FIELD(sharding.backward_prefetch)),
      toggle("forward-prefetch", "on, off", "forward gathers the next unit early",
             OFSDP_FIELD(sharding.forward_prefetch)),
      integer_or("auto", "prefetch-depth", "auto, N", "units gathered ahead", 0,
                 OFSDP_FIELD(sharding.prefetch_depth)),
      memory_limit(),
  };
  for (OptionEntry& entry : launch_entries()) table.push_back(std::move(entry));
  return table;
}

}  // namespace ofsdp::cli
