#include "kernels/ops/conv/conv_grad.h"

#include "kernels/ops/conv/conv_kernels.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

ConvShape conv_of_grad(const Attributes& attributes) {
  return known_conv(attributes, Shape(attributes.ints("x_shape")),
                    Shape(attributes.ints("w_shape")));
}

dnnl::convolution_forward::primitive_desc conv_forward_hint(const ConvShape& s, DType dtype,
                                                            Wish wish, const onednn::Desc& bias) {
  const ConvNumbers n = conv_numbers(s.window);
  return {onednn::engine(),
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          wished(wish, dtype, s.x),
          onednn::any(dtype, weights_dims(s)),
          bias,
          wished(wish, dtype, s.y),
          n.strides,
          n.dilations,
          n.pads_begin,
          n.pads_end,
          onednn::attributes(),
          /*allow_empty=*/true};
}

bool has_onednn_dtype(const Problem& p) {
  return onednn::data_type(p.in(0).dtype) != dnnl::memory::data_type::undef;
}

bool sums_nothing(const ConvShape& s) {
  return s.x.numel() == 0 || s.y.numel() == 0 || s.w.numel() == 0;
}

std::unique_ptr<Kernel> make_conv_zeros() {
  return make_kernel([](const KernelArgs& a) {
    for (const TensorView& view : a.outputs) {
      if (view.data != nullptr) std::memset(view.data, 0, view.desc.bytes());
    }
    return ok_status();
  });
}

std::vector<int64_t> onnx_pads(const Window& w) {
  std::vector<int64_t> pads = w.used(w.pads_begin);
  const auto ends = w.used(w.pads_end);
  pads.insert(pads.end(), ends.begin(), ends.end());
  return pads;
}

std::vector<SampleCase> conv_grad_samples(Shape ConvShape::*first, Shape ConvShape::*second,
                                          size_t outputs) {
  using Ints = std::vector<int64_t>;
  struct Given {
    const char* name;
    Shape x, w;
    Attributes attributes;
  };
  const Given given[] = {{"image", {2, 3, 7, 6}, {4, 3, 3, 3}, {}},
                         {"one_channel", {2, 1, 8, 8}, {16, 1, 3, 3}, {}},
                         {"wide", {2, 32, 6, 6}, {48, 32, 3, 3}, {}},
                         {"strided_padded",
                          {2, 4, 8, 7},
                          {6, 4, 3, 3},
                          {{"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 2, 1}}}},
                         {"dilated_grouped",
                          {1, 4, 9, 9},
                          {6, 2, 3, 3},
                          {{"dilations", Ints{2, 3}}, {"group", int64_t{2}}}},
                         {"depthwise",
                          {2, 16, 6, 6},
                          {16, 1, 3, 3},
                          {{"group", int64_t{16}}, {"pads", Ints{1, 1, 1, 1}}}},
                         {"pointwise", {2, 8, 5, 5}, {6, 8, 1, 1}, {{"strides", Ints{2, 2}}}},
                         {"line", {2, 3, 11}, {4, 3, 5}, {{"pads", Ints{2, 2}}}},
                         {"volume", {1, 2, 5, 4, 6}, {3, 2, 3, 2, 3}, {{"strides", Ints{1, 2, 1}}}},
                         {"empty_batch", {0, 3, 7, 6}, {4, 3, 3, 3}, {}}};
  std::vector<SampleCase> cases;
  for (const Given& g : given) {
    const ConvShape s = known_conv(g.attributes, g.x, g.w);
    cases.push_back({.name = g.name,
                     .attributes = conv_attributes(s),
                     .inputs = {{DType::kFloat32, s.*first}, {DType::kFloat32, s.*second}},
                     .num_outputs = outputs});
  }
  append(cases, in_rare_types(cases[4]));
  return cases;
}

}  // namespace ofsdp::kernels::ops
