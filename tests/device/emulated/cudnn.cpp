// Takes the place of cuDNN if OFSDP_CUDNN_LIBRARY is "stand-in": attention by plain loops in
// double, as kernels/cuda/cudnn/plan.h defines it, at once. Undefined results become NaN: rows
// without visible keys, and dk and dv of keys after a sample's length. So a result without NaN
// shows that kernels/cuda/cudnn/attention_operators.cpp does not read them.
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "kernels/cpu/stored_floats.h"
#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// 16-bit elements in memory.
struct Elements {
  void* data;
  DType dtype;

  double get(int64_t i) const {
    if (dtype == DType::kBFloat16) return as_float(static_cast<const BFloat16*>(data)[i]);
    return half_to_float(static_cast<const uint16_t*>(data)[i]);
  }
  void set(int64_t i, double value) const {
    from_doubles(std::array{value}, {dtype, {1}}, static_cast<std::byte*>(data) + 2 * i);
  }
};

struct Item {
  int64_t b, h, kv;
};

int64_t place(const HeadStrides& s, int64_t b, int64_t h, int64_t row) {
  return b * s.batch + h * s.head + row * s.row;
}

class StandIn final : public CudnnPlan {
 public:
  StandIn(const CudnnAttention& a, const HeadStrides& y, bool backward, bool statistics)
      : a_(a), y_(y), backward_(backward), statistics_(statistics) {}

  size_t workspace_bytes() const override { return 512; }

  cudaError_t run(cudaStream_t, std::span<void*> operands, void* workspace) override {
    std::memset(workspace, 0xFF, workspace_bytes());
    o_ = operands;
    if (backward_) blank_gradients();
    for (int64_t b = 0; b < a_.e.batch; ++b) {
      for (int64_t h = 0; h < a_.e.heads; ++h) {
        const Item item{b, h, h / (a_.e.heads / a_.e.kv_heads)};
        backward_ ? gradients(item) : results(item);
      }
    }
    if (backward_) store_gradients();
    return cudaSuccess;
  }

 private:
  Elements at(size_t operand) const { return {o_[operand], a_.e.dtype}; }
  size_t mask_at() const { return backward_ ? 6 : statistics_ ? 5 : 4; }
  int64_t length(size_t which, int64_t b, int64_t otherwise) const {
    if (a_.mask != ops::MaskUse::kLengths) return otherwise;
    return static_cast<const int32_t*>(o_[mask_at() + which])[b];
  }

  // Returns the score before softcap, times the scale.
  double raw(const Item& item, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t c = 0; c < a_.e.width; ++c) {
      sum += at(0).get(place(a_.e.q, item.b, item.h, i) + c) *
             at(1).get(place(a_.e.k, item.b, item.kv, j) + c);
    }
    return sum * static_cast<double>(a_.e.scale);
  }
  double capped(double score) const {
    const auto cap = static_cast<double>(a_.e.softcap);
    return cap > 0 ? cap * std::tanh(score / cap) : score;
  }
  double bias(const Item& item, int64_t i, int64_t j) const {
    if (a_.mask != ops::MaskUse::kBias) return 0;
    const MaskBias& m = a_.bias;
    const int64_t b = m.batch > 1 ? item.b : 0, h = m.heads > 1 ? item.h : 0;
    const int64_t row = m.rows > 1 ? i : 0;
    return at(mask_at()).get(((b * m.heads + h) * m.rows + row) * m.pitch + j);
  }
  bool sees(const Item& item, int64_t i, int64_t j) const {
    const AttentionParams& e = a_.e;
    const int64_t keys = length(1, item.b, e.keys), queries = length(0, item.b, e.queries);
    const bool last = a_.to_last_key || e.offset != 0;
    const int64_t diagonal = i + (last ? keys - queries : 0), right = e.causal ? 0 : e.right;
    if (i >= queries || j >= keys) return false;
    if (right >= 0 && j > diagonal + right) return false;
    return e.left < 0 || j >= diagonal - e.left;
  }

  void results(const Item& item) const {
    const AttentionParams& e = a_.e;
    for (int64_t i = 0; i < e.queries; ++i) {
      double sum = 0, max = -INFINITY;
      std::vector<double> score(static_cast<size_t>(e.keys), -INFINITY);
      for (int64_t j = 0; j < e.keys; ++j) {
        if (!sees(item, i, j)) continue;
        double& s = score[static_cast<size_t>(j)];
        s = capped(raw(item, i, j)) + bias(item, i, j);
        max = std::max(max, s);
      }
      for (double& s : score) s = std::exp(s - max);
      for (const double s : score) sum += s;
      for (int64_t c = 0; c < e.v_width; ++c) {
        double y = 0;
        for (int64_t j = 0; j < e.keys; ++j) {
          const double p = score[static_cast<size_t>(j)] / sum;
          if (p != 0) y += p * at(2).get(place(e.v, item.b, item.kv, j) + c);
        }
        at(3).set(place(e.y, item.b, item.h, i) + c, max == -INFINITY ? kNone : y);
      }
      if (!statistics_) continue;
      const double kept = max == -INFINITY ? kNone : max + std::log(sum);
      static_cast<float*>(o_[4])[(item.b * e.heads + item.h) * e.queries + i] =
          static_cast<float>(kept);
    }
  }

  void blank_gradients() {
    const AttentionParams& e = a_.e;
    const auto size = [&](int64_t heads, int64_t rows, int64_t width) {
      return std::vector<double>(static_cast<size_t>(e.batch * heads * rows * width));
    };
    dq_ = size(e.heads, e.queries, e.width);
    dk_ = size(e.kv_heads, e.keys, e.width);
    dv_ = size(e.kv_heads, e.keys, e.v_width);
  }

  void gradients(const Item& item) {
    const AttentionParams& e = a_.e;
    for (int64_t i = 0; i < e.queries; ++i) {
      double delta = 0;
      const double kept = static_cast<double>(
          static_cast<const float*>(o_[5])[(item.b * e.heads + item.h) * e.queries + i]);
      for (int64_t c = 0; c < e.v_width; ++c) {
        delta += slope(item, i, c) * at(3).get(place(y_, item.b, item.h, i) + c);
      }
      bool any = false;
      for (int64_t j = 0; j < e.keys; ++j) {
        if (!sees(item, i, j)) continue;
        any = true;
        add(item, i, j, kept, delta);
      }
      if (any) continue;
      for (int64_t c = 0; c < e.width; ++c) {
        dq_[static_cast<size_t>(((item.b * e.heads + item.h) * e.queries + i) * e.width + c)] =
            kNone;
      }
    }
  }
  double slope(const Item& item, int64_t i, int64_t c) const {
    return at(4).get(place(a_.e.y, item.b, item.h, i) + c);
  }
  void add(const Item& item, int64_t i, int64_t j, double kept, double delta) {
    const AttentionParams& e = a_.e;
    const double score = capped(raw(item, i, j)), cap = static_cast<double>(e.softcap);
    const double p = std::exp(score + bias(item, i, j) - kept);
    const auto from_q = (item.b * e.heads + item.h) * e.queries + i;
    const auto from_k = (item.b * e.kv_heads + item.kv) * e.keys + j;
    double dp = 0;
    for (int64_t c = 0; c < e.v_width; ++c) {
      dp += slope(item, i, c) * at(2).get(place(e.v, item.b, item.kv, j) + c);
      dv_[static_cast<size_t>(from_k * e.v_width + c)] += p * slope(item, i, c);
    }
    double ds = p * (dp - delta) * static_cast<double>(e.scale);
    if (cap > 0) ds *= 1 - std::pow(score / cap, 2);
    for (int64_t c = 0; c < e.width; ++c) {
      dq_[static_cast<size_t>(from_q * e.width + c)] +=
          ds * at(1).get(place(e.k, item.b, item.kv, j) + c);
      dk_[static_cast<size_t>(from_k * e.width + c)] +=
          ds * at(0).get(place(e.q, item.b, item.h, i) + c);
    }
  }

  void store_gradients() {
    const AttentionParams& e = a_.e;
    const size_t first = o_.size() - 3;
    store(first, dq_, e.q, e.heads, e.queries, e.width, false);
    store(first + 1, dk_, e.k, e.kv_heads, e.keys, e.width, true);
    store(first + 2, dv_, e.v, e.kv_heads, e.keys, e.v_width, true);
  }
  void store(size_t operand, const std::vector<double>& values, const HeadStrides& to,
             int64_t heads, int64_t rows, int64_t width, bool of_keys) {
    for (int64_t i = 0; i < a_.e.batch * heads * rows; ++i) {
      const int64_t row = i % rows, h = i / rows % heads, b = i / rows / heads;
      const bool none = of_keys && row >= length(1, b, rows);
      for (int64_t c = 0; c < width; ++c) {
        at(operand).set(place(to, b, h, row) + c,
                        none ? kNone : values[static_cast<size_t>(i * width + c)]);
      }
    }
  }

  CudnnAttention a_;
  HeadStrides y_;
  bool backward_, statistics_;
  std::span<void*> o_;
  std::vector<double> dq_, dk_, dv_;  // [batch, heads, rows, width]
};

bool stands_in() {
  const char* const library = std::getenv("OFSDP_CUDNN_LIBRARY");
  return library != nullptr && std::string_view(library) == "stand-in";
}

}  // namespace

void add_cudnn_convolutions(CudaImplementations&) {}

CudnnTarget cudnn_target(DeviceState&) { return {}; }

std::unique_ptr<CudnnPlan> plan_attention(const CudnnTarget&, const CudnnAttention& a,
                                          bool statistics) {
  return stands_in() ? std::make_unique<StandIn>(a, a.e.y, false, statistics) : nullptr;
}

std::unique_ptr<CudnnPlan> plan_attention_grad(const CudnnTarget&, const CudnnAttention& a,
                                               const HeadStrides& y_strides) {
  return stands_in() ? std::make_unique<StandIn>(a, y_strides, true, true) : nullptr;
}

}  // namespace ofsdp::kernels::cuda
