namespace ofsdp::kernels::cuda {

void take_turns_backwards(bool) {}

}  // namespace ofsdp::kernels::cuda
