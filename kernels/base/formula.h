// OFSDP_HD: a function of one element for CPU loops, chains, CUDA kernels and, as text, NVRTC.
// NVRTC gets the headers of kernels/formulas without their preprocessor lines, after a definition
// of OFSDP_HD for device code.
#pragma once

#if defined(__CUDACC__)
#define OFSDP_HD __host__ __device__ inline
#else
#define OFSDP_HD [[gnu::always_inline]] inline
#endif
