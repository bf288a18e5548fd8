#include "runtime/commands/doctor.h"

#include <algorithm>
#include <chrono>

#include "fsdp/connect.h"
#include "kernels/base/escaped.h"
#include "kernels/base/readable.h"
#include "runtime/commands/doctor_findings.h"
#include "runtime/commands/lr_sweep.h"
#include "runtime/report/plan_report.h"
#include "runtime/train/run_lines.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {
namespace {

// Takes out what writes, and GPUs.
Options looking(Options options) {
  options.files = {};
  options.checkpoint = {};
  options.edit.adapter.clear();
  options.launch.device = DeviceChoice::kCpu;
  options.sharding.cpu_offload = CpuOffload::kNone;
  return options;
}

// The same of one rank, with as many rows as each of several would have.
Options of_one_rank(Options options, int64_t batch_size) {
  options.launch.nproc_per_node = 1;
  options.launch.nnodes = 1;
  options.launch.deterministic = Determinism::kOn;
  options.sharding.strategy = Strategy::kNoShard;
  options.sharding.memory_limit.reset();
  options.run.eval_data = {.kind = DataChoice::Kind::kNone};
  options.run.early_stop.reset();
  options.batch = {};
  options.batch.batch_size.value = batch_size;
  return options;
}

class Doctor {
 public:
  explicit Doctor(const RunContext& context)
      : context_(context), options_(looking(context.options)) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(look_at_plan());
    OFSDP_RETURN_IF_ERROR(check_model(planned_->setup(), options_, findings_));
    alone_ = of_one_rank(options_, planned_->settings().batch.batch_size);
    OFSDP_RETURN_IF_ERROR(look_at_data());
    const int64_t total = total_updates(options_, *planned_->plan().train_sampler);
    OFSDP_ASSIGN_OR_RETURN(const bool fits, fits_alone());
    const bool named = planned_->setup().source->updates() == nullptr;  // else its own optimizer
    const bool runs = fits && named && !findings_.stops;
    if (runs) OFSDP_RETURN_IF_ERROR(check_updates(alone(), total, findings_));
    say();
    if (!options_.doctor.find_lr) return {};
    if (!runs)
      return input_error(
          "--find-lr: {}: expected a run without mistakes that fits one "
          "rank, found the above",
          options_.model);
    return find_lr();
  }

 private:
  RunContext with(const Options& options, Communicator& communicator) {
    return {options,      context_.origin, context_.registry, context_.optimizers,
            communicator, context_.ledger};
  }
  RunContext alone() { return with(alone_, *alone_communicator_); }

  // A plan over --memory-limit is a finding, and the rest is looked at without the limit.
  Status look_at_plan() {
    auto planned = PreparedRun::make(with(options_, context_.communicator), "");
    if (!planned.ok() && planned.error().message().starts_with("--memory-limit")) {
      findings_.add("memory", planned.error().message());
      options_.sharding.memory_limit.reset();
      planned = PreparedRun::make(with(options_, context_.communicator), "");
    }
    OFSDP_ASSIGN_OR_RETURN(planned_, std::move(planned));
    check_evaluation(planned_->setup(), findings_);
    const std::string lack = memory_lack(planned_->plan(), context_.communicator, machine_memory());
    if (!lack.empty()) {
      findings_.add(
          "memory: " + lack,
          "--activation-checkpointing auto with --memory-limit, a smaller --batch-size, or "
          "--strategy full_shard on more ranks");
    }
    return {};
  }

  Status look_at_data() {
    OFSDP_ASSIGN_OR_RETURN(
        alone_communicator_,
        connect_ranks({},
                      std::chrono::seconds(static_cast<int64_t>(options_.launch.timeout_seconds))));
    OFSDP_ASSIGN_OR_RETURN(run_alone_, PreparedRun::make(alone(), ""));
    return check_data(run_alone_->setup(), options_, findings_);
  }

  Result<bool> fits_alone() {
    return memory_lack(run_alone_->plan(), *alone_communicator_, machine_memory()).empty();
  }

  void say() const {
    std::string text;
    for (const std::string& line : findings_.lines) text += "- " + line + "\n";
    const auto count = static_cast<int64_t>(findings_.lines.size());
    text += count == 0 ? "doctor: nothing found\n"
                       : format_text("doctor: {}\n", plural(count, "finding"));
    print_lines(stdout, text);
    std::fflush(stdout);
  }

  Status find_lr() {
    OFSDP_ASSIGN_OR_RETURN(const auto points, sweep(alone()));
    print_lines(stdout, curve_text(points));
    if (options_.doctor.picture.empty()) return {};
    OFSDP_RETURN_IF_ERROR(write_page(options_.doctor.picture, curve_svg(points)));
    print_lines(stdout, format_text("wrote {}\n", escaped(options_.doctor.picture)));
    return {};
  }

  const RunContext& context_;
  Options options_;
  Options alone_;
  Findings findings_;
  std::unique_ptr<Communicator> alone_communicator_;
  std::unique_ptr<PreparedRun> planned_, run_alone_;
};

}  // namespace

void Findings::add(const std::string& what, const std::string& mend, bool fatal,
                   const std::string& table) {
  std::string line = what + ": " + mend;
  for (size_t at; (at = line.find('\n')) != std::string::npos;) {
    const size_t next = std::min(line.find_first_not_of("\n ", at), line.size());
    line.replace(at, next - at, next < line.size() ? "; " : "");
  }
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = std::min(table.find('\n', begin), table.size());
    line += "\n  " + table.substr(begin, end - begin);
    begin = end + 1;
  }
  lines.push_back(line);
  stops = stops || fatal;
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += format_text("{}'{}'", i == 0 ? "" : ", ", escaped(names[i]));
  }
  if (names.size() > kShown) text += format_text(" and {} more", names.size() - kShown);
  return text;
}

Status run_doctor(const RunContext& context) { return Doctor(context).run(); }

}  // namespace ofsdp::runtime
