#include "kernels/cuda/device/nccl.h"

#include "kernels/cuda/device/libraries.h"

namespace ofsdp::kernels::cuda {
namespace {

template <typename Function>
void take(Function*& function, const char* name) {
  function = function_of<Function>(Nvidia::kNccl, name);
}

Nccl load() {
  Nccl n;
  take(n.version, "ncclGetVersion");
  take(n.error_string, "ncclGetErrorString");
  take(n.last_error, "ncclGetLastError");
  take(n.unique_id, "ncclGetUniqueId");
  take(n.init, "ncclCommInitRankConfig");
  take(n.split, "ncclCommSplit");
  take(n.destroy, "ncclCommDestroy");
  take(n.abort, "ncclCommAbort");
  take(n.async_error, "ncclCommGetAsyncError");
  take(n.all_gather, "ncclAllGather");
  take(n.reduce_scatter, "ncclReduceScatter");
  take(n.all_reduce, "ncclAllReduce");
  take(n.group_start, "ncclGroupStart");
  take(n.group_end, "ncclGroupEnd");
  take(n.send, "ncclSend");
  take(n.receive, "ncclRecv");
  take(n.mem_alloc, "ncclMemAlloc");
  take(n.mem_free, "ncclMemFree");
  take(n.register_buffer, "ncclCommRegister");
  take(n.deregister_buffer, "ncclCommDeregister");
  take(n.register_window, "ncclCommWindowRegister");
  take(n.deregister_window, "ncclCommWindowDeregister");
  return n;
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
  static const Nccl loaded = load();
  return loaded;
}

}  // namespace ofsdp::kernels::cuda
