#include "kernels/base/status.h"
#include "kernels/cpu/products.h"
#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp::kernels::ops {

bool onednn_may_multiply(const MatrixProduct&) { return false; }

bool onednn_multiplies(const MatrixProduct&) { return false; }

std::unique_ptr<Kernel> make_onednn_product(const MatrixProduct& p) {
  OFSDP_CHECK(false, "a product of {} x {} x {}: {}", p.rows, p.inner, p.columns,
              onednn::kNoOneDnn);
  return nullptr;
}

}  // namespace ofsdp::kernels::ops
