#include "cuda_runtime.h"

namespace ofsdp::kernels::cuda {

void take_turns_backwards(bool backwards) { emulator::set_backwards(backwards); }

}  // namespace ofsdp::kernels::cuda
