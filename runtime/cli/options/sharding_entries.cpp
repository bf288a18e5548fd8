// The options about sharding and the ranks that compute: strategy, units, precision, memory,
// launch.
#include <algorithm>

#include "fsdp/comm/communicator.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

// Types that nodes and collectives may have.
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

// `auto` is all GPUs, else 1; without the CUDA backend it is 1.
OptionEntry nproc_per_node() {
  constexpr int64_t kMost = 4096;  // beyond that it is a slip of the pen, not a host
  return entries::parsed(
      {"nproc-per-node", "1, N, auto (all GPUs, else 1)", "ranks started on this host"},
      format_text("auto or a whole number from 1 to {}", kMost), OFSDP_FIELD(launch.nproc_per_node),
      [](const std::string& text) {
        const std::optional<int64_t> count = text == "auto" ? 1 : parse_integer(text, 1);
        return count && *count <= kMost ? count : std::nullopt;
      },
      [](int64_t count) { return std::to_string(count); });
}

// N, or MIN:MAX as torchrun writes it.
OptionEntry nnodes() {
  OptionEntry entry{"nnodes", "1, N, MIN:MAX", "hosts; MIN also sets --min-nodes"};
  entry.set = [](Options& o, const std::string& text) {
    const size_t colon = text.find(':');
    const std::optional<int64_t> most = parse_integer(text.substr(colon + 1), 1);  // npos + 1 is 0
    std::optional<int64_t> least = most;
    if (colon != std::string::npos)
      least = o.launch.min_nodes = parse_integer(text.substr(0, colon), 1);
    o.launch.nnodes = most.value_or(1);
    return fine_or(least && most && *least <= *most && *most <= kMostRanks,
                   format_text("a whole number from 1 to {}, or MIN:MAX", kMostRanks));
  };
  entry.show = [](const Options& o) { return std::to_string(o.launch.nnodes); };
  return entry;
}

}  // namespace

std::vector<OptionEntry> sharding_entries() {
  using namespace entries;
  return {
      choice("strategy", "what is sharded, as PyTorch FSDP names it",
             OFSDP_FIELD(sharding.strategy)),
      integer_or("auto",
                 {"shard-size", "auto (ranks of one host), N",
                  "hybrid strategies: ranks that share one copy"},
                 1, OFSDP_FIELD(sharding.shard_size)),
      choice("wrap", "what becomes an FSDP unit", OFSDP_FIELD(sharding.wrap)),
      wrap_layers(),
      integer({"min-params", "100000", "size policy: the fewest parameters in a unit"}, 0,
              OFSDP_FIELD(sharding.min_params)),
      repeated("none",
               {"ignore", "none; NAME or glob, repeated", "parameters kept whole on every rank"},
               OFSDP_FIELD(sharding.ignore)),
      choice("param-dtype", "of gathered parameters and computation",
             OFSDP_FIELD(sharding.param_dtype), kDTypes),
      choice("reduce-dtype", "of gradients on their way", OFSDP_FIELD(sharding.reduce_dtype),
             kDTypes),
      choice("buffer-dtype", "of buffers such as running statistics",
             OFSDP_FIELD(sharding.buffer_dtype), kDTypes),
      choice("matmul-precision",
             "CUDA: products of float32, as PyTorch names it; high rounds operands to TF32",
             OFSDP_FIELD(sharding.matmul_precision)),
      choice("activation-checkpointing", "what is computed again in backward",
             OFSDP_FIELD(sharding.activation_checkpointing)),
      choice("cpu-offload", "CUDA: where shards rest", OFSDP_FIELD(sharding.cpu_offload)),
      choice("backward-prefetch", "when backward gathers the next unit",
             OFSDP_FIELD(sharding.backward_prefetch)),
      toggle({"forward-prefetch", "on, off", "forward gathers the next unit early"},
             OFSDP_FIELD(sharding.forward_prefetch)),
      integer_or("auto", {"prefetch-depth", "auto, N", "units gathered ahead"}, 0,
                 OFSDP_FIELD(sharding.prefetch_depth)),
      parsed_or("none",
                {"memory-limit", "none, or bytes such as 12GiB",
                 "most device memory of a rank; a plan over it is refused before anything runs"},
                "bytes such as 12GiB", OFSDP_FIELD(sharding.memory_limit), parse_bytes, show_bytes),
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
