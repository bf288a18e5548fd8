// Tensor cores and copies into shared memory as instructions (PTX ISA,
// "Warp Level Matrix Instructions" and "Asynchronous copy"; compute capability 8.0). tests/emulator
// has a file of this name with the same functions in C++; the include path chooses.
//
// Pieces of matrices lie across a warp. Of lane l, g = l / 4, t = l % 4, a word being two
// neighbours of 16 bits:
//
//   A [16, 16]  word 0: row g, columns 2t, 2t + 1; word 1: row g + 8; word 2: row g, columns 2t +
//               8, 2t + 9; word 3: both
//   B [16, 8]   word 0: rows 2t, 2t + 1 of column g; word 1: rows 2t + 8, 2t + 9
//   C [16, 8]   0, 1: row g, columns 2t, 2t + 1; 2, 3: row g + 8
//
// Every lane of a warp takes part in every call but those of copies. Ownership: views. Errors:
// none.
#pragma once

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

struct alignas(16) Chunk {  // eight elements
  uint32_t word[4];
};

// 16 bytes to shared memory, on their way until wait_for_copies; zeros unless `there`. `from` is a
// valid address either way.
__device__ inline void copy_async(Chunk* to, const void* from, bool there) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
               : "memory");
}

// This thread's copies have arrived; a barrier then shows them to others.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8. Word i of a lane: row g of matrix i,
// columns 2t, 2t + 1.
__device__ inline Chunk load_matrices(const Chunk* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  Chunk m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.word[0]), "=r"(m.word[1]), "=r"(m.word[2]), "=r"(m.word[3])
               : "r"(at)
               : "memory");
  return m;
}

// The same matrices transposed. Word i of a lane: column g of matrix i, rows 2t, 2t + 1.
__device__ inline Chunk load_turned_matrices(const Chunk* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  Chunk m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.word[0]), "=r"(m.word[1]), "=r"(m.word[2]), "=r"(m.word[3])
               : "r"(at)
               : "memory");
  return m;
}

template <typename T>
struct TensorCore;

template <>
struct TensorCore<__nv_bfloat16> {
  // c += a b. Products are exact, sums float32.
  static __device__ inline void multiply(float (&c)[4], const Chunk& a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  }
  // A word of two, rounded to nearest even.
  static __device__ inline uint32_t two(float first, float second) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
  }
};

template <>
struct TensorCore<__half> {
  static __device__ inline void multiply(float (&c)[4], const Chunk& a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  }
  static __device__ inline uint32_t two(float first, float second) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
  }
};

}  // namespace ofsdp::kernels::cuda
