// The parts of lower (lower.h). Each appends the operations of the steps of one subject, in a file
// of its own (lower_nodes.cpp and so on):
//
//   NodeLowering      Run, CheckLoss, Carry, PostRows, JoinRows
//   UnshardLowering   Gather
//   GradientLowering  Acquire, Accumulate, Post, PostShard, Reduce, ReduceUpdate, AllReduce
//   UpdateLowering    Clip, Update, Trust, Apply, Watch
//   MatrixLowering    Factor, Orthogonalize
//   OffloadLowering   no step of its own: copies between host and device in those of others, and
//                     the update on the host
//
// Ownership: views of what `lower` is given and makes. Threads: one. Errors: none.
#pragma once

#include <utility>
#include <vector>

#include "runtime/program/channels.h"
#include "runtime/program/program_operands.h"

namespace ofsdp::runtime {

// The operations made so far; each knows its step and the place of its micro-batch in the update.
class OperationList {
 public:
  OperationList(const CompileOptions& options, size_t steps) : options_(options) {
    made_.reserve(steps * 5 / 4);  // few steps take several
  }

  // A step may make no operation at all.
  void begin(size_t step);
  void end();
  Operation& add(OpKind kind, Lane lane, int unit = -1);
  std::vector<Operation> take() { return std::move(made_); }

 private:
  const CompileOptions& options_;
  std::vector<Operation> made_;
  size_t begin_ = 0;
  int step_ = -1;
};

// All parts ask the same operands and append to the same list.
struct LoweringShared {
  const ProgramPlan& program;
  const LoweringContext& context;
  ProgramOperands& operands;
  OperationList& made;
};

// The base of each part: names for what it reads.
class StepLowering {
 protected:
  explicit StepLowering(const LoweringShared& shared)
      : program_(shared.program),
        graph_(shared.program.graph),
        options_(shared.program.options),
        context_(shared.context),
        plan_(shared.context.plan),
        operands_(shared.operands),
        made_(shared.made) {}

  Operation& add(OpKind kind, Lane lane, int unit = -1) { return made_.add(kind, lane, unit); }

  bool several_ranks() const { return plan_.world > 1; }
  bool offloads() const { return plan_.offload != CpuOffload::kNone; }
  const Node& node(int n) const { return graph_.nodes[static_cast<size_t>(n)]; }
  const Unit& unit(int u) const { return plan_.units[static_cast<size_t>(u)]; }
  const UnitPlaces& places(int u) const { return operands_.places(u); }

  Channels channels() const { return {static_cast<int>(plan_.units.size())}; }
  // The channel of the sum over copies, and the ranks of it.
  int copies_channel(int u) const;
  RankGroup copies(int u) const { return plan_.replica_group(unit(u), context_.rank); }
  RankGroup shards(int u) const { return plan_.shard_group(unit(u), context_.rank); }
  RankGroup sums(int u) const { return plan_.summing_group(unit(u), context_.rank); }
  RankGroup all_ranks() const { return {0, plan_.world, 1}; }

  // The unique span: in elements of the unit, and of what the rank owns.
  Span unique(int u) const { return plan_.represented(unit(u), context_.rank); }
  Span unique_of_owned(int u) const;

  // A device's streams count the elements of what a rank owns as float32, whatever their type.
  Operand owned(int u, bool writes) const;
  // Lists what a step that sums or updates touches, for these streams.
  std::vector<Operand> touched(int u, bool writes_slot, bool updates) const;
  static Operand run_state();

  const ProgramPlan& program_;
  const Graph& graph_;
  const CompileOptions& options_;
  const LoweringContext& context_;
  const Plan& plan_;
  ProgramOperands& operands_;
  OperationList& made_;
};

class NodeLowering : StepLowering {
 public:
  explicit NodeLowering(const LoweringShared& shared) : StepLowering(shared) {}
  void run(size_t step, int n);
  void check_loss();
  void carry(int k);
  void post_rows(int n);
  void join_rows(int n);

 private:
  Operation& add_rows(OpKind kind, int n);

  int runs_ = 0;
};

// A slot on the device through which a sum over micro-batches passes, if its place is the host.
struct PassedSlot {
  Operand sum;
  int index = -1;
  int awaited = -1;  // the same where the copy down of another unit frees it first
};

class OffloadLowering : StepLowering {
 public:
  explicit OffloadLowering(const LoweringShared& shared) : StepLowering(shared) {}

  const OffloadedUnit& of(int u) const;
  PassedSlot take_slot(int u);

  // Copies up the rank's shard of the parameters, into its part of `all`.
  void fetch_shard(int u, size_t from, const Operand& all, const Span& part);
  void fetch_sum(int u, const PassedSlot& slot);
  Operation& send_gradient(int u, const Operand& gradient, Lane lane, int slot = -1);
  // Tells the host that the copies of the unit have arrived; -1: that of the decision.
  void signal(int u, Lane lane) { add(OpKind::kSignal, lane, u); }

  // The operations of LoweredProgram::host.
  std::vector<Operation> update_on_host() const;

 private:
  int slots_taken_ = 0;
};

class UnshardLowering : StepLowering {
 public:
  UnshardLowering(const LoweringShared& shared, OffloadLowering& offload)
      : StepLowering(shared), offload_(offload) {}
  void gather(size_t step, int u);

 private:
  Operation& unshard(int u, const Operand& src, const Operand& dst, const Span& shard);

  OffloadLowering& offload_;
};

class GradientLowering : StepLowering {
 public:
  GradientLowering(const LoweringShared& shared, OffloadLowering& offload)
      : StepLowering(shared), offload_(offload), awaited_(plan_.units.size()) {}
  void acquire(int u);
  void accumulate(int u);
  void post(int u);
  void post_shard(int u);
  void reduce(int u, bool updates);
  void all_reduce(int u);

 private:
  Operation& add_post(int u, int channel, const RankGroup& group);
  void sums_buffer(Operation& made, int u) const;
  void sums_copies(Operation& made, int u) const;
  Stages stages(bool adds, bool complete, bool updates) const;

  OffloadLowering& offload_;
  std::vector<char> awaited_;  // per unit: its latest post, in this program
};

class UpdateLowering : StepLowering {
 public:
  UpdateLowering(const LoweringShared& shared, OffloadLowering& offload)
      : StepLowering(shared), offload_(offload) {}
  void clip();
  void update(int u);
  void trust();
  void apply(int u);
  void watch();

 private:
  void await_copies(int u);
  void send(int u);

  OffloadLowering& offload_;
};

class MatrixLowering : StepLowering {
 public:
  explicit MatrixLowering(const LoweringShared& shared) : StepLowering(shared) {}
  void factor(int u);
  void orthogonalize(size_t step, int u);

 private:
  Operand room(int64_t first, int64_t count) const;
  void await_room(int u);
  Operand gather_gradient(int u);
  Operation& sum_room(int u, const Operand& src, OpKind kind, int channel, const RankGroup& group,
                      const Span& part);
  void sum_over_ranks(int u, const Operand& src);
  void copy(int u, const Operand& src, const Operand& dst);

  bool met_ = false;       // before a unit's gradient was gathered
  int room_channel_ = -1;  // whose ranks may still read the room
  RankGroup room_group_;
};

}  // namespace ofsdp::runtime
