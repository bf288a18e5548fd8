// ReverseSequence(x, sequence_lens), attributes batch_axis, time_axis: of batch entry b, the first
// sequence_lens[b] steps along the time axis are reversed, the others stay. Any dtype. dx is dy
// under the same reversal. https://onnx.ai/onnx/operators/onnx__ReverseSequence.html
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace reverse_sequence {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const int64_t batch = c.attributes.i("batch_axis", 1);
  const int64_t time = c.attributes.i("time_axis", 0);
  const bool batch_first = batch == 0 && time == 1;
  const bool time_first = batch == 1 && time == 0;
  if (!(batch_first || time_first) || x.shape.rank() < 2) {
    return input_error(
        "expected batch_axis and time_axis 0 and 1 of at least two axes, found {}, {} of {}", batch,
        time, x.text());
  }
  const TensorDesc lengths{DType::kInt64, {x.shape[static_cast<int>(batch)]}};
  if (c.inputs[1] != lengths) {
    return input_error("expected sequence_lens {}, found {}", lengths.text(), c.inputs[1].text());
  }
  return std::vector{TensorDesc{x.dtype, x.shape}};
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ReverseSequence", {b.grad_output(0), b.input(1)}, b.attributes()));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const auto time = static_cast<size_t>(c.attributes.i("time_axis", 0));
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    auto index = unravel(y.desc.shape, i);
    const auto length = static_cast<int64_t>(c.inputs[1][index[1 - time]]);
    if (index[time] < length) index[time] = length - 1 - index[time];
    y.values.push_back(c.inputs[0].values[ravel(y.desc.shape, index)]);
  }
  return {y};
}

Status check_lengths(const int64_t* lengths, int64_t count, int64_t most) {
  for (int64_t b = 0; b < count; ++b) {
    if (lengths[b] >= 0 && lengths[b] <= most) continue;
    return input_error("sequence_lens[{}] is {}, expected 0..{}", b, lengths[b], most);
  }
  return ok_status();
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const bool time_first = p.attributes.i("time_axis", 0) == 0;
  const int64_t steps = shape[time_first ? 0 : 1];
  const int64_t batch = shape[time_first ? 1 : 0];
  const int64_t bytes =
      shape.numel(2, shape.rank()) * static_cast<int64_t>(dtype_size(p.out(0).dtype));
  return make_kernel([=](const KernelArgs& a) {
    const auto* lengths = a.in<int64_t>(1);
    OFSDP_RETURN_IF_ERROR(check_lengths(lengths, batch, steps));
    parallel_each(steps * batch, 65536 / (bytes + 1) + 1, [&](int64_t row) {
      const int64_t t = time_first ? row / batch : row % steps;
      const int64_t b = time_first ? row % batch : row / steps;
      const int64_t from = t < lengths[b] ? lengths[b] - 1 - t : t;
      const int64_t at = time_first ? from * batch + b : b * steps + from;
      std::memcpy(a.outputs[0].data + row * bytes, a.inputs[0].data + at * bytes,
                  static_cast<size_t>(bytes));
    });
    return ok_status();
  });
}

}  // namespace reverse_sequence

void add_reverse_sequence(Registry& registry) {
  using namespace reverse_sequence;
  registry.add(make_op("ReverseSequence", {infer, grad, reference},
                       {{"rows", accepts_plain, create}}, {.min_inputs = 2, .first_opset = 10}));
}

}  // namespace ofsdp::kernels::ops
