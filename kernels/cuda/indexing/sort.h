// A stable sort of keys, each with its place: what sums of scattered values are put in order by,
// and lines by their values. CUB's radix sort; 2^31 keys at most.
//
//   Sorting<uint32_t> s = sorting_of<uint32_t>(count, bits, scratch);   // keys of `bits` bits
//   ... a kernel fills s.keys; s.places are filled here
//   sort(s, stream);                                                    // s.sorted, and s.moved:
//                                                                       their places before
//
// Ownership: views of the scratch. Needs a device for CUB to say how much it wants; of planning.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

template <typename Key>  // uint32_t, uint64_t
struct Sorting {
  int64_t count = 0;
  int bits = 0;
  Key *keys = nullptr, *sorted = nullptr;
  uint32_t *places = nullptr, *moved = nullptr;
  void* own = nullptr;
  size_t own_bytes = 0, total = 0;
};

template <typename Key>
Sorting<Key> sorting_of(int64_t count, int bits, void* scratch);
template <typename Key>
cudaError_t sort(const Sorting<Key>& s, cudaStream_t stream);

int bits_of(int64_t n);  // of numbers 0 .. n - 1

}  // namespace ofsdp::kernels::cuda
