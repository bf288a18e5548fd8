// Loader decodes micro-batches in the background, ahead of the step, into two staging slots: the
// step reads one while the other is filled.
//
// `start(begin, end)` begins with the micro-batches of the updates begin .. end-1. `next` returns
// them in order, and null after the last. `release` frees the slot of the oldest batch that was
// taken. `start` may be called again (evaluation does); batches not taken are then dropped.
//
// Before the first micro-batch of an update is returned, the labels of all micro-batches of that
// update are counted, since ranks must agree on the global count before backward.
//
// The caller owns the staging memory (staging_bytes, 64-byte aligned), the RowSource and the
// Sampler; all must outlive the Loader. start, next and release must be called by the thread that
// runs the schedule; while started, the background thread alone uses the RowSource. Nothing
// allocates after `start`. Errors of reading are returned by `next`, also if `start` caused them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/base/host_tasks.h"
#include "runtime/data/dataset.h"
#include "runtime/data/row_lengths.h"
#include "runtime/data/sampler.h"

namespace ofsdp::runtime {

inline constexpr int kStagingSlots = 2;

struct Batch {
  int64_t size = 0;  // samples; may be 0
  int64_t epoch = 0, update = 0, micro = 0;
  int64_t length = 0;                     // of cut rows (RowCuts); 0: whole rows
  std::span<std::byte* const> columns;    // like RowSource::columns(), each 64-byte aligned
  std::span<const int64_t> sample_index;  // `size` global sample numbers
  // One number for each label rule.
  std::span<const double> kept;                // the count of this micro-batch in the mean
  std::span<const double> kept_in_update;      // the update's sum over this rank's micro-batches
  std::span<const int64_t> counted_in_update;  // micro-batches with a count above 0

  bool counts() const {
    return std::ranges::any_of(kept, [](double one) { return one > 0; });
  }
};

class Loader {
 public:
  static size_t staging_bytes(const RowSource& source, int64_t batch_size);

  // `labels` has one rule for each loss. `cuts` may be null.
  Loader(RowSource& source, const Sampler& sampler, std::vector<LabelRule> labels,
         std::span<std::byte> staging, const RowCuts* cuts = nullptr);
  Loader(const Loader&) = delete;
  ~Loader();

  void start(int64_t begin_update, int64_t end_update);
  Result<const Batch*> next();  // blocks until a slot is filled
  void release();

 private:
  struct Slot {
    Batch batch;
    std::vector<std::byte*> columns;
    std::span<int64_t> samples;
    std::vector<double> kept, kept_in_update;
    std::vector<int64_t> counted_in_update;
  };

  void lay_out(std::span<std::byte> staging);
  void request_fill();
  void fill_free_slots();
  bool may_fill() const;  // REQUIRES: mutex_ is held
  void finish_fill(Status status);
  Status fill(Slot& slot);
  Status count_update(Slot& slot);
  Status read_column(Slot& slot, int column);
  Status count(Slot& slot) const;
  Status cut(Slot& slot) const;
  Status check_cut(const Slot& slot, size_t column, const RowCuts::Cut& cut) const;

  RowSource& source_;
  const Sampler& sampler_;
  const std::vector<LabelRule> labels_;
  const RowCuts* const cuts_;
  std::vector<Slot> slots_;
  // Used by the thread that fills a slot, else under mutex_.
  int64_t update_ = 0, micro_ = 0;
  std::vector<double> kept_in_update_;
  std::vector<int64_t> counted_in_update_;

  std::mutex mutex_;
  std::condition_variable ready_;  // a slot is filled, or reading has stopped
  bool running_ = false;           // there is more to fill
  bool filling_ = false;
  int64_t end_update_ = 0;
  int64_t filled_ = 0, taken_ = 0, released_ = 0;  // slots, counted from the start
  Status failure_;
  BackgroundTask reading_;  // last: it uses the members above
};

}  // namespace ofsdp::runtime
