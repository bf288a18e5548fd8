#include "kernels/ops/recurrent/recurrent_parameter_grad.h"

#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/recurrent/recurrent_operands.h"

namespace ofsdp::kernels::ops {
namespace {

template <typename T>
RecurrentProduct<T> made(MatrixProduct p, bool transpose_a,
                         MatrixProduct::Addend addend = MatrixProduct::Addend::kNone) {
  p.transpose_a = transpose_a;
  p.addend = addend;
  return RecurrentProduct<T>(p);
}

}  // namespace

template <typename T>
RecurrentParameterGrad<T>::RecurrentParameterGrad(const RecurrentShape& s, const Problem& p)
    : s_(s),
      diff_w_(is_wanted(p, kDiffW)),
      diff_r_(is_wanted(p, kDiffR)),
      diff_b_(is_wanted(p, kDiffB)),
      diff_p_(is_wanted(p, kDiffP)) {
  const DType dtype = dtype_of<T>();
  const int64_t rows = s_.steps * s_.batch, h = s_.hidden;
  const MatrixProduct x = plain_product(dtype, rows, s_.width(), s_.in);
  to_x_ = made<T>(x, false);
  add_to_x_ = made<T>(x, false, MatrixProduct::Addend::kAccumulate);
  to_w_ = made<T>(plain_product(dtype, s_.width(), rows, s_.in), true);
  to_r_ = made<T>(plain_product(dtype, s_.recurrent_width(), rows, h), true);
  if (s_.resets_first()) to_r_n_ = made<T>(plain_product(dtype, h, rows, h), true);
}

template <typename T>
size_t RecurrentParameterGrad<T>::workspace_bytes() const {
  return std::max({to_x_.workspace_bytes(), add_to_x_.workspace_bytes(), to_w_.workspace_bytes(),
                   to_r_.workspace_bytes(), to_r_n_.workspace_bytes()});
}

template <typename T>
Status RecurrentParameterGrad<T>::run(const KernelArgs& a, int64_t d,
                                      const RecurrentSteps<T>& steps, T* diff_x,
                                      std::byte* scratch) {
  const int64_t width = s_.width();
  if (diff_x != nullptr) {
    OFSDP_RETURN_IF_ERROR(
        (d == 0 ? to_x_ : add_to_x_)
            .run(steps.gates, a.in<T>(kW) + d * width * s_.in, nullptr, diff_x, scratch));
  }
  OFSDP_RETURN_IF_ERROR(weights(a, d, steps, scratch));
  if (diff_b_) bias(steps, a.out<T>(kDiffB) + d * 2 * width);
  if (diff_p_) peepholes(a, d, steps, a.out<T>(kDiffP) + d * 3 * s_.hidden);
  return ok_status();
}

template <typename T>
Status RecurrentParameterGrad<T>::weights(const KernelArgs& a, int64_t d,
                                          const RecurrentSteps<T>& steps, std::byte* scratch) {
  const int64_t h = s_.hidden, width = s_.width();
  if (diff_w_) {
    OFSDP_RETURN_IF_ERROR(
        to_w_.run(steps.gates, steps.x, nullptr, a.out<T>(kDiffW) + d * width * s_.in, scratch));
  }
  if (!diff_r_) return ok_status();
  T* dr = a.out<T>(kDiffR) + d * width * h;
  OFSDP_RETURN_IF_ERROR(to_r_.run(steps.recurrent, steps.before, nullptr, dr, scratch));
  if (!s_.resets_first()) return ok_status();
  return to_r_n_.run(steps.last, steps.reset, nullptr, dr + 2 * h * h, scratch);
}

template <typename T>
void RecurrentParameterGrad<T>::bias(const RecurrentSteps<T>& steps, T* db) const {
  const int64_t width = s_.width();
  std::fill_n(db, 2 * width, T{0});
  const T* gates = steps.gates;
  const T* recurrent = s_.linear_before_reset ? steps.recurrent : gates;
  for (int64_t row = 0; row < s_.steps * s_.batch; ++row) {
    for (int64_t k = 0; k < width; ++k) {
      db[k] += gates[row * width + k];
      db[width + k] += recurrent[row * width + k];
    }
  }
}

template <typename T>
void RecurrentParameterGrad<T>::peepholes(const KernelArgs& a, int64_t d,
                                          const RecurrentSteps<T>& steps, T* dp) const {
  const int64_t h = s_.hidden;
  std::fill_n(dp, 3 * h, T{0});
  for (int64_t t = 0; t < s_.steps; ++t) {
    for (int64_t b = 0; b < s_.batch; ++b) {
      if (!is_active(s_, a, t, b)) continue;
      const T* before = cell_before(s_, a, d, t, b, steps.zeros);
      const T* cell = a.in<T>(kSaved) + s_.saved_at(t, d, b) + 4 * h;
      const T* gates = steps.gates + (t * s_.batch + b) * s_.width();
      for (int64_t k = 0; k < h; ++k) {
        dp[k] += gates[k] * before[k];
        dp[h + k] += gates[h + k] * cell[k];
        dp[2 * h + k] += gates[2 * h + k] * before[k];
      }
    }
  }
}

template class RecurrentParameterGrad<float>;
template class RecurrentParameterGrad<double>;

}  // namespace ofsdp::kernels::ops
