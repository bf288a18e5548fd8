// One host: no other launcher has a say.
#include <sys/random.h>
#include <unistd.h>

#include "runtime/cli/launch/node_link.h"
#include "runtime/cli/launch/restart_point.h"

namespace ofsdp::cli {
namespace {

class LoneLink final : public NodeLink {
 public:
  explicit LoneLink(const LaunchPlan& plan)
      : most_(static_cast<int>(plan.options.max_restarts)), point_(plan.checkpoint_dir) {
    turn_.start = true;
    turn_.assignment.world = static_cast<int>(plan.options.nproc_per_node);
    turn_.assignment.first_world = turn_.assignment.world;
    turn_.assignment.run_id = unique_run_id();
  }

  Result<Turn> next(const Outcome* last) override {
    if (last == nullptr) return turn_;
    const std::string line = last->spoke ? "" : last->line;
    Assignment& next = turn_.assignment;
    if (last->status != 1 || last->interrupted || next.restart == most_) {
      return Turn{
          .start = false, .assignment = {}, .status = last->status, .line = line, .notice = {}};
    }
    ++next.restart;
    next.from_latest = point_.has_saved();
    turn_.line = line;
    turn_.notice = format_text("restart {} of {}: {}", next.restart, most_, point_.text());
    return turn_;
  }

 private:
  const int most_;
  RestartPoint point_;
  Turn turn_;
};

}  // namespace

std::unique_ptr<NodeLink> make_lone_link(const LaunchPlan& plan) {
  return std::make_unique<LoneLink>(plan);
}

std::chrono::milliseconds timeout_of(const LaunchOptions& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1e3));
}

std::string unique_run_id() {
  uint64_t random = 0;
  [[maybe_unused]] const ssize_t got = getrandom(&random, sizeof random, 0);
  return format_text("fsdp-run-{}-{:016x}", getpid(), random);
}

}  // namespace ofsdp::cli
