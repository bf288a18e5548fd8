#include "kernels/cpu/pointwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/real_math.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/formulas/activation.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kWideBlock = 1024;

// A block operand in float32.
struct WideOperand {
  alignas(64) std::array<float, kWideBlock> values;
  int64_t step = 1;

  void load(DType dtype, const void* from, int64_t step_of_src, int64_t begin, int64_t n) {
    const auto* src = static_cast<const uint16_t*>(from);
    step = step_of_src == 0 ? 0 : 1;
    if (step_of_src <= 1) {
      widen(dtype, src + begin * step_of_src, values.data(), step_of_src == 0 ? 1 : n);
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      widen(dtype, src + (begin + i) * step_of_src, &values[static_cast<size_t>(i)], 1);
    }
  }
};

class PointwiseKernel final : public Kernel {
 public:
  PointwiseKernel(const PointwiseLoops& loops, const Numbers& numbers, const Problem& p)
      : loop_(loop_of(loops, p)),
        row_(loops[is_16_bit_float(p.in(0).dtype) ? DType::kFloat32 : p.in(0).dtype]),
        numbers_(numbers),
        dtype_(p.in(0).dtype),
        in_bytes_(static_cast<int64_t>(dtype_size(p.in(0).dtype))),
        out_bytes_(loops.to_bool ? 1 : in_bytes_),
        binary_(loops.operands == 2) {}

  Status run(const KernelArgs& args) override {
    const auto* a = args.in<std::byte>(0);
    const auto* b = binary_ ? args.in<std::byte>(1) : a;
    auto* y = args.out<std::byte>(0);
    for_loop_rows(loop_, [&](const StridedLoop::Offsets& at, int64_t n) {
      const PointwiseRow row{a + at[0] * in_bytes_, loop_.inner_stride(0),  b + at[1] * in_bytes_,
                             loop_.inner_stride(1), y + at[2] * out_bytes_, n};
      if (is_16_bit_float(dtype_)) {
        run_blocks(row);
      } else {
        row_(row, numbers_);
      }
    });
    return ok_status();
  }

 private:
  // A unary loop walks elements in memory order.
  static StridedLoop loop_of(const PointwiseLoops& loops, const Problem& p) {
    if (loops.operands == 2) return binary_loop(p);
    return {Shape{p.out(0).numel()}, {{1}, {1}, {1}}};
  }

  void run_blocks(const PointwiseRow& row) const {
    WideOperand a, b;
    alignas(64) std::array<float, kWideBlock> y;  // or as many bool
    for (int64_t begin = 0; begin < row.n; begin += kWideBlock) {
      const int64_t n = std::min(kWideBlock, row.n - begin);
      a.load(dtype_, row.a, row.step_a, begin, n);
      if (binary_) b.load(dtype_, row.b, row.step_b, begin, n);
      row_({a.values.data(), a.step, b.values.data(), b.step, y.data(), n}, numbers_);
      auto* to = static_cast<std::byte*>(row.y) + begin * out_bytes_;
      if (out_bytes_ == 1) {
        std::memcpy(to, y.data(), static_cast<size_t>(n));
      } else {
        narrow(y.data(), dtype_, to, n);
      }
    }
  }

  StridedLoop loop_;
  RowLoop row_;
  Numbers numbers_;
  DType dtype_;
  int64_t in_bytes_, out_bytes_;
  bool binary_;
};

Acceptance accepts_operands(const PointwiseLoops& loops, const Problem& p) {
  if (loops.operands == 2) return accept_if(p.in(0).dtype == p.in(1).dtype, "inputs of two dtypes");
  return accept_if(p.in(0).layout == p.out(0).layout, "input and output of two layouts");
}

}  // namespace

PointwiseLoops joined_loops(PointwiseLoops a, const PointwiseLoops& b) {
  for (size_t i = 0; i < a.of.size(); ++i) a.of[i] = a.of[i] != nullptr ? a.of[i] : b.of[i];
  return a;
}

Acceptance accepts_pointwise(const PointwiseLoops& loops, const Problem& p) {
  if (loops[p.in(0).dtype] == nullptr) return Acceptance::refuse("no loop for this dtype");
  return accepts_operands(loops, p);
}

std::unique_ptr<Kernel> create_pointwise(const PointwiseLoops& loops, const Numbers& numbers,
                                         const Problem& p) {
  return std::make_unique<PointwiseKernel>(loops, numbers, p);
}

std::vector<Implementation> pointwise_kernels(const char* op, const PointwiseLoops& loops,
                                              HalfFloats half) {
  const auto create = [op, loops](const Problem& p) {
    return create_pointwise(loops, numbers_of(op, p.attributes), p);
  };
  std::vector<Implementation> made = {
      {"loops", [loops](const Problem& p) { return accepts_pointwise(loops, p); }, create}};
  if (loops[DType::kFloat32] == nullptr) return made;
  if (half == HalfFloats::kWhole) {
    made.push_back(in_float32(made[0]));
  } else {
    const auto accepts = [loops](const Problem& p) {
      if (!is_16_bit_float(p.in(0).dtype)) return Acceptance::refuse("not a 16-bit float");
      return accepts_operands(loops, p);
    };
    made.push_back({"blocks", accepts, create});
  }
  return made;
}

namespace {

// In ChainOp order.
std::array<PointwiseLoops, kChainOps> all_loops() {
  return {{{},  // kNumber
           {},  // kRound
           binary_loops<OFSDP_AB(a + b)>(),
           binary_loops<OFSDP_AB(a - b)>(),
           binary_loops<OFSDP_AB(a * b)>(),
           binary_loops<OFSDP_AB(a / b)>(),
           unary_loops<OFSDP_X(-x)>(),
           unary_loops<OFSDP_X(relu_of(x))>(),
           unary_loops<OFSDP_X(sigmoid_of<M>(x))>(),
           unary_loops<OFSDP_X(M::tanh(x))>(),
           unary_loops<OFSDP_X(M::exp(x))>(),
           unary_loops<OFSDP_X(M::log(x))>(),
           unary_loops<OFSDP_X(M::sqrt(x))>(),
           unary_loops<OFSDP_X(decltype(x)(1) / x)>(),
           unary_loops<OFSDP_X(M::erf(x))>(),
           unary_loops<OFSDP_X(softplus_of<M>(x))>(),
           unary_loops<OFSDP_X(gelu_of<M>(x))>(),
           unary_loops<OFSDP_X(gelu_tanh_of<M>(x))>(),
           binary_loops<OFSDP_DX(relu_grad(d, x))>(),
           binary_loops<OFSDP_DX(sigmoid_grad(d, x))>(),
           binary_loops<OFSDP_DX(tanh_grad(d, x))>(),
           binary_loops<OFSDP_DX(erf_grad<M>(d, x))>(),
           binary_loops<OFSDP_DX(softplus_grad<M>(d, x))>(),
           binary_loops<OFSDP_DX(d * M::gelu_slope(x))>(),
           binary_loops<OFSDP_DX(d * gelu_tanh_slope<M>(x))>()}};
}

}  // namespace

PointwiseLoops chain_loops(ChainOp op) { return all_loops()[static_cast<size_t>(op)]; }

}  // namespace ofsdp::kernels
