#include "runtime/engine/device/device_ranks.h"

#include <algorithm>
#include <thread>

#include "fsdp/comm/local/peer_wait.h"
#include "kernels/base/host_tasks.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/memory.h"
#include "runtime/engine/shared_text.h"

namespace ofsdp::runtime {
namespace {

constexpr std::chrono::microseconds kPause{50};   // between two looks
constexpr std::chrono::milliseconds kSlice{100};  // between two looks at the groups
constexpr std::chrono::seconds kLeaving{5};       // the others may have failed
constexpr std::chrono::seconds kHearsay{2};       // until a death is known
constexpr int kKinds = 8;

constexpr const char* kNames[kKinds] = {"joining the devices",
                                        "all-gather",
                                        "reduce-scatter",
                                        "all-reduce",
                                        "norm exchange",
                                        "loss exchange",
                                        "exchange of parameters' norms",
                                        kJoinName};

}  // namespace

Result<std::unique_ptr<DeviceRanks>> DeviceRanks::join(Device& device, const Plan& plan,
                                                       Communicator& communicator, int64_t* mark,
                                                       double timeout_seconds) {
  std::unique_ptr<DeviceRanks> made(new DeviceRanks(device, communicator, mark, timeout_seconds));
  if (made->several()) OFSDP_RETURN_IF_ERROR(made->join_all(plan));
  return made;
}

Status DeviceRanks::join_all(const Plan& plan) {
  std::string key(OFSDP_GROUP_KEY_BYTES, '\0');
  if (rank() == 0) {
    OFSDP_RETURN_IF_ERROR(device_.make_group_key(key.data()).with_prefix("a group of ranks"));
  }
  OFSDP_ASSIGN_OR_RETURN(key, text_of_rank0(communicator_, std::move(key)));
  begin_wait(0);
  OFSDP_RETURN_IF_ERROR(
      joined(world(), device_.join_group(key.data(), rank(), communicator_.size(), patience_)));
  const int shards = plan.shard_size;
  if (shards == 1 || shards == communicator_.size()) return {};
  OFSDP_RETURN_IF_ERROR(split({rank() / shards * shards, shards, 1}, rank() / shards));
  return split({rank() % shards, communicator_.size() / shards, shards}, rank() % shards);
}

Status DeviceRanks::split(const RankGroup& ranks, int color) {
  begin_wait(0);
  return joined(ranks, device_.split_group(groups_[0].handle, color, ranks.index_of(rank())));
}

Status DeviceRanks::joined(const RankGroup& ranks, const Result<ofsdp_group*>& handle) {
  if (handle.ok()) {
    groups_.push_back({ranks, *handle});
    return {};
  }
  if (!vain_.ok()) return std::move(vain_);
  return fault("rank {}: joining the ranks' devices: {}", rank(), handle.error().message());
}

DeviceRanks::~DeviceRanks() {
  if (!communicator_.check({}).ok()) abort();
  timeout_ = std::min<Clock::duration>(timeout_, kLeaving);
  begin_wait(step_);
  std::ranges::reverse(groups_);
  for (const Group& group : groups_) device_.leave_group(group.handle);
}

void DeviceRanks::abort(const std::function<void()>& drop_graphs) {
  if (std::exchange(aborted_, true)) return;
  std::vector<std::thread> threads;
  std::vector<ofsdp_group*> left;  // no thread could abort them
  for (const Group& group : groups_) {
    auto thread = start_thread("ofsdp-abort", "the abort of a group of ranks",
                               [this, handle = group.handle] { device_.abort_group(handle); });
    if (thread.ok()) {
      threads.push_back(std::move(*thread));
    } else {
      left.push_back(group.handle);
    }
  }
  drop_graphs();
  for (ofsdp_group* group : left) device_.abort_group(group);
  for (std::thread& thread : threads) thread.join();
}

Status DeviceRanks::make_known(std::byte* data, size_t bytes, bool same_offsets) {
  for (const Group& group : groups_) {
    if (bytes == 0) break;
    begin_wait(0);
    OFSDP_RETURN_IF_ERROR(device_.make_known(group.handle, data, bytes, same_offsets)
                              .with_prefix("memory that ranks reach"));
  }
  return {};
}

ofsdp_group* DeviceRanks::group(const RankGroup& ranks) const {
  const auto it = std::ranges::find(groups_, ranks, &Group::ranks);
  OFSDP_CHECK(it != groups_.end(), "ranks {} + {} x {} are no group", ranks.first, ranks.count,
              ranks.stride);
  return it->handle;
}

Status DeviceRanks::mark(Collective collective, int unit) {
  const int64_t value = (unit + 1) * int64_t{kKinds} + static_cast<int64_t>(collective);
  return device_.mark(device_.communication(), mark_, value).with_prefix("a mark");
}

Status DeviceRanks::all_gather(int unit, const RankGroup& ranks, std::byte* all,
                               size_t bytes_each) {
  return gather(Collective::kAllGather, unit, ranks, all, bytes_each);
}

Status DeviceRanks::join_rows(const RankGroup& ranks, std::byte* all, size_t bytes_each) {
  return gather(Collective::kRows, -1, ranks, all, bytes_each);
}

Status DeviceRanks::gather(Collective collective, int unit, const RankGroup& ranks, std::byte* all,
                           size_t bytes_each) {
  if (ranks.count == 1 || bytes_each == 0) return {};
  OFSDP_RETURN_IF_ERROR(mark(collective, unit));
  const std::byte* own = all + static_cast<size_t>(ranks.index_of(rank())) * bytes_each;
  return device_.all_gather(device_.communication(), group(ranks), own, all, bytes_each)
      .with_prefix("all-gather");
}

Status DeviceRanks::reduce_scatter(int unit, const RankGroup& ranks, std::byte* all, DType dtype,
                                   int64_t count_each) {
  if (ranks.count == 1 || count_each == 0) return {};
  OFSDP_RETURN_IF_ERROR(mark(Collective::kReduceScatter, unit));
  const size_t bytes = static_cast<size_t>(count_each) * dtype_size(dtype);
  return device_
      .reduce_scatter(device_.communication(), group(ranks), all,
                      all + static_cast<size_t>(ranks.index_of(rank())) * bytes, number(dtype),
                      count_each)
      .with_prefix("reduce-scatter");
}

Status DeviceRanks::exchange_parts(int unit, const std::byte* all, std::span<const size_t> offsets,
                                   std::byte* parts, size_t bytes_each) {
  if (bytes_each == 0) return {};
  OFSDP_RETURN_IF_ERROR(mark(Collective::kReduceScatter, unit));
  return device_
      .exchange_parts(device_.communication(), group(world()), all, offsets.data(),
                      static_cast<int32_t>(offsets.size()), parts, bytes_each)
      .with_prefix("reduce-scatter");
}

Status DeviceRanks::all_reduce(int unit, const RankGroup& ranks, void* values, DType dtype,
                               int64_t count) {
  return reduce(Collective::kAllReduce, unit, ranks, values, dtype, count, OFSDP_SUM);
}

Status DeviceRanks::sum_norm(double* squares, int64_t count) {
  return reduce(Collective::kNorm, -1, world(), squares, DType::kFloat64, count, OFSDP_SUM);
}

Status DeviceRanks::sum_parameter_norms(double* squares, int64_t count) {
  return reduce(Collective::kParameterNorms, -1, world(), squares, DType::kFloat64, count,
                OFSDP_SUM);
}

Status DeviceRanks::agree_to_stop(int32_t* stop) {
  return reduce(Collective::kLoss, -1, world(), stop, DType::kInt32, 1, OFSDP_LARGEST);
}

Status DeviceRanks::reduce(Collective collective, int unit, const RankGroup& ranks, void* values,
                           DType dtype, int64_t count, ofsdp_reduction how) {
  if (ranks.count == 1 || count == 0) return {};
  OFSDP_RETURN_IF_ERROR(mark(collective, unit));
  return device_
      .all_reduce(device_.communication(), group(ranks), values, values, number(dtype), count,
                  static_cast<int32_t>(how))
      .with_prefix("all-reduce");
}

Status DeviceRanks::wait(ofsdp_event* event, int64_t step) {
  if (!several()) return device_.await(event).with_prefix("the device");
  if (in_vain_) return fault("rank {}: its device is given up", rank());
  begin_wait(step);
  while (true) {
    const auto reached = device_.reached(event);
    if (reached.ok() && *reached) return {};
    if (!reached.ok()) {
      vain_ = fault("rank {}: {}, step {}: {}", rank(), site_text(site()), step_,
                    reached.error().message());
    }
    if (!vain_.ok() || !look()) break;
    std::this_thread::sleep_for(kPause);
  }
  in_vain_ = true;
  return std::move(vain_);
}

Status DeviceRanks::wait_for_failure(int64_t step) {
  begin_wait(step);
  while (look()) std::this_thread::sleep_for(kSlice);
  in_vain_ = true;
  return std::move(vain_);
}

void DeviceRanks::begin_wait(int64_t step) {
  step_ = step;
  waited_ = Clock::duration::zero();
  looked_ = looked_at_groups_ = Clock::now();
  vain_ = {};
}

int32_t DeviceRanks::goes_on(void* self) { return static_cast<DeviceRanks*>(self)->look() ? 1 : 0; }

// Does not count time in which this process was stopped, as PeerWait.
bool DeviceRanks::look() {
  const Clock::time_point now = Clock::now();
  waited_ += std::min<Clock::duration>(now - looked_, 2 * kSlice);
  looked_ = now;
  vain_ = communicator_.check(site());
  if (vain_.ok() && now - looked_at_groups_ >= kSlice) {
    looked_at_groups_ = now;
    vain_ = group_failure();
  }
  if (vain_.ok() && waited_ >= timeout_) vain_ = late();
  return vain_.ok();
}

// A rank that dies breaks its connections first; the communicator learns more a little later.
Status DeviceRanks::group_failure() {
  std::string text;
  for (size_t g = 0; g < groups_.size() && text.empty(); ++g) {
    const Status status = device_.check_group(groups_[g].handle);
    if (!status.ok()) text = status.message();
  }
  if (text.empty()) return {};
  const Clock::time_point end = Clock::now() + kHearsay;
  while (Clock::now() < end) {
    OFSDP_RETURN_IF_ERROR(communicator_.check(site()));
    std::this_thread::sleep_for(kSlice);
  }
  return fault("rank {}: {}, step {}: {}", rank(), site_text(site()), step_, text);
}

CollectiveSite DeviceRanks::site() const {
  const int64_t value = *static_cast<const volatile int64_t*>(mark_);
  return {kNames[value % kKinds], static_cast<int>(value / kKinds) - 1, step_};
}

Status DeviceRanks::late() const {
  return fault("rank {} waited {} s on its device: {}, step {}; another rank's did not arrive",
               rank(), std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(),
               site_text(site()), step_);
}

}  // namespace ofsdp::runtime
