// Pointwise operators, casts, copies and gradients of sums: kernels/cuda/pointwise.h, movement.h and
// reduce.h as implementations.
#include <memory>

#include "kernels/cuda/library/own_operators.h"
#include "kernels/cuda/movement.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/reduce.h"

namespace ofsdp::cuda {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// "GeluTanhGrad" of ofsdp.GeluGrad with approximate = tanh.
std::string name_of(const std::string& op, const Attributes& attributes) {
  const std::string name = op.substr(op.rfind('.') + 1);  // npos + 1 is 0
  if (attributes.s("approximate", "none") != "tanh") return name;
  return name == "Gelu" ? "GeluTanh" : name == "GeluGrad" ? "GeluTanhGrad" : name;
}

// ONNX's defaults, by operator.
PointwiseNumbers numbers_of(const std::string& name, const Attributes& a) {
  const auto is = [&](const char* op) { return name == op || name == std::string(op) + "Grad"; };
  if (is("LeakyRelu")) return {a.f("alpha", 0.01f), 0};
  if (is("Selu"))
    return {a.f("alpha", 1.67326319217681884765625f), a.f("gamma", 1.05070102214813232421875f)};
  if (is("HardSigmoid")) return {a.f("alpha", 0.2f), a.f("beta", 0.5f)};
  if (is("Shrink")) return {a.f("lambd", 0.5f), a.f("bias", 0.0f)};
  if (is("Mod")) return {static_cast<double>(a.i("fmod", 0)), 0};
  return {a.f("alpha", 1.0f), 0};
}

// Layouts: elementwise operators take any, the same for all.
bool accepts_floats(const Problem& p) {
  if (!is_float(p.in(0).dtype) || p.inputs.size() > 2) return false;
  for (const TensorDesc& desc : p.inputs) {
    if (!desc.present() || desc.dtype != p.in(0).dtype) return false;
    if (desc.layout != p.out(0).layout && !p.all_plain()) return false;
  }
  return true;
}

// One implementation an operator: `create` gets no name, so each has its own closure.
CudaImplementation pointwise_implementation(const std::string& op) {
  return {op, "own", accepts_floats,
          [op](ofsdp_device&, const Problem& p) -> std::unique_ptr<CudaKernel> {
            const std::string name = name_of(op, p.attributes);
            PointwiseCall call;
            call.op = pointwise_of(name);
            if (call.op == Pointwise::kUnknown) return nullptr;
            if (static_cast<size_t>(pointwise_arity(call.op)) != p.inputs.size()) return nullptr;
            call.dtype = p.in(0).dtype;
            call.numbers = numbers_of(name, p.attributes);
            std::vector<std::vector<int64_t>> strides;
            for (const TensorDesc& in : p.inputs) {
              strides.push_back(broadcast_strides(in.shape.axes(), p.out(0).shape.axes()));
            }
            call.walk = collapsed(p.out(0).shape.axes(), strides);
            if (call.walk.rank < 0) return nullptr;
            return make_cuda_kernel([call](cudaStream_t stream, const ofsdp_launch& l) {
              PointwiseCall c = call;
              c.a = l.inputs[0];
              c.b = pointwise_arity(c.op) > 1 ? l.inputs[1] : nullptr;
              c.y = l.outputs[0];
              return c.walk.numel == 0 ? cudaSuccess : pointwise(c, stream);
            });
          }};
}

// Of ofsdp.SumTo: the axes along which `shape` was broadcast to the operand.
bool accepts_sum(const Problem& p) { return p.all_plain() && is_float(p.in(0).dtype); }

std::unique_ptr<CudaKernel> create_sum(ofsdp_device&, const Problem& p) {
  const std::vector<int64_t>& from = p.in(0).shape.axes();
  const std::vector<int64_t>& to = p.out(0).shape.axes();
  std::vector<bool> reduced(from.size(), true);
  const size_t missing = from.size() - to.size();
  for (size_t i = 0; i < to.size(); ++i) {
    reduced[missing + i] = to[i] == 1 && from[missing + i] != 1;
  }
  const auto passes = std::make_shared<const std::vector<ReducePass>>(plan_reduce(from, reduced));
  ReduceCall call;
  call.dtype = call.out_dtype = p.in(0).dtype;
  return make_cuda_kernel(
      [passes, call](cudaStream_t stream, const ofsdp_launch& l) {
        ReduceCall c = call;
        c.x = l.inputs[0];
        c.y = l.outputs[0];
        c.scratch = l.workspace;
        return reduce(*passes, c, stream);
      },
      reduce_scratch(*passes));
}

bool accepts_transpose(const Problem& p) { return p.all_plain(); }

std::unique_ptr<CudaKernel> create_transpose(ofsdp_device&, const Problem& p) {
  const std::vector<int64_t> from = dense_strides(p.in(0).shape.axes());
  std::vector<int64_t> order = p.attributes.ints("perm");
  if (order.empty()) {
    for (size_t i = from.size(); i > 0; --i) order.push_back(static_cast<int64_t>(i - 1));
  }
  std::vector<int64_t> src;
  for (const int64_t axis : order) src.push_back(from[static_cast<size_t>(axis)]);
  const std::vector<int64_t> shape = p.out(0).shape.axes();
  const size_t size = dtype_size(p.in(0).dtype);
  return make_cuda_kernel(
      [shape, src, dst = dense_strides(shape), size](cudaStream_t stream, const ofsdp_launch& l) {
        return strided_copy(size, shape, src, dst, l.inputs[0], l.outputs[0], stream);
      });
}

bool accepts_cast(const Problem& p) { return p.in(0).layout == p.out(0).layout; }

std::unique_ptr<CudaKernel> create_cast(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([from = p.in(0).dtype, to = p.out(0).dtype, n = p.out(0).numel()](
                              cudaStream_t stream, const ofsdp_launch& l) {
    return n == 0 ? cudaSuccess : cast(from, l.inputs[0], to, l.outputs[0], n, stream);
  });
}

}  // namespace

void add_own_pointwise(std::vector<CudaImplementation>& list) {
  for (const char* domain : {"", "ofsdp.", "com.microsoft."}) {
#define OFSDP_ADD(name, arity) \
  list.push_back(pointwise_implementation(std::string(domain) + #name));
    OFSDP_POINTWISE_OPS(OFSDP_ADD)
#undef OFSDP_ADD
  }
  list.push_back({"ofsdp.SumTo", "own", accepts_sum, create_sum});
  list.push_back({"Transpose", "own", accepts_transpose, create_transpose});
  list.push_back({"Cast", "own", accepts_cast, create_cast});
}

}  // namespace ofsdp::cuda
