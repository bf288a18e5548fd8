# The baseline runs on any x86-64 since 2009. OFSDP_MULTIARCH clones hot loops for AVX2 and AVX-512 (kernels/).
set(OFSDP_BASELINE -march=x86-64-v2)
set(OFSDP_LANDING_PADS -fcf-protection)
# [Note: OFSDP_MAX_CPU_ISA] kernels/cpu/x86/cpu_isa.cpp comes between the resolvers of cloned functions and libgcc.
set(OFSDP_CLONES_LINK LINKER:--wrap=__cpu_indicator_init)
