#include "fsdp/comm/local/relax.h"

namespace ofsdp::fsdp {

void relax() { __builtin_ia32_pause(); }

}  // namespace ofsdp::fsdp
