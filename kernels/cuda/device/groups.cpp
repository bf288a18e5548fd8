// Several ranks: the table's groups are communicators of NCCL.
//
// [Note: patience] NCCL's calls that meet other ranks (init, split, registration) block. They run on a
// thread of their own while the caller asks whether to wait on; a call that is given up is left
// behind, since the run is about to end. Communicators block, as collectives of one that does not
// are put on the stream by a thread of NCCL's, later than the call returns.
//
// Two settings are made before NCCL begins, where the user has made none: connections are opened when
// a group is joined (NCCL_RUNTIME_CONNECT=0), so that no collective meets ranks on the host; and a
// capture registers nothing (NCCL_GRAPH_REGISTER=0), since all that ranks reach is made known before.
// OFSDP_NCCL_REGISTER=0 leaves that out too.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/handles.h"
#include "kernels/cuda/device/libraries.h"
#include "kernels/cuda/device/nccl.h"

struct ofsdp_group {
  std::mutex mutex;  // of abort, which any thread may call, and leave
  ncclComm* comm = nullptr;
  ofsdp_patience patience{};
  std::vector<void*> buffers;
  std::vector<ncclWindow_vidmem*> windows;
};

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kSharesDevices = 23000;  // the first version that may put ranks on one device
constexpr int kKnowsWindows = 22700;

int32_t refuse(ofsdp_device* device, const std::string& text) {
  device->error = text;
  return -1;
}

int32_t failed(ofsdp_device* device, NcclResult result, const char* what, ncclComm* comm) {
  if (result == kNcclSuccess) return 0;
  device->error = std::string(what) + ": NCCL says " + nccl().error_string(result);
  const char* last = comm != nullptr ? nccl().last_error(comm) : nullptr;
  if (last != nullptr && *last != 0) device->error += std::string(" (") + last + ")";
  for (char& c : device->error) c = c == '\n' ? ' ' : c;
  return static_cast<int32_t>(result);
}

// Runs `call` on a thread of its own as long as the patience lasts.
NcclResult patiently(ofsdp_device* device, const ofsdp_patience& patience,
                     std::function<NcclResult()> call, bool& gave_up) {
  struct Outcome {
    std::atomic<bool> over{false};
    NcclResult result = kNcclSuccess;
  };
  const auto outcome = std::make_shared<Outcome>();
  std::thread worker([outcome, ordinal = device->ordinal, call = std::move(call)] {
    use_device(ordinal);
    outcome->result = call();
    outcome->over = true;
  });
  gave_up = false;
  while (!outcome->over && !gave_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gave_up = !outcome->over && patience.goes_on(patience.context) == 0;
  }
  if (!gave_up) {
    worker.join();
    return outcome->result;
  }
  worker.detach();
  device->error = "gave up waiting for the other ranks";
  return kNcclInProgress;
}

void settle_environment() {
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

bool is_set(const char* name, char to) {
  const char* value = std::getenv(name);
  return value != nullptr && *value == to;
}

uint64_t identity(ofsdp_device* device) { return device->identity; }

int32_t can_join(ofsdp_device*, int32_t sharing, char* text, size_t bytes) {
  const Nccl& n = nccl();
  std::string why;
  if (!n.has_all()) {
    const std::string missing = why_missing(Nvidia::kNccl);
    why = "they need NCCL: " + (missing.empty() ? "it lacks functions" : missing);
  } else if (sharing > 1 && n.number() < kSharesDevices) {
    why = std::to_string(sharing) + " of them share a GPU, which NCCL " + n.text() +
          " cannot; expected a GPU a rank, or NCCL 2.30";
  } else if (sharing > 1 && !is_set("NCCL_MULTI_RANK_GPU_ENABLE", '1')) {
    why = std::to_string(sharing) + " of them share a GPU; expected a GPU a rank, or " +
          "NCCL_MULTI_RANK_GPU_ENABLE=1 for NCCL " + n.text() + "'s experiment";
  }
  std::snprintf(text, bytes, "%s", why.empty() ? ("NCCL " + n.text()).c_str() : why.c_str());
  return why.empty() ? 1 : 0;
}

int32_t make_group_key(ofsdp_device* device, void* key) {
  static_assert(sizeof(NcclId) == OFSDP_GROUP_KEY_BYTES);
  settle_environment();
  NcclId id{};
  const NcclResult result = nccl().unique_id(&id);
  std::memcpy(key, &id, sizeof(id));
  return failed(device, result, "ncclGetUniqueId", nullptr);
}

// `make` is given where the communicator is to be put, which outlives a call that is given up.
ofsdp_group* make_group(ofsdp_device* device, const ofsdp_patience& patience, const char* what,
                        const std::function<NcclResult(ncclComm**)>& make) {
  const auto made = std::make_shared<ncclComm*>(nullptr);
  bool gave_up = false;
  const NcclResult result = patiently(
      device, patience, [made, make] { return make(made.get()); }, gave_up);
  if (gave_up || failed(device, result, what, nullptr) != 0) return nullptr;
  auto* group = new ofsdp_group;
  group->comm = *made;
  group->patience = patience;
  return group;
}

ofsdp_group* join_group(ofsdp_device* device, const void* key, int32_t place, int32_t count,
                        const ofsdp_patience* patience) {
  settle_environment();
  NcclId id;
  std::memcpy(&id, key, sizeof(id));
  return make_group(device, *patience, "ncclCommInitRankConfig", [=](ncclComm** comm) {
    NcclConfig config;
    return nccl().init(comm, count, id, place, &config);
  });
}

ofsdp_group* split_group(ofsdp_device* device, ofsdp_group* from, int32_t color, int32_t place) {
  ncclComm* const parent = from->comm;
  return make_group(device, from->patience, "ncclCommSplit", [=](ncclComm** comm) {
    NcclConfig config;
    return nccl().split(parent, color, place, comm, &config);
  });
}

void abort_group(ofsdp_device*, ofsdp_group* group) {
  const std::lock_guard lock(group->mutex);
  if (group->comm != nullptr) nccl().abort(group->comm);
  group->comm = nullptr;
}

// What was made known goes before the communicator does.
void leave_group(ofsdp_device* device, ofsdp_group* group) {
  ncclComm* const comm = group->comm;
  bool gave_up = false;
  if (comm != nullptr) {
    const auto leave = [comm, buffers = group->buffers, windows = group->windows] {
      for (void* handle : buffers) nccl().deregister_buffer(comm, handle);
      for (ncclWindow_vidmem* window : windows) nccl().deregister_window(comm, window);
      return nccl().destroy(comm);
    };
    (void)patiently(device, group->patience, leave, gave_up);
  }
  if (!gave_up) delete group;
}

int32_t check_group(ofsdp_device* device, ofsdp_group* group) {
  const std::lock_guard lock(group->mutex);
  if (group->comm == nullptr) return refuse(device, "the group was aborted");
  NcclResult found = kNcclSuccess;
  const NcclResult asked = nccl().async_error(group->comm, &found);
  if (found == kNcclInProgress) found = kNcclSuccess;
  return failed(device, asked != kNcclSuccess ? asked : found, "a collective", group->comm);
}

// Windows serve only calls with the same offsets on all ranks: then sums of 16 bits are in float32.
int32_t make_known(ofsdp_device* device, ofsdp_group* group, void* data, size_t bytes,
                   int32_t same_offsets) {
  const Nccl& n = nccl();
  if (is_set("OFSDP_NCCL_REGISTER", '0')) return 0;
  ncclComm* const comm = group->comm;
  const bool window =
      same_offsets != 0 && n.number() >= kKnowsWindows && n.register_window != nullptr;
  if (!window && n.register_buffer == nullptr) return 0;
  const auto made = std::make_shared<std::pair<ncclWindow_vidmem*, void*>>();
  const auto call = [=, &n] {
    return window ? n.register_window(comm, data, bytes, &made->first, Nccl::kSymmetric)
                  : n.register_buffer(comm, data, bytes, &made->second);
  };
  bool gave_up = false;
  const NcclResult result = patiently(device, group->patience, call, gave_up);
  if (gave_up) return static_cast<int32_t>(result);
  if (made->first != nullptr) group->windows.push_back(made->first);
  if (made->second != nullptr) group->buffers.push_back(made->second);
  return failed(device, result, window ? "ncclCommWindowRegister" : "ncclCommRegister", comm);
}

// False: a type that is not summed.
bool type_of(int32_t dtype, NcclType& type) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat32:
      type = kNcclFloat32;
      return true;
    case DType::kFloat64:
      type = kNcclFloat64;
      return true;
    case DType::kFloat16:
      type = kNcclFloat16;
      return true;
    case DType::kBFloat16:
      type = kNcclBFloat16;
      return true;
    case DType::kInt32:
      type = kNcclInt32;
      return true;
    default:
      return false;
  }
}

int32_t all_gather(ofsdp_device* device, ofsdp_stream* stream, ofsdp_group* group, const void* src,
                   void* dst, size_t bytes) {
  if (group->comm == nullptr) return refuse(device, "the group was aborted");
  return failed(device, nccl().all_gather(src, dst, bytes, kNcclUint8, group->comm, raw(stream)),
                "ncclAllGather", group->comm);
}

int32_t reduce_scatter(ofsdp_device* device, ofsdp_stream* stream, ofsdp_group* group,
                       const void* src, void* dst, int32_t dtype, int64_t count) {
  NcclType type{};
  if (group->comm == nullptr) return refuse(device, "the group was aborted");
  if (!type_of(dtype, type)) return refuse(device, "ncclReduceScatter: a type without sum");
  return failed(device,
                nccl().reduce_scatter(src, dst, static_cast<size_t>(count), type, kNcclSum,
                                      group->comm, raw(stream)),
                "ncclReduceScatter", group->comm);
}

int32_t all_reduce(ofsdp_device* device, ofsdp_stream* stream, ofsdp_group* group, const void* src,
                   void* dst, int32_t dtype, int64_t count, int32_t reduction) {
  NcclType type{};
  if (group->comm == nullptr) return refuse(device, "the group was aborted");
  if (!type_of(dtype, type)) return refuse(device, "ncclAllReduce: a type without sum");
  return failed(
      device,
      nccl().all_reduce(src, dst, static_cast<size_t>(count), type,
                        reduction == OFSDP_LARGEST ? kNcclMax : kNcclSum, group->comm, raw(stream)),
      "ncclAllReduce", group->comm);
}

// One call of NCCL's for all parts, its own among them; an error inside ends the group all the same.
int32_t exchange_parts(ofsdp_device* device, ofsdp_stream* stream, ofsdp_group* group,
                       const void* src, const size_t* offsets, int32_t places, void* dst,
                       size_t bytes) {
  if (group->comm == nullptr) return refuse(device, "the group was aborted");
  const Nccl& n = nccl();
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(dst);
  NcclResult result = n.group_start();
  for (int32_t p = 0; p < places && result == kNcclSuccess; ++p) {
    result = n.send(from + offsets[p], bytes, kNcclUint8, p, group->comm, raw(stream));
    if (result != kNcclSuccess) break;
    result = n.receive(to + static_cast<size_t>(p) * bytes, bytes, kNcclUint8, p, group->comm,
                       raw(stream));
  }
  const NcclResult ended = n.group_end();
  return failed(device, result != kNcclSuccess ? result : ended, "ncclSend, ncclRecv", group->comm);
}

}  // namespace

void add_groups(ofsdp_device_table& table) {
  table.identity = identity;
  table.can_join = can_join;
  table.make_group_key = make_group_key;
  table.join_group = join_group;
  table.split_group = split_group;
  table.leave_group = leave_group;
  table.abort_group = abort_group;
  table.check_group = check_group;
  table.make_known = make_known;
  table.all_gather = all_gather;
  table.reduce_scatter = reduce_scatter;
  table.all_reduce = all_reduce;
  table.exchange_parts = exchange_parts;
}

}  // namespace ofsdp::kernels::cuda
