// DeviceRanks: the ranks of a run as groups of their devices: joining them, their collectives on
// the communication stream, and waiting for what may wait for them. With one rank there is no
// group, and a collective is nothing.
//
// All ranks join one group, with a key that rank 0 makes and the communicator hands round; the
// shards and the copies of a hybrid strategy are split from it.
//
// [Note: waiting for devices] A device that waits for a rank that does not come waits for ever, and
// the host must not wait with it. So `wait` looks: at the event, at the communicator, which hears
// of a rank that died or failed, at the groups' own errors, and at the clock. Where the wait is
// vain it names the collective that the device stands in: before each the device writes its number
// into pinned memory (`mark`). Nothing can be done with the groups from then on but `abort`, after
// which the device runs dry; by then the run has said why it ends, since an abort may take long
// ([Note: giving up devices] in device_engine.h).
//
// Every rank puts the same collectives on the stream in the same order; captured ones are launched
// by all alike. Ownership: the groups; device, communicator and mark outlive it. It leaves the
// groups, or aborts them if the run has failed. Threads: one. No allocation but in `join`. Errors:
// kPeer and kFault as Communicator's, in one line with rank, collective, unit and step.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/plan/plan.h"
#include "kernels/core/device.h"

namespace ofsdp::runtime {

class DeviceRanks {
 public:
  // `mark`: pinned. Collective.
  static Result<std::unique_ptr<DeviceRanks>> join(Device& device, const Plan& plan,
                                                   Communicator& communicator, int64_t* mark,
                                                   double timeout_seconds);
  DeviceRanks(const DeviceRanks&) = delete;
  ~DeviceRanks();

  bool several() const { return communicator_.size() > 1; }
  int rank() const { return communicator_.rank(); }
  // Gives the exit status of this process, once the run has failed.
  int exit_status() const { return std::max(1, communicator_.exit_status()); }

  // Lets the groups reach into what the device has allocated as shared. Collective.
  Status make_known(std::byte* data, size_t bytes, bool same_offsets);

  // In place: every rank's part is where all parts will be, or comes to lie where its part was.
  Status all_gather(int unit, const RankGroup& group, std::byte* all, size_t bytes_each);
  Status reduce_scatter(int unit, const RankGroup& group, std::byte* all, DType dtype,
                        int64_t count_each);
  Status all_reduce(int unit, const RankGroup& group, void* values, DType dtype, int64_t count);
  // An all_gather of rows (kernels/core/joined_rows.h).
  Status join_rows(const RankGroup& group, std::byte* all, size_t bytes_each);
  // Sends parts of `all`: rank r gets bytes_each from offsets[r] on, and has them of all ranks in
  // `parts`, in order.
  Status exchange_parts(int unit, const std::byte* all, std::span<const size_t> offsets,
                        std::byte* parts, size_t bytes_each);
  Status sum_norm(double* squares, int64_t count = 1);
  Status sum_parameter_norms(double* squares, int64_t count);
  Status agree_to_stop(int32_t* stop);  // on the largest

  // Until the event is reached; `step` is for the message.
  Status wait(ofsdp_event* event, int64_t step);
  bool in_vain() const { return in_vain_; }  // a wait was
  // Ends what waits in the groups, all at once and on threads of their own, since a group may not
  // end before the others do, nor before `drop_graphs` has dropped what has captured its
  // collectives. Nothing else can be done with the groups afterwards.
  void abort(const std::function<void()>& drop_graphs = [] {});
  // Waits until another rank has said why the run ends.
  Status wait_for_failure(int64_t step);

 private:
  using Clock = std::chrono::steady_clock;
  struct Group {
    RankGroup ranks;
    ofsdp_group* handle;
  };
  enum class Collective {
    kNone,
    kAllGather,
    kReduceScatter,
    kAllReduce,
    kNorm,
    kLoss,
    kParameterNorms,
    kRows
  };

  DeviceRanks(Device& device, Communicator& communicator, int64_t* mark, double timeout_seconds)
      : device_(device),
        communicator_(communicator),
        mark_(mark),
        timeout_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(timeout_seconds))),
        patience_{&DeviceRanks::goes_on, this} {}
  Status join_all(const Plan& plan);
  Status split(const RankGroup& ranks, int color);
  Status joined(const RankGroup& ranks, const Result<ofsdp_group*>& handle);
  ofsdp_group* group(const RankGroup& ranks) const;
  Status mark(Collective collective, int unit);
  Status gather(Collective collective, int unit, const RankGroup& group, std::byte* all,
                size_t bytes_each);
  Status reduce(Collective collective, int unit, const RankGroup& group, void* values, DType dtype,
                int64_t count, ofsdp_reduction how);
  RankGroup world() const { return {0, communicator_.size(), 1}; }

  static int32_t goes_on(void* self);
  void begin_wait(int64_t step);
  bool look();  // whether to wait longer; `vain_` says why not
  CollectiveSite site() const;
  Status group_failure();
  Status late() const;

  Device& device_;
  Communicator& communicator_;
  int64_t* mark_;
  Clock::duration timeout_;
  ofsdp_patience patience_;
  std::vector<Group> groups_;
  bool in_vain_ = false, aborted_ = false;

  int64_t step_ = 0;  // of the wait under way
  Clock::duration waited_{0};
  Clock::time_point looked_, looked_at_groups_;
  Status vain_;
};

}  // namespace ofsdp::runtime
