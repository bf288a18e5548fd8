// A thread a unit: 16 bytes where rows and columns of both sides are whole ones, else an element.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/matmul/product_padding.h"

namespace ofsdp::kernels::cuda {
namespace {

template <typename Unit>
OFSDP_CUDA_KERNEL copy_kernel(const Unit* from, StoredMatrix of_from, Unit* to,
                              StoredMatrix of_to) {
  OFSDP_CUDA_ITEM(i, of_to.rows * of_to.columns);
  const int64_t r = i / of_to.columns, c = i - r * of_to.columns;
  const bool there = r < of_from.rows && c < of_from.columns;
  to[r * of_to.row + c] = there ? from[r * of_from.row + c] : Unit{};
}

template <typename Unit>
OFSDP_CUDA_KERNEL clear_kernel(Unit* data, StoredMatrix of, int64_t begin) {
  const int64_t width = of.columns - begin;
  OFSDP_CUDA_ITEM(i, of.rows * width);
  const int64_t r = i / width;
  data[r * of.row + begin + (i - r * width)] = Unit{};
}

template <typename Unit>
StoredMatrix in_units(StoredMatrix m, size_t size) {
  const auto elements = static_cast<int64_t>(sizeof(Unit) / size);
  return {m.rows, m.columns / elements, m.row / elements};
}

template <typename Unit>
bool is_whole(const StoredMatrix& m, size_t size, const void* data) {
  const auto elements = static_cast<int64_t>(sizeof(Unit) / size);
  return m.columns % elements == 0 && m.row % elements == 0 &&
         reinterpret_cast<uintptr_t>(data) % sizeof(Unit) == 0;
}

}  // namespace

cudaError_t copy_padded(size_t size, const void* from, const StoredMatrix& of_from, void* to,
                        const StoredMatrix& of_to, cudaStream_t stream) {
  const auto run = [&]<typename Unit>(Unit) {
    return over(of_to.rows * of_to.columns / static_cast<int64_t>(sizeof(Unit) / size), stream,
                copy_kernel<Unit>, static_cast<const Unit*>(from), in_units<Unit>(of_from, size),
                static_cast<Unit*>(to), in_units<Unit>(of_to, size));
  };
  const bool wide = is_whole<uint4>(of_from, size, from) && is_whole<uint4>(of_to, size, to);
  if (wide) return run(uint4{});
  return size == 2 ? run(uint16_t{}) : run(uint32_t{});
}

cudaError_t clear_columns(size_t size, void* data, const StoredMatrix& of, int64_t begin,
                          cudaStream_t stream) {
  const int64_t elements = of.rows * (of.columns - begin);
  return size == 2 ? over(elements, stream, clear_kernel<uint16_t>, static_cast<uint16_t*>(data),
                          of, begin)
                   : over(elements, stream, clear_kernel<uint32_t>, static_cast<uint32_t*>(data),
                          of, begin);
}

}  // namespace ofsdp::kernels::cuda
