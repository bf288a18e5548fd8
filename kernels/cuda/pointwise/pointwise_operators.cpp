// Pointwise operators and their gradients, Where and Cast: kernels/cuda/pointwise/pointwise.h.
#include <algorithm>
#include <limits>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {
namespace {

// "GeluTanhGrad" of ofsdp.GeluGrad with approximate = tanh.
std::string name_of(const std::string& op, const Problem& p) {
  const Attributes& attributes = p.attributes;
  const std::string name = op.substr(op.rfind('.') + 1);  // npos + 1 is 0
  if (name == "QuickGelu") return "Swish";
  if (name == "FastGelu" && !p.has_in(1)) return "GeluTanh";
  if (attributes.s("approximate", "none") != "tanh") return name;
  return name == "Gelu" ? "GeluTanh" : name == "GeluGrad" ? "GeluTanhGrad" : name;
}

// ONNX's defaults, by operator.
PointwiseNumbers numbers_of(const std::string& op, const std::string& name, const Problem& p) {
  const Attributes& a = p.attributes;
  if (op == "com.microsoft.QuickGelu") return {a.f("alpha", 1.702f), 0};
  const auto is = [&](const char* op) { return name == op || name == std::string(op) + "Grad"; };
  if (is("LeakyRelu")) return {a.f("alpha", 0.01f), 0};
  if (is("Selu"))
    return {a.f("alpha", 1.67326319217681884765625f), a.f("gamma", 1.05070102214813232421875f)};
  if (is("HardSigmoid")) return {a.f("alpha", 0.2f), a.f("beta", 0.5f)};
  if (is("Shrink")) return {a.f("lambd", 0.5f), a.f("bias", 0.0f)};
  if (is("Mod")) return {static_cast<double>(a.i("fmod", 0)), 0};
  if (is("IsInf")) {
    return {static_cast<double>(a.i("detect_positive", 1)),
            static_cast<double>(a.i("detect_negative", 1))};
  }
  if (is("BitShift")) return {a.s("direction", "") == "LEFT" ? 1.0 : 0.0, 0};
  if (is("Clip")) {
    constexpr double kOpen = std::numeric_limits<double>::infinity();
    const size_t first = name == "Clip" ? 1 : 2;
    return {known_scalar(p, first, -kOpen), known_scalar(p, first + 1, kOpen)};
  }
  return {a.f("alpha", 1.0f), 0};
}

// Operands that are read: bounds of Clip are numbers, which must be known.
bool has_operands(const Problem& p, const std::string& name, int arity) {
  const auto count = static_cast<size_t>(arity);
  if (p.inputs.size() < count) return false;
  for (size_t i = count; i < p.inputs.size(); ++i) {
    const bool bound = name == "Clip" || name == "ClipGrad";
    if (p.has_in(i) && !(bound && p.constant(i) != nullptr)) return false;
  }
  return true;
}

// Layouts: elementwise operators take any, the same for all but single elements.
bool accepts(const std::string& op, const Problem& p) {
  const std::string name = name_of(op, p);
  const Pointwise known = pointwise_of(name);
  if (known == Pointwise::kUnknown || !p.has_in(0) || !has_kernel(known, p.in(0).dtype)) {
    return false;
  }
  if (!has_operands(p, name, pointwise_arity(known))) return false;
  for (int i = 0; i < pointwise_arity(known); ++i) {
    const TensorDesc& in = p.in(static_cast<size_t>(i));
    if (!in.present() || in.dtype != p.in(0).dtype) return false;
    const bool alike = in.shape == p.out(0).shape && in.layout == p.out(0).layout;
    if (!alike && in.numel() != 1 && !p.all_plain()) return false;
  }
  return true;
}

// Over the elements as they lie where layouts are not plain.
Walk walk_of(const Problem& p, int arity) {
  const bool plain = p.out(0).layout == Layout::kPlain;
  const std::vector<int64_t> shape =
      plain ? p.out(0).shape.axes() : std::vector<int64_t>{p.out(0).numel()};
  std::vector<std::vector<int64_t>> strides;
  for (int i = 0; i < arity; ++i) {
    const TensorDesc& in = p.in(static_cast<size_t>(i));
    if (plain) {
      strides.push_back(broadcast_strides(in.shape.axes(), shape));
    } else {
      strides.push_back({in.numel() == 1 ? 0 : 1});
    }
  }
  return collapsed(shape, strides);
}

std::unique_ptr<CudaKernel> create(const std::string& op, const Problem& p) {
  const std::string name = name_of(op, p);
  PointwiseCall call;
  call.op = pointwise_of(name);
  const bool second = pointwise_arity(call.op) > 1;
  call.dtype = p.in(0).dtype;
  call.numbers = numbers_of(op, name, p);
  call.walk = walk_of(p, pointwise_arity(call.op));
  if (call.walk.rank < 0) return nullptr;
  return make_cuda_kernel([call, second](cudaStream_t stream, const ofsdp_launch& l) {
    PointwiseCall c = call;
    c.a = l.inputs[0];
    c.b = second ? l.inputs[1] : nullptr;
    c.y = l.outputs[0];
    c.fault = fault_of(l);
    return pointwise(c, stream);
  });
}

CudaImplementation implementation_of(const std::string& op) {
  return {op, "own", [op](const Problem& p) { return accepts(op, p); },
          [op](ofsdp_device&, const Problem& p) { return create(op, p); }};
}

// Sum, Max and Min of any number of inputs: the first two at once, since either may be the output's
// place, then one after the other onto the output.
bool accepts_variadic(Pointwise op, const Problem& p) {
  const DType dtype = p.in(0).dtype;
  const bool alike =
      std::ranges::all_of(p.inputs, [&](const TensorDesc& in) { return in == p.out(0); });
  return (p.all_plain() || alike) && has_kernel(op, dtype) && p.all_dtype(dtype);
}

std::unique_ptr<CudaKernel> create_variadic(Pointwise op, const Problem& p) {
  const std::vector<int64_t>& shape = p.out(0).shape.axes();
  const auto strides = [&](size_t i) { return broadcast_strides(p.in(i).shape.axes(), shape); };
  std::vector<PointwiseCall> calls(std::max<size_t>(p.inputs.size(), 2) - 1);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].op = p.inputs.size() == 1 ? Pointwise::kIdentity : op;
    calls[i].dtype = p.in(0).dtype;
    std::vector<std::vector<int64_t>> operands{i == 0 ? strides(0) : dense_strides(shape)};
    if (p.inputs.size() > 1) operands.push_back(strides(i + 1));
    calls[i].walk = collapsed(shape, operands);
    if (calls[i].walk.rank < 0) return nullptr;
  }
  return make_cuda_kernel(
      [calls, one = p.inputs.size() == 1](cudaStream_t stream, const ofsdp_launch& l) {
        for (size_t i = 0; i < calls.size(); ++i) {
          PointwiseCall c = calls[i];
          c.a = i == 0 ? l.inputs[0] : l.outputs[0];
          c.b = one ? nullptr : l.inputs[i + 1];
          c.y = l.outputs[0];
          OFSDP_CUDA_TRY(pointwise(c, stream));
        }
        return cudaSuccess;
      });
}

bool accepts_mean(const Problem& p) {
  return accepts_variadic(Pointwise::kAdd, p) &&
         (is_float(p.in(0).dtype) || p.in(0).dtype == DType::kFloat64);
}

std::unique_ptr<CudaKernel> create_mean(ofsdp_device&, const Problem& p) {
  std::shared_ptr<CudaKernel> sum = create_variadic(Pointwise::kAdd, p);
  if (sum == nullptr) return nullptr;
  return make_cuda_kernel([sum, dtype = p.in(0).dtype, n = p.out(0).numel(),
                           share = 1.0 / static_cast<double>(p.inputs.size())](
                              cudaStream_t stream, const ofsdp_launch& l) {
    OFSDP_CUDA_TRY(sum->run(stream, l));
    return pointwise(Pointwise::kScale, dtype, l.outputs[0], nullptr, l.outputs[0], n, {share, 0},
                     stream);
  });
}

CudaImplementation variadic(const char* name, Pointwise op) {
  return {name, "own", [op](const Problem& p) { return accepts_variadic(op, p); },
          [op](ofsdp_device&, const Problem& p) { return create_variadic(op, p); }};
}

bool accepts_where(const Problem& p) {
  return p.all_plain() && p.in(0).dtype == DType::kBool && p.in(1).dtype == p.in(2).dtype;
}

std::unique_ptr<CudaKernel> create_where(ofsdp_device&, const Problem& p) {
  std::vector<std::vector<int64_t>> strides;
  for (const TensorDesc& in : p.inputs) {
    strides.push_back(broadcast_strides(in.shape.axes(), p.out(0).shape.axes()));
  }
  const Walk walk = collapsed(p.out(0).shape.axes(), strides);
  if (walk.rank < 0) return nullptr;
  return make_cuda_kernel(
      [walk, size = dtype_size(p.out(0).dtype)](cudaStream_t stream, const ofsdp_launch& l) {
        return where(walk, size, static_cast<const bool*>(l.inputs[0]), l.inputs[1], l.inputs[2],
                     l.outputs[0], stream);
      });
}

bool accepts_cast(const Problem& p) { return p.in(0).layout == p.out(0).layout; }

std::unique_ptr<CudaKernel> create_cast(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([from = p.in(0).dtype, to = p.out(0).dtype, n = p.out(0).numel()](
                              cudaStream_t stream, const ofsdp_launch& l) {
    return cast(from, l.inputs[0], to, l.outputs[0], n, stream);
  });
}

}  // namespace

void add_pointwise(CudaImplementations& list) {
  for (const char* domain : {"", "ofsdp.", "com.microsoft."}) {
#define OFSDP_ADD(name, arity) list.push_back(implementation_of(std::string(domain) + #name));
    OFSDP_POINTWISE_OPS(OFSDP_ADD)
#undef OFSDP_ADD
  }
  list.push_back(implementation_of("com.microsoft.QuickGelu"));
  list.push_back(variadic("Sum", Pointwise::kAdd));
  list.push_back({"Mean", "own", accepts_mean, create_mean});
  list.push_back(variadic("Max", Pointwise::kMax));
  list.push_back(variadic("Min", Pointwise::kMin));
  list.push_back({"Where", "own", accepts_where, create_where});
  list.push_back({"Cast", "own", accepts_cast, create_cast});
  list.push_back({"CastLike", "own", accepts_cast, create_cast});
}

}  // namespace ofsdp::kernels::cuda
