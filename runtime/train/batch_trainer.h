// BatchTrainer: training for a caller of the library, who brings each batch: one update a call,
// evaluations, files and parameters when the caller asks.
//
// A call's arrays are this rank's rows, at most batch_size x grad_accum of them for an update; an
// option that is not given has the rows of the first call. The first call opens the model, since
// only its arrays say the shapes. Arrays of another number of rows make one rank plan again once:
// the state is then held twice for a moment. Several ranks refuse them. Rows are numbered over all
// calls, as the samples of a data set that is read in order.
//
// Same bits as fsdp-run with --no-shuffle on the same rows.
//
// Ownership: borrows RunContext; reads arrays during the call alone. Threads: one at a time.
// Collective over the ranks. Errors: kInput for options and arrays that do not fit; kFault. After a
// fault no call succeeds.
#pragma once

#include <memory>

#include "runtime/train/prepared_run.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {

class BatchTrainer {
 public:
  // A parameter where it lies: float32 master weights.
  struct NamedValues {
    std::string name;
    std::vector<int64_t> dims;
    std::span<const float> values;
  };
  // `keep` holds the values; they change with every step until a call plans again.
  struct Parameters {
    std::vector<NamedValues> all;
    std::shared_ptr<const void> keep;
  };

  explicit BatchTrainer(const RunContext& context);
  ~BatchTrainer();

  Result<StepRow> step(std::span<const ColumnArray> batch);
  Result<EvalRow> evaluate(std::span<const ColumnArray> rows);
  Status save(const std::string& path);
  // kInput on several ranks, none of which has the whole.
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
  Status check_labels(Dataset& data) const;

  const RunContext context_;
  Options options_;  // with the batch of the first call
  std::unique_ptr<PreparedRun> run_;
  GivenSizes sizes_;
  std::shared_ptr<Live> live_;
  int64_t steps_ = 0;
  int64_t samples_ = 0;  // of all updates, all ranks together
  Status failure_;       // that ended it
};

}  // namespace ofsdp::runtime
