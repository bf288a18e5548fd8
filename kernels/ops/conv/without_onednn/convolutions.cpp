#include "kernels/cpu/products.h"
#include "kernels/ops/conv/conv_shape.h"

namespace ofsdp::kernels::ops {

Acceptance onednn_accepts_conv(const Problem&) { return Acceptance::refuse(onednn::kNoOneDnn); }
std::unique_ptr<Kernel> make_onednn_conv(const Problem&) { return nullptr; }

Acceptance onednn_accepts_conv_grad_input(const Problem&) {
  return Acceptance::refuse(onednn::kNoOneDnn);
}
std::unique_ptr<Kernel> make_onednn_conv_grad_input(const Problem&) { return nullptr; }

Acceptance onednn_accepts_conv_grad_weights(const Problem&) {
  return Acceptance::refuse(onednn::kNoOneDnn);
}
std::unique_ptr<Kernel> make_onednn_conv_grad_weights(const Problem&) { return nullptr; }

}  // namespace ofsdp::kernels::ops
