// Stable radix sort by CUB. The order of later sums follows from this sort, and CUB's order is
// fixed.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/sort.h"

namespace ofsdp::kernels::cuda {
namespace {

OFSDP_CUDA_KERNEL places_kernel(int64_t count, uint32_t* positions) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) positions[i] = static_cast<uint32_t>(i);
}

template <typename Key>
cudaError_t call(const Sorting<Key>& s, void* own, size_t& bytes, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(own, bytes, static_cast<const Key*>(s.keys), s.sorted,
                                         static_cast<const uint32_t*>(s.positions), s.order,
                                         static_cast<int>(s.count), 0, s.bits, stream);
}

}  // namespace

int bit_count(int64_t n) {
  int bits = 1;
  while (bits < 62 && (int64_t{1} << bits) < n) ++bits;
  return bits;
}

template <typename Key>
Sorting<Key> make_sorting(int64_t count, int bits, void* scratch) {
  Sorting<Key> s;
  s.count = count;
  s.bits = bits;
  const auto take = [&](size_t bytes) {
    char* const here = static_cast<char*>(scratch) + s.total;
    s.total += round_up(bytes);
    return static_cast<void*>(here);
  };
  const auto n = static_cast<size_t>(count);
  s.keys = static_cast<Key*>(take(n * sizeof(Key)));
  s.sorted = static_cast<Key*>(take(n * sizeof(Key)));
  s.positions = static_cast<uint32_t*>(take(n * sizeof(uint32_t)));
  s.order = static_cast<uint32_t*>(take(n * sizeof(uint32_t)));
  if (call(s, nullptr, s.own_bytes, nullptr) != cudaSuccess) s.own_bytes = 0;
  s.own = take(s.own_bytes);
  return s;
}

template <typename Key>
cudaError_t sort(const Sorting<Key>& s, cudaStream_t stream) {
  OFSDP_CUDA_TRY(over(s.count, stream, places_kernel, s.count, s.positions));
  size_t bytes = s.own_bytes;
  return call(s, s.own, bytes, stream);
}

template Sorting<uint32_t> make_sorting(int64_t, int, void*);
template Sorting<uint64_t> make_sorting(int64_t, int, void*);
template cudaError_t sort(const Sorting<uint32_t>&, cudaStream_t);
template cudaError_t sort(const Sorting<uint64_t>&, cudaStream_t);

}  // namespace ofsdp::kernels::cuda
