#include "kernels/cpu/onednn_presence.h"

namespace ofsdp::kernels::onednn {

bool is_present() { return false; }
bool has_avx512() { return false; }

}  // namespace ofsdp::kernels::onednn
