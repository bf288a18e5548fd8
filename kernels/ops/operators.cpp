#include "kernels/ops/operators.h"

namespace ofsdp::kernels {

Registry make_registry() {
  Registry registry;
#define OP(name) ops::add_##name(registry);
#include "kernels/ops/operators.inc"
#undef OP
  return registry;
}

}  // namespace ofsdp::kernels
