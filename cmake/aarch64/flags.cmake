# Any 64-bit Arm processor; NEON is part of it.
set(OFSDP_BASELINE -march=armv8-a)
set(OFSDP_LANDING_PADS -mbranch-protection=standard)
set(OFSDP_CLONES_LINK)
