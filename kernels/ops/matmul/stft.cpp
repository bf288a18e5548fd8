// STFT(signal [B, T, 1 or 2 parts], frame_step, window, frame_length), attribute onesided (1): the
// DFT of each frame of `frame_length` samples, times the window, where frames begin `frame_step`
// apart: [B, frames, frame_length or frame_length / 2 + 1, 2]. Without a length it is that of the
// window, else of the signal.
//
// It has no kernel: its body takes the frames with Gather, multiplies and calls DFT.
// https://onnx.ai/onnx/operators/onnx__STFT.html
#include <complex>
#include <numbers>

#include "kernels/core/standard_body.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace stft {
namespace {

struct Frames {
  int64_t step, length, count;
  bool onesided;

  int64_t bins() const { return onesided ? length / 2 + 1 : length; }
};

Result<Frames> frames_of(const Attributes& attributes, const TensorDesc& signal, int64_t step,
                         int64_t length) {
  Frames f{step, length, 0, attributes.i("onesided", 1) != 0};
  const Shape& x = signal.shape;
  if (x.rank() != 3 || x[2] < 1 || x[2] > (f.onesided ? 1 : 2)) {
    return input_error("expected a signal [batch, length, {}], found {}",
                       f.onesided ? "1" : "1 or 2", signal.text());
  }
  if (step < 1 || length < 1 || length > x[1]) {
    return input_error(
        "expected a frame_step of 1 or more and a frame_length of 1 to {}, found {} and {}", x[1],
        step, length);
  }
  f.count = (x[1] - length) / step + 1;
  return f;
}

// `number(i, otherwise)` is the one value of input i.
Result<Frames> frames_by(const Attributes& attributes, const TensorDesc& signal,
                         const TensorDesc& window, const auto& number) {
  const int64_t otherwise = window.present()          ? window.numel()
                            : signal.shape.rank() > 1 ? signal.shape[1]
                                                      : 0;
  OFSDP_ASSIGN_OR_RETURN(const int64_t step, number(1, int64_t{0}));
  OFSDP_ASSIGN_OR_RETURN(const int64_t length, number(3, otherwise));
  if (!window.present() || window.shape == Shape{length}) {
    return frames_of(attributes, signal, step, length);
  }
  return input_error("expected a window [{}], found {}", length, window.text());
}

Result<Frames> frames_of(const InferContext& c) {
  const TensorDesc window = c.has(2) ? c.inputs[2] : TensorDesc{};
  return frames_by(
      c.attributes, c.inputs[0], window, [&](size_t i, int64_t otherwise) -> Result<int64_t> {
        if (!c.has(i)) return otherwise;
        OFSDP_ASSIGN_OR_RETURN(const auto values,
                               known_ints(c, i, i == 1 ? "frame_step" : "frame_length"));
        if (values.size() == 1) return values[0];
        return input_error("expected one number, found {}", values.size());
      });
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Frames f, frames_of(c));
  const TensorDesc& x = c.inputs[0];
  return std::vector{TensorDesc{x.dtype, {x.shape[0], f.count, f.bins(), 2}}};
}

void body(BodyBuilder& b) {
  const Ref signal = b.input(0), window = b.input(2);
  const Shape x = b.desc(signal).shape;
  const Frames f =
      *frames_by(b.attributes(), b.desc(signal), window ? b.desc(window) : TensorDesc{},
                 [&](size_t i, int64_t otherwise) -> Result<int64_t> {
                   const Ref number = b.input(i);
                   return number ? (*int_values(*b.constant_value(number)))[0] : otherwise;
                 });
  std::vector<int64_t> places;
  for (int64_t i = 0; i < f.count * f.length; ++i) {
    places.push_back(i / f.length * f.step + i % f.length);
  }
  const Ref taken = b.emit1("Gather", {signal, b.ints(places)}, {{"axis", int64_t{1}}});
  Ref frames = b.reshape(taken, {x[0], f.count, f.length, x[2]});
  if (window) frames = b.mul(frames, b.reshape(window, {f.length, 1}));
  const Ref axis = b.scalar(DType::kInt64, 2);
  b.set_output(0, b.emit1("DFT", {frames, Ref{}, axis}, {{"onesided", int64_t{f.onesided}}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor &x = c.inputs[0], *window = given(c.inputs, 2);
  const Frames f =
      *frames_by(c.attributes, x.desc, window == nullptr ? TensorDesc{} : window->desc,
                 [&](size_t i, int64_t otherwise) -> Result<int64_t> {
                   const RefTensor* found = given(c.inputs, i);
                   return found == nullptr ? otherwise : static_cast<int64_t>((*found)[0]);
                 });
  RefTensor y = zeros(c.output_descs[0]);
  const int64_t parts = x.desc.shape[2];
  for (int64_t at = 0; at < y.desc.numel() / 2; ++at) {
    const int64_t bin = at % f.bins(), frame = at / f.bins() % f.count,
                  batch = at / f.bins() / f.count;
    std::complex<double> sum = 0;
    for (int64_t j = 0; j < f.length; ++j) {
      const int64_t from = (batch * x.desc.shape[1] + frame * f.step + j) * parts;
      const std::complex<double> value(x[from], parts == 2 ? x[from + 1] : 0);
      const double turn = static_cast<double>(bin * j % f.length) / static_cast<double>(f.length);
      sum += value * (window == nullptr ? 1 : (*window)[j]) *
             std::polar(1.0, -2 * std::numbers::pi * turn);
    }
    y[2 * at] = sum.real();
    y[2 * at + 1] = sum.imag();
  }
  return {y};
}

}  // namespace
}  // namespace stft

void add_stft(Registry& registry) {
  using namespace stft;
  registry.add(
      make_op("STFT", {infer, nullptr, reference}, {},
              {.min_inputs = 2, .first_opset = 17, .body = body, .constant_inputs = {1, 3}}));
}

}  // namespace ofsdp::kernels::ops
