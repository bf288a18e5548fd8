#include "kernels/cpu/float_kernels.h"

#include <algorithm>

#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {
namespace {

void widen_view(const TensorView& from, float* to) {
  const WidthSpan span = width_span(from.desc.dtype, DType::kFloat32);
  parallel_for(from.desc.numel(), kElementGrain,
               [&](int64_t begin, int64_t end) { span(from.data, to, begin, end); });
}

void narrow_view(const float* from, const TensorView& to) {
  const WidthSpan span = width_span(DType::kFloat32, to.desc.dtype);
  parallel_for(to.desc.numel(), kElementGrain,
               [&](int64_t begin, int64_t end) { span(from, to.data, begin, end); });
}

class ConvertingKernel final : public Kernel {
 public:
  ConvertingKernel(const Problem& p, const Problem& wide, std::unique_ptr<Kernel> inner)
      : inner_(std::move(inner)) {
    place(p.inputs, wide.inputs, inputs_);
    place(p.outputs, wide.outputs, outputs_);
  }

  size_t workspace_bytes() const override { return bytes_ + inner_->workspace_bytes(); }

  Status run(const KernelArgs& args) override {
    const std::span<TensorView> inputs(views_.data(), inputs_.size());
    const std::span<TensorView> outputs(views_.data() + inputs_.size(), outputs_.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i].data = address(inputs_[i], args.inputs[i], args.workspace);
      if (inputs_[i].converted) widen_view(args.inputs[i], inputs[i].as<float>());
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].data = address(outputs_[i], args.outputs[i], args.workspace);
    }
    OFSDP_RETURN_IF_ERROR(inner_->run({inputs, outputs, args.workspace + bytes_, args.step}));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs_[i].converted) narrow_view(outputs[i].as<float>(), args.outputs[i]);
    }
    return ok_status();
  }

 private:
  struct Operand {
    bool converted = false;
    size_t offset = 0;  // in the workspace
  };

  void place(const std::vector<TensorDesc>& given, const std::vector<TensorDesc>& wide,
             std::vector<Operand>& operands) {
    for (size_t i = 0; i < given.size(); ++i) {
      operands.push_back({given[i].dtype != wide[i].dtype, bytes_});
      views_.push_back({nullptr, wide[i]});
      if (operands.back().converted) bytes_ += align_up(wide[i].bytes(), kTensorAlignment);
    }
  }

  static std::byte* address(const Operand& operand, const TensorView& given, std::byte* workspace) {
    return operand.converted ? workspace + operand.offset : given.data;
  }

  std::unique_ptr<Kernel> inner_;
  std::vector<Operand> inputs_, outputs_;
  std::vector<TensorView> views_;  // inputs, outputs; run sets their addresses
  size_t bytes_ = 0;
};

bool has_half_floats(const Problem& p) {
  return std::ranges::any_of(p.inputs, is_16_bit_float, &TensorDesc::dtype) ||
         std::ranges::any_of(p.outputs, is_16_bit_float, &TensorDesc::dtype);
}

Problem as_float32(const Problem& p) {
  Problem wide = p;
  for (std::vector<TensorDesc>* descs : {&wide.inputs, &wide.outputs}) {
    for (TensorDesc& desc : *descs) {
      if (is_16_bit_float(desc.dtype)) desc.dtype = DType::kFloat32;
    }
  }
  return wide;
}

}  // namespace

Implementation in_float32(Implementation inner) {
  return {"in_float32",
          [accepts = inner.accepts](const Problem& p) {
            return has_half_floats(p) ? accepts(as_float32(p))
                                      : Acceptance::refuse("no 16-bit floats");
          },
          [create = inner.create](const Problem& p) -> std::unique_ptr<Kernel> {
            const Problem wide = as_float32(p);
            return std::make_unique<ConvertingKernel>(p, wide, create(wide));
          }};
}

Implementation in_float32_but(const char* name, size_t images, Implementation inner) {
  const auto partly = [images](const Problem& p) {
    Problem wide = as_float32(p);
    for (size_t i = 0; i < std::min(images, p.inputs.size()); ++i) {
      wide.inputs[i].dtype = p.inputs[i].dtype;
    }
    wide.outputs[0].dtype = p.outputs[0].dtype;
    return wide;
  };
  return {name, [partly, accepts = inner.accepts](const Problem& p) { return accepts(partly(p)); },
          [partly, create = inner.create](const Problem& p) -> std::unique_ptr<Kernel> {
            const Problem wide = partly(p);
            return std::make_unique<ConvertingKernel>(p, wide, create(wide));
          }};
}

}  // namespace ofsdp::kernels
