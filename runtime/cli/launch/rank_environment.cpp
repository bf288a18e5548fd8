#include "runtime/cli/launch/rank_environment.h"

#include <unistd.h>

#include <cstdlib>

#include "kernels/base/format.h"

namespace ofsdp::cli {

RankEnvironment::RankEnvironment(const Assignment& a, int local_rank, int local_world, int cores,
                                 int failure_fd) {
  set("RANK", a.first_rank + local_rank);
  set("WORLD_SIZE", a.world);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", local_world);
  set("GROUP_RANK", a.node);
  set("GROUP_WORLD_SIZE", a.nodes);
  set("MASTER_ADDR", a.master_address);
  set("MASTER_PORT", a.master_port);
  set("TORCHELASTIC_RUN_ID", a.run_id);
  set("TORCHELASTIC_RESTART_COUNT", a.restart);
  // Of this host and this attempt: two launchers of a run may share a host.
  set("OFSDP_RENDEZVOUS", format_text("{}-{}-{}", a.run_id, a.node, a.restart));
  set("OFSDP_RESTART", a.restart == 0 ? "" : a.from_latest ? "latest" : "as given");
  set("OFSDP_FIRST_WORLD", a.first_world);
  set("OFSDP_FAILURE_FD", failure_fd < 0 ? "" : std::to_string(failure_fd));
  if (cores > 0) set("OFSDP_RANK_CORES", cores);
  // Compute threads that spin between kernels would take the other ranks' cores.
  if (getenv("OMP_WAIT_POLICY") == nullptr) set("OMP_WAIT_POLICY", "passive");
  for (char** variable = environ; *variable != nullptr; ++variable) inherit(*variable);
  for (std::string& text : texts_) pointers_.push_back(text.data());
  pointers_.push_back(nullptr);
}

void RankEnvironment::set(std::string_view name, std::string_view value) {
  texts_.push_back(format_text("{}={}", name, value));
}

void RankEnvironment::inherit(std::string_view variable) {
  const std::string_view prefix = variable.substr(0, variable.find('=') + 1);
  for (const std::string& text : texts_) {
    if (text.starts_with(prefix)) return;
  }
  texts_.emplace_back(variable);
}

}  // namespace ofsdp::cli
