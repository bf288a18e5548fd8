// Options about sharding (strategy, units, precision, memory) and about ranks and hosts.
#include <algorithm>
#include <cmath>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_identity.h"
#include "kernels/core/device.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

// Types for nodes and collectives.
const std::vector<std::string> kDTypes = {"float32", "bfloat16", "float16"};

OptionEntry wrap_layers() {
  return entries::parsed(
      {"wrap-layers", "auto (found from the graph); class names or globs of scopes",
       "repeated blocks of the transformer policy"},
      "names between the commas", OFSDP_FIELD(sharding.wrap_layers),
      [](const std::string& text) {
        std::optional layers = text == "auto" ? std::vector<std::string>() : split_list(text);
        if (std::ranges::count(*layers, "") > 0) layers.reset();
        return layers;
      },
      [](const std::vector<std::string>& layers) {
        return layers.empty() ? "auto" : yaml_list(layers);
      });
}

constexpr std::string_view kEqual = "equal";

// Returns the weights in a text such as "2,1,1"; none if one is not above 0.
std::optional<std::vector<double>> weights_from(const std::string& text) {
  std::optional<std::vector<double>> weights(std::in_place);
  if (lowered(text) == kEqual) return weights;
  for (const std::string& word : split_list(text)) {
    const std::optional<double> weight = parse_number(word);
    if (!weight || !(*weight > 0) || !std::isfinite(*weight)) return std::nullopt;
    weights->push_back(*weight);
  }
  return weights;
}

std::string weights_text(const std::vector<double>& weights) {
  if (weights.empty()) return std::string(kEqual);
  std::vector<std::string> words;
  for (const double weight : weights) words.push_back(show_number(weight));
  return yaml_quoted(joined(words, ","));
}

std::optional<ShardWeights> shard_weights_from(const std::string& text) {
  if (lowered(text) == "auto") return ShardWeights{.automatic = true};
  std::optional<std::vector<double>> weights = weights_from(text);
  if (!weights) return std::nullopt;
  return ShardWeights{.of_ranks = *std::move(weights)};
}

OptionEntry shard_weights() {
  return entries::parsed({"shard-weights", "equal, auto (by memory), W,W,..",
                          "ranks own parts of units and states in this proportion"},
                         "equal, auto or a number above 0 for each rank, such as 2,1,1",
                         OFSDP_FIELD(sharding.shard_weights), shard_weights_from,
                         [](const ShardWeights& weights) {
                           return weights.automatic ? "auto" : weights_text(weights.of_ranks);
                         });
}

OptionEntry batch_weights() {
  return entries::parsed(
      {"batch-weights", "equal, W,W,..", "ranks get parts of each batch in this proportion"},
      "equal or a number above 0 for each rank, such as 2,1,1", OFSDP_FIELD(batch.weights),
      weights_from, weights_text);
}

// A number without a unit is bytes; so few are a unit that was left out.
OptionEntry memory_limit() {
  OptionEntry entry = entries::parsed_or("none",
                                         {"memory-limit", "none, or bytes such as 12GiB",
                                          "most memory of a rank; a plan over it is refused"},
                                         "bytes such as 12GiB", OFSDP_FIELD(sharding.memory_limit),
                                         parse_bytes, show_bytes);
  entry.set = [set = entry.set](Options& o, const std::string& text) {
    constexpr double kLeast = 1024;
    const std::optional<double> number = parse_number(text);
    if (!number || !(*number > 0 && *number < kLeast)) return set(o, text);
    return Verdict{false, "none or bytes such as 12GiB",
                   format_text(", which is {} bytes; did you mean {}GiB?", text, text)};
  };
  return entry;
}

// A larger number is a typing error.
constexpr int64_t kMaxRanksPerHost = 4096;

// Returns the count on this host for a word; none for other texts, and for GPUs if there are none.
std::optional<int64_t> ranks_named(const std::string& word) {
  const std::string text = lowered(word);
  const bool gpus = text == "auto" || text == "gpu";
  if (!gpus && text != "cpu") return parse_integer(text, 1);
  if (text == "cpu") return cores_per_rank(1);
  const Result<int> count = count_devices();
  if (count.ok() && *count > 0) return *count;
  return text == "auto" ? std::optional<int64_t>(1) : std::nullopt;
}

OptionEntry nproc_per_node() {
  OptionEntry entry{"nproc-per-node", "1, N, auto (all GPUs, else 1), gpu, cpu (a core each)",
                    "ranks started on this host"};
  entry.set = [](Options& o, const std::string& text) -> Verdict {
    const std::optional<int64_t> count = ranks_named(text);
    if (!count && lowered(text) == "gpu") return {false, "a GPU on this host, or auto", ""};
    if (count) o.launch.nproc_per_node = *count;
    return fine_or(count && *count <= kMaxRanksPerHost,
                   format_text("auto, gpu, cpu or a whole number from 1 to {}", kMaxRanksPerHost));
  };
  entry.show = [](const Options& o) { return std::to_string(o.launch.nproc_per_node); };
  return entry;
}

// All torchrun's names mean our own meeting; no etcd server is asked.
OptionEntry rdzv_backend() {
  OptionEntry entry{"rdzv-backend", "c10d, static",
                    "torchrun's word: both mean that the fsdp-run of all hosts meet"};
  entry.set = [](Options&, const std::string& text) {
    return fine_or(text == "c10d" || text == "static", "c10d or static, which need no server");
  };
  entry.show = [](const Options&) { return "c10d"; };
  return entries::flag(kEveryCommand, std::move(entry));
}

// N, or MIN:MAX as in torchrun.
OptionEntry nnodes() {
  OptionEntry entry{"nnodes", "1, N, MIN:MAX", "hosts; MIN also sets --min-nodes"};
  entry.set = [](Options& o, const std::string& text) {
    const size_t colon = text.find(':');
    const std::optional<int64_t> most = parse_integer(text.substr(colon + 1), 1);  // npos + 1 is 0
    std::optional<int64_t> least = most;
    if (colon != std::string::npos)
      least = o.launch.min_nodes = parse_integer(text.substr(0, colon), 1);
    o.launch.nnodes = most.value_or(1);
    return fine_or(least && most && *least <= *most && *most <= kMaxRanks,
                   format_text("a whole number from 1 to {}, or MIN:MAX", kMaxRanks));
  };
  entry.show = [](const Options& o) { return std::to_string(o.launch.nnodes); };
  return entry;
}

}  // namespace

std::vector<OptionEntry> sharding_entries() {
  using namespace entries;
  return {
      choice("strategy", "how ranks share the model, as PyTorch FSDP names it",
             OFSDP_FIELD(sharding.strategy)),
      integer_or("auto",
                 {"shard-size", "auto (ranks of one host), N",
                  "hybrid strategies: ranks that share one copy"},
                 1, OFSDP_FIELD(sharding.shard_size)),
      shard_weights(),
      batch_weights(),
      choice("wrap", "how units are cut", OFSDP_FIELD(sharding.wrap)),
      wrap_layers(),
      integer({"min-params", "100000", "size policy: the fewest parameters in a unit"}, 0,
              OFSDP_FIELD(sharding.min_params)),
      number({"bucket-mb", "0 (off), MIB",
              "neighbouring units are joined while they have at most so many MiB together"},
             kAtLeastZero, OFSDP_FIELD(sharding.bucket_mb)),
      integer({"keep-gathered", "0, N",
               "full_shard: so many units, the last, stay gathered from forward to backward"},
              0, OFSDP_FIELD(sharding.keep_gathered)),
      repeated("none",
               {"ignore", "none; NAME or glob, repeated", "parameters kept whole on every rank"},
               OFSDP_FIELD(sharding.ignore)),
      choice("param-dtype", "type of parameters and computation", OFSDP_FIELD(sharding.param_dtype),
             kDTypes),
      choice("reduce-dtype", "of gradients on their way", OFSDP_FIELD(sharding.reduce_dtype),
             kDTypes),
      choice("buffer-dtype", "of buffers such as running statistics",
             OFSDP_FIELD(sharding.buffer_dtype), kDTypes),
      choice("matmul-precision",
             "CUDA: products of float32, as PyTorch names it; high rounds operands to TF32",
             OFSDP_FIELD(sharding.matmul_precision)),
      choice("activation-checkpointing", "values that backward computes again, to save memory",
             OFSDP_FIELD(sharding.activation_checkpointing)),
      choice("cpu-offload", "CUDA: where shards rest", OFSDP_FIELD(sharding.cpu_offload)),
      choice("backward-prefetch", "when backward gathers the next unit",
             OFSDP_FIELD(sharding.backward_prefetch)),
      toggle({"forward-prefetch", "on, off", "forward gathers the next unit early"},
             OFSDP_FIELD(sharding.forward_prefetch)),
      integer_or("auto", {"prefetch-depth", "auto, N", "units gathered ahead"}, 0,
                 OFSDP_FIELD(sharding.prefetch_depth)),
      memory_limit(),
  };
}

std::vector<OptionEntry> launch_entries() {
  using namespace entries;
  return {
      nproc_per_node(),
      integer_or("auto",
                 {"threads", "auto (cores / ranks of this host; OMP_NUM_THREADS), N",
                  "compute threads of a rank"},
                 1, OFSDP_FIELD(launch.threads)),
      choice("device", "where ranks compute", OFSDP_FIELD(launch.device)),
      toggle({"cuda-graph", "on, off", "CUDA: a step is captured once and replayed"},
             OFSDP_FIELD(launch.cuda_graph)),
      trusted(nnodes()),
      integer_or("none",
                 {"min-nodes", "none (all of --nnodes), N",
                  "hosts that are enough to start, or to start again"},
                 1, OFSDP_FIELD(launch.min_nodes)),
      integer_or("auto",
                 {"node-rank", "auto (in order of arrival), N", "number of this host, from 0"}, 0,
                 OFSDP_FIELD(launch.node_rank)),
      trusted(text("none",
                   {"rdzv-endpoint", "none, HOST[:PORT] (29400)",
                    "where the fsdp-run of all hosts meet: an address of one of them"},
                   OFSDP_FIELD(launch.rdzv_endpoint))),
      text("none", {"rdzv-id", "none, NAME", "name of the job at the meeting"},
           OFSDP_FIELD(launch.rdzv_id)),
      rdzv_backend(),
      flag(kEveryCommand, toggle({"standalone", "off, on", "this host alone, on any free port"},
                                 OFSDP_FIELD(launch.standalone))),
      flag(kEveryCommand,
           text("none",
                {"master-addr", "none, HOST", "of --rdzv-endpoint, as static meetings say it"},
                OFSDP_FIELD(launch.master_addr))),
      flag(kEveryCommand, integer_or("none", {"master-port", "none, N (29500)", "its port"}, 1,
                                     OFSDP_FIELD(launch.master_port))),
      trusted(path({"hostfile", "none, FILE",
                    "lines of HOST slots=N: one fsdp-run is started on each, through --rsh"},
                   OFSDP_FIELD(launch.hostfile))),
      trusted(text("none",
                   {"include", "none, HOST[:SLOT,SLOT][@HOST...]", "the only hosts or slots"},
                   OFSDP_FIELD(launch.include))),
      trusted(text("none",
                   {"exclude", "none, HOST[:SLOT,SLOT][@HOST...]", "hosts or slots left out"},
                   OFSDP_FIELD(launch.exclude))),
      trusted(text(
          "",
          {"rsh", "ssh -o BatchMode=yes; COMMAND", "runs a command on a host: COMMAND HOST TEXT"},
          OFSDP_FIELD(launch.rsh))),
      flag(kEveryCommand, toggle({"no-ssh", "off, on",
                                  "this is host --node-rank of --hostfile; each starts by itself"},
                                 OFSDP_FIELD(launch.no_ssh))),
      integer(
          {"max-restarts", "0, N",
           "times that all ranks are started again, from the latest checkpoint, after a failure"},
          0, OFSDP_FIELD(launch.max_restarts)),
      number({"timeout", "300", "seconds a collective may take before the run stops"}, kAboveZero,
             OFSDP_FIELD(launch.timeout_seconds)),
      choice("deterministic",
             "same command, same kind of machine, same bits; off: on GPUs algorithms are chosen by "
             "time",
             OFSDP_FIELD(launch.deterministic)),
  };
}

}  // namespace ofsdp::cli
