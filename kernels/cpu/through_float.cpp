#include "kernels/cpu/through_float.h"

#include <algorithm>

#include "kernels/core/memory.h"
#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

bool is_16_bit(const TensorDesc& d) {
  return d.dtype == DType::kFloat16 || d.dtype == DType::kBFloat16;
}

TensorDesc widened(TensorDesc desc) {
  if (is_16_bit(desc)) desc.dtype = DType::kFloat32;
  return desc;
}

constexpr int64_t kGrain = 16384;

void widen_view(const TensorView& from, float* to) {
  const WidthSpan span = width_span(from.desc.dtype, DType::kFloat32);
  parallel_for(from.desc.numel(), kGrain,
               [&](int64_t begin, int64_t end) { span(from.data, to, begin, end); });
}

void narrow_view(const float* from, const TensorView& to) {
  const WidthSpan span = width_span(DType::kFloat32, to.desc.dtype);
  parallel_for(to.desc.numel(), kGrain,
               [&](int64_t begin, int64_t end) { span(from, to.data, begin, end); });
}

class ThroughFloat final : public Kernel {
 public:
  ThroughFloat(const Problem& p, std::unique_ptr<Kernel> inner) : inner_(std::move(inner)) {
    bytes_ = align_up(inner_->workspace_bytes(), kTensorAlignment);
    for (const TensorDesc& d : p.inputs) inputs_.push_back(place(d));
    for (const TensorDesc& d : p.outputs) outputs_.push_back(place(d));
    for (const TensorDesc& d : p.inputs) input_views_.push_back({nullptr, widened(d)});
    for (const TensorDesc& d : p.outputs) output_views_.push_back({nullptr, widened(d)});
  }

  size_t workspace_bytes() const override { return bytes_; }

  Status run(const KernelArgs& a) override {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      input_views_[i].data = at(a, inputs_[i], a.inputs[i].data);
      if (inputs_[i] != kOutside) widen_view(a.inputs[i], input_views_[i].as<float>());
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      output_views_[i].data = at(a, outputs_[i], a.outputs[i].data);
    }
    OFSDP_RETURN_IF_ERROR(inner_->run({input_views_, output_views_, a.workspace, a.step}));
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i] != kOutside) narrow_view(output_views_[i].as<float>(), a.outputs[i]);
    }
    return ok_status();
  }

 private:
  static constexpr size_t kOutside = ~size_t{0};  // the operand itself

  size_t place(const TensorDesc& desc) {
    if (!is_16_bit(desc)) return kOutside;
    const size_t begin = bytes_;
    bytes_ += align_up(widened(desc).bytes(), kTensorAlignment);
    return begin;
  }
  static std::byte* at(const KernelArgs& a, size_t place, std::byte* outside) {
    return place == kOutside ? outside : a.workspace + place;
  }

  std::unique_ptr<Kernel> inner_;
  std::vector<size_t> inputs_, outputs_;  // places in the workspace, behind that of the kernel
  std::vector<TensorView> input_views_, output_views_;
  size_t bytes_ = 0;
};

}  // namespace

bool has_16_bit_float(const Problem& p) {
  return std::ranges::any_of(p.inputs, is_16_bit) || std::ranges::any_of(p.outputs, is_16_bit);
}

Problem with_float(const Problem& problem) {
  Problem made = problem;
  for (TensorDesc& d : made.inputs) d = widened(d);
  for (TensorDesc& d : made.outputs) d = widened(d);
  return made;
}

std::unique_ptr<Kernel> wrap_through_float(const Problem& problem, std::unique_ptr<Kernel> kernel) {
  return std::make_unique<ThroughFloat>(problem, std::move(kernel));
}

}  // namespace ofsdp
