// Loader: decodes micro-batches ahead of the step into staging slots, in the background.
//
// `start(begin, end)` sets it to work on the micro-batches of updates begin .. end-1; `next` then
// gives them in order, and a null pointer after the last; `release` hands the oldest taken one's
// slot back. Two slots: one is read by the step while the other is filled. It may be started again
// and again (evaluation runs); batches not taken are dropped then.
//
// Before the first micro-batch of an update is handed out, the labels of all of its micro-batches
// are counted: ranks agree on the global number before backward.
//
// Ownership: staging memory is the caller's (staging_bytes of it, 64-byte aligned), as are the
// RowSource and the Sampler; all outlive the Loader. Threads: start, next and release by the thread
// that runs the schedule; the RowSource is used in the background alone while started. Nothing
// allocates once started. Errors of reading, also of its start, come back from `next`.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/base/background_task.h"
#include "runtime/data/labels.h"
#include "runtime/data/sampler.h"

namespace ofsdp::runtime {

inline constexpr int kStagingSlots = 2;

struct Batch {
  int64_t size = 0;  // samples; may be 0
  int64_t epoch = 0, update = 0, micro = 0;
  std::span<std::byte* const> columns;    // as RowSource::columns(), each 64-byte aligned
  std::span<const int64_t> sample_index;  // `size` global numbers
  // A number for each label rule.
  std::span<const double> kept;                // what this micro-batch counts in the mean
  std::span<const double> kept_in_update;      // all of this rank's micro-batches of the update
  std::span<const int64_t> counted_in_update;  // how many of them count anything

  bool counts() const {
    return std::ranges::any_of(kept, [](double one) { return one > 0; });
  }
};

class Loader {
 public:
  static size_t staging_bytes(const RowSource& source, int64_t batch_size);

  // A rule for each loss.
  Loader(RowSource& source, const Sampler& sampler, std::vector<LabelRule> labels,
         std::span<std::byte> staging);
  Loader(const Loader&) = delete;
  ~Loader();

  void start(int64_t begin_update, int64_t end_update);
  Result<const Batch*> next();  // waits
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
  bool may_fill() const;  // holding mutex_
  void finish_fill(Status status);
  Status fill(Slot& slot);
  Status count_update(Slot& slot);
  Status read_column(Slot& slot, int column);
  Status count(Slot& slot) const;

  RowSource& source_;
  const Sampler& sampler_;
  const std::vector<LabelRule> labels_;
  std::vector<Slot> slots_;
  // Used while a slot is filled, else under mutex_.
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
  BackgroundTask reading_;  // last: it uses everything above
};

}  // namespace ofsdp::runtime
