#include "fsdp/comm/local/peer_wait.h"

namespace ofsdp::fsdp {

void relax() { __builtin_ia32_pause(); }

}  // namespace ofsdp::fsdp
