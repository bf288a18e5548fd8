// Random numbers: RandomNormal, RandomUniform, both also ...Like(x), Bernoulli and Multinomial.
// Each element is a pure function of seed, step, node, global sample index and element
// (kernels/core/philox.h), so any number of ranks draws the same. As in Dropout, the leading axis
// holds the samples; if they do not divide the elements, all are drawn as elements of the first
// sample. Attribute seed (a float) is part of the key. No gradient flows: dx = 0.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Normal        attributes mean (0) and scale (1), the standard deviation
//   Uniform       low .. high (attributes, 0 and 1), high excluded except for rounding
//   Bernoulli(p)  1 with probability p, else 0: u < p for a uniform u in [0, 1)
//   Multinomial   x [B, C], unnormalised log-probabilities -> [B, sample_size]: each draw is a
//                 class, with replacement: the first class c for which e^x_0 + .. + e^x_c exceeds
//                 u times the total
#include <bit>
#include <cmath>
#include <numbers>

#include "kernels/core/element_types.h"
#include "kernels/core/philox.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace random_draws {

class RandomDraw {
 public:
  RandomDraw(const Attributes& attributes, uint64_t node_seed, const StepContext& step,
             int64_t numel);

  double uniform(int64_t i) const;  // in [0, 1), a multiple of 2^-24: the same in float32
  double normal(int64_t i) const;   // mean 0, deviation 1, by Box and Muller

 private:
  uint32_t bits(int64_t i, uint64_t per_element, uint64_t which) const;

  PhiloxKey key_;
  const StepContext* step_;
  int64_t sample_size_;
};

// Returns output element i from its draw and the inputs.
using RandomElement = double (*)(const Problem&, const KernelArgs&, const RandomDraw&, int64_t i);

RandomDraw::RandomDraw(const Attributes& attributes, uint64_t node_seed, const StepContext& step,
                       int64_t numel)
    : step_(&step), sample_size_(numel) {
  const float seed = attributes.f("seed", 0.0f);
  key_ = philox_key(step.seed, node_seed ^ mix64(std::bit_cast<uint32_t>(seed)), step.step);
  const auto samples = static_cast<int64_t>(step.sample_index.size());
  if (samples > 0 && numel % samples == 0) sample_size_ = numel / samples;
}

uint32_t RandomDraw::bits(int64_t i, uint64_t per_element, uint64_t which) const {
  const auto sample = static_cast<size_t>(i / sample_size_);
  const auto global = step_->sample_index.empty()
                          ? uint64_t{0}
                          : static_cast<uint64_t>(step_->sample_index[sample]);
  const auto element = static_cast<uint64_t>(i % sample_size_);
  return philox_element(key_, global, element * per_element + which);
}

double RandomDraw::uniform(int64_t i) const {
  return static_cast<double>(bits(i, 1, 0) >> 8) * 0x1p-24;
}

double RandomDraw::normal(int64_t i) const {
  const double u = (static_cast<double>(bits(i, 2, 0)) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(bits(i, 2, 1)) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

// from_doubles would allocate, since a shape is a vector.
template <typename T>
void store_as(std::span<const double> values, std::byte* data) {
  for (size_t i = 0; i < values.size(); ++i)
    reinterpret_cast<T*>(data)[i] = static_cast<T>(values[i]);
}

void store_doubles(std::span<const double> values, DType dtype, std::byte* data) {
  if (is_number(dtype)) {
    with_number(dtype, [&](auto zero) { store_as<decltype(zero)>(values, data); });
    return;
  }
  auto* bits = reinterpret_cast<uint16_t*>(data);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    bits[i] = dtype == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
  }
}

// Calls `element` for each element of output 0, whatever the type.
std::unique_ptr<Kernel> make_random(const Problem& problem, RandomElement element) {
  return make_kernel([problem, element](const KernelArgs& a) {
    const TensorDesc& desc = problem.out(0);
    const RandomDraw draw(problem.attributes, problem.node_seed, *a.step, desc.numel());
    constexpr int64_t kChunk = 256;
    const size_t size = dtype_size(desc.dtype);
    parallel_for((desc.numel() + kChunk - 1) / kChunk, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * kChunk; i < std::min(end * kChunk, desc.numel()); i += kChunk) {
        double values[kChunk];
        const int64_t n = std::min(kChunk, desc.numel() - i);
        for (int64_t k = 0; k < n; ++k) values[k] = element(problem, a, draw, i + k);
        store_doubles(std::span(values, static_cast<size_t>(n)), desc.dtype,
                      a.outputs[0].data + static_cast<size_t>(i) * size);
      }
    });
  });
}

// Calls the same function per element, with float64 views of the inputs.
std::vector<RefTensor> reference_random(const ReferenceContext& c, RandomElement element) {
  RefTensor y{c.output_descs[0], {}};
  Problem p{c.attributes, {}, c.output_descs, {}, c.node_seed};
  std::vector<std::vector<double>> values;
  std::vector<TensorView> views;
  values.reserve(c.inputs.size());
  for (const RefTensor& input : c.inputs) {
    values.push_back(input.values);
    views.push_back(
        {reinterpret_cast<std::byte*>(values.back().data()), {DType::kFloat64, input.desc.shape}});
    p.inputs.push_back(views.back().desc);
  }
  const RandomDraw draw(c.attributes, c.node_seed, c.step, y.desc.numel());
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    y.values.push_back(element(p, {views, {}, nullptr, &c.step}, draw, i));
  }
  return {y};
}

// Returns the type in attribute dtype (ONNX's number), or `otherwise` if it is absent.
Result<DType> dtype_attribute(const Attributes& attributes, DType otherwise) {
  if (!attributes.has("dtype")) return otherwise;
  const DType dtype = dtype_from_onnx_number(attributes.i("dtype", 0));
  if (dtype == DType::kUndefined) {
    return input_error("dtype: expected a number of TensorProto.DataType, found {}",
                       attributes.i("dtype", 0));
  }
  return dtype;
}

// --- shapes and types ---

Result<std::vector<TensorDesc>> infer_shape(const InferContext& c) {
  const std::vector<int64_t> shape = c.attributes.ints("shape");
  if (!c.attributes.has("shape")) return input_error("shape is missing");
  OFSDP_RETURN_IF_ERROR(checked_numel(shape).status());
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(c.attributes, DType::kFloat32));
  return std::vector{TensorDesc{dtype, Shape(shape)}};
}

Result<std::vector<TensorDesc>> infer_like(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(c.attributes, c.inputs[0].dtype));
  return std::vector{TensorDesc{dtype, c.inputs[0].shape}};
}

Result<std::vector<TensorDesc>> multinomial_infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  const int64_t count = c.attributes.i("sample_size", 1);
  if (x.rank() != 2 || x[1] < 1)
    return input_error("expected [batch, classes], found {}", x.text());
  if (count < 0) return input_error("sample_size: expected 0 or more, found {}", count);
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(c.attributes, DType::kInt32));
  if (dtype != DType::kInt32 && dtype != DType::kInt64) {
    return input_error("dtype: expected int32 or int64, found {}", dtype_name(dtype));
  }
  return std::vector{TensorDesc{dtype, {x[0], count}}};
}

// --- elements ---

double normal_element(const Problem& p, const KernelArgs&, const RandomDraw& draw, int64_t i) {
  const double scale = static_cast<double>(p.attributes.f("scale", 1.0f));
  return static_cast<double>(p.attributes.f("mean", 0.0f)) + scale * draw.normal(i);
}

double uniform_element(const Problem& p, const KernelArgs&, const RandomDraw& draw, int64_t i) {
  const double low = static_cast<double>(p.attributes.f("low", 0.0f));
  return low + (static_cast<double>(p.attributes.f("high", 1.0f)) - low) * draw.uniform(i);
}

double bernoulli_element(const Problem&, const KernelArgs& a, const RandomDraw& draw, int64_t i) {
  return draw.uniform(i) < double_at(a.inputs[0], i) ? 1 : 0;
}

double multinomial_element(const Problem& p, const KernelArgs& a, const RandomDraw& draw,
                           int64_t i) {
  const TensorView& x = a.inputs[0];
  const int64_t classes = x.desc.shape[1], row = i / p.out(0).shape[1] * classes;
  double max = -INFINITY, sum = 0;
  for (int64_t k = 0; k < classes; ++k) max = std::max(max, double_at(x, row + k));
  for (int64_t k = 0; k < classes; ++k) sum += std::exp(double_at(x, row + k) - max);
  double rest = draw.uniform(i) * sum;
  for (int64_t k = 0; k < classes - 1; ++k) {
    rest -= std::exp(double_at(x, row + k) - max);
    if (rest < 0) return static_cast<double>(k);
  }
  return static_cast<double>(classes - 1);
}

template <RandomElement element>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_random(c, element);
}

// RandomNormal and RandomUniform have a float output, Bernoulli and Multinomial a float input.
template <RandomElement element, bool from_input>
std::vector<Implementation> philox() {
  return {{"philox",
           [](const Problem& p) {
             const DType dtype = from_input ? p.in(0).dtype : p.out(0).dtype;
             return accept_if(is_floating(dtype) && p.all_plain(), "not plain floats");
           },
           [](const Problem& p) { return make_random(p, element); }}};
}

// Adds NAME, which takes a shape, and NAMELike, which takes an input's shape.
template <RandomElement element>
void add_pair(Registry& registry, const std::string& name) {
  registry.add(make_op(name, {infer_shape, nullptr, reference<element>}, philox<element, false>(),
                       {.min_inputs = 0, .random = true}));
  registry.add(make_op(name + "Like", {infer_like, no_grad, reference<element>},
                       philox<element, false>(), {.random = true}));
}

}  // namespace random_draws

void add_random_draws(Registry& registry) {
  using namespace random_draws;
  add_pair<normal_element>(registry, "RandomNormal");
  add_pair<uniform_element>(registry, "RandomUniform");
  registry.add(make_op("Bernoulli", {infer_like, no_grad, reference<bernoulli_element>},
                       philox<bernoulli_element, true>(), {.random = true}));
  registry.add(make_op("Multinomial", {multinomial_infer, no_grad, reference<multinomial_element>},
                       philox<multinomial_element, true>(), {.random = true}));
}

}  // namespace ofsdp::kernels::ops
