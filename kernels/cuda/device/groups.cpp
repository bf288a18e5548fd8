// Groups are NCCL communicators.
//
// [Note: patience] NCCL calls that meet other ranks (init, split, registration) block. They run on
// a worker thread while the caller polls `patience`. If the caller gives up, the worker is
// abandoned, since the run is about to end. Communicators are blocking: in nonblocking mode NCCL
// would enqueue collectives from a thread of its own after the call has returned.
//
// Two settings become defaults before NCCL starts. NCCL_RUNTIME_CONNECT=0 connects on joining a
// group, so that no collective meets ranks on the host. NCCL_GRAPH_REGISTER=0 keeps captures from
// registering buffers, since all shared memory is registered earlier; OFSDP_NCCL_REGISTER=0 turns
// that off too.
#include "kernels/cuda/device/groups.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/host_tasks.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/libraries.h"
#include "kernels/cuda/device/streams.h"
#include "kernels/cuda/device/types.h"

struct ofsdp_group {
  std::mutex mutex;  // abort_group may run on any thread, next to check_group
  int ordinal = 0;   // device
  ncclComm* comm = nullptr;
  ofsdp_patience patience{};
  std::vector<void*> buffers;
  std::vector<ncclWindow_vidmem*> windows;
};

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kSharesDevices = 23000;  // first version that allows several ranks on one device
constexpr int kKnowsWindows = 22700;

Status checked(NcclResult result, const char* what, ncclComm* comm) {
  if (result == kNcclSuccess) return {};
  std::string text = std::string(what) + ": NCCL says " + nccl().error_string(result);
  const char* last = comm != nullptr ? nccl().last_error(comm) : nullptr;
  if (last != nullptr && *last != 0) text += std::string(" (") + last + ")";
  std::ranges::replace(text, '\n', ' ');
  return fault("{}", text);
}

// Runs `call` on a worker thread and waits until it ends or `patience` does.
Status call_patiently(int ordinal, const ofsdp_patience& patience, const char* what, ncclComm* comm,
                      bool& gave_up, std::function<NcclResult()> call) {
  struct Outcome {
    std::atomic<bool> over{false};
    NcclResult result = kNcclSuccess;
  };
  const auto outcome = std::make_shared<Outcome>();
  OFSDP_ASSIGN_OR_RETURN(
      std::thread worker,
      start_thread("ofsdp-nccl", what, [outcome, ordinal, call = std::move(call)] {
        use_device(ordinal);
        outcome->result = call();
        outcome->over = true;
      }));
  gave_up = false;
  while (!outcome->over && !gave_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gave_up = !outcome->over && patience.goes_on(patience.context) == 0;
  }
  if (!gave_up) {
    worker.join();
    return checked(outcome->result, what, comm);
  }
  worker.detach();
  return fault("gave up waiting for the other ranks");
}

void set_environment() {
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

bool is_set(const char* name, char to) {
  const char* value = std::getenv(name);
  return value != nullptr && *value == to;
}

// `make` stores the communicator through a shared pointer, since it may outlive the caller.
Result<ofsdp_group*> make_group(int ordinal, const ofsdp_patience& patience, const char* what,
                                const std::function<NcclResult(ncclComm**)>& make) {
  const auto made = std::make_shared<ncclComm*>(nullptr);
  bool gave_up = false;
  OFSDP_RETURN_IF_ERROR(call_patiently(ordinal, patience, what, nullptr, gave_up,
                                       [made, make] { return make(made.get()); }));
  auto* group = new ofsdp_group;
  group->ordinal = ordinal;
  group->comm = *made;
  group->patience = patience;
  return group;
}

Status aborted() { return fault("the group was aborted"); }

// Calls `make`, which stores a handle; returns the handle, or null if there is none. The handle is
// stored through a shared pointer, since the call may outlive the caller.
template <typename Handle>
Result<Handle*> make_handle(const ofsdp_group& group, const char* what,
                            const std::function<NcclResult(ncclComm*, Handle**)>& make) {
  const auto made = std::make_shared<Handle*>(nullptr);
  bool gave_up = false;
  OFSDP_RETURN_IF_ERROR(
      call_patiently(group.ordinal, group.patience, what, group.comm, gave_up,
                     [made, make, comm = group.comm] { return make(comm, made.get()); }));
  return *made;
}

Result<ncclWindow_vidmem*> make_window(ofsdp_group& group, void* data, size_t bytes) {
  OFSDP_ASSIGN_OR_RETURN(
      ncclWindow_vidmem * window,
      make_handle<ncclWindow_vidmem>(
          group, "ncclCommWindowRegister", [=](ncclComm* comm, ncclWindow_vidmem** to) {
            return nccl().register_window(comm, data, bytes, to, Nccl::kSymmetric);
          }));
  if (window != nullptr) group.windows.push_back(window);
  return window;
}

Status make_buffer(ofsdp_group& group, void* data, size_t bytes) {
  OFSDP_ASSIGN_OR_RETURN(
      void* buffer, make_handle<void>(group, "ncclCommRegister", [=](ncclComm* comm, void** to) {
        return nccl().register_buffer(comm, data, bytes, to);
      }));
  if (buffer != nullptr) group.buffers.push_back(buffer);
  return {};
}

// Returns kNcclUint8 for types that cannot be summed.
NcclType nccl_type(int32_t dtype) {
  switch (static_cast<DType>(dtype)) {
    OFSDP_CASE(DType::kFloat32, kNcclFloat32);
    OFSDP_CASE(DType::kFloat64, kNcclFloat64);
    OFSDP_CASE(DType::kFloat16, kNcclFloat16);
    OFSDP_CASE(DType::kBFloat16, kNcclBFloat16);
    OFSDP_CASE(DType::kInt32, kNcclInt32);
    default:
      return kNcclUint8;
  }
}

}  // namespace

bool Nccl::has_all() const {
  return version != nullptr && error_string != nullptr && last_error != nullptr &&
         unique_id != nullptr && init != nullptr && split != nullptr && destroy != nullptr &&
         abort != nullptr && async_error != nullptr && all_gather != nullptr &&
         reduce_scatter != nullptr && all_reduce != nullptr && group_start != nullptr &&
         group_end != nullptr && send != nullptr && receive != nullptr;
}

int Nccl::number() const {
  int found = 0;
  return version != nullptr && version(&found) == kNcclSuccess ? found : 0;
}

std::string Nccl::text() const {
  const int n = number();
  return std::to_string(n / 10000) + "." + std::to_string(n / 100 % 100) + "." +
         std::to_string(n % 100);
}

const Nccl& nccl() {
  static const Nccl loaded;
  return loaded;
}

Status NcclRanks::can_join(int sharing, std::string& engine) const {
  const Nccl& n = nccl();
  if (!n.has_all()) {
    const std::string missing = why_missing(Nvidia::kNccl);
    return fault("they need NCCL: {}", missing.empty() ? "it lacks functions" : missing);
  }
  engine = "NCCL " + n.text();
  if (sharing > 1 && n.number() < kSharesDevices) {
    return fault("{} of them share a GPU, which {} cannot; expected a GPU a rank, or NCCL 2.30",
                 sharing, engine);
  }
  if (sharing > 1 && !is_set("NCCL_MULTI_RANK_GPU_ENABLE", '1')) {
    return fault(
        "{} of them share a GPU; expected a GPU a rank, or NCCL_MULTI_RANK_GPU_ENABLE=1 for {}'s "
        "experiment",
        sharing, engine);
  }
  return {};
}

Status NcclRanks::make_group_key(void* key) {
  static_assert(sizeof(NcclId) == OFSDP_GROUP_KEY_BYTES);
  set_environment();
  NcclId id{};
  const NcclResult result = nccl().unique_id(&id);
  std::memcpy(key, &id, sizeof(id));
  return checked(result, "ncclGetUniqueId", nullptr);
}

Result<ofsdp_group*> NcclRanks::join_group(const void* key, int place, int count,
                                           const ofsdp_patience& patience) {
  set_environment();
  NcclId id;
  std::memcpy(&id, key, sizeof(id));
  return make_group(ordinal_, patience, "ncclCommInitRankConfig", [=](ncclComm** comm) {
    NcclConfig config;
    return nccl().init(comm, count, id, place, &config);
  });
}

Result<ofsdp_group*> NcclRanks::split_group(ofsdp_group* from, int color, int place) {
  return make_group(from->ordinal, from->patience, "ncclCommSplit",
                    [=, parent = from->comm](ncclComm** comm) {
                      NcclConfig config;
                      return nccl().split(parent, color, place, comm, &config);
                    });
}

// Unlocks before ncclCommAbort, which may block as long as a captured graph holds the
// communicator's collectives.
void NcclRanks::abort_group(ofsdp_group* group) {
  ncclComm* comm = nullptr;
  {
    const std::lock_guard lock(group->mutex);
    comm = std::exchange(group->comm, nullptr);
  }
  if (comm == nullptr) return;
  use_device(ordinal_);
  nccl().abort(comm);
}

// Deregisters buffers and windows before destroying the communicator.
void NcclRanks::leave_group(ofsdp_group* group) {
  ncclComm* const comm = group->comm;
  bool gave_up = false;
  if (comm != nullptr) {
    (void)call_patiently(group->ordinal, group->patience, "ncclCommDestroy", nullptr, gave_up,
                         [comm, buffers = group->buffers, windows = group->windows] {
                           for (void* handle : buffers) nccl().deregister_buffer(comm, handle);
                           for (ncclWindow_vidmem* window : windows) {
                             nccl().deregister_window(comm, window);
                           }
                           return nccl().destroy(comm);
                         });
  }
  if (!gave_up) delete group;
}

Status NcclRanks::check_group(ofsdp_group* group) {
  const std::lock_guard lock(group->mutex);
  if (group->comm == nullptr) return aborted();
  NcclResult found = kNcclSuccess;
  const NcclResult asked = nccl().async_error(group->comm, &found);
  if (found == kNcclInProgress) found = kNcclSuccess;
  return checked(asked != kNcclSuccess ? asked : found, "a collective", group->comm);
}

// Symmetric windows require equal offsets on all ranks; in return 16-bit sums are accumulated in
// float32. Since 2.30 NCCL gives no window, and no error, if ranks have no symmetric memory, such
// as those of several hosts; 2.27 to 2.29 then registered a buffer themselves.
Status NcclRanks::make_known(ofsdp_group* group, void* data, size_t bytes, bool same_offsets) {
  const Nccl& n = nccl();
  if (is_set("OFSDP_NCCL_REGISTER", '0')) return {};
  if (same_offsets && n.number() >= kKnowsWindows && n.register_window != nullptr) {
    OFSDP_ASSIGN_OR_RETURN(ncclWindow_vidmem * window, make_window(*group, data, bytes));
    if (window != nullptr) return {};
  }
  return n.register_buffer == nullptr ? Status{} : make_buffer(*group, data, bytes);
}

Status NcclRanks::all_gather(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                             size_t bytes) {
  if (group->comm == nullptr) return aborted();
  return checked(nccl().all_gather(src, dst, bytes, kNcclUint8, group->comm, raw(stream)),
                 "ncclAllGather", group->comm);
}

Status NcclRanks::reduce_scatter(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                                 void* dst, int32_t dtype, int64_t count) {
  const NcclType type = nccl_type(dtype);
  if (group->comm == nullptr) return aborted();
  if (type == kNcclUint8) return fault("ncclReduceScatter: a type without sum");
  return checked(nccl().reduce_scatter(src, dst, static_cast<size_t>(count), type, kNcclSum,
                                       group->comm, raw(stream)),
                 "ncclReduceScatter", group->comm);
}

Status NcclRanks::all_reduce(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                             int32_t dtype, int64_t count, int32_t reduction) {
  const NcclType type = nccl_type(dtype);
  if (group->comm == nullptr) return aborted();
  if (type == kNcclUint8) return fault("ncclAllReduce: a type without sum");
  const NcclReduction how = reduction == OFSDP_LARGEST ? kNcclMax : kNcclSum;
  return checked(
      nccl().all_reduce(src, dst, static_cast<size_t>(count), type, how, group->comm, raw(stream)),
      "ncclAllReduce", group->comm);
}

// One NCCL group call covers all parts, this rank's included. On error the NCCL group is closed all
// the same.
Status NcclRanks::exchange_parts(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                                 const size_t* offsets, int places, void* dst, size_t bytes) {
  if (group->comm == nullptr) return aborted();
  const Nccl& n = nccl();
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(dst);
  NcclResult result = n.group_start();
  for (int p = 0; p < places && result == kNcclSuccess; ++p) {
    result = n.send(from + offsets[p], bytes, kNcclUint8, p, group->comm, raw(stream));
    if (result != kNcclSuccess) break;
    result = n.receive(to + static_cast<size_t>(p) * bytes, bytes, kNcclUint8, p, group->comm,
                       raw(stream));
  }
  const NcclResult ended = n.group_end();
  return checked(result != kNcclSuccess ? result : ended, "ncclSend, ncclRecv", group->comm);
}

}  // namespace ofsdp::kernels::cuda
