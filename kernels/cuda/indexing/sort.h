// Stable sort of keys with their original positions (CUB radix sort), for ordered sums and TopK. At
// most 2^31 keys.
//
//   Sorting<uint32_t> s = make_sorting<uint32_t>(count, bits, scratch);   // keys have `bits` bits
//   ... a kernel fills s.keys ...
//   sort(s, stream);                                // s.sorted: keys; s.order: original positions
//
// Sorting points into the scratch memory; `total` is the size needed. Call make_sorting while
// planning: CUB asks the device.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

template <typename Key>  // uint32_t, uint64_t
struct Sorting {
  int64_t count = 0;
  int bits = 0;
  Key *keys = nullptr, *sorted = nullptr;
  uint32_t *positions = nullptr, *order = nullptr;
  void* own = nullptr;
  size_t own_bytes = 0, total = 0;
};

template <typename Key>
Sorting<Key> make_sorting(int64_t count, int bits, void* scratch);
template <typename Key>
cudaError_t sort(const Sorting<Key>& s, cudaStream_t stream);

int bit_count(int64_t n);  // bits for numbers 0 .. n - 1

}  // namespace ofsdp::kernels::cuda
