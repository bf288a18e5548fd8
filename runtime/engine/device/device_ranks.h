// DeviceRanks: collectives between the devices of a run's ranks, on the communication stream, and
// waiting for them. If the run has one rank, they do nothing.
//
// `join` makes one group of all ranks' devices, with a key that rank 0 makes and the communicator
// distributes. The groups of ranks that share a unit's shards, and those of a hybrid strategy's
// replicas, are split from it.
//
// [Note: waiting for devices] If a rank does not come, the other devices wait for ever, and the
// host must not wait with them. So `wait` polls the event, the communicator (which learns of a rank
// that died or failed), the groups' errors, and the clock. A wait that fails names the collective
// in which the device waits: before each collective the device writes the collective's number into
// pinned memory (`mark`). After a failed wait the groups can only be aborted; then the device
// finishes all work. The run reports the error before that, since an abort may take long ([Note:
// giving up devices] in device_engine.h).
//
// REQUIRES: every rank puts the same collectives on the stream in the same order, and either all
// ranks launch them from a captured graph or none.
//
// DeviceEngine owns this object, which owns the groups; device, communicator and mark outlive it.
// The destructor leaves the groups, or aborts them if the run failed. One thread calls; only `join`
// allocates. Errors are kPeer and kFault as Communicator's, in one line with rank, collective, unit
// and step.
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
  // Returns the exit status of this process. REQUIRES: the run has failed.
  int exit_status() const { return std::max(1, communicator_.exit_status()); }

  // Gives the groups access to shared device memory. Collective.
  Status make_known(std::byte* data, size_t bytes, bool same_offsets);

  // In place: a rank's part is in `all` at the rank's index in the group times the part's size.
  Status all_gather(int unit, const RankGroup& group, std::byte* all, size_t bytes_each);
  Status reduce_scatter(int unit, const RankGroup& group, std::byte* all, DType dtype,
                        int64_t count_each);
  Status all_reduce(int unit, const RankGroup& group, void* values, DType dtype, int64_t count);
  // Gathers the rows of all ranks, in place (ofsdp.JoinRows, kernels/core/planned_operands.h).
  Status join_rows(const RankGroup& group, std::byte* all, size_t bytes_each);
  // Sends rank r bytes_each bytes from all + offsets[r]; receives those of all ranks in `parts`, in
  // order.
  Status exchange_parts(int unit, const std::byte* all, std::span<const size_t> offsets,
                        std::byte* parts, size_t bytes_each);
  Status sum_norm(double* squares, int64_t count = 1);
  Status sum_parameter_norms(double* squares, int64_t count);
  Status agree_to_stop(int32_t* stop);  // takes the maximum

  // Blocks until the event is reached. `step`: the update's number, for the message.
  Status wait(ofsdp_event* event, int64_t step);
  bool in_vain() const { return in_vain_; }  // a wait has failed
  // Aborts all groups at once, each on a thread, since a group may wait for the others to end.
  // `drop_graphs` drops the graphs with captured collectives. The groups are unusable afterwards.
  void abort(const std::function<void()>& drop_graphs = [] {});
  // Waits until another rank has reported why the run ends.
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
  bool look();  // returns true to wait longer; vain_ says why not
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

  int64_t step_ = 0;  // for the present wait
  Clock::duration waited_{0};
  Clock::time_point looked_, looked_at_groups_;
  Status vain_;
};

}  // namespace ofsdp::runtime
