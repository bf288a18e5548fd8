// OFSDP_MULTIARCH (kernels/cpu/parallel.h): one version, since the baseline has NEON and GCC's
// vectoriser uses it.
#pragma once

#define OFSDP_MULTIARCH __attribute__((no_stack_protector))
