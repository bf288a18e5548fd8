#include "kernels/cuda/device/nccl.h"

namespace ofsdp::kernels::cuda {
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

}  // namespace ofsdp::kernels::cuda
