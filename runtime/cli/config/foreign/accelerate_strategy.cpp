#include "runtime/cli/config/foreign/accelerate_strategy.h"

namespace ofsdp::cli {
namespace {

// In the order of PyTorch's and Accelerate's numbers, which count from 1.
std::vector<std::string> shardings() {
  return {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
}
constexpr std::string_view kStrategies[] = {"full_shard", "shard_grad_op", "no_shard",
                                            "hybrid_shard", "hybrid_shard_zero2"};

// FSDP2's true and false say whether parameters are gathered again in backward, and no more.
bool same_resharding(std::string_view named, std::string_view reshards) {
  const bool again = named == "full_shard" || named == "hybrid_shard";
  return again == (reshards == "full_shard");
}

}  // namespace

Result<size_t> numbered(ForeignFile& file, const ForeignKey& key,
                        const std::vector<std::string>& names) {
  const auto number =
      key.value.IsScalar() ? parse_integer(key.value.Scalar()) : std::optional<int64_t>();
  if (!number || *number < 1 || *number > static_cast<int64_t>(names.size())) {
    return choice_of(key, names);
  }
  const auto which = static_cast<size_t>(*number - 1);
  file.warn(key,
            format_text("a number is deprecated by Accelerate; {} says the same", names[which]));
  return which;
}

Status FsdpStrategy::settle(ForeignFile& file) const {
  if (version) OFSDP_RETURN_IF_ERROR(choice_of(*version, {"1", "2"}).status());
  std::optional<std::string> said;
  if (sharding) {
    OFSDP_ASSIGN_OR_RETURN(const size_t which, numbered(file, *sharding, shardings()));
    if (second()) {
      file.warn(*sharding,
                "deprecated by Accelerate beside fsdp_version: 2; "
                "fsdp_reshard_after_forward takes its place");
    }
    said = kStrategies[which];
  }
  if (reshard) {
    OFSDP_ASSIGN_OR_RETURN(const std::string strategy, resharding(file));
    const bool agree = !said || *said == strategy || (second() && same_resharding(*said, strategy));
    if (!agree) {
      return contradiction(*reshard, *sharding,
                           format_text("{} here and {} there", strategy, *said));
    }
    if (!said) said = strategy;
  }
  return settle_mesh(file, said);
}

Result<std::string> FsdpStrategy::resharding(ForeignFile& file) const {
  const Result<bool> on = switch_of(*reshard);
  const bool digit = reshard->value.IsScalar() && parse_integer(reshard->value.Scalar());
  if (second()) {
    if (!on.ok() || digit) return expected(*reshard, "true or false beside fsdp_version: 2");
    return std::string(*on ? "full_shard" : "shard_grad_op");
  }
  if (on.ok() && !digit) {
    return input_error("{}: true and false are of fsdp_version: 2: expected one of {} beside {}",
                       reshard->subject, joined(shardings(), ", "),
                       version ? version->subject : std::string("no fsdp_version"));
  }
  OFSDP_ASSIGN_OR_RETURN(const size_t which, numbered(file, *reshard, shardings()));
  return std::string(kStrategies[which]);
}

Status FsdpStrategy::settle_mesh(ForeignFile& file, std::optional<std::string> said) const {
  int64_t replicas = 1, shards = 1;
  if (replicate) {
    OFSDP_ASSIGN_OR_RETURN(replicas, count_of(*replicate, 1));
  }
  if (shard) {
    OFSDP_ASSIGN_OR_RETURN(shards, count_of(*shard, 1));
  }
  const ForeignKey* by = reshard ? &*reshard : sharding ? &*sharding : nullptr;
  if (replicas > 1) {
    by = &*replicate;
    const bool keeps = said && !same_resharding(*said, "full_shard");
    if (shards > 1) {
      OFSDP_RETURN_IF_ERROR(file.set("shard-size", format_text("{}", shards), *shard));
    }
    said = shards == 1 ? "no_shard" : keeps ? "hybrid_shard_zero2" : "hybrid_shard";
  }
  if (replicas * shards > 1) OFSDP_RETURN_IF_ERROR(check_world(replicas, shards));
  return said ? file.set("strategy", *said, *by) : ok_status();
}

Status FsdpStrategy::check_world(int64_t replicas, int64_t shards) const {
  if (!processes) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const int64_t world, count_of(*processes, -1));
  if (world <= 0 || world == replicas * shards) return ok_status();
  return contradiction(*processes, shards > 1 ? *shard : *replicate,
                       format_text("{} x {} ranks are in the mesh", replicas, shards));
}

}  // namespace ofsdp::cli
