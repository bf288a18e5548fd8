// OFSDP_HD marks a function that computes one element, for CPU loops, chains, CUDA kernels and
// NVRTC. NVRTC gets kernels/formulas/activation.h as text without preprocessor lines, after a
// device definition for OFSDP_HD.
#pragma once

#if defined(__CUDACC__)
#define OFSDP_HD __host__ __device__ inline
#else
#define OFSDP_HD [[gnu::always_inline]] inline
#endif
