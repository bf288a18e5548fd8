namespace ofsdp::cuda {

void take_turns_backwards(bool) {}

}  // namespace ofsdp::cuda
