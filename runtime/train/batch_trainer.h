// BatchTrainer: training for a library caller, who passes each batch: a call makes one update or
// one evaluation, or writes files.
//
// A call's arrays are this rank's rows, at most batch_size x grad_accum for an update; if an option
// is not given, the first call sets it. The first call opens the model, since its arrays determine
// the shapes. If arrays have another number of rows, one rank plans again, once for each number,
// and the state is in memory twice for a moment; several ranks refuse them. Rows are numbered over
// all calls, like samples read in order from a data set.
//
// Gives the same bits as fsdp-run with --no-shuffle on the same rows.
//
// Borrows RunContext; reads arrays only during the call. One thread at a time; collective. Errors:
// kInput if options or arrays do not fit; kFault. After a fault every call fails.
#pragma once

#include <memory>

#include "runtime/train/prepared_run.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {

class BatchTrainer {
 public:
  // A parameter's float32 master weights, in place.
  struct NamedValues {
    std::string name;
    std::vector<int64_t> dims;
    std::span<const float> values;
  };
  // `keep` keeps the values alive; they change with every step until a call plans again.
  struct Parameters {
    std::vector<NamedValues> all;
    std::shared_ptr<const void> keep;
  };

  explicit BatchTrainer(const RunContext& context);
  ~BatchTrainer();

  Result<StepRow> step(std::span<const ColumnArray> batch);
  // The row's metrics are valid until the next call.
  Result<EvalRow> evaluate(std::span<const ColumnArray> rows);
  Status save(const std::string& path);
  // Returns kInput on several ranks, since none has all values.
  Result<Parameters> parameters();
  int64_t steps_done() const { return steps_; }

 private:
  struct Live;

  Result<int64_t> rows_of(std::span<const ColumnArray> arrays) const;
  Status admit(std::span<const ColumnArray> arrays, int64_t rows, bool training);
  Status open(std::span<const ColumnArray> arrays, int64_t rows);
  Status make_live();
  bool add_sizes(int64_t rows, bool training);
  Status check_opened(const char* call) const;

  const RunContext context_;
  Options options_;  // with the first call's batch sizes
  std::unique_ptr<PreparedRun> run_;
  GivenSizes sizes_;
  std::shared_ptr<Live> live_;
  int64_t steps_ = 0;
  int64_t samples_ = 0;  // over all updates and ranks
  Status failure_;       // from the failed call
};

}  // namespace ofsdp::runtime
