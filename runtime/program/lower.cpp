#include "runtime/program/lower.h"

#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {
namespace {

class ProgramLowering {
 public:
  ProgramLowering(const ProgramPlan& program, const LoweringContext& context)
      : program_(program),
        operands_(program, context),
        made_(program.options, program.schedule.steps.size()),
        shared_{program, context, operands_, made_},
        offloads_(context.plan.offload != CpuOffload::kNone) {}

  LoweredProgram run() {
    for (size_t s = 0; s < program_.schedule.steps.size(); ++s) {
      made_.begin(s);
      lower_step(s, program_.schedule.steps[s]);
      made_.end();
    }
    LoweredProgram made;
    made.operations = made_.take();
    const CompileOptions& options = program_.options;
    if (offloads_ && options.training && options.last_micro) made.host = offload_.update_on_host();
    add_results(made);
    return made;
  }

 private:
  void lower_step(size_t s, const Step& step) {
    switch (step.kind) {
      case StepKind::kRun:
        return nodes_.run(s, step.index);
      case StepKind::kGather:
        return unshard_.gather(s, step.index);
      case StepKind::kFree:
        return;
      case StepKind::kCheckLoss:
        return nodes_.check_loss();
      case StepKind::kCarry:
        return nodes_.carry(step.index);
      case StepKind::kAcquire:
        return gradients_.acquire(step.index);
      case StepKind::kAccumulate:
        return gradients_.accumulate(step.index);
      case StepKind::kPost:
        return gradients_.post(step.index);
      case StepKind::kPostShard:
        return gradients_.post_shard(step.index);
      case StepKind::kReduce:
        return gradients_.reduce(step.index, false);
      case StepKind::kReduceUpdate:
        return gradients_.reduce(step.index, true);
      case StepKind::kAllReduce:
        return gradients_.all_reduce(step.index);
      case StepKind::kClip:
        return updates_.clip();
      case StepKind::kUpdate:
        return updates_.update(step.index);
      case StepKind::kFactor:
        return matrices_.factor(step.index);
      case StepKind::kOrthogonalize:
        return matrices_.orthogonalize(s, step.index);
      case StepKind::kTrust:
        return updates_.trust();
      case StepKind::kApply:
        return updates_.apply(step.index);
      case StepKind::kPostRows:
        return nodes_.post_rows(step.index);
      case StepKind::kJoinRows:
        return nodes_.join_rows(step.index);
      case StepKind::kWatch:
        return updates_.watch();
    }
  }

  void add_results(LoweredProgram& made) const {
    const Graph& graph = program_.graph;
    for (const LossTerm& term : graph.terms()) {
      made.losses.push_back(operands_.value(term.value, false));
    }
    if (graph.matches != 0) made.matches = operands_.value(graph.matches, false);
    for (const Measured& m : graph.measured) {
      made.measured.push_back(operands_.value(m.rows, false));
    }
  }

  const ProgramPlan& program_;
  ProgramOperands operands_;
  OperationList made_;
  LoweringShared shared_;
  bool offloads_;
  NodeLowering nodes_{shared_};
  OffloadLowering offload_{shared_};
  UnshardLowering unshard_{shared_, offload_};
  GradientLowering gradients_{shared_, offload_};
  UpdateLowering updates_{shared_, offload_};
  MatrixLowering matrices_{shared_};
};

}  // namespace

LoweredProgram lower(const ProgramPlan& program, const LoweringContext& context) {
  return ProgramLowering(program, context).run();
}

std::string text(const LoweredProgram& program) {
  std::string out;
  for (const Operation& op : program.operations) out += format_text("{:4} {}\n", op.step, text(op));
  for (const Operation& op : program.host) out += format_text("host {}\n", text(op));
  return out;
}

}  // namespace ofsdp::runtime
