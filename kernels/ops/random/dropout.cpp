// Dropout(data, ratio, training_mode): in training, each element is kept with probability 1 - ratio
// and divided by it, else it becomes 0; output 1 is the mask (true: kept). Otherwise y = data.
// ofsdp.DropoutGrad(dy, mask), attribute ratio: d data = dy mask / (1 - ratio).
//
// Element e in sample s is kept if u >= ratio; u is the upper 24 of 32 random bits over 2^24; see
// [Note: what dropout draws] in kernels/core/philox.h. The leading axis holds the samples; if they
// do not divide the elements, all are drawn as elements of the first sample.
// https://onnx.ai/onnx/operators/onnx__Dropout.html
#include <cmath>

#include "kernels/core/op_def.h"
#include "kernels/core/philox.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace dropout {

// Returns the factor for kept elements.
double dropout_scale(double ratio) { return ratio >= 1 ? 0 : 1 / (1 - ratio); }

struct Settings {
  double ratio = 0.5;
  bool training = false;

  // Random 24-bit numbers that reach this threshold are kept.
  uint32_t threshold() const { return static_cast<uint32_t>(std::ceil(ratio * 0x1p24)); }
  double scale() const { return dropout_scale(ratio); }
};

Result<Settings> settings(const Constant* ratio, const Constant* training) {
  Settings s;
  if (ratio != nullptr) s.ratio = first_double(*ratio);
  if (training != nullptr) s.training = first_double(*training) != 0;
  if (!(s.ratio >= 0 && s.ratio <= 1)) return input_error("ratio {} is outside 0..1", s.ratio);
  return s;
}

Settings settings(const Problem& p) { return *settings(p.constant(1), p.constant(2)); }

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  for (size_t i : {size_t{1}, size_t{2}}) {
    if (!c.has(i)) continue;
    const char* name = i == 1 ? "ratio" : "training_mode";
    if (c.constant(i) == nullptr || c.inputs[i].numel() != 1) {
      return input_error("input '{}' must be one value known before the run, found {}", name,
                         c.inputs[i].text());
    }
  }
  OFSDP_RETURN_IF_ERROR(settings(c.constant(1), c.constant(2)).status());
  const TensorDesc& data = c.inputs[0];
  return std::vector{data, TensorDesc{DType::kBool, data.shape, data.layout}};
}

ConstantPtr known(const GradBuilder& b, size_t input) {
  const bool given = b.num_inputs() > input && b.input(input);
  return given ? b.constant_value(b.input(input)) : nullptr;
}

void grad(GradBuilder& b) {
  const ConstantPtr ratio = known(b, 1);
  const ConstantPtr training = known(b, 2);
  const Settings s = *settings(ratio.get(), training.get());
  if (!s.training) return b.set_grad(0, b.grad_output(0));
  b.set_grad(0, b.emit1("ofsdp.DropoutGrad", {b.grad_output(0), b.output(1)},
                        {{"ratio", static_cast<float>(s.ratio)}}));
}

// Splits the elements into samples.
struct Samples {
  int64_t count;
  int64_t elements;
};

Samples samples_in(int64_t numel, const StepContext& step) {
  const auto count = static_cast<int64_t>(step.sample_index.size());
  if (count == 0 || numel % count != 0) return {1, numel};
  return {count, numel / count};
}

uint64_t global_index(const StepContext& step, int64_t sample) {
  return step.sample_index.empty()
             ? 0
             : static_cast<uint64_t>(step.sample_index[static_cast<size_t>(sample)]);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  RefTensor mask{{DType::kBool, y.desc.shape}, std::vector<double>(y.values.size(), 1.0)};
  Settings s;
  if (c.inputs.size() > 1 && c.inputs[1].desc.present()) s.ratio = c.inputs[1].values[0];
  s.training = c.inputs.size() > 2 && c.inputs[2].desc.present() && c.inputs[2].values[0] != 0;
  if (!s.training) return {y, mask};
  const PhiloxKey key = philox_key(c.step.seed, c.node_seed, c.step.step);
  const Samples samples = samples_in(static_cast<int64_t>(y.values.size()), c.step);
  for (size_t i = 0; i < y.values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const uint32_t bits = philox_element(key, global_index(c.step, at / samples.elements),
                                         static_cast<uint64_t>(at % samples.elements));
    const double u = static_cast<double>(bits >> 8) * 0x1p-24;
    mask.values[i] = u >= s.ratio ? 1 : 0;
    y.values[i] *= mask.values[i] * s.scale();
  }
  return {y, mask};
}

struct Draw {
  PhiloxFill fill;
  PhiloxKey key;
  uint32_t threshold;
  float scale;
};

OFSDP_MULTIARCH void apply(const Draw& d, const uint32_t* bits, const float* x, float* y,
                           uint8_t* mask, int64_t n) {
  if (mask != nullptr) {
    for (int64_t i = 0; i < n; ++i) mask[i] = (bits[i] >> 8) >= d.threshold;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = (bits[i] >> 8) >= d.threshold ? x[i] * d.scale : 0.0f;
}

// Drops elements first .. first+n-1 of a sample; pointers point at the first of them. REQUIRES:
// `first` is a multiple of kPhiloxGroup.
void drop_span(const Draw& d, uint64_t sample, int64_t first, const float* x, float* y,
               uint8_t* mask, int64_t n) {
  constexpr int64_t kChunk = 8 * kPhiloxGroup;
  alignas(64) uint32_t bits[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    const int64_t groups = (count + kPhiloxGroup - 1) / kPhiloxGroup;
    d.fill(d.key, sample, (first + i) / kPhiloxGroup, groups, bits);
    apply(d, bits, x + i, y + i, mask == nullptr ? nullptr : mask + i, count);
  }
}

// Splits samples into pieces, so that threads also share a large sample.
void drop(const Draw& d, const Samples& samples, const KernelArgs& a, uint8_t* mask) {
  constexpr int64_t kPiece = 4096;
  const int64_t pieces = (samples.elements + kPiece - 1) / kPiece;
  const int64_t grain = kPiece / std::max<int64_t>(std::min(samples.elements, kPiece), 1) + 1;
  parallel_each(samples.count * pieces, grain, [&](int64_t item) {
    const int64_t sample = item / pieces;
    const int64_t first = item % pieces * kPiece;
    const int64_t at = sample * samples.elements + first;
    drop_span(d, global_index(*a.step, sample), first, a.in<float>(0) + at, a.out<float>(0) + at,
              mask == nullptr ? nullptr : mask + at, std::min(kPiece, samples.elements - first));
  });
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.in(0).dtype == DType::kFloat32 && p.all_plain(), "not plain float32");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Settings s = settings(p);
  const int64_t n = p.out(0).numel();
  const PhiloxFill fill = best_philox_fill();
  return make_kernel(
      [s, n, fill, masked = p.has_out(1), node_seed = p.node_seed](const KernelArgs& a) {
        auto* mask = masked ? a.out<uint8_t>(1) : nullptr;
        if (s.training) {
          const Draw d{fill, philox_key(a.step->seed, node_seed, a.step->step), s.threshold(),
                       static_cast<float>(s.scale())};
          drop(d, samples_in(n, *a.step), a, mask);
          return ok_status();
        }
        if (n > 0)
          std::memmove(a.out<float>(0), a.in<float>(0), static_cast<size_t>(n) * sizeof(float));
        if (masked && n > 0) std::memset(mask, 1, static_cast<size_t>(n));
        return ok_status();
      });
}

// --- ofsdp.DropoutGrad(dy, mask) ---

Result<std::vector<TensorDesc>> grad_infer(const InferContext& c) {
  if (c.inputs[1].dtype != DType::kBool || c.inputs[1].shape != c.inputs[0].shape) {
    return input_error("expected a bool mask for {}, found {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  return std::vector{c.inputs[0]};
}

float scale_of(const Attributes& attributes) {
  return static_cast<float>(dropout_scale(static_cast<double>(attributes.f("ratio", 0.5f))));
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], c.inputs[0].values};
  const double scale = dropout_scale(static_cast<double>(c.attributes.f("ratio", 0.5f)));
  for (size_t i = 0; i < dx.values.size(); ++i) dx.values[i] *= c.inputs[1].values[i] * scale;
  return {dx};
}

OFSDP_MULTIARCH void mask_span(const float* dy, const uint8_t* mask, float scale, float* dx,
                               int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dx[i] = mask[i] != 0 ? dy[i] * scale : 0.0f;
}

Acceptance grad_accepts(const Problem& p) {
  return accept_if(p.in(0).dtype == DType::kFloat32 && p.in(0).layout == p.in(1).layout,
                   "not float32 and a mask of one layout");
}

std::unique_ptr<Kernel> grad_create(const Problem& p) {
  return make_kernel([n = p.out(0).numel(), scale = scale_of(p.attributes)](const KernelArgs& a) {
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      mask_span(a.in<float>(0) + begin, a.in<uint8_t>(1) + begin, scale, a.out<float>(0) + begin,
                end - begin);
    });
  });
}

void dropout_grad_body(BodyBuilder& b) {
  const double ratio = static_cast<double>(b.attributes().f("ratio", 0.5f));
  const Ref dy = b.input(0);
  const Ref kept = b.cast(b.input(1), b.desc(dy).dtype);
  b.set_output(0, b.mul(b.mul(dy, kept), ratio < 1 ? 1 / (1 - ratio) : 0));
}

}  // namespace dropout

void add_dropout(Registry& registry) {
  using namespace dropout;
  registry.add(make_op("Dropout", {infer, grad, reference},
                       with_half_floats<accepts, create>("philox"),
                       {.first_opset = 12,
                        .random = true,
                        .inplace_inputs = {0},
                        .constant_inputs = {1, 2},
                        .float32_inputs = {1, 2}}));
  registry.add_own(make_op("DropoutGrad", {grad_infer, nullptr, grad_reference},
                           with_half_floats<grad_accepts, grad_create>("loops"),
                           {.min_inputs = 2,
                            .body = dropout_grad_body,
                            .inplace_inputs = {0},
                            .layout = LayoutRule::kElementwise}));
}

}  // namespace ofsdp::kernels::ops
