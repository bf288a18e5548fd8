// OFSDP_MULTIARCH (kernels/cpu/parallel.h): AVX-512, AVX2 and baseline x86-64. Sanitizers cannot
// run in the resolvers that clones need.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OFSDP_MULTIARCH
#else
#define OFSDP_MULTIARCH \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), no_stack_protector))
#endif
