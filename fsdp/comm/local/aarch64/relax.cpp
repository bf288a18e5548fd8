#include "fsdp/comm/local/peer_wait.h"

namespace ofsdp::fsdp {

void relax() { asm volatile("isb" ::: "memory"); }  // "yield" does not wait on most processors

}  // namespace ofsdp::fsdp
