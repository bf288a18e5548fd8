// Pointwise operators with their gradients, Where, Cast and FakeQuantize, launched by pointwise.h.
#include <algorithm>
#include <limits>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/formulas/numbers.h"

namespace ofsdp::kernels::cuda {
namespace {

// Returns the operation's name, such as "GeluTanhGrad" for ofsdp.GeluGrad with approximate = tanh.
std::string name_of(const std::string& op, const Problem& p) {
  const Attributes& attributes = p.attributes;
  const std::string name = op.substr(op.rfind('.') + 1);  // npos + 1 is 0
  if (name == "QuickGelu") return "Swish";
  if (name == "FastGelu" && !p.has_in(1)) return "GeluTanh";
  if (attributes.s("approximate", "none") != "tanh") return name;
  return name == "Gelu" ? "GeluTanh" : name == "GeluGrad" ? "GeluTanhGrad" : name;
}

// The attributes with the operator's defaults; Clip's bounds are operands.
PointwiseNumbers pointwise_numbers(const std::string& op, const std::string& name,
                                   const Problem& p) {
  if (name == "Clip" || name == "ClipGrad") {
    constexpr double kOpen = std::numeric_limits<double>::infinity();
    const size_t first = name == "Clip" ? 1 : 2;
    return {known_scalar(p, first, -kOpen), known_scalar(p, first + 1, kOpen)};
  }
  const Numbers numbers = numbers_of(op, p.attributes);
  return {numbers.a, numbers.b};
}

// Requires `arity` operands; Clip's bounds besides must be known while planning.
bool has_operands(const Problem& p, const std::string& name, int arity) {
  const auto count = static_cast<size_t>(arity);
  if (p.inputs.size() < count) return false;
  for (size_t i = count; i < p.inputs.size(); ++i) {
    const bool bound = name == "Clip" || name == "ClipGrad";
    if (p.has_in(i) && !(bound && p.constant(i) != nullptr)) return false;
  }
  return true;
}

// Accepts any layout, if all operands but scalars have the same.
Acceptance accepts(const std::string& op, const Problem& p) {
  const std::string name = name_of(op, p);
  const Pointwise known_op = pointwise_of(name);
  const bool supports = p.has_in(0) && has_kernel(known_op, p.in(0).dtype);
  if (known_op == Pointwise::kUnknown || !supports) return accept({supported(false)});
  const int arity = pointwise_arity(known_op);
  if (!has_operands(p, name, arity)) {
    return Acceptance::refuse("an operand is absent or known only at run time");
  }
  for (int i = 0; i < arity; ++i) {
    const TensorDesc& in = p.in(static_cast<size_t>(i));
    const bool same = in.shape == p.out(0).shape && in.layout == p.out(0).layout;
    const Acceptance accepted = accept({alike(in.present() && in.dtype == p.in(0).dtype),
                                        same_layout(same || in.numel() == 1 || p.all_plain())});
    if (!accepted) return accepted;
  }
  return true;
}

// Iterates over elements in stored order if the layout is not plain.
StridedIndex walk_of(const Problem& p, int arity) {
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
  return merge_dense_axes(shape, strides);
}

CudaImplementation implementation_of(const std::string& op) {
  return {op, "own", [op](const Problem& p) { return accepts(op, p); },
          [op](DeviceState&, const Problem& p) -> std::unique_ptr<CudaKernel> {
            const std::string name = name_of(op, p);
            PointwiseCall call{.op = pointwise_of(name), .dtype = p.in(0).dtype};
            const bool second = pointwise_arity(call.op) > 1;
            call.numbers = pointwise_numbers(op, name, p);
            call.walk = walk_of(p, pointwise_arity(call.op));
            if (call.walk.rank < 0) return nullptr;
            return make_cuda_kernel([call, second](cudaStream_t stream, const Launch& l) mutable {
              call.a = l.in(0);
              call.b = second ? l.in(1) : nullptr;
              call.y = l.out(0);
              call.fault = l.fault();
              return pointwise(call, stream);
            });
          }};
}

// Sum, Max and Min of any number of inputs: the first kernel combines two inputs, since y may alias
// either; each later one adds an input to y.
Acceptance accepts_variadic(Pointwise op, const Problem& p) {
  const DType dtype = p.in(0).dtype;
  const bool same =
      std::ranges::all_of(p.inputs, [&](const TensorDesc& in) { return in == p.out(0); });
  return accept({same_layout(p.all_plain() || same), supported(has_kernel(op, dtype)),
                 alike(p.all_dtype(dtype))});
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
    calls[i].walk = merge_dense_axes(shape, operands);
    if (calls[i].walk.rank < 0) return nullptr;
  }
  return make_cuda_kernel(
      [calls, one = p.inputs.size() == 1](cudaStream_t stream, const Launch& l) {
        for (size_t i = 0; i < calls.size(); ++i) {
          PointwiseCall c = calls[i];
          c.a = i == 0 ? l.in(0) : l.out(0);
          c.b = one ? nullptr : l.in(i + 1);
          c.y = l.out(0);
          OFSDP_CUDA_TRY(pointwise(c, stream));
        }
        return cudaSuccess;
      });
}

Acceptance accepts_mean(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept(accepts_variadic(Pointwise::kAdd, p),
                {supported(is_32_or_16_bit_float(dtype) || dtype == DType::kFloat64)});
}

std::unique_ptr<CudaKernel> create_mean(DeviceState&, const Problem& p) {
  std::shared_ptr<CudaKernel> sum = create_variadic(Pointwise::kAdd, p);
  if (sum == nullptr) return nullptr;
  return make_cuda_kernel([sum, dtype = p.in(0).dtype, n = p.out(0).numel(),
                           share = 1.0 / static_cast<double>(p.inputs.size())](cudaStream_t stream,
                                                                               const Launch& l) {
    OFSDP_CUDA_TRY(sum->run(stream, l));
    return pointwise(Pointwise::kScale, dtype, l.out(0), nullptr, l.out(0), n, {share, 0}, stream);
  });
}

CudaImplementation variadic(const char* name, Pointwise op) {
  return {name, "own", [op](const Problem& p) { return accepts_variadic(op, p); },
          [op](DeviceState&, const Problem& p) { return create_variadic(op, p); }};
}

Acceptance accepts_where(const Problem& p) {
  return accept({plain(p), alike(p.in(0).dtype == DType::kBool && p.in(1).dtype == p.in(2).dtype)});
}

std::unique_ptr<CudaKernel> create_where(DeviceState&, const Problem& p) {
  std::vector<std::vector<int64_t>> strides;
  for (const TensorDesc& in : p.inputs) {
    strides.push_back(broadcast_strides(in.shape.axes(), p.out(0).shape.axes()));
  }
  const StridedIndex walk = merge_dense_axes(p.out(0).shape.axes(), strides);
  if (walk.rank < 0) return nullptr;
  return make_cuda_kernel(
      [walk, size = dtype_size(p.out(0).dtype)](cudaStream_t stream, const Launch& l) {
        return where(walk, size, l.in<bool>(0), l.in(1), l.in(2), l.out(0), stream);
      });
}

Acceptance accepts_cast(const Problem& p) {
  const bool narrow = is_narrow(p.in(0).dtype) || is_narrow(p.out(0).dtype);
  return accept({same_layout(p.in(0).layout == p.out(0).layout),
                 {!narrow, "a type of 8 bits or less that values are only stored in"}});
}

std::unique_ptr<CudaKernel> create_cast(DeviceState&, const Problem& p) {
  return make_cuda_kernel([from = p.in(0).dtype, to = p.out(0).dtype, n = p.out(0).numel()](
                              cudaStream_t stream, const Launch& l) {
    return cast(from, l.in(0), to, l.out(0), n, stream);
  });
}

// --- ofsdp.FakeQuantize ---

FakeQuantizeParams extent_of(const Problem& p, size_t x) {
  const ops::FakeQuantization f(p.attributes, p.in(x), p.in(x + 1));
  return {p.in(x).dtype, f.map, f.range(), f.step()};
}

FakeQuantizeOperands operands_of(const Launch& l, size_t x) {
  return {x > 0 ? l.in(0) : nullptr, l.in(x), l.in(x + 1), l.in(x + 2)};
}

Acceptance accepts_quantization(const Problem& p) {
  return accept(accepts_plain_floats(p), {alike(p.all_dtype(p.in(0).dtype))});
}

std::unique_ptr<CudaKernel> create_quantize(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = extent_of(p, 0)](cudaStream_t stream, const Launch& l) {
    return fake_quantize(e, operands_of(l, 0), l.out(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_quantize_grad(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = extent_of(p, 1)](cudaStream_t stream, const Launch& l) {
    return fake_quantize_grad(e, operands_of(l, 1), l.out(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_scale_grad(DeviceState&, const Problem& p) {
  const FakeQuantizeParams e = extent_of(p, 1);
  return make_cuda_kernel(
      [e](cudaStream_t stream, const Launch& l) {
        return fake_quantize_scale_grad(e, operands_of(l, 1), l.out(0), l.workspace, stream);
      },
      fake_quantize_scale_grad_scratch(e));
}

}  // namespace

void add_pointwise(CudaImplementations& list) {
  for (const char* domain : {"", "ofsdp.", "com.microsoft."}) {
#define OPERATION(name, operands) list.push_back(implementation_of(std::string(domain) + #name));
#include "kernels/cuda/pointwise/operations.inc"
  }
  list.insert(list.end(), {implementation_of("com.microsoft.QuickGelu"),
                           variadic("Sum", Pointwise::kAdd),
                           {"Mean", "own", accepts_mean, create_mean},
                           variadic("Max", Pointwise::kMax),
                           variadic("Min", Pointwise::kMin),
                           {"Where", "own", accepts_where, create_where},
                           {"Cast", "own", accepts_cast, create_cast},
                           {"CastLike", "own", accepts_cast, create_cast}});
}

void add_fake_quantize(CudaImplementations& list) {
  list.insert(list.end(),
              {{"ofsdp.FakeQuantize", "own", accepts_quantization, create_quantize},
               {"ofsdp.FakeQuantizeGrad", "own", accepts_quantization, create_quantize_grad},
               {"ofsdp.FakeQuantizeScaleGrad", "own", accepts_quantization, create_scale_grad}});
}

}  // namespace ofsdp::kernels::cuda
